"""The Generate tab: press the button and see it happen, round by round."""

from __future__ import annotations

import contextlib
import gc
import html
import pathlib
import tempfile
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from specviz.decoding import engine
from specviz.records import links
from specviz.records.comparison import speedup
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally, tally
from specviz.records.recordings import RECORDINGS, Recording, recording_named
from specviz.records.runs import PairInfo, Round, Run
from specviz.records.tables import save_table
from specviz.records.words import Words
from specviz.ui.components import beside_view, charts_view, gallery_view, run_view, share_view
from specviz.ui.measurements import Duel
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.ui.ways import label
from specviz.views import run_messages as messages
from specviz.views.charts import Trail

#: A chart is drawn with every third batch, three or four a second; the others wait for their turn.
BATCHES_PER_CHART = 3


@dataclass
class LiveRun:
    """A run as the page follows it."""

    key: str
    session: str | None
    request: engine.Request
    share: dict[str, str | None]
    say: Words
    rounds: list[Round] = field(default_factory=list)
    trail: Trail = field(default_factory=Trail)
    sent: set[int] = field(default_factory=set)
    batches: int = 0
    speedup: float | None = None
    #: Plain decoding and this run once more, timed unwatched.
    beside: tuple[Tally, Tally] | None = None
    trace: str | None = None

    def start(self) -> str:
        request = self.request
        drafter = request.drafter
        return messages.start_message(
            self.key,
            prompt=request.prompt.text,
            drafter=label(drafter, self.say) if drafter else None,
            num_draft_tokens=request.num_draft_tokens,
            greedy=request.sampling.greedy,
            pair=pair_line(request.pair.info(), self.say),
            settings=settings_line(engine.collect(request, ()), self.say),
            rule=request.rule,
            share=self.share,
            charts=Trail().charts(self.say),
        )

    def add(self, batch: list[Round]) -> str:
        self.rounds += batch
        for one in batch:
            self.trail.add(one)
        turn, due = divmod(self.batches, BATCHES_PER_CHART)
        self.batches += 1
        return self.message(batch, self.sent, charts=None if due else self.trail.charts(self.say, turn))

    def message(self, batch: list[Round], sent: set[int] | None, charts: messages.Charts | None = None) -> str:
        words = engine.vocabulary(self.request.pair, batch)
        return messages.rounds_message(
            self.key, batch, words, figures=headline(self.trail, self.speedup), sent=sent, charts=charts
        )

    def end(self, note: str = "") -> str:
        reason = (self.rounds[-1].stop_reason if self.rounds else None) or "stopped"
        return messages.end_message(
            self.key,
            total=len(self.rounds),
            reason=self.say(f"generate.end_{reason}"),
            figures=headline(self.trail, self.speedup),
            note=note,
            charts=self.trail.charts(self.say),
        )

    @property
    def finished(self) -> bool:
        """Whether the run came to its own end."""
        return bool(self.rounds) and self.rounds[-1].stop_reason is not None

    def run(self) -> Run:
        return engine.collect(self.request, self.rounds)


class LiveRuns:
    """The last few runs by key, so that a page that lost a message can ask for it again."""

    def __init__(self, most: int = 64):
        self.most = most
        self.runs: OrderedDict[str, LiveRun] = OrderedDict()

    def open(self, request: engine.Request, session: str | None, say: Words) -> LiveRun:
        live = LiveRun(uuid.uuid4().hex, session, request, links.share(engine.collect(request, ())), say)
        self.runs[live.key] = live
        while len(self.runs) > self.most:
            self.runs.popitem(last=False)
        return live

    def trace_of(self, session: str | None) -> str | None:
        """The trace file of the visitor's latest run."""
        traces = (live.trace for live in reversed(self.runs.values()) if live.session == session)
        return next(filter(None, traces), None)

    def missing_rounds(self, wanted: dict[str, Any]) -> list[str]:
        """The messages for rounds that a component lacks; nothing for a run that is no longer kept."""
        live = self.runs.get(str(wanted.get("run")))
        first = wanted.get("first")
        if live is None or not isinstance(first, int) or first < 0:
            return []
        return [live.start(), live.message(live.rounds[first:], None)]


def headline(trail: Trail, measured_speedup: float | None) -> dict[str, float | None]:
    """The headline figures; None is shown as a dash."""
    counts = trail.counts
    return {
        "acceptance_length": counts.acceptance_length,
        "acceptance_rate": counts.acceptance_rate,
        "tokens_per_second": counts.tokens_per_second,
        "speedup": measured_speedup,
        "tokens": counts.tokens,
        "target_passes": counts.rounds,
    }


def settings_line(run: Run, say: Words) -> str:
    """How a run was made, beyond drafter and γ."""
    return messages.settings_line(
        run.settings,
        drafter=run.drafter,
        rule=run.rule,
        sampling=run.sampling,
        seed=run.seed,
        passes=run.pair.passes,
        say=say,
    )


def pair_line(info: PairInfo, say: Words) -> str:
    """One line about a pair: its name, sizes, place and precision."""
    known = {"name": info.name, "device": info.device, "dtype": info.dtype}
    known["target"] = _millions(info.target_parameters)
    if not info.draft_parameters:
        return say("page.pair", **known)
    return say("page.pair_with_draft", **known, draft=_millions(info.draft_parameters))


def _millions(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


class Stops:
    """Who pressed Stop: one flag a visitor, raised by the button and seen by the run between two batches."""

    def __init__(self, most: int = 1024):
        self.most = most
        self.flags: OrderedDict[str | None, threading.Event] = OrderedDict()

    def arm(self, session: str | None) -> None:
        """A new run is asked for: whatever was pressed before does not count."""
        self.flags[session] = threading.Event()
        while len(self.flags) > self.most:
            self.flags.popitem(last=False)

    def flag(self, session: str | None) -> threading.Event:
        return self.flags.setdefault(session, threading.Event())

    def press(self, session: str | None) -> None:
        self.flag(session).set()


@dataclass(frozen=True)
class GenerateTab:
    """The tab's components, by what they show."""

    view: gr.HTML
    download: gr.DownloadButton
    table: gr.DownloadButton
    upload: gr.UploadButton
    share: gr.HTML
    gallery: gr.HTML


def create_generate_tab(runs: LiveRuns, pair: str | None, say: Words) -> GenerateTab:
    """Lays out the live view, its charts, the ways in and out of traces, and the recorded runs.

    The view opens with the first recorded run. pair: the name of the page's own, with which its links are opened; None
    without models.
    """
    first = RECORDINGS[0].load()
    shown, trace = show(first, RECORDINGS[0], say), save_trace(first)
    view = run_view(say, runs.missing_rounds, value=shown.message)
    beside_view(say)
    charts_view(say, shown.charts, shown.share["file"])
    with gr.Row(elem_classes=["sv-traces"]):
        download = gr.DownloadButton(say("generate.download"), value=trace, size="sm", elem_id="download-trace")
        table = gr.DownloadButton(say("traces.table"), value=table_beside(trace), size="sm")
        upload = gr.UploadButton(say("generate.upload"), file_types=[".json"], file_count="single", size="sm")
        share = share_view(say, shown.share, pair)
    return GenerateTab(view, download, table, upload, share, gallery_view(say, shown.share["recording"]))


def generate(
    runner: Runner,
    runs: LiveRuns,
    order: Order,
    measured: bool,
    session: str | None,
    halt: threading.Event,
    say: Words,
) -> Iterator[str]:
    """Messages for the live view while an order is carried out; `halt` ends it and keeps what there is."""
    yield messages.waiting_message(say("common.preparing"))
    try:
        live = runs.open(order.request(runner.store.get(order.pair), runner.settings), session, say)
    except SpecvizError as error:
        yield messages.error_message(say.error(error))
        return
    yield live.start()
    failure = None
    try:
        for batch in closing(runner.batches(order), halt):
            yield live.add(batch)
    except SpecvizError as error:
        failure = messages.error_message(say.error(error))
    live.trace = save_trace(live.run())
    yield failure or live.end()
    if measured and order.drafter and live.finished:
        yield from _measure_speedup(Duel(runner, order, halt), live)


def _measure_speedup(duel: Duel, live: LiveRun) -> Iterator[str]:
    """Runs the order once more beside plain decoding, both unwatched: drawing a page would slow down one of them."""
    say = live.say
    yield live.end(say("generate.measuring"))
    try:
        for what, _ in duel.progress(say):
            yield live.end(say("generate.measuring_now", what=what))
    except SpecvizError as error:
        yield live.end(say("generate.not_measured", reason=say.error(error)))
        return
    runs = duel.runs(live.request)
    if runs:
        plain, fast = runs
        live.speedup, live.beside = speedup(plain, fast), (tally(plain.rounds), tally(fast.rounds))
    yield live.end()


@dataclass(frozen=True)
class Shown:
    """A run that is over, as the page shows and offers it.

    share: of `specviz.records.links.share`, with the name of the `recording`, None for others.
    """

    message: str
    charts: messages.Charts
    share: dict[str, str | None]


def show(run: Run, recording: Recording | None, say: Words) -> Shown:
    """A trace, or a recording with its title and what to look for in it."""
    trail, key = Trail.of(run.rounds), uuid.uuid4().hex
    figures, charts = headline(trail, None), trail.charts(say)
    share = links.share(run) | {"recording": recording.name if recording else None}
    parts = [
        messages.start_message(
            key,
            prompt=run.prompt.text,
            drafter=label(run.drafter, say) if run.drafter else None,
            num_draft_tokens=run.num_draft_tokens,
            greedy=run.sampling.greedy,
            pair=pair_line(run.pair, say),
            settings=settings_line(run, say),
            rule=run.rule,
            recorded=say("traces.recorded", title=say(f"traces.{recording.name}_title")) if recording else "",
        ),
        messages.rounds_message(key, run.rounds, run.vocabulary, figures=figures),
        messages.end_message(
            key,
            total=len(run.rounds),
            reason=say(f"traces.{recording.name}_about") if recording else say(f"generate.end_{run.stop_reason}"),
            figures=figures,
        ),
    ]
    return Shown(messages.trace_message(parts, share=share, charts=charts), charts, share)


def open_trace(path: str, say: Words) -> str:
    """The view's message for a trace file; a bad one is a sentence, and what was there stays."""
    with _collector_at_rest():
        return show(_loaded(path, say), None, say).message


def offer_opened(path: str, say: Words) -> list[gr.DownloadButton]:
    """The downloads for a trace file that is on the screen: later than the view, which need not wait for them."""
    with _collector_at_rest():
        return offers(save_trace(_loaded(path, say)))


def _loaded(path: str, say: Words) -> Run:
    try:
        return Run.load(path)
    except SpecvizError as error:
        # A toast is HTML, and the sentence may quote the file.
        raise gr.Error(html.escape(say.error(error)), print_exception=False) from error


def open_recording(name: str, say: Words) -> list[Any]:
    """The same for a run that comes with the page; nothing changes for a name that no recording has."""
    recording = recording_named(name)
    if recording is None:
        return [gr.skip()] * 3
    run = recording.load()
    return [show(run, recording, say).message, *offers(save_trace(run))]


def offers(trace: str) -> list[gr.DownloadButton]:
    """What is on the screen is what can be downloaded: the trace, and its table."""
    return [gr.DownloadButton(value=path, interactive=True) for path in (trace, table_beside(trace))]


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """A trace is millions of values and no cycle: looking for some, again and again, doubles the time to read it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def save_trace(run: Run) -> str:
    """Writes the trace, and its table beside it, where Gradio may serve them from; returns its path."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="specviz-")) / f"{links.file_stem(run)}.json"
    run.save(path)
    save_table(run, table_beside(str(path)))
    return str(path)


def table_beside(trace: str) -> str:
    return str(pathlib.Path(trace).with_suffix(".csv"))
