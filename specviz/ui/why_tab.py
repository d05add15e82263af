"""The Why it works tab: what a pass over several tokens costs here, what decides the speedup, what limits a run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from specviz.decoding import engine
from specviz.models.pair import ModelPair
from specviz.models.placement import dtype_name
from specviz.passes.static_passes import kind_of
from specviz.records.errors import SpecvizError
from specviz.records.presets import PRESETS
from specviz.records.words import Words
from specviz.theory.diagnosis import diagnose, run_figures
from specviz.theory.roofline import PassTimes
from specviz.ui.components import why_view
from specviz.ui.generate_tab import LiveRun, LiveRuns
from specviz.ui.orders import PairName
from specviz.ui.runner import Runner, closing
from specviz.ui.ways import available, label
from specviz.views.why_messages import LabRun, why_message


@dataclass
class Lab:
    """What is kept for the lab: the visitors' runs, and the passes last measured for each visitor."""

    runs: LiveRuns
    most: int = 256
    passes: OrderedDict[str | None, PassTimes] = field(default_factory=OrderedDict)

    def keep(self, session: str | None, passes: PassTimes) -> None:
        self.passes[session] = passes
        self.passes.move_to_end(session)
        while len(self.passes) > self.most:
            self.passes.popitem(last=False)

    def runs_of(self, session: str | None) -> list[LabRun]:
        """The visitor's runs that are over and drafted something, the latest last."""
        over = [live for live in self.runs.runs.values() if live.session == session and live.trace is not None]
        return [run for live in over if (run := self._run(live)) is not None]

    def _run(self, live: LiveRun) -> LabRun | None:
        request, passes = live.request, self.passes.get(live.session)
        target = passes.curve("target") if passes and _taken_by(request, passes) else None
        # Timed unwatched if it was: drawing a page slows the models down.
        plain, counts = live.beside or (None, live.trail.counts)
        figures = run_figures(
            counts, request.num_draft_tokens, rule=request.rule, plain=plain, target=target, speedup=live.speedup
        )
        if figures is None:
            return None
        return LabRun(
            label(request.drafter, live.say), request.sampling.temperature, figures, diagnose(figures, target)
        )


def _taken_by(request: engine.Request, passes: PassTimes) -> bool:
    """Whether the passes are those that this run took: of its pair, where and as it ran."""
    pair, measured = request.pair, (passes.target, passes.draft, passes.device, passes.dtype, passes.kind)
    own = pair.target_name, pair.draft_name, str(pair.device), dtype_name(pair.dtype), kind_of(request.passes)
    return measured == own


@dataclass(frozen=True)
class WhyTab:
    """The tab's components, by what they do. opened: the tab itself, whose opening brings the runs there."""

    opened: gr.Tab
    measure: gr.Button
    stop: gr.Button
    view: gr.HTML


def create_why_tab(opened: gr.Tab, pair: ModelPair, say: Words) -> WhyTab:
    """Lays out the button and the three cards."""
    with gr.Row(elem_classes=["sv-actions"]):
        measure = gr.Button(say("why.measure"), variant="primary", elem_id="measure-passes")
        stop = gr.Button(say("why.stop"), variant="stop", visible=False, elem_id="stop-passes")
    return WhyTab(opened, measure, stop, why_view(say, value=why_message(story=_story(pair), runs=[])))


def _story(pair: ModelPair) -> dict[str, Any]:
    """Settings for a first run that shows something."""
    preset = PRESETS[0]
    return {"prompt": preset.prompt, "drafter": available(pair)[0], "num_draft_tokens": 4, "temperature": 0.8}


def measure(
    runner: Runner, lab: Lab, pair: PairName, session: str | None, halt: threading.Event, say: Words
) -> Iterator[str]:
    """Messages for the lab while passes are timed; `halt` ends it and keeps what there is."""
    yield why_message(phase="preparing")
    passes = None
    try:
        for batch in closing(runner.passes(pair), halt):
            passes = batch[-1]
            yield why_message(passes=passes, phase="running")
    except SpecvizError as error:
        yield why_message(phase="failed", problem=say.error(error))
        return
    # Stopped in the first moments there may be a curve without its first point: nothing to count with.
    if passes is not None:
        lab.keep(session, passes)
    yield why_message(passes=passes, phase="stopped" if halt.is_set() else "finished", runs=lab.runs_of(session))
