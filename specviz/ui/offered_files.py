"""Files that the page offers for download; Gradio copies what it serves, and cleans up after a day (`KEPT`)."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
import weakref

import gradio as gr

from specviz.records import links
from specviz.records.runs import Run
from specviz.records.tables import save_table
from specviz.records.words import Words
from specviz.views.pages import run_page

#: Of Gradio's copies: every so many seconds those are removed that are older than so many.
KEPT = (3_600, 86_400)


class Folder:
    """A new folder, which is removed with this object, and at the latest with the process."""

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
    """What was measured, as one page. kind: of result, for its name."""

    def __init__(self, kind: str, page: str):
        super().__init__()
        self.file = self.path / f"specviz-{kind}.html"
        self.file.write_text(page, encoding="utf-8")
