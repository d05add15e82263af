"""Runs as the page shows them: live, from the first rounds to the measured speedup; from trace files; recorded."""

from __future__ import annotations

import pathlib
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import gradio as gr

from specviz.foreign.rounds import opened
from specviz.records import links
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally, uneven
from specviz.records.recordings import Recording, recording_named
from specviz.records.runs import Round, Run, Speedup
from specviz.records.stopwatch import garbage_collector_off
from specviz.records.words import Said, Words, said
from specviz.theory.roofline import PassTimes
from specviz.ui.device import PairName
from specviz.ui.downloads import SUFFIXES, Downloads, offered
from specviz.ui.line import Recent, Stops, Visit
from specviz.views import run_messages as messages
from specviz.views.charts import BATCHES_PER_CHART, Trail
from specviz.views.labels import ending
from specviz.views.remarks import remarked
from specviz.views.run_messages import headline, notice, opening
from specviz.views.server_messages import ShownWatch

if TYPE_CHECKING:
    from specviz.decoding.request import Request


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
    #: Of plain decoding and this run, in turn and without being shown; how many repeats of both; and whether something
    #: else wanted the processor then.
    duel_counts: tuple[Tally, Tally] | None = None
    repeats: int = 0
    busy: bool = False
    failure: SpecvizError | None = None  # what ended it before its own end
    files: Downloads | None = None  # once it is over
    over: threading.Event = field(default_factory=threading.Event)  # set then, however it ended

    def start(self, charts: messages.Charts | None = None) -> str:
        """charts: those that the page has lost; by default empty ones."""
        charts = charts or Trail().charts()
        return opening(self.key, self.opened, share=self.share, charts=charts)

    def add(self, batch: list[Round]) -> str:
        self.rounds += batch
        for round_ in batch:
            self.trail.add(round_)
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
            reason=remarked(
                said(f"generate.end_{reason}"), self.rounds, len(self.opened.prompt.ids), self.opened.coins
            ),
            figures=headline(self.trail, self.measured),
            note=note,
            charts=self.trail.charts(),
            more=more,
        )

    def failed(self) -> str:
        assert self.failure is not None, "it has failed"
        return messages.message("error", text=self.say.error(self.failure))

    def complete(self) -> str:
        """One message for all of it, once it is over."""
        parts = [self.start(), self.message(self.rounds, None), self.end()]
        if self.failure is not None:
            parts.append(self.failed())
        return messages.trace_message(parts, share=self.share, charts=self.trail.charts())

    @property
    def speedup(self) -> float | None:
        return self.measured.ratio if self.measured else None

    @property
    def disturbed(self) -> Literal["", "busy", "uneven"]:
        """Why its seconds are not those of an idle machine: other programs were busy, or its passes took unequally long
        and it was not measured in turn with anything. Empty where neither is known."""
        if self.repeats:
            return "busy" if self.busy else ""
        return "uneven" if uneven([one.seconds.verify for one in self.rounds if one.seconds]) else ""

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

    def files_of(self, visit: Visit) -> Downloads | None:
        """Those of the run that came of this press, if one did."""
        return next((live.files for live in reversed(list(self.runs.values())) if live.visit == visit), None)

    def under_way(self, session: str | None) -> bool:
        """True while a run of this visitor is being carried out."""
        return any(live.visit.session == session and not live.over.is_set() for live in list(self.runs.values()))

    def wait_for(self, key: str, patience: float) -> LiveRun | None:
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
    about = recording and said(f"traces.{recording.name}_about")
    end = about or remarked(ending(run), run.rounds, len(run.prompt.ids), run.coins)
    parts = [
        opening(key, run, recorded=title, file=file, machine=run.measured and run.measured.machine),
        messages.rounds_message(key, run.rounds, run.vocabulary, figures=figures),
        messages.end_message(key, total=len(run.rounds), reason=end, figures=figures),
    ]
    return Shown(messages.trace_message(parts, share=share, charts=charts), charts, share)


def open_trace(path: str, say: Words) -> Iterator[list[Any]]:
    """The view's message for a file with a run, then its downloads, for which the view need not wait. For a bad one the
    view says why, and keeps what it shows."""
    later = [gr.skip()] * len(SUFFIXES)
    try:
        # Millions of values and no cycle: searching for cycles again and again doubles the time to read them.
        with garbage_collector_off():
            run = opened(path)
            shown = show(run, None, pathlib.Path(path).name)
    except SpecvizError as error:
        yield [notice(say.error(error)), *later]
        return
    yield [shown.message, *later]
    with garbage_collector_off():
        downloads = offered(run, say)
    yield [gr.skip(), *downloads]


def open_recording(name: str, say: Words) -> list[Any]:
    """The view's message and the downloads for a recording; nothing changes for a name that no recording has."""
    recording = recording_named(name)
    if recording is None:
        return [gr.skip()] * (1 + len(SUFFIXES))
    run = recording.load()
    return [show(run, recording).message, *offered(run, say)]


@dataclass(frozen=True)
class Visitors:
    """What the page keeps for its visitors, who are known by their session, in all its languages."""

    runs: LiveRuns = field(default_factory=LiveRuns)
    stops: Stops = field(default_factory=Stops)
    #: By visitor and kind, the page in a file of the last race or comparison.
    results: Recent[tuple[str | None, str], Downloads] = field(default_factory=lambda: Recent(256))
    #: What each visitor's last advice was about, where it left something open.
    undecided: Recent[str | None, Any] = field(default_factory=lambda: Recent(256))
    #: The pair that each visitor loaded last.
    pairs: Recent[str | None, PairName] = field(default_factory=lambda: Recent(1024))
    #: The passes last measured for each visitor, in the Why it works tab.
    passes: Recent[str | None, PassTimes] = field(default_factory=lambda: Recent(256))
    #: The answers of other servers that were watched last, by their keys.
    watches: Recent[str, ShownWatch] = field(default_factory=lambda: Recent(64))
