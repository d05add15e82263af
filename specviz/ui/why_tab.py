"""The Why it works tab: what a pass over several tokens costs here, what decides the speedup, what limits a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from specviz.records.errors import SpecvizError
from specviz.records.presets import PRESETS
from specviz.records.words import Words
from specviz.ui import engine
from specviz.ui.components import served_view, why_view
from specviz.ui.lab import Lab
from specviz.ui.pairs import PairName
from specviz.ui.runner import Runner, closing
from specviz.ui.tabs import Action, Desk, Tab
from specviz.ui.visitors import Visit
from specviz.ui.ways import WAYS, available
from specviz.views.why_messages import why_message


def create_why_tab(desk: Desk) -> Tab:
    """Lays out the buttons and the five cards; opening the tab brings the visitor's runs there."""
    runner, lab, say = desk.runner, desk.visitors.lab, desk.say
    with gr.Row(elem_classes=["sv-actions"]):
        go = gr.Button(say("why.measure"), variant="primary", elem_id="measure-passes")
        many = gr.Button(say("why.measure_batches"), elem_id="measure-batches")
        pressed = gr.Button(say("why.forced_title"), elem_id="run-forced", elem_classes=["sv-unseen"])
        stop = gr.Button(say("why.stop"), variant="stop", visible=False, elem_id="stop-passes")
    view = why_view(say, value=why_message(story=_story(WAYS[0]), runs=[]))
    served_view(say)
    desk.arrivals.append((view, lambda pair: why_message(story=_story(available(pair)[0]))))

    def check(*values: Any) -> list[dict[str, Any]]:
        return [gr.validate(True, "")] * len(values)

    def stream(visit: Visit, pair: dict[str, Any]) -> Iterator[str]:
        return time_passes(runner, lab, PairName(**pair), visit, say)

    def opened(visit: Visit) -> str:
        return why_message(runs=lab.runs_of(visit.session))

    def waiting(text: str) -> str:
        return why_message(phase="waiting", problem=text)

    def failed(text: str) -> str:
        return why_message(phase="failed", problem=text)

    def stream_batches(visit: Visit, pair: dict[str, Any]) -> Iterator[str]:
        return time_batches(runner, PairName(**pair), visit, say)

    def batches_waiting(text: str) -> str:
        return why_message(batch_phase="waiting", batch_problem=text)

    def batches_failed(text: str) -> str:
        return why_message(batch_phase="failed", batch_problem=text)

    def stream_forced(visit: Visit, pair: dict[str, Any], details: dict[str, Any]) -> Iterator[str]:
        return force(runner, PairName(**pair), details, visit, say)

    def forced_waiting(text: str) -> str:
        return why_message(forced_phase="waiting", forced_problem=text)

    def forced_failed(text: str) -> str:
        return why_message(forced_phase="failed", forced_problem=text)

    pair = [desk.controls.pair]
    passes = Action(go, view, pair, check, stream, waiting, failed)
    batches = Action(many, view, pair, check, stream_batches, batches_waiting, batches_failed)
    asked = [*pair, desk.controls.details]
    forced = Action(pressed, view, asked, check, stream_forced, forced_waiting, forced_failed)
    return Tab([passes, batches, forced], stop, opened)


def _story(drafter: str) -> dict[str, Any]:
    """Settings for a first run that shows something."""
    preset = PRESETS[0]
    return {"prompt": preset.prompt, "drafter": drafter, "num_draft_tokens": 4, "temperature": 0.8}


def time_passes(runner: Runner, lab: Lab, name: PairName, visit: Visit, say: Words) -> Iterator[str]:
    """Messages for the lab while passes are timed; Stop ends it and keeps what there is."""
    yield why_message(phase="preparing")
    passes = None
    try:
        for batch in closing(runner.batches(name, engine.measure_passes), visit.halt):
            passes = batch[-1]
            yield why_message(passes=passes, phase="running")
    except SpecvizError as error:
        yield why_message(phase="failed", problem=say.error(error))
        return
    # Stopped in the first moments there may be a curve without its first point: nothing to reckon with.
    if passes is not None:
        lab.keep(visit.session, passes)
    phase = "stopped" if visit.halt.is_set() else "finished"
    yield why_message(passes=passes, phase=phase, runs=lab.runs_of(visit.session))


def time_batches(runner: Runner, name: PairName, visit: Visit, say: Words) -> Iterator[str]:
    """Messages for the lab while passes over many requests are timed; Stop ends it and keeps what there is."""
    yield why_message(batch_phase="preparing")
    batches = None
    try:
        for batch in closing(runner.batches(name, engine.measure_batches), visit.halt):
            batches = batch[-1]
            yield why_message(batches=batches, batch_phase="running")
    except SpecvizError as error:
        yield why_message(batch_phase="failed", batch_problem=say.error(error))
        return
    yield why_message(batches=batches, batch_phase="stopped" if visit.halt.is_set() else "finished")


def force(runner: Runner, name: PairName, asked: dict[str, Any], visit: Visit, say: Words) -> Iterator[str]:
    """Messages for the lab while an oracle speaks in the draft model's place; Stop keeps the repeats that there are.

    asked: ``alpha`` and ``num_draft_tokens``.
    """
    yield why_message(forced_phase="preparing")
    given = asked.get("alpha"), asked.get("num_draft_tokens")
    try:
        for batch in closing(runner.batches(name, engine.measure_forced, *given), visit.halt):
            yield why_message(forced=batch[-1], forced_phase="running")
    except SpecvizError as error:
        yield why_message(forced_phase="failed", forced_problem=say.error(error))
        return
    yield why_message(forced_phase="stopped" if visit.halt.is_set() else "finished")
