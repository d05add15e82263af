"""A lesson's notes, a page for the teacher's own screen: what its links open is shown in another window, to the class.

The notes are Markdown (assets/lessons), to be read where they lie, too: there their links lead to a page on the
reader's own machine, here to the one that serves them.
"""

import html

from markdown_it import MarkdownIt
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from specviz.records.assets import LESSONS
from specviz.records.words import LANGUAGES
from specviz.ui.routes.preview import PAGES

#: The lessons, by their minutes.
LENGTHS = (10, 45, 90)

#: Where the links of the files lead.
HOME = "http://127.0.0.1:7860/"

_PAGE = """<!doctype html>
<html lang="{language}">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{root}gradio_api/specviz/{version}/colours.css">
<link rel="stylesheet" href="{root}gradio_api/specviz/{version}/notes/notes.css">
<body>
<nav>{nav}</nav>
<main>
{notes}</main>
<script type="module" src="{root}gradio_api/specviz/{version}/notes/notes.js"></script>
</body>
</html>
"""


def as_html(notes: str, root: str) -> str:
    """Notes with links that work from where they are shown; `root` leads from there to the page."""
    markdown = MarkdownIt("commonmark", {"html": False})
    tokens = markdown.parse(notes)
    for link in (part for token in tokens for part in token.children or () if part.type == "link_open"):
        address = str(link.attrs["href"])
        if address.startswith(HOME):
            # One window by its name, whichever link is followed: `noopener` would open a new one each time.
            link.attrs |= {"href": root + address.removeprefix(HOME), "target": "specviz"}
        else:
            link.attrs["href"] = address.removesuffix(".md")  # another lesson
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def notes_routes(version: str) -> list[Route]:
    """``lesson/MINUTES`` below the page in each language. version: of the styles, see `web_files.ADDRESS`."""

    def route(path: str, language: str) -> Route:
        root = "../" * (1 + path.count("/"))
        lengths = "".join(f'<a href="{length}">{length} min</a>' for length in LENGTHS)
        others = [(other, LANGUAGES[name]) for other, name in PAGES.items() if name != language]
        languages = "".join(f'<a href="{root[:-1]}{other}/lesson/{{minutes}}">{name}</a>' for other, name in others)

        async def show(request: Request) -> Response:
            minutes = request.path_params["minutes"]
            if minutes not in LENGTHS:
                raise HTTPException(404)
            notes = (LESSONS / language / f"{minutes}.md").read_text(encoding="utf-8")
            given = {"title": html.escape(notes.partition("\n")[0].strip("# ")), "notes": as_html(notes, root)}
            nav = f"{lengths}{languages.format(minutes=minutes)}"
            return HTMLResponse(_PAGE.format(language=language, root=root, version=version, nav=nav, **given))

        return Route(f"{path}/lesson/{{minutes:int}}", show)

    return [route(path, language) for path, language in PAGES.items()]
