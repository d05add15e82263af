"""Files that the page offers for download: those of a run, and the page of a result."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
import weakref
from collections import deque

import gradio as gr

from specviz.records import links
from specviz.records.runs import Run
from specviz.records.tables import save_table
from specviz.records.words import Words
from specviz.views.pages import run_page

#: Gradio copies downloads: seconds between its searches for old copies, and the age at which it removes them.
KEPT = (3_600, 86_400)

#: Of a run's files: its trace, its page and its table.
SUFFIXES = (".json", ".html", ".csv")


class Downloads:
    """Files in a new folder, which is removed with this object, at the latest when the process ends."""

    def __init__(self, *names: str):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="specviz-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.paths = [folder / name for name in names]

    def offers(self) -> list[gr.DownloadButton]:
        """The download buttons of these files. Gradio copies the files once the caller has returned."""
        return [gr.DownloadButton(value=str(path), visible=True, interactive=True) for path in self.paths]


def run_files(run: Run, say: Words) -> Downloads:
    files = Downloads(*(f"{links.file_stem(run)}{suffix}" for suffix in SUFFIXES))
    trace, page, table = files.paths
    run.save(trace)
    page.write_text(run_page(run, say.language), encoding="utf-8")
    save_table(run, table)
    return files


def result_page(kind: str, page: str) -> Downloads:
    """kind: of result, for the file's name."""
    files = Downloads(f"specviz-{kind}.html")
    files.paths[0].write_text(page, encoding="utf-8")
    return files


#: Of the runs that were opened last: the files are still there when Gradio copies them.
_OPENED: deque[Downloads] = deque(maxlen=64)


def offered(run: Run, say: Words) -> list[gr.DownloadButton]:
    """The downloads of a run that is over."""
    _OPENED.append(run_files(run, say))
    return _OPENED[-1].offers()
