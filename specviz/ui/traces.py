"""Runs that are over: opened trace files, the recordings that come with the page, and the files it offers of a run."""

from __future__ import annotations

import contextlib
import gc
import html
import pathlib
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.records import links
from specviz.records.errors import SpecvizError
from specviz.records.recordings import Recording, recording_named
from specviz.records.runs import Run
from specviz.records.tables import save_table
from specviz.records.words import Words
from specviz.views import run_messages as messages
from specviz.views.charts import Trail
from specviz.views.run_page import run_page
from specviz.views.whole_run import headline, opening

#: The files that the page offers of a run: its trace, its page, its table.
FILES = (".json", ".html", ".csv")


@dataclass(frozen=True)
class Shown:
    """A run that is over, as the page shows and offers it."""

    message: str  # for the live view
    charts: messages.Charts
    share: dict[str, Any]  # see `links.share`; and the name of its `recording`, None for other runs


def show(run: Run, recording: Recording | None, say: Words, file: str = "") -> Shown:
    """A trace with the name of its file, or a recording with its title and what to look for in it."""
    trail, key = Trail.of(run.rounds), uuid.uuid4().hex
    figures, charts = headline(trail, run.measured and run.measured.ratio), trail.charts(say)
    share = links.share(run) | {"recording": recording.name if recording else None}
    title = say("traces.recorded", title=say(f"traces.{recording.name}_title")) if recording else ""
    end = say(f"traces.{recording.name}_about") if recording else say(f"generate.end_{run.stop_reason}")
    parts = [
        opening(key, run, say, recorded=title, file=file, machine=run.measured and run.measured.machine),
        messages.rounds_message(key, run.rounds, run.vocabulary, figures=figures),
        messages.end_message(key, total=len(run.rounds), reason=end, figures=figures),
    ]
    return Shown(messages.trace_message(parts, share=share, charts=charts), charts, share)


def open_trace(path: str, say: Words) -> str:
    """The view's message for a trace file; what is wrong with a bad one is a sentence, and the view stays."""
    with _collector_at_rest():
        return show(_loaded(path, say), None, say, pathlib.Path(path).name).message


def offer_opened(path: str, say: Words) -> list[gr.DownloadButton]:
    """The downloads for a trace file that is on the screen: later than the view, which need not wait for them."""
    with _collector_at_rest():
        return offers(save_trace(_loaded(path, say), say))


def _loaded(path: str, say: Words) -> Run:
    try:
        return Run.load(path)
    except SpecvizError as error:
        # A toast is HTML, and the sentence may quote the file.
        raise gr.Error(html.escape(say.error(error)), print_exception=False) from error


def open_recording(name: str, say: Words) -> list[Any]:
    """The view's message and the downloads for a recording; nothing changes for a name that no recording has."""
    recording = recording_named(name)
    if recording is None:
        return [gr.skip()] * (1 + len(FILES))
    run = recording.load()
    return [show(run, recording, say).message, *offers(save_trace(run, say))]


def offers(trace: str) -> list[gr.DownloadButton]:
    """The downloads of the run on the screen, in the order of `FILES`."""
    return [gr.DownloadButton(value=beside(trace, suffix), interactive=True) for suffix in FILES]


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """A trace is millions of values and no cycle: searching for cycles again and again doubles the time to read it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def save_trace(run: Run, say: Words) -> str:
    """Writes the trace, and beside it its page and its table, where Gradio may serve them from; returns its path."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="specviz-")) / f"{links.file_stem(run)}.json"
    run.save(path)
    path.with_suffix(".html").write_text(run_page(run, say.language), encoding="utf-8")
    save_table(run, path.with_suffix(".csv"))
    return str(path)


def beside(trace: str, suffix: str) -> str:
    return str(pathlib.Path(trace).with_suffix(suffix))
