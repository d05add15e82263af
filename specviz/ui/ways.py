"""The ways to draft as the page offers them: what it says about each, what it needs, and which controls it reads."""

from __future__ import annotations

from specviz.drafters import DRAFTERS, drafter_class
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams
from specviz.records.words import Words
from specviz.rules import RULES

PLAIN = "plain"


#: By name, every way to draft, plain decoding last: the fields of `DraftParams` that it reads.
WAYS: dict[str, frozenset[str]] = {
    "draft_model": frozenset({"branches", "confidence"}),
    "prompt_lookup": frozenset(),
    "suffix": frozenset({"branches"}),
    "early_exit": frozenset({"branches", "confidence", "exit_layer"}),
    "medusa": frozenset({"branches", "confidence"}),
    "eagle": frozenset({"branches", "confidence"}),
    "lookahead": frozenset({"branches"}),
    PLAIN: frozenset(),
}

#: The acceptance rules as the page offers them.
RULE_CHOICES = ("auto", *RULES)


def label(name: str | None, say: Words) -> str:
    """What the page calls a drafter; None is plain decoding, and a name from an opened file is shown as it stands.

    Plain decoding is called so where it is one among others, rather than the choice of no drafter.
    """
    if name in (None, PLAIN):
        return say("ways.plain_label")
    return say(f"ways.{name}") if name in WAYS else name


def available(pair: ModelPair) -> list[str]:
    """The drafters that this pair has all parts for, and plain decoding."""
    return [*(name for name in DRAFTERS if refusal(pair, name) is None), PLAIN]


def refusal(pair: ModelPair, name: str, branches: int | None = None) -> SpecvizError | None:
    """Why this pair cannot be drafted for in this way, with so many branches if any are asked for; None if it can."""
    if name == PLAIN:
        return None
    try:
        drafter_class(pair, name).check(pair, DraftParams(branches=branches))
    except SpecvizError as error:
        return error
    return None


def about(pair: ModelPair, name: str, say: Words) -> str:
    """A sentence about how it drafts for this pair, or why it cannot."""
    if reason := refusal(pair, name):
        return say("ways.refused", reason=say.error(reason))
    translated = name == "draft_model" and pair.translation
    return say("ways.draft_model_translated") if translated else say(f"ways.{name}_about")


def default_branches(pair: ModelPair, name: str) -> int:
    """Draft tokens at each depth where nobody asks for another number; 1 is a chain."""
    return drafter_class(pair, name).branches(pair, DraftParams()) if name != PLAIN else 1
