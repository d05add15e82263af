"""Settings that a visitor did not enter: from a link, or from another part of the page.

A part of the page asks by an event (see the script remote.js), which the hidden component `Controls.remote` receives;
its answer names the button to press once the controls are set.
"""

from __future__ import annotations

import html
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.records import links
from specviz.records.errors import SpecvizError, quoted
from specviz.records.settings import AUTO, DRAFTING, PLAIN, SETTINGS, DraftParams
from specviz.ui.components import QUEUED
from specviz.ui.controls import SLIDER_AUTO, Changes, Controls
from specviz.ui.device import PairName
from specviz.ui.ways import RULE_CHOICES, WAYS, drafter_of, refusal

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair


def wire_remote(controls: Controls) -> None:
    """Sets the controls as a part of the page asks, and tells it which button to press then."""
    store = controls.runner.store

    def on_remote(wanted: gr.EventData, pair: dict[str, Any], *values: Any) -> Changes:
        try:
            used = store.in_use(PairName(**pair))
            _check_pair(used, wanted.pair)
            settings = wanted.settings
            # Of a run with another pair, which is not made again: the rest of its settings applies.
            if not wanted.press and "drafter" in settings and (why := refusal(used, settings["drafter"] or PLAIN)):
                warn(controls, why)
                settings = {field: value for field, value in settings.items() if field != "drafter"}
            changes = changes_for(controls, used, settings)
        except SpecvizError as error:
            warn(controls, error)
            return {controls.remote: _answer(None, refused=controls.say.error(error))}
        for component, value in ((controls.measured, wanted.measure), (controls.details, wanted.details)):
            changes |= {} if value is None else {component: value}
        return changes | {controls.remote: _answer(wanted.press, dict(zip(controls.fields, values)))}

    inputs = [controls.pair, *controls.fields.values()]
    changed = [*_changed(controls), controls.measured, controls.details, controls.remote]
    # Each request is heard, however long the one before it takes.
    controls.remote.submit(on_remote, inputs, changed, trigger_mode="multiple", **QUEUED)


def wire_links(controls: Controls, share: gr.HTML) -> None:
    """Sets the controls as the page's address asks, and has the run started; `share` submits when there is something.

    With ``start=0`` the controls only stand ready, for what a visitor starts by hand. Errors in a link are shown as
    warnings, and the rest of it applies.
    """
    store = controls.runner.store

    def on_link(request: gr.Request) -> Changes:
        settings, errors = linked_settings(controls, store.starting_pair, request.query_params)
        for error in errors:
            warn(controls, error)
        press = None if request.query_params.get("start") == "0" else "generate"
        answer = _answer(press) if settings else gr.skip()
        return changes_for(controls, store.starting_pair, settings) | {controls.remote: answer}

    share.submit(on_link, None, [*_changed(controls), controls.remote], **QUEUED)


def warn(controls: Controls, error: SpecvizError) -> None:
    """Says what is wrong with a link, or with what is asked for, in a corner of the page."""
    # A toast is HTML, and the sentence may quote a link.
    gr.Warning(html.escape(controls.say.error(error)))


def _answer(press: str | None, before: Mapping[str, Any] | None = None, refused: str = "") -> str:
    """before: the values of the controls until now, so that they can be restored. refused: why nothing is done."""
    # Never the same answer twice: the component only reacts to changes.
    return json.dumps({"press": press, "before": before, "refused": refused, "answer": uuid.uuid4().hex})


def _changed(controls: Controls) -> list[gr.components.Component]:
    """What `changes_for` may change."""
    return [*controls.fields.values(), controls.drafter_note, controls.rule_note, controls.lossy_note]


def changes_for(controls: Controls, pair: ModelPair, settings: Mapping[str, Any]) -> Changes:
    """The changes that make the controls say `settings`, by their flat names; what is not named stays as it is.

    Raises SpecvizError for a control or a choice that the page does not have; values are checked when they are used.
    """
    changes: Changes = {}
    if "drafter" in settings:
        settings = dict(settings) | {"drafter": settings["drafter"] or PLAIN}
        _check_choice("drafter", settings["drafter"])
        changes |= controls.of_drafter(pair, settings["drafter"])
    if "rule" in settings:
        _check_choice("rule", settings["rule"])
        changes |= controls.of_rule(settings["rule"])
    for field, value in settings.items():
        if field not in controls.fields:
            raise SpecvizError("There is no control {name}.", name=quoted(field))
        change = changes.setdefault(controls.fields[field], gr.update())
        if value is not None:
            change["value"] = SLIDER_AUTO if (field, value) == ("num_draft_tokens", AUTO) else value
        if field == "coins":
            change["visible"] = bool(value)
    return changes


def linked_settings(
    controls: Controls, pair: ModelPair, parameters: Mapping[str, str]
) -> tuple[dict[str, Any], list[SpecvizError]]:
    """The settings that a link asks for and this page can carry out, and what is wrong with the others."""
    settings, errors = links.settings_of(parameters)
    for name, value in list(settings.items()):
        try:
            _check_linked(controls, pair, name, value)
        except SpecvizError as error:
            errors.append(error)
            del settings[name]
    # A link leaves it out where it is off; here it may be on.
    return settings and {"chat": False} | settings, errors


def _check_pair(used: ModelPair, wanted: str | None) -> None:
    name = used.info().name
    if wanted not in (None, name):
        raise SpecvizError(
            "This run was made with {wanted}, but the page now uses {used}: first load that pair on the Models tab.",
            wanted=quoted(wanted),
            used=quoted(name),
        )


def _check_linked(controls: Controls, pair: ModelPair, name: str, value: Any) -> None:
    """What Gradio would refuse with sentences of its own, or not at all."""
    _check_choice(name, value)
    if name == "drafter":
        drafter_of(pair, value).check(pair, DraftParams())
    if name == "chat" and value and not pair.has_chat_template:
        raise SpecvizError("The link asks for a chat template, and {name} has none.", "chat", name=pair.target_name)
    control = controls.fields[name]
    if isinstance(control, gr.Radio) and name in DRAFTING:
        SETTINGS[name].check(name, value)
    if not isinstance(control, gr.Slider) or value is None or (name, value) == ("num_draft_tokens", AUTO):
        return
    least = control.minimum if name != "num_draft_tokens" else SLIDER_AUTO + 1
    if not least <= value <= control.maximum:
        raise SpecvizError(
            "The link says {name}={value}, but this page allows {least} to {most}.",
            name,
            name=name,
            value=value,
            least=least,
            most=control.maximum,
        )


def _check_choice(name: str, value: Any) -> None:
    if name == "drafter" and value not in WAYS:
        raise SpecvizError("There is no drafter {name}.", "drafter", name=quoted(value))
    if name == "rule" and value not in RULE_CHOICES:
        raise SpecvizError("There is no acceptance rule {name}.", "rule", name=quoted(value))
