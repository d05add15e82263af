"""One run as a page in a single file: the page's own elements, styles and texts, in all languages, and nothing fetched.

What the file carries of the run is packed, which makes it a third as long, and leaves no text of a model in the markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from typing import Any

from specviz.records.runs import Run
from specviz.records.words import LANGUAGES, words
from specviz.views import run_messages as messages
from specviz.views.bundle import WEB, bundle
from specviz.views.charts import LABELS, Trail
from specviz.views.whole_run import headline, opening

#: The areas of texts that the elements of the file say, and the file itself.
AREAS = ("common", "rounds", "playback", "file")

#: The browser itself sees to it that nothing is fetched, and that no script runs but the one whose hash stands here.
_PAGE = """<!doctype html>
<html lang="{language}">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{hash}'">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{style}</style>
<body>
<noscript>{told}</noscript>
<script type="text/plain" id="given">{given}</script>
<script type="module">{script}</script>
</body>
</html>
"""

_KEY = "run"


def run_page(run: Run, language: str = next(iter(LANGUAGES))) -> str:
    """The page as HTML. language: what it opens in; a button leads to the others."""
    say, script = words(language), bundle("file/page.js")
    return _PAGE.format(
        language=language,
        title=html.escape(say("file.title")),
        style="".join((WEB / name).read_text(encoding="utf-8") for name in ("colours.css", "file/page.css")),
        told=html.escape(run.prompt.text + run.text).encode("utf-8", "replace").decode(),
        given=base64.b64encode(gzip.compress(json.dumps(_given(run)).encode(), mtime=0)).decode(),
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def run_frame(run: Run) -> str:
    """The page in a frame, for a notebook: neither its styles nor its scripts reach what stands around it."""
    page = html.escape(run_page(run))
    look = "width: 100%; height: 820px; border: 0; resize: vertical"
    return f'<iframe sandbox="allow-scripts" allow="fullscreen" style="{look}" srcdoc="{page}"></iframe>'


def _given(run: Run) -> dict[str, Any]:
    """What assets/web/file/page.js takes."""
    trail = Trail.of(run.rounds)
    figures = headline(trail, run.measured and run.measured.ratio)
    return {
        "rounds": messages.rounds_message(_KEY, run.rounds, run.vocabulary, figures=figures),
        "languages": {language: _said(run, trail, language) for language in LANGUAGES},
    }


def _said(run: Run, trail: Trail, language: str) -> dict[str, Any]:
    say = words(language)
    reason = say(f"generate.end_{run.stop_reason}")
    return {
        "name": LANGUAGES[language],
        "words": say.texts(*AREAS),
        "made": " · ".join(
            [messages.pair_line(run.pair, say), *(f"{name} {version}" for name, version in run.versions.items())]
        ),
        "start": opening(_KEY, run, say, recorded=say("file.recorded"), machine=run.measured and run.measured.machine),
        "end": messages.end_message(_KEY, total=len(run.rounds), reason=reason),
        "labels": [say(key) for key in LABELS],
        "charts": trail.charts(say),
    }
