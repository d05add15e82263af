"""The Why it works tab: what a pass over several tokens costs here, what decides the speedup, what limits a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.components import Component

from specviz.records.errors import SpecvizError
from specviz.records.presets import PRESETS, TEMPERATURE
from specviz.records.words import Words
from specviz.ui.components import element_view, served_view
from specviz.ui.lab import Lab
from specviz.ui.pairs import PairName
from specviz.ui.runner import Runner, closing
from specviz.ui.tabs import Action, Desk, Tab
from specviz.ui.visits import Visit
from specviz.ui.ways import WAYS, available
from specviz.views.tab_messages import Measuring, why_message

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair

#: What a visitor's press of a button streams: messages for the lab.
Stream = Callable[..., Iterator[str]]


def create_why_tab(desk: Desk) -> Tab:
    """Lays out the buttons and the five cards; opening the tab brings the visitor's runs there."""
    runner, lab, say = desk.runner, desk.visitors.lab, desk.say
    with gr.Row(elem_classes=["sv-actions"]):
        go = gr.Button(say("why.measure"), variant="primary", elem_id="measure-passes")
        many = gr.Button(say("why.measure_batches"), elem_id="measure-batches")
        pressed = gr.Button(say("why.forced_title"), elem_id="run-forced", elem_classes=["sv-unseen"])
        stop = gr.Button(say("why.stop"), variant="stop", visible=False, elem_id="stop-passes")
    view = element_view("why", say, value=why_message(story=_story(WAYS[0]), runs=[]))
    served_view(say)
    desk.arrivals.append((view, lambda pair: why_message(story=_story(available(pair)[0]))))

    def check(*values: Any) -> list[dict[str, Any]]:
        return [gr.validate(True, "")] * len(values)

    def action(button: gr.Button, inputs: list[Component], stream: Stream, told: Callable[[Measuring], str]) -> Action:
        def waiting(text: str) -> str:
            return told(Measuring("waiting", problem=text))

        def failed(text: str) -> str:
            return told(Measuring("failed", problem=text))

        return Action(button, view, inputs, check, stream, waiting, failed)

    def passes(visit: Visit, name: PairName, heard: dict[str, Any]) -> Iterator[str]:
        return time_passes(runner, lab, name, visit, say)

    def batches(visit: Visit, name: PairName, heard: dict[str, Any]) -> Iterator[str]:
        for one in measure(runner, name, visit, say, "batches"):
            yield why_message(batches=one)

    def forced(visit: Visit, name: PairName, heard: dict[str, Any], details: dict[str, Any]) -> Iterator[str]:
        asked = details.get("alpha"), details.get("num_draft_tokens")
        for one in measure(runner, name, visit, say, "forced", *asked):
            yield why_message(forced=one)

    def opened(visit: Visit) -> str:
        return why_message(runs=lab.runs_of(visit.session))

    pair, details = desk.controls.pair, desk.controls.details
    actions = [
        action(go, [pair], passes, lambda one: why_message(passes=one)),
        action(many, [pair], batches, lambda one: why_message(batches=one)),
        action(pressed, [pair, details], forced, lambda one: why_message(forced=one)),
    ]
    return Tab(actions, stop, opened)


def _story(drafter: str) -> dict[str, Any]:
    """Settings for a first run that shows something."""
    preset = PRESETS[0]
    return {"prompt": preset.prompt, "drafter": drafter, "num_draft_tokens": 4, "temperature": TEMPERATURE, "coins": ""}


def time_passes(runner: Runner, lab: Lab, name: PairName, visit: Visit, say: Words) -> Iterator[str]:
    """Messages for the lab while passes are timed, the last one with what they say of the visitor's runs."""
    for one in measure(runner, name, visit, say, "passes"):
        over = one.phase in ("finished", "stopped")
        # Stopped in the first moments there may be a curve without its first point: nothing to reckon with.
        if over and one.result is not None:
            lab.keep(visit.session, one.result)
        yield why_message(passes=one, runs=lab.runs_of(visit.session) if over else None)


def measure(runner: Runner, name: PairName, visit: Visit, say: Words, what: str, *asked: Any) -> Iterator[Measuring]:
    """How far a measurement of the pair has come; Stop ends it and keeps what there is.

    what: ``passes``, ``batches`` or ``forced``, which is ``asked`` for α and γ.
    """
    yield Measuring("preparing")
    result = None
    try:
        for batch in closing(runner.batches(name, measured, what, *asked), visit.halt):
            result = batch[-1]
            yield Measuring("running", result)
    except SpecvizError as error:
        yield Measuring("failed", problem=say.error(error))
        return
    yield Measuring("stopped" if visit.halt.is_set() else "finished", result)


def measured(pair: ModelPair, what: str, *asked: Any) -> Iterator[Any]:
    """The results of a measurement, again and again, as far as it is; see `measure`."""
    from specviz.bench.batch_times import measure_batches
    from specviz.bench.forced import measure_forced
    from specviz.bench.pass_times import measure_passes

    return {"passes": measure_passes, "batches": measure_batches, "forced": measure_forced}[what](pair, *asked)
