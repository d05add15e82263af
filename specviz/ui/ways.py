"""What the page calls the ways to draft and to judge, what it says about each, and which controls each one reads."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.drafters import DRAFTERS, drafter_class
from specviz.errors import SpecvizError
from specviz.models import ModelPair
from specviz.records import DraftParams

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to draft. controls: the fields of `DraftParams` it reads."""

    label: str
    sentence: str
    controls: frozenset[str] = frozenset()


#: By name, every way to draft, and plain decoding last.
WAYS = {
    "draft_model": Way(
        "Draft model",
        "A second, smaller model guesses, one token after the other.",
        frozenset({"branches", "confidence"}),
    ),
    "prompt_lookup": Way(
        "Prompt lookup", "Copies what followed when the last few words stood in the text before; no model."
    ),
    "suffix": Way(
        "Suffix",
        "Copies what most often followed the end of the text, however long the match; no model.",
        frozenset({"branches"}),
    ),
    "early_exit": Way(
        "Early exit",
        "The target's own first layers guess, up to the exit layer; no second model.",
        frozenset({"branches", "confidence", "exit_layer"}),
    ),
    "medusa": Way(
        "Medusa",
        "Extra heads on the target's last hidden state guess several tokens ahead, all at once.",
        frozenset({"branches", "confidence"}),
    ),
    "eagle": Way(
        "EAGLE",
        "One extra layer continues the target's own hidden states, one token after the other.",
        frozenset({"branches", "confidence"}),
    ),
    "lookahead": Way(
        "Lookahead",
        "The target refines guesses of its own beside every pass and keeps the word sequences it finds; no second "
        "model.",
        frozenset({"branches"}),
    ),
    PLAIN: Way("None: plain decoding", "The target alone, one token a pass: what all others are measured against."),
}

_TRANSLATED = "A second model with another tokenizer guesses, among the tokens that both have."

#: By name, what the page calls the acceptance rules, and a sentence about each.
RULE_WORDS = {
    "auto": ("Auto", "Token by token for chains, sibling by sibling for trees."),
    "token": (
        "Token by token",
        "A draft token passes with probability min(1, p/q); the first one refused ends the round.",
    ),
    "block": (
        "Block verification",
        "Weighs a whole chain at once and keeps as much of it as it can: in expectation never less than token by "
        "token.",
    ),
    "tree": ("Tree", "Siblings are tried in turn, each against what those before it left of the target."),
    "typical": (
        "Typical (lossy)",
        "Keeps what the target finds plausible enough. Each round says how far that is from the target's law.",
    ),
}

#: Plain decoding where it is one among others, rather than the choice of no drafter.
PLAIN_LABEL = "Plain decoding"

LOSSY = "**Lossy rule:** above temperature 0 the text will not follow the target's law."


def label(name: str | None) -> str:
    """What the page calls a drafter; None is plain decoding, and a name from an opened file is shown as it stands."""
    if name in (None, PLAIN):
        return PLAIN_LABEL
    return WAYS[name].label if name in WAYS else name


def available(pair: ModelPair) -> list[str]:
    """The drafters that this pair has all parts for, and plain decoding."""
    return [*(name for name in DRAFTERS if refusal(pair, name) is None), PLAIN]


def refusal(pair: ModelPair, name: str, branches: int | None = None) -> str | None:
    """Why this pair cannot be drafted for in this way, with so many branches if any are asked for; None if it can."""
    if name == PLAIN:
        return None
    try:
        drafter_class(pair, name).check(pair, DraftParams(branches=branches))
    except SpecvizError as error:
        return error.message
    return None


def about(pair: ModelPair, name: str) -> str:
    """A sentence about how it drafts for this pair, or why it cannot."""
    if reason := refusal(pair, name):
        return f"✗ {reason}"
    return _TRANSLATED if name == "draft_model" and pair.translation else WAYS[name].sentence


def default_branches(pair: ModelPair, name: str) -> int:
    """Draft tokens at each depth where nobody asks for another number; 1 is a chain."""
    return drafter_class(pair, name).branches(pair, DraftParams()) if name != PLAIN else 1
