"""A run, a race or a comparison as a page in a single file: the page's own elements, styles and texts in all languages.

Nothing is fetched. The content is packed, which makes it a third as long and leaves no model text in the markup.
"""

import base64
import functools
import gzip
import hashlib
import html
import json
import posixpath
import re
from typing import Any

from specviz.records.assets import WEB
from specviz.records.errors import require_made_by
from specviz.records.runs import Run
from specviz.records.words import LANGUAGES, Said, joined, said, words
from specviz.views.charts import Trail
from specviz.views.labels import ending, pair_line, settings_line
from specviz.views.remarks import remarked
from specviz.views.run_messages import end_message, headline, opening, race_message, rounds_message

_RUN = "run"  # the run's key in its messages

#: The browser itself sees to it that nothing is fetched, and that no script runs but the one whose hash stands here.
_PAGE = """<!doctype html>
<html lang="{language}">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{hash}'">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
{preview}
<style>{style}</style>
<body>
<noscript>{text}</noscript>
<script type="text/plain" id="given">{given}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def preview_tags(title: str, about: str, picture: str | None = None) -> str:
    """What other sites show of a link to a page, for its head. picture: its whole address; a file has none."""
    tags = {"og:type": "website", "og:title": title, "og:description": about, "og:image": picture}
    card = "summary_large_image" if picture else "summary"
    lines = [f'<meta property="{name}" content="{html.escape(value)}">' for name, value in tags.items() if value]
    return "\n".join([*lines, f'<meta name="twitter:card" content="{card}">'])


def run_page(run: Run, language: str = next(iter(LANGUAGES))) -> str:
    """The page as HTML. language: the one it opens in. Raises SpecvizError (field ``run``) for what is no run."""
    require_made_by("run", Run, "run", run)
    trail, reason = Trail.of(run.rounds), remarked(ending(run), run.rounds, len(run.prompt.ids), run.coins)
    recorded, machine = run.engine or said("file.recorded"), run.measured and run.measured.machine
    content: dict[str, Any] = {
        "start": opening(_RUN, run, recorded=recorded, machine=machine),
        "rounds": rounds_message(_RUN, run.rounds, run.vocabulary, figures=headline(trail, run.measured)),
        "end": end_message(_RUN, total=len(run.rounds), reason=reason),
        "charts": trail.charts(),
    }
    return _page("run", language, run, **content)


def run_frame(run: Run) -> str:
    """The page in a frame, for a notebook: its styles and scripts do not reach the rest of the notebook."""
    page = html.escape(run_page(run))
    look = "width: 100%; height: 820px; border: 0; resize: vertical"
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" allow="fullscreen" style="{look}" srcdoc="{page}"></iframe>'
    )


# Records lie below the views and cannot import them, so they are handed the functions that show them.
Run.as_page, Run.as_frame = run_page, run_frame


def race_page(plain: Run, speculative: Run, outcome: dict[str, object], machine: str, language: str) -> str:
    """Both runs on one clock, as HTML. outcome: how they compare, see `Duel`. language: the one it opens in."""
    settings = joined([f"γ = {speculative.num_draft_tokens}", settings_line(speculative), machine])
    message = race_message(plain, speculative, outcome)
    return _page("race", language, speculative, settings, message=message)


def comparison_page(plain: Run, message: str, machine: str | None, language: str) -> str:
    """The ranked table, as HTML. plain: its first contestant's run. message: the whole table."""
    settings = joined(filter(None, [settings_line(plain), machine]))
    return _page("compare", language, plain, settings, message=message, prompt=plain.prompt.text)


def _page(kind: str, language: str, run: Run, settings: Said = "", **content: Any) -> str:
    """The page as HTML, drawn by the module ``file/KIND.js`` of assets/web.

    language: the one it opens in; a button leads to the others. run: the one whose pair and versions are named.
    settings: a line of its heading. content: what the module takes.
    """
    texts, script = words(language), bundle(f"file/{kind}.js")
    versions = (f"{name} {version}" for name, version in run.versions.items())
    heading = {
        "brand": said("file.brand"),
        "title": said(f"file.title_{kind}"),
        "subtitle": said(f"file.subtitle_{kind}"),
        "made": joined([pair_line(run.pair), *versions]),
        "settings": settings,
        "label": said("controls.prompt"),
    }
    sources = script, json.dumps(content)
    carried = content | {
        "languages": {
            code: words(code).translated(heading) | {"name": name, "words": words(code).texts_in(*sources)}
            for code, name in LANGUAGES.items()
        }
    }
    return _PAGE.format(
        language=language,
        title=html.escape(texts(f"file.title_{kind}")),
        preview=preview_tags(texts(f"file.title_{kind}"), texts(f"file.subtitle_{kind}")),
        style="".join(
            (WEB / name).read_text(encoding="utf-8") for name in ("colours.css", "shared/page.css", "file/page.css")
        ),
        text=html.escape(run.prompt.text + run.text).encode("utf-8", "replace").decode(),
        given=base64.b64encode(gzip.compress(json.dumps(carried).encode(), mtime=0)).decode(),
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


# --- modules of assets/web as one script: browsers import nothing from a folder ---------------------------------------

_IMPORT = re.compile(r'^import (?:(\{[^}]*\}) from )?"(\.[^"]+)";$', re.M)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.M)
_FOREIGN = re.compile(r"^(?:import|export)\b|</script|<!--", re.M)

#: Modules fetch their style sheets. These are in the script, so `fetch` is replaced by a function that finds them.
_HEAD = """const modules = {}, styles = %s;
const fetch = async (url) => new Response(styles[url.pathname.slice(1)]);
"""
_MODULE = """
modules["%s"] = await (async () => {
%s
return { %s };
})();
"""


@functools.cache
def bundle(entry: str) -> str:
    """A script of type ``module`` that does what the module `entry` does, and fetches nothing.

    Raises ValueError for a module in a form that it does not read.
    """
    modules: dict[str, str] = {}
    _add(entry, modules)
    folders = {posixpath.dirname(name) for name in modules}
    sheets = [path for folder in sorted(folders) for path in sorted((WEB / folder).glob("*.css"))]
    styles = {path.relative_to(WEB).as_posix(): path.read_text(encoding="utf-8") for path in sheets}
    return _HEAD % json.dumps(styles).replace("<", "\\u003c") + "".join(modules.values())


def _add(name: str, modules: dict[str, str]) -> None:
    """Adds a module after all that it imports."""
    if name in modules:
        return
    text = (WEB / name).read_text(encoding="utf-8")

    def imported(match: re.Match[str]) -> str:
        names, path = match.groups()
        path_in_web = posixpath.normpath(f"{name}/../{path}")
        _add(path_in_web, modules)
        return f'const {names.replace(" as ", ": ")} = modules["{path_in_web}"];' if names else ""

    exports = ", ".join(_EXPORT.findall(text))
    text = _EXPORT.sub("", _IMPORT.sub(imported, text)).replace("import.meta.url", f'"file:///{name}"')
    if leftover := _FOREIGN.search(text):
        raise ValueError(f"{name}: no script without a server can hold {leftover[0]!r}.")
    modules[name] = _MODULE % (name, text, exports)
