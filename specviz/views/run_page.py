"""One run as a page in a single file, and in a frame."""

from __future__ import annotations

import html
from typing import Any

from specviz.records.runs import Run
from specviz.records.words import LANGUAGES, Words
from specviz.views import run_messages as messages
from specviz.views.charts import LABELS, Trail
from specviz.views.file_page import file_page
from specviz.views.whole_run import headline, opening

_KEY = "run"


def run_page(run: Run, language: str = next(iter(LANGUAGES))) -> str:
    """The page as HTML. language: what it opens in."""
    trail = Trail.of(run.rounds)
    figures = headline(trail, run.measured)
    rounds = messages.rounds_message(_KEY, run.rounds, run.vocabulary, figures=figures)
    return file_page("run", language, run, lambda say: _said(run, trail, say), rounds=rounds)


def run_frame(run: Run) -> str:
    """The page in a frame, for a notebook: neither its styles nor its scripts reach what stands around it."""
    page = html.escape(run_page(run))
    look = "width: 100%; height: 820px; border: 0; resize: vertical"
    return f'<iframe sandbox="allow-scripts" allow="fullscreen" style="{look}" srcdoc="{page}"></iframe>'


def _said(run: Run, trail: Trail, say: Words) -> dict[str, Any]:
    reason = say(f"generate.end_{run.stop_reason}")
    return {
        "words": say.texts("common", "rounds", "playback"),
        "start": opening(_KEY, run, say, recorded=say("file.recorded"), machine=run.measured and run.measured.machine),
        "end": messages.end_message(_KEY, total=len(run.rounds), reason=reason),
        "labels": [say(key) for key in LABELS],
        "charts": trail.charts(say),
    }
