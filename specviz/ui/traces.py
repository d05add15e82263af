"""Runs that are over: opened trace files, and the recordings that come with the page."""

from __future__ import annotations

import html
import pathlib
import uuid
from collections import deque
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.records import links
from specviz.records.errors import SpecvizError
from specviz.records.garbage import collector_at_rest
from specviz.records.recordings import Recording, recording_named
from specviz.records.runs import Run
from specviz.records.words import Words, said
from specviz.ui.offered_files import RunFiles
from specviz.views import run_messages as messages
from specviz.views.charts import Trail
from specviz.views.run_messages import headline, opening

#: Of the runs that were opened last: the files are still there when Gradio copies them.
_OPENED: deque[RunFiles] = deque(maxlen=64)


@dataclass(frozen=True)
class Shown:
    """A run that is over, as the page shows and offers it."""

    message: str  # for the live view
    charts: messages.Charts
    share: dict[str, Any]  # see `links.share`; and the name of its `recording`, None for other runs


def show(run: Run, recording: Recording | None, file: str = "") -> Shown:
    """A trace with the name of its file, or a recording with its title and what to look for in it."""
    trail, key = Trail.of(run.rounds), uuid.uuid4().hex
    figures, charts = headline(trail, run.measured), trail.charts()
    share = links.share(run) | {"recording": recording.name if recording else None}
    title = said("traces.recorded", title=said(f"traces.{recording.name}_title")) if recording else ""
    end = said(f"traces.{recording.name}_about") if recording else said(f"generate.end_{run.stop_reason}")
    parts = [
        opening(key, run, recorded=title, file=file, machine=run.measured and run.measured.machine),
        messages.rounds_message(key, run.rounds, run.vocabulary, figures=figures),
        messages.end_message(key, total=len(run.rounds), reason=end, figures=figures),
    ]
    return Shown(messages.trace_message(parts, share=share, charts=charts), charts, share)


def open_trace(path: str, say: Words) -> str:
    """The view's message for a trace file; what is wrong with a bad one is a sentence, and the view stays."""
    # Millions of values and no cycle: searching for cycles again and again doubles the time to read them.
    with collector_at_rest():
        return show(_loaded(path, say), None, pathlib.Path(path).name).message


def offer_opened(path: str, say: Words) -> list[gr.DownloadButton]:
    """The downloads for a trace file that is on the screen: later than the view, which need not wait for them."""
    with collector_at_rest():
        return offered(_loaded(path, say), say)


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
        return [gr.skip()] * (1 + len(RunFiles.SUFFIXES))
    run = recording.load()
    return [show(run, recording).message, *offered(run, say)]


def offered(run: Run, say: Words) -> list[gr.DownloadButton]:
    """Its downloads."""
    _OPENED.append(RunFiles(run, say))
    return _OPENED[-1].offers()
