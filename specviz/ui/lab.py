"""What is kept for the lab of the Why it works tab: the visitors' runs, and the passes measured for each of them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specviz.theory.diagnosis import diagnose, run_figures
from specviz.theory.roofline import PassTimes
from specviz.ui.live_runs import LiveRun, LiveRuns
from specviz.views.run_messages import label
from specviz.views.tab_messages import LabRun

if TYPE_CHECKING:
    from specviz.decoding.request import Request


@dataclass
class Lab:
    """Explains a visitor's runs by the passes last measured for that visitor."""

    runs: LiveRuns
    most: int = 256  # visitors
    passes: OrderedDict[str | None, PassTimes] = field(default_factory=OrderedDict)  # by the visitor's session

    def keep(self, session: str | None, passes: PassTimes) -> None:
        self.passes[session] = passes
        self.passes.move_to_end(session)
        while len(self.passes) > self.most:
            self.passes.popitem(last=False)

    def runs_of(self, session: str | None) -> list[LabRun]:
        """The visitor's runs that are over and drafted something, the latest last."""
        over = [live for live in self.runs.runs.values() if live.visit.session == session and live.files is not None]
        return [run for live in over if (run := self._run(live)) is not None]

    def _run(self, live: LiveRun) -> LabRun | None:
        request, passes = live.request, self.passes.get(live.visit.session)
        target = passes.curve("target") if passes and _taken_by(request, passes) else None
        # Timed unwatched where it was: drawing a page slows the models down.
        plain, counts = live.beside or (None, live.trail.counts)
        gamma = request.num_draft_tokens
        if request.chooses_length and counts.rounds:
            gamma = max(1, round(counts.levels / counts.rounds))
        figures = run_figures(
            counts,
            gamma,
            rule=request.rule.name,
            plain=plain,
            target=target,
            speedup=live.speedup,
            at_once=request.drafter.at_once,
        )
        if figures is None:
            return None
        settings = request.settings
        return LabRun(label(settings.drafter), settings.sampling.temperature, figures, diagnose(figures, target))


def _taken_by(request: Request, passes: PassTimes) -> bool:
    """Whether the passes are those that this run took: of its pair, where and as it ran."""
    from specviz.models.placement import dtype_name
    from specviz.passes.static_passes import kind_of

    pair, measured = request.pair, (passes.target, passes.draft, passes.device, passes.dtype, passes.kind)
    dtype, kind = dtype_name(pair.dtype), kind_of(request.passes)
    return measured == (pair.target_name, pair.draft_name, str(pair.device), dtype, kind)
