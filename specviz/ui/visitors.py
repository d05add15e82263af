"""What the page keeps for its visitors: their last runs and results, the passes measured for them, their pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.theory.diagnosis import diagnose, run_figures
from specviz.theory.roofline import PassTimes
from specviz.ui.files import ResultPage
from specviz.ui.line import Recent, Stops
from specviz.ui.pairs import PairName
from specviz.ui.shown_runs import LiveRun, LiveRuns
from specviz.views.run_messages import label
from specviz.views.tab_messages import LabRun

if TYPE_CHECKING:
    from specviz.decoding.request import Request


class Visitors:
    """Shared by the page in all its languages; visitors are known by their session."""

    def __init__(self) -> None:
        self.runs = LiveRuns()
        self.lab = Lab(self.runs)
        self.stops = Stops()
        #: By visitor and kind, the page in a file of the last race or comparison.
        self.results: Recent[tuple[str | None, str], ResultPage] = Recent(256)
        #: The pair that each visitor loaded last.
        self.pairs: Recent[str | None, PairName] = Recent(1024)


class Lab:
    """Explains a visitor's runs, for the Why it works tab, by the passes last measured for that visitor."""

    def __init__(self, runs: LiveRuns):
        self.runs = runs
        self.passes: Recent[str | None, PassTimes] = Recent(256)

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
