"""A page in a single file: the page's own elements, styles and texts, in all languages, and nothing fetched.

What the file carries is packed, which makes it a third as long, and leaves no text of a model in the markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Callable
from typing import Any

from specviz.records.runs import Run
from specviz.records.words import LANGUAGES, Words, words
from specviz.views import run_messages as messages
from specviz.views.bundle import WEB, bundle

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


def file_page(kind: str, language: str, made: Run, said: Callable[[Words], dict[str, Any]], **given: Any) -> str:
    """The page as HTML, drawn by the module ``file/KIND.js`` of assets/web; its texts are those of the areas it says.

    language: what it opens in; a button leads to the others. made: the run that tells what it was made with. said:
    what the module takes of each language, with the `words` for its elements. given: what it takes beside these.
    """
    say, script = words(language), bundle(f"file/{kind}.js")
    carried = given | {"languages": {one: _heading(kind, one, made) | said(words(one)) for one in LANGUAGES}}
    return _PAGE.format(
        language=language,
        title=html.escape(say(f"file.title_{kind}")),
        style="".join((WEB / name).read_text(encoding="utf-8") for name in ("colours.css", "file/page.css")),
        told=html.escape(made.prompt.text + made.text).encode("utf-8", "replace").decode(),
        given=base64.b64encode(gzip.compress(json.dumps(carried).encode(), mtime=0)).decode(),
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _heading(kind: str, language: str, made: Run) -> dict[str, str]:
    say = words(language)
    return {
        "name": LANGUAGES[language],
        "brand": say("file.brand"),
        "title": say(f"file.title_{kind}"),
        "subtitle": say(f"file.subtitle_{kind}"),
        "made": " · ".join(
            [messages.pair_line(made.pair, say), *(f"{name} {version}" for name, version in made.versions.items())]
        ),
    }
