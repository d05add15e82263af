"""A visitor's order: a run's settings, read once from a form's values, the pair to run them on, and the GPU time to ask
for; and the drafters and rules to choose from, their titles, a sentence about each, and why a pair lacks one.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from specviz.drafters import DRAFTERS
from specviz.records.errors import SpecvizError, quoted
from specviz.records.rules import RULES
from specviz.records.settings import AUTO, PLAIN, SETTINGS, DraftParams, RunSettings, is_whole
from specviz.records.words import Words
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.decoding.request import Request
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
    return say(key) if key in say else inspect.getdoc(drafter).partition("\n")[0]


def default_branches(pair: ModelPair, name: str) -> int:
    """The default number of draft tokens at each depth; 1 is a chain."""
    return drafter_of(pair, name).branches(pair, DraftParams())


def read_form(values: Mapping[str, Any]) -> RunSettings:
    """The settings that a form, or a call of the API, asks for: its values by their flat names, see `RunSettings`.

    Numbers arrive as floats and may be missing. Raises SpecvizError with the control's name in `field`.
    """
    whole = {name for name, row in SETTINGS.items() if row.kind is int}
    settings = {name: _whole(name, value) if name in whole else value for name, value in values.items()}
    prompt = values["prompt"]
    # An emptied field, or one that only looks empty.
    empty = prompt is None or (isinstance(prompt, str) and prompt.isspace())
    return RunSettings.of(settings | {"prompt": "" if empty else prompt})


def _whole(name: str, value: Any) -> int | str | None:
    row = SETTINGS[name]
    if (isinstance(value, str) and value in row.choices) or (value is None and row.default is None):
        return value
    if is_whole(value) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise SpecvizError("Enter a whole number, not {value}.", name, value=quoted(value))


def whole_up_to(most: int, name: str, value: Any) -> int:
    """A field's value as a whole number from 1 to `most`. Raises SpecvizError with the field's name."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 1 <= value <= most or value != int(value):
        raise SpecvizError("Enter a whole number from 1 to {most}.", name, most=most)
    return int(value)


@dataclass(frozen=True)
class Order:
    """One run as a visitor asks for it: plain values, because another process may carry it out.

    What has been prepared for it is kept with it, and stays in this process.
    """

    pair: PairName
    settings: RunSettings
    passes: str = "auto"  # "plain": the models' own, even where there are prepared ones; else whatever is ready

    def but(self, **changes: Any) -> Order:
        """The same with other settings, by their flat names."""
        return replace(self, settings=RunSettings.of(self.settings.flat() | changes))

    def settled(self, pair: ModelPair | None) -> Order:
        """The same with the passes that are ready now, for all runs of one action: else they would not compare."""
        return replace(self, passes="plain" if pair is None else pair.passes.kind)

    def request(self, pair: ModelPair, deployment: Deployment) -> Request:
        """The order checked against the pair and the page's limits, the first time that it is asked for. Raises
        SpecvizError with the control's name in `field`."""
        from specviz.decoding.request import prepare

        known = self.__dict__.get("_request")
        if known is None or known.pair is not pair:
            request = prepare(pair, self.settings)
            request = replace(request, longest=min(request.longest, deployment.max_draft_tokens))
            _check_limits(request, deployment)
            known = replace(request, passes={}) if self.passes == "plain" else request
            self.__dict__["_request"] = known
        return known

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


def _check_limits(request: Request, deployment: Deployment) -> None:
    for name, count, most in (
        ("prompt", len(request.prompt.ids), deployment.max_prompt_tokens),
        ("max_new_tokens", request.settings.max_new_tokens, deployment.max_new_tokens),
        ("num_draft_tokens", request.num_draft_tokens, deployment.max_draft_tokens),
    ):
        if count > most:
            raise SpecvizError(
                "{value} tokens are more than the {most} that this page allows here.",
                name,
                value=quoted(count),
                most=most,
            )


# --- for how long to ask for a GPU where the platform lends them by the call ------------------------------------------
#
# Asking for more than is needed would have a visitor wait longer and, with little of their daily time left, be refused;
# a call that takes longer than it asked for may be cut off. So this reckons with the slowest course that runs can take.

#: Below the least a slow start alone would use it up; the most is what any visitor may ask for.
LEAST_SECONDS, MOST_SECONDS = 20, 120

#: For a process, CUDA and the weights to be there, and for the first, slow passes.
START_SECONDS = 12

#: What an eager pass is reckoned to take; GPUs that are lent have been at least twice as fast.
LAYER_SECONDS, BYTES_PER_SECOND, OPERATIONS_PER_SECOND = 1e-3, 1e12, 1e14


def seconds_for(pair: ModelPair, prompt_tokens: int, runs: Iterable[RunSettings]) -> int:
    """For how long to ask so that these runs can be made one after the other, even if every draft is rejected."""
    reading = 2 * pair.target.num_parameters() * prompt_tokens / OPERATIONS_PER_SECOND
    needed = START_SECONDS + sum(reading + _seconds(pair, one) for one in runs)
    return round(min(max(needed, LEAST_SECONDS), MOST_SECONDS))


def _seconds(pair: ModelPair, settings: RunSettings) -> float:
    verify = _pass_seconds(pair.target)
    if settings.drafter is None:
        return settings.max_new_tokens * verify
    drafter = drafter_of(pair, settings.drafter)
    step = _pass_seconds(pair.draft) if drafter.step_share is None else drafter.step_share * verify
    # Where γ is chosen, nothing is drafted as soon as drafting costs more than it brings.
    depth = 1 if settings.num_draft_tokens == AUTO else settings.num_draft_tokens
    return drafter.preparing_seconds + settings.max_new_tokens * (verify + depth * step)


def _pass_seconds(model: PreTrainedModel) -> float:
    from specviz.passes.model_twins import layer_count

    weights = model.num_parameters() * model.dtype.itemsize
    return layer_count(model) * LAYER_SECONDS + weights / BYTES_PER_SECOND
