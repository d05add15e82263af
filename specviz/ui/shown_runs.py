"""Runs as the page shows them: live, from the first rounds to the measured speedup; from trace files; recorded.

And what else the page keeps for its visitors: results, the passes measured for them, their pairs.
"""

from __future__ import annotations

import pathlib
import shutil
import tempfile
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.foreign.rounds import opened
from specviz.records import links
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally
from specviz.records.recordings import Recording, recording_named
from specviz.records.runs import Round, Run, Speedup
from specviz.records.stopwatch import collector_at_rest
from specviz.records.tables import save_table
from specviz.records.words import Said, Words, said
from specviz.theory.diagnosis import diagnose, run_figures
from specviz.theory.roofline import PassTimes
from specviz.ui.device import PairName
from specviz.ui.runner import Recent, Stops, Visit
from specviz.views import run_messages as messages
from specviz.views.charts import Trail
from specviz.views.pages import run_page
from specviz.views.run_messages import headline, label, notice, opening
from specviz.views.tab_messages import LabRun

if TYPE_CHECKING:
    from specviz.decoding.request import Request


#: Gradio copies downloads: seconds between its searches for old copies, and the age at which it removes them.
KEPT = (3_600, 86_400)


class Folder:
    """A new folder, which is removed with this object, at the latest when the process ends."""

    def __init__(self) -> None:
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="specviz-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class RunFiles(Folder):
    """A run's trace, its page and its table."""

    SUFFIXES = (".json", ".html", ".csv")

    def __init__(self, run: Run, say: Words):
        super().__init__()
        self.trace, page, table = self.paths = [self.path / f"{links.file_stem(run)}{each}" for each in self.SUFFIXES]
        run.save(self.trace)
        page.write_text(run_page(run, say.language), encoding="utf-8")
        save_table(run, table)

    def offers(self) -> list[gr.DownloadButton]:
        """The downloads of the run on the screen. Gradio copies the files once the caller has returned."""
        return [gr.DownloadButton(value=str(path), interactive=True) for path in self.paths]


class ResultPage(Folder):
    """The page of a result. kind: of result, for the file's name."""

    def __init__(self, kind: str, page: str):
        super().__init__()
        self.file = self.path / f"specviz-{kind}.html"
        self.file.write_text(page, encoding="utf-8")


#: A chart is drawn with every third batch, three or four a second; the four of them take turns.
BATCHES_PER_CHART = 3


@dataclass
class LiveRun:
    """A run while it is shown: every message about it, each holding only what is new."""

    key: str
    visit: Visit  # the visitor's
    request: Request
    opened: Run  # without rounds, from when its pair was there: a guest pair may leave before the page has everything
    share: dict[str, Any]  # see `links.share`
    say: Words
    rounds: list[Round] = field(default_factory=list)
    trail: Trail = field(default_factory=Trail)
    sent: set[int] = field(default_factory=set)  # token ids whose text the page has
    batches: int = 0
    measured: Speedup | None = None
    beside: tuple[Tally, Tally] | None = None  # plain decoding and this run once more, timed without being shown
    failure: SpecvizError | None = None  # what ended it before its own end
    files: RunFiles | None = None  # once it is over
    over: threading.Event = field(default_factory=threading.Event)  # set then, however it ended

    def start(self, charts: messages.Charts | None = None) -> str:
        """charts: those that the page has lost; by default empty ones."""
        charts = charts or Trail().charts()
        return opening(self.key, self.opened, share=self.share, charts=charts)

    def add(self, batch: list[Round]) -> str:
        self.rounds += batch
        for one in batch:
            self.trail.add(one)
        turn, due = divmod(self.batches, BATCHES_PER_CHART)
        self.batches += 1
        return self.message(batch, self.sent, charts=None if due else self.trail.charts(turn))

    def message(self, batch: list[Round], sent: set[int] | None, charts: messages.Charts | None = None) -> str:
        from specviz.decoding.record import vocabulary

        words = vocabulary(self.request.pair, batch)
        return messages.rounds_message(
            self.key, batch, words, figures=headline(self.trail, self.measured), sent=sent, charts=charts
        )

    def end(self, note: Said = "", more: bool = False) -> str:
        reason = (self.rounds[-1].stop_reason if self.rounds else None) or "stopped"
        return messages.end_message(
            self.key,
            total=len(self.rounds),
            reason=said(f"generate.end_{reason}"),
            figures=headline(self.trail, self.measured),
            note=note,
            charts=self.trail.charts(),
            more=more,
        )

    def failed(self) -> str:
        return messages.message("error", text=self.say.error(self.failure))

    def whole(self) -> str:
        """One message for all of it, once it is over."""
        parts = [self.start(), self.message(self.rounds, None), self.end()]
        if self.failure is not None:
            parts.append(self.failed())
        return messages.trace_message(parts, share=self.share, charts=self.trail.charts())

    @property
    def speedup(self) -> float | None:
        return self.measured and self.measured.ratio

    @property
    def finished(self) -> bool:
        """True if the run came to its own end."""
        return bool(self.rounds) and self.rounds[-1].stop_reason is not None

    def run(self) -> Run:
        from specviz.decoding.record import collect

        return replace(collect(self.request, self.rounds), measured=self.measured)


class LiveRuns:
    """The last few runs by key, so that a page that lost a message can ask for it again."""

    def __init__(self, most: int = 64):
        self.runs: Recent[str, LiveRun] = Recent(most)

    def open(self, request: Request, visit: Visit, say: Words) -> LiveRun:
        from specviz.decoding.record import collect

        opened = collect(request, ())
        live = LiveRun(uuid.uuid4().hex, visit, request, opened, links.share(opened), say)
        self.runs[live.key] = live
        return live

    def files_of(self, visit: Visit) -> RunFiles | None:
        """Those of the run that came of this press, if one did."""
        return next((live.files for live in reversed(self.runs.values()) if live.visit == visit), None)

    def under_way(self, session: str | None) -> bool:
        """True while a run of this visitor is being carried out."""
        return any(live.visit.session == session and not live.over.is_set() for live in self.runs.values())

    def kept(self, key: str, patience: float) -> LiveRun | None:
        """A run that is over or will be within `patience` seconds; None for others, and once it is no longer kept."""
        live = self.runs.get(key)
        return live if live and live.over.wait(patience) else None

    def missing_rounds(self, wanted: dict[str, Any]) -> list[str]:
        """The messages for rounds that a component lacks; nothing for a run that is no longer kept."""
        live = self.runs.get(str(wanted.get("run")))
        first = wanted.get("first")
        if live is None or not isinstance(first, int) or first < 0:
            return []
        return [live.start(live.trail.charts()), live.message(live.rounds[first:], None)]


# Runs that are over

#: Of the runs that were opened last: the files are still there when Gradio copies them.
_OPENED: deque[RunFiles] = deque(maxlen=64)


@dataclass(frozen=True)
class Shown:
    """A run that is over, as the page shows and offers it."""

    message: str  # for the live view
    charts: messages.Charts
    share: dict[str, Any]  # see `links.share`; and the name of its `recording`, None for other runs


def show(run: Run, recording: Recording | None, file: str = "") -> Shown:
    """A trace with the name of its file, or a recording with its title and a hint about it."""
    trail, key = Trail.of(run.rounds), uuid.uuid4().hex
    figures, charts = headline(trail, run.measured), trail.charts()
    share = links.share(run) | {"recording": recording.name if recording else None}
    title = said("traces.recorded", title=said(f"traces.{recording.name}_title")) if recording else ""
    end = said(f"traces.{recording.name}_about") if recording else messages.ending(run)
    parts = [
        opening(key, run, recorded=title, file=file, machine=run.measured and run.measured.machine),
        messages.rounds_message(key, run.rounds, run.vocabulary, figures=figures),
        messages.end_message(key, total=len(run.rounds), reason=end, figures=figures),
    ]
    return Shown(messages.trace_message(parts, share=share, charts=charts), charts, share)


def open_trace(path: str, say: Words) -> Iterator[list[Any]]:
    """The view's message for a file with a run, then its downloads, for which the view need not wait. For a bad one the
    view says why, and keeps what it shows."""
    later = [gr.skip()] * len(RunFiles.SUFFIXES)
    try:
        # Millions of values and no cycle: searching for cycles again and again doubles the time to read them.
        with collector_at_rest():
            run = opened(path)
            shown = show(run, None, pathlib.Path(path).name)
    except SpecvizError as error:
        yield [notice(say.error(error)), *later]
        return
    yield [shown.message, *later]
    with collector_at_rest():
        downloads = offered(run, say)
    yield [gr.skip(), *downloads]


def open_recording(name: str, say: Words) -> list[Any]:
    """The view's message and the downloads for a recording; nothing changes for a name that no recording has."""
    recording = recording_named(name)
    if recording is None:
        return [gr.skip()] * (1 + len(RunFiles.SUFFIXES))
    run = recording.load()
    return [show(run, recording).message, *offered(run, say)]


def offered(run: Run, say: Words) -> list[gr.DownloadButton]:
    """Its downloads."""
    _OPENED.append(RunFiles(run, say))
    return _OPENED[-1].offers()


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
