"""A visitor's order: a run's settings, read once from a form's values, and the pair to run them on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from specviz.records.errors import SpecvizError, quoted
from specviz.records.settings import SETTINGS, RunSettings, is_whole
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName

if TYPE_CHECKING:
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair


def read_form(values: Mapping[str, Any]) -> RunSettings:
    """The settings that a form, or a call of the API, asks for: its values by their flat names, see `RunSettings`.

    Numbers arrive as floats and may be missing. Raises SpecvizError with the control's name in `field`.
    """
    counts = {name for name, row in SETTINGS.items() if row.kind is int}
    settings = {name: _whole(name, value) if name in counts else value for name, value in values.items()}
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
    if value is None:
        raise SpecvizError("Enter a whole number.", name)
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

    def with_ready_passes(self, pair: ModelPair | None) -> Order:
        """The same with the passes that are ready now, for all runs of one action: else they would not compare."""
        return replace(self, passes="plain" if pair is None else pair.passes.kind)

    def request(self, pair: ModelPair, deployment: Deployment) -> Request:
        """The order checked against the pair and the page's limits, the first time that it is asked for. Raises
        SpecvizError with the control's name in `field`."""
        from specviz.decoding.request import prepare

        request = self.__dict__.get("_request")
        if request is None or request.pair is not pair:
            checked = prepare(pair, self.settings)
            checked = replace(checked, most_draft_tokens=min(checked.most_draft_tokens, deployment.max_draft_tokens))
            _check_limits(checked, deployment)
            request = replace(checked, passes={}) if self.passes == "plain" else checked
            self.__dict__["_request"] = request
        return request

    def __getstate__(self) -> dict[str, Any]:
        return {row.name: getattr(self, row.name) for row in fields(self)}


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
