"""The Why it works tab: the cost of a pass over several tokens here, the speedup that follows, the limits of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.components import Component

from specviz.records.prompts import PRESETS, TEMPERATURE
from specviz.theory.diagnosis import diagnose, run_figures
from specviz.theory.roofline import PassTimes
from specviz.ui.components import element_view, leads_to_server
from specviz.ui.desk import Action, Desk, Tab
from specviz.ui.device import PairName
from specviz.ui.line import Visit
from specviz.ui.runner import Runner, closing
from specviz.ui.runs import LiveRun, Visitors
from specviz.ui.ways import WAYS, available
from specviz.views.labels import label
from specviz.views.tab_messages import LabRun, Measuring, why_message

if TYPE_CHECKING:
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair


def create_why_tab(desk: Desk) -> Tab:
    """Lays out the buttons and the four cards; opening the tab brings the visitor's runs there."""
    runner, visitors, say = desk.runner, desk.visitors, desk.say
    with gr.Row(elem_classes=["sv-actions"]):
        with gr.Row(elem_classes=["sv-either"]):
            go = gr.Button(say("why.measure"), variant="primary", elem_id="measure-passes")
            stop = gr.Button(say("why.stop"), variant="stop", visible=False, elem_id="stop-passes")
        many = gr.Button(say("why.measure_batches"), elem_id="measure-batches")
        pressed = gr.Button(say("why.forced_title"), elem_id="start-forced", elem_classes=["sv-unseen"])
        server = gr.Button(say("advice.server_link"), variant="link", size="sm", elem_classes=["sv-to-server"])
    view = element_view("why", say, value=why_message(story=_story(WAYS[0]), runs=[]))
    server.click(None, js=leads_to_server())
    desk.pair_updates.append((view, lambda pair: why_message(story=_story(available(pair)[0]))))

    def action(button: gr.Button, kind: str, *inputs: Component) -> Action:
        def stream(visit: Visit, name: PairName, page_pair: dict[str, Any], *details: dict[str, Any]) -> Iterator[str]:
            forced = [values.get(field) for values in details for field in ("alpha", "num_draft_tokens")]
            return measured(runner, visitors, name, visit, kind, *forced)

        def says(phase: str) -> Callable[[str], str]:
            return lambda text: _section(kind, Measuring(phase, problem=text))

        return Action(button, view, [desk.controls.pair, *inputs], stream, says("waiting"), says("failed"))

    def opened(visit: Visit) -> str:
        return why_message(runs=explain_runs(visitors, visit.session))

    forced = action(pressed, "forced", desk.controls.details)
    return Tab([action(go, "passes"), action(many, "batches"), forced], stop, opened)


def _story(drafter: str) -> dict[str, Any]:
    """Settings for a first run that shows something."""
    preset = PRESETS[0]
    settings = {"prompt": preset.prompt, "drafter": drafter, "num_draft_tokens": 4, "temperature": TEMPERATURE}
    return settings | {"coins": "", "grammar": ""}


def measured(
    runner: Runner, visitors: Visitors, name: PairName, visit: Visit, kind: str, *values: Any
) -> Iterator[str]:
    """Messages for the lab while a pair is measured; Stop ends it and keeps the result so far.

    kind: ``passes``, ``batches``, or ``forced``, whose `values` are α and γ. The last message of ``passes``
    explains the visitor's runs anew. Raises SpecvizError if it cannot be measured.
    """
    yield _section(kind, Measuring("preparing"))
    result = None
    for batch in closing(runner.batches(name, measurement, kind, *values), visit.halt):
        result = batch[-1]
        yield _section(kind, Measuring("running", result))
    # Stopped early, a curve may lack its first point: then there is nothing to compute.
    if kind == "passes" and result is not None:
        visitors.passes[visit.session] = result
    over = Measuring("stopped" if visit.halt.is_set() else "finished", result)
    yield _section(kind, over, explain_runs(visitors, visit.session) if kind == "passes" else None)


def _section(kind: str, measuring: Measuring, runs: Sequence[LabRun] | None = None) -> str:
    section: dict[str, Any] = {kind: measuring}
    return why_message(**section, runs=runs)


def measurement(pair: ModelPair, kind: str, *values: Any) -> Iterator[Any]:
    """The growing result of a measurement; see `measured`."""
    from specviz.bench.forced import measure_forced
    from specviz.bench.pass_times import measure_batches, measure_passes

    if kind == "forced":
        return measure_forced(pair, *values)
    return measure_passes(pair) if kind == "passes" else measure_batches(pair)


def explain_runs(visitors: Visitors, session: str | None) -> list[LabRun]:
    """The visitor's runs that are over and drafted something, the latest last: what limits each, by the passes last
    measured for that visitor."""
    over = [
        live for live in list(visitors.runs.runs.values()) if live.visit.session == session and live.files is not None
    ]
    return [run for live in over if (run := _explain_run(live, visitors.passes.get(session))) is not None]


def _explain_run(live: LiveRun, passes: PassTimes | None) -> LabRun | None:
    request = live.request
    target = passes.curve("target") if passes and _taken_by(request, passes) else None
    # All parts are of the turns that the speedup is of; of the shown run alone where nothing was measured.
    plain, counts = live.duel_counts or (None, live.trail.counts)
    gamma = request.num_draft_tokens
    if request.chooses_length and counts.rounds:
        gamma = max(1, round(counts.levels / counts.rounds))
    figures = run_figures(
        counts,
        gamma,
        rule=request.rule.name,
        plain=plain,
        speedup=live.speedup,
        at_once=request.drafter.at_once,
    )
    if figures is None:
        return None
    settings = request.settings
    drafter, temperature = label(settings.drafter), settings.sampling.temperature
    diagnosis = diagnose(figures, target)
    return LabRun(drafter, temperature, figures, diagnosis, live.measured, live.repeats, live.disturbed)


def _taken_by(request: Request, passes: PassTimes) -> bool:
    """Whether the passes are those that this run took: of its pair, where and as it ran."""
    from specviz.models.placement import dtype_name
    from specviz.passes.fast_passes import kind_of

    pair, measured = request.pair, (passes.target, passes.draft, passes.device, passes.dtype, passes.kind)
    dtype, kind = dtype_name(pair.dtype), kind_of(request.passes)
    return measured == (pair.target_name, pair.draft_name, str(pair.device), dtype, kind)
