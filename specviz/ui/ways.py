"""The drafters and rules to choose from: their titles, a sentence about each, and why a pair lacks one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from specviz.drafters import DRAFTERS
from specviz.records.errors import SpecvizError
from specviz.records.rules import RULES
from specviz.records.settings import PLAIN, DraftParams
from specviz.records.words import Words

if TYPE_CHECKING:
    from specviz.drafters.base import Drafter
    from specviz.models.pair import ModelPair

#: Every way to draft by its name, plain decoding last.
WAYS = (*DRAFTERS, PLAIN)

#: The acceptance rules as the page offers them.
RULE_CHOICES = ("auto", *RULES)


def drafter_of(pair: ModelPair, name: str) -> type[Drafter]:
    """The class of the drafter with this name for this pair. Raises SpecvizError if there is none."""
    from specviz.drafters.registry import drafter_class

    return drafter_class(pair, None if name == PLAIN else name)


def available(pair: ModelPair) -> list[str]:
    """The drafters that this pair has all parts for, and plain decoding."""
    return [name for name in WAYS if refusal(pair, name) is None]


def refusal(pair: ModelPair, name: str, branches: int | None = None) -> SpecvizError | None:
    """Why this pair cannot use this drafter, with this number of branches if one is given; None if it can."""
    try:
        drafter_of(pair, name).check(pair, DraftParams(branches=branches))
    except SpecvizError as error:
        return error
    return None


def lacks(pair: ModelPair, say: Words) -> dict[str, tuple[str, str]]:
    """By the drafters that this pair cannot use, why: the sentence's first half, which says it, and all of it."""
    refused = {name: refusal(pair, name) for name in WAYS}
    reasons = {name: say.error(error) for name, error in refused.items() if error}
    return {name: (reason.partition(": ")[0].rstrip("."), reason) for name, reason in reasons.items()}


def title(name: str, say: Words) -> str:
    """The page's title of a drafter: its name, if there is no text for it."""
    return say(f"ways.{name}") if f"ways.{name}" in say else name


def about(pair: ModelPair, name: str, say: Words) -> str:
    """A sentence about how it drafts for this pair, or why it cannot."""
    if reason := refusal(pair, name):
        return say("ways.refused", reason=say.error(reason))
    drafter = drafter_of(pair, name)
    key = f"ways.{drafter.words or name}_about"
    sentence = say(key) if key in say else (inspect.getdoc(drafter) or "").partition("\n")[0]
    return f"{sentence} {tried(pair, name, say)}".rstrip()


def tried(pair: ModelPair, name: str, say: Words) -> str:
    """How the drafter did in the trial after loading, and how it compares; empty where it was not tried."""
    from specviz.drafters.registry import best_of

    trials = pair.passes.trials
    if name not in trials:
        return ""
    speed, kept = (say.number(value, ".2f") for value in (trials[name].ratio.value, trials[name].tokens_a_pass))
    said = [say("ways.tried", speed=speed, tokens=kept)]
    if not any(trial.pays for trial in trials.values()):
        said.append(say("ways.none_pays", count=len(trials)))
    elif name == best_of(trials):
        said.append(say("ways.best_tried", count=len(trials)))
    return " ".join(said)


def default_branches(pair: ModelPair, name: str) -> int:
    """The default number of draft tokens at each depth; 1 is a chain."""
    return drafter_of(pair, name).branches(pair, DraftParams())
