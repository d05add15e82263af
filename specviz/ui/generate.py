"""The Generate tab: press the button and see it happen, round by round."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from specviz import engine
from specviz.compare import speedup
from specviz.errors import SpecvizError
from specviz.records import PairInfo, Round, Run
from specviz.ui.components import rounds_view
from specviz.ui.controls import DRAFTER_LABELS
from specviz.ui.measure import Duel
from specviz.ui.orders import Order
from specviz.ui.stream import Runner, closing
from specviz.views import messages
from specviz.views.charts import LABELS, Trail


@dataclass
class LiveRun:
    """A run as the page follows it."""

    key: str
    request: engine.Request
    rounds: list[Round] = field(default_factory=list)
    trail: Trail = field(default_factory=Trail)
    sent: set[int] = field(default_factory=set)
    speedup: float | None = None

    def start(self) -> str:
        request = self.request
        drafter = request.drafter
        return messages.start_message(
            self.key,
            prompt=request.prompt.text,
            drafter=DRAFTER_LABELS[drafter] if drafter else None,
            num_draft_tokens=request.num_draft_tokens,
            greedy=request.sampling.greedy,
            pair=pair_line(request.pair.info()),
        )

    def add(self, batch: list[Round]) -> str:
        self.rounds += batch
        for one in batch:
            self.trail.add(one)
        return self.message(batch, self.sent)

    def message(self, batch: list[Round], sent: set[int] | None) -> str:
        words = engine.vocabulary(self.request.pair, batch)
        return messages.rounds_message(self.key, batch, words, figures=self.figures(), sent=sent)

    def end(self, note: str = "") -> str:
        reason = self.rounds[-1].stop_reason if self.rounds else None
        return messages.end_message(
            self.key, total=len(self.rounds), reason=reason or "stopped", figures=self.figures(), note=note
        )

    @property
    def finished(self) -> bool:
        """Whether the run came to its own end."""
        return bool(self.rounds) and self.rounds[-1].stop_reason is not None

    def figures(self) -> dict[str, float | None]:
        return headline(self.trail, self.speedup)

    def run(self) -> Run:
        return engine.collect(self.request, self.rounds)


class LiveRuns:
    """The last few runs by key, so that a page that lost a message can ask for it again."""

    def __init__(self, most: int = 64):
        self.most = most
        self.runs: OrderedDict[str, LiveRun] = OrderedDict()

    def open(self, request: engine.Request) -> LiveRun:
        live = LiveRun(uuid.uuid4().hex, request)
        self.runs[live.key] = live
        while len(self.runs) > self.most:
            self.runs.popitem(last=False)
        return live

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


def pair_line(info: PairInfo) -> str:
    """One line about a pair: its name, sizes, place and precision."""
    sizes = [f"target {_millions(info.target_parameters)}"]
    if info.draft_parameters:
        sizes.append(f"draft {_millions(info.draft_parameters)}")
    return f"{info.name} · {', '.join(sizes)} · {info.device}, {info.dtype}"


def _millions(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


class Stops:
    """Who pressed Stop: one flag a visitor, raised by the button and seen by the run between two batches."""

    def __init__(self):
        self.flags: dict[str, threading.Event] = {}

    @contextlib.contextmanager
    def armed(self, session: str) -> Iterator[threading.Event]:
        """The flag of a run that is under way."""
        flag = self.flags[session] = threading.Event()
        try:
            yield flag
        finally:
            if self.flags.get(session) is flag:
                del self.flags[session]

    def press(self, session: str) -> None:
        if session in self.flags:
            self.flags[session].set()


@dataclass(frozen=True)
class GenerateTab:
    """The tab's components, by what they show."""

    view: gr.HTML
    charts: Sequence[gr.Plot]
    download: gr.DownloadButton
    upload: gr.UploadButton

    @property
    def outputs(self) -> list[gr.components.Component]:
        return [self.view, *self.charts, self.download]

    def update(
        self, message: str | None, *, charts: Sequence[go.Figure | None] = (), trace: str | None = None
    ) -> list[Any]:
        """Values for `outputs`; what is None stays as it is."""
        charts = [gr.skip() if figure is None else figure for figure in charts or [None] * len(self.charts)]
        download = gr.DownloadButton(value=trace, interactive=True) if trace else gr.skip()
        return [gr.skip() if message is None else message, *charts, download]


def create_generate_tab(runs: LiveRuns) -> GenerateTab:
    """Lays out the live view, its charts, and the trace's way in and out."""
    view = rounds_view(runs.missing_rounds)
    with gr.Row(elem_classes=["sv-charts"]):
        # Drawn empty at first, so that the browser has plotly at hand before anything is measured.
        charts = [
            gr.Plot(figure, label=label, show_label=False, elem_classes=["sv-chart"])
            for figure, label in zip(Trail().figures(), LABELS)
        ]
    with gr.Row(elem_classes=["sv-traces"]):
        download = gr.DownloadButton("Download the trace", interactive=False, size="sm")
        upload = gr.UploadButton("Open a trace", file_types=[".json"], file_count="single", size="sm")
    return GenerateTab(view, charts, download, upload)


def generate(
    tab: GenerateTab, runner: Runner, runs: LiveRuns, order: Order, measured: bool, halt: threading.Event
) -> Iterator[list[Any]]:
    """Updates for the tab's outputs while an order is carried out; `halt` ends it and keeps what there is."""
    yield tab.update(messages.waiting_message("Making the models ready …"))
    try:
        live = runs.open(order.request(runner.store.get(order.pair), runner.settings))
    except SpecvizError as error:
        yield tab.update(messages.error_message(error.message))
        return
    yield tab.update(live.start(), charts=Trail().figures())
    failure = None
    try:
        for count, batch in enumerate(closing(runner.batches(order), halt)):
            message = live.add(batch)
            yield tab.update(message, charts=live.trail.one_figure(count))
    except SpecvizError as error:
        failure = messages.error_message(error.message)
    yield tab.update(failure or live.end(), charts=live.trail.figures(), trace=save_trace(live.run()))
    if measured and order.drafter and live.finished:
        yield from _measure_speedup(tab, Duel(runner, order, halt), live)


def _measure_speedup(tab: GenerateTab, duel: Duel, live: LiveRun) -> Iterator[list[Any]]:
    """Runs the order once more beside plain decoding, both unwatched: drawing a page would slow down one of them."""
    yield tab.update(live.end("Measuring the speedup: both ways once more, unwatched …"))
    try:
        for _ in duel.progress():
            yield tab.update(None)
    except SpecvizError as error:
        yield tab.update(live.end(f"The speedup was not measured: {error.message}"))
        return
    runs = duel.runs(live.request)
    live.speedup = speedup(*runs) if runs else None
    yield tab.update(live.end())


def open_trace(tab: GenerateTab, path: str | None) -> Iterator[list[Any]]:
    """Updates that show a trace file; a bad one is a sentence, and what was on the page stays."""
    try:
        run = Run.load(path)
    except SpecvizError as error:
        raise gr.Error(error.message, print_exception=False) from error
    trail, key = Trail.of(run.rounds), uuid.uuid4().hex
    yield tab.update(
        messages.start_message(
            key,
            prompt=run.prompt.text,
            drafter=DRAFTER_LABELS.get(run.drafter, run.drafter) if run.drafter else None,
            num_draft_tokens=run.num_draft_tokens,
            greedy=run.sampling.greedy,
            pair=pair_line(run.pair),
        )
    )
    figures = headline(trail, None)
    yield tab.update(messages.rounds_message(key, run.rounds, run.vocabulary, figures=figures), charts=trail.figures())
    yield tab.update(
        messages.end_message(key, total=len(run.rounds), reason=run.stop_reason, figures=figures), None, path
    )


def save_trace(run: Run) -> str:
    """Writes the trace where Gradio may serve it from; returns its path."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="specviz-"))
    path = folder / f"specviz-{run.drafter or 'plain'}-seed{run.seed}.json"
    run.save(path)
    return str(path)
