"""The Generate tab: press the button and see it happen, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.bench.contestants import Progress
from specviz.bench.duel import LENT_BUDGET, Duel, duel, runs_of
from specviz.records.errors import SpecvizError
from specviz.records.recordings import RECORDINGS
from specviz.records.runs import Round
from specviz.records.words import Said, Words, said
from specviz.ui.applying import wire_links
from specviz.ui.components import QUEUED, charts_view, dropped, element_view, gallery_view, run_view, share_view
from specviz.ui.controls import Fields
from specviz.ui.desk import Desk, Tab
from specviz.ui.downloads import SUFFIXES, offered, run_files
from specviz.ui.line import Visit
from specviz.ui.orders import Order
from specviz.ui.runner import Batches, Runner, closing
from specviz.ui.runs import LiveRun, LiveRuns, open_recording, open_trace, show
from specviz.ui.supposing import supposed_round
from specviz.ui.tabs.race import progress
from specviz.views.run_messages import message, notice, text_messages

if TYPE_CHECKING:
    from specviz.decoding.request import Request


#: Seconds to wait for the end of a run whose page was loaded again meanwhile.
PATIENCE = 20.0


def create_generate_tab(desk: Desk) -> Tab:
    """Lays out the tab; its buttons stand below the controls."""
    runner, runs, say = desk.runner, desk.visitors.runs, desk.say
    shown = create_viewer(runs, partial(supposed_round, runner), say)
    wire_links(desk.controls, shown.share)

    def on_kept(wanted: gr.EventData) -> list[Any]:
        return bring_back(runs, str(wanted.run), bool(wanted.held), say)

    def stream(visit: Visit, order: Order, measured: bool) -> Iterator[str]:
        return generate(runner, runs, order, measured, visit, say)

    def offer(visit: Visit) -> list[Any]:
        files = runs.files_of(visit)
        return files.offers() if files else [gr.DownloadButton(interactive=True)] * len(SUFFIXES)

    shown.view.submit(on_kept, None, [shown.view, *shown.files], **QUEUED)
    fields: Fields = {"measured": desk.controls.measured}
    phases = text_messages("waiting"), text_messages("error")
    after: dict[str, Any] = {"offered": shown.files, "offer": offer, "left": text_messages("left")}
    return Tab([desk.action(desk.controls.go, shown.view, stream, *phases, fields=fields, **after)])


@dataclass(frozen=True)
class Viewer:
    """The view of a run, the downloads of its trace, and the link to it."""

    view: gr.HTML
    files: list[gr.DownloadButton]  # in the order of `SUFFIXES`
    share: gr.HTML  # the link to the run


def create_viewer(runs: LiveRuns, suppose: Callable[[dict[str, Any]], str | None] | None, say: Words) -> Viewer:
    """Lays out the live view, its charts, the ways in and out of traces, and the recorded runs.

    The view opens with the first recording. suppose: see `run_view`; None without models, and then nothing can be
    linked to. Traces and recordings are shown without a model, and past any run in line.
    """
    first = RECORDINGS[0].load()
    shown = show(first, RECORDINGS[0])
    first_files = run_files(first, say)  # which are there until the buttons have copied them
    trace, page, cells = map(str, first_files.paths)
    view = run_view(say, runs.missing_rounds, suppose, value=shown.message)
    element_view("beside", say)
    charts_view(say, shown.charts, shown.share["file"])
    with gr.Row(elem_classes=["sv-traces"]):
        download = gr.DownloadButton(say("generate.download"), value=trace, size="sm", elem_id="download-trace")
        html = gr.DownloadButton(say("traces.page"), value=page, size="sm", elem_id="download-page")
        table = gr.DownloadButton(say("traces.table"), value=cells, size="sm")
        upload = gr.UploadButton(
            say("generate.upload"), file_types=[".json"], file_count="single", size="sm", elem_id="open-run"
        )
        share = share_view(say, shown.share, suppose is not None)
    dropped("run-view", "open-run")
    gallery = gallery_view(say, shown.share["recording"])

    def on_upload(path: str, request: gr.Request) -> Iterator[list[Any]]:
        if runs.under_way(request.session_hash):
            # The run's next rounds would take its place.
            yield [notice(say("gallery.busy")), *([gr.skip()] * len(files))]
        else:
            yield from open_trace(path, say)

    def on_recording(wanted: gr.EventData) -> list[Any]:
        return open_recording(wanted.name, say)

    files = [download, html, table]
    # A file opened while another one is being read comes after it, and is not lost.
    upload.upload(on_upload, upload, [view, *files], trigger_mode="always_last", **QUEUED)
    gallery.submit(on_recording, None, [view, *files], **QUEUED)
    return Viewer(view, files, share)


def generate(runner: Runner, runs: LiveRuns, order: Order, measured: bool, visit: Visit, say: Words) -> Iterator[str]:
    """Messages for the live view while an order is carried out; Stop ends it and keeps what there is.

    Raises SpecvizError for one that cannot begin.
    """
    yield message("waiting", text=said("common.preparing"))
    live = runs.open(order.request(runner.store.get(order.pair), runner.deployment), visit, say)
    try:
        yield from _run_messages(runner, live, order, measured, visit)
    finally:
        live.over.set()


def bring_back(runs: LiveRuns, key: str, held: bool, say: Words) -> list[Any]:
    """The run that was on the screen before the page was loaded again, as far as it had come, and its downloads.

    In the page's language: it may be another one now. held: whether the browser has that run as well; it shows it if it
    is not known here, without files.
    """
    live = runs.wait_for(key, PATIENCE)
    if (live is None or not live.rounds) and held:
        return [message("lost"), *[gr.DownloadButton(value=None, interactive=False)] * len(SUFFIXES)]
    if live is None or not live.rounds:
        return [gr.skip()] * (1 + len(SUFFIXES))
    files = live.files if live.say is say else None
    return [replace(live, say=say).complete(), *(files.offers() if files else offered(live.run(), say))]


def _run_messages(runner: Runner, live: LiveRun, order: Order, measured: bool, visit: Visit) -> Iterator[str]:
    yield live.start()
    say = live.say
    measured = measured and order.settings.drafter is not None
    extra_runs, extra_seconds = (runs_of(order.settings, False), LENT_BUDGET) if measured else ([], 0.0)
    note: Said = ""
    try:
        batches: Batches[Round | Progress | Duel] = runner.batches(
            order, watched, measured, extra_runs=extra_runs, extra_seconds=extra_seconds
        )
        for batch in closing(batches, visit.halt):
            yield from _batch_messages(batch, live)
    except SpecvizError as error:
        if live.finished:
            note = said("generate.not_measured", reason=say.error(error))
        else:
            live.failure = error
    # Written only now: this would slow down the measured runs.
    live.files = run_files(live.run(), say)
    if live.measured and live.measured.busy:
        note = said("common.busy")
    yield live.end(note) if live.failure is None else live.failed()


def watched(request: Request, measured: bool) -> Iterator[Round | Progress | Duel | None]:
    """The rounds of a run and, if its speedup is to be measured, a duel that is not shown: drawing takes time."""
    from specviz.decoding.engine import rounds
    from specviz.passes.compiler import compilers_paused

    with compilers_paused():
        yield from rounds(request)
        if measured:
            yield from duel(request, whole=False)


def _batch_messages(batch: list[Round | Progress | Duel], live: LiveRun) -> Iterator[str]:
    """The messages for a batch of `watched`."""
    if rounds := [event for event in batch if isinstance(event, Round)]:
        yield live.add(rounds)
    for event in batch:
        if isinstance(event, Progress):
            what, _ = progress(event)
            yield live.end(said("generate.measuring_now", what=what), more=True)
        elif isinstance(event, Duel):
            live.duel_counts, live.repeats, live.busy = event.counts(), len(event.fast), event.busy
            live.measured = event.speedup()
