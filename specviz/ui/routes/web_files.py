"""The files of assets/web as they are served, and what of them the page fetches at once."""

import hashlib
import json
import pathlib

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specviz.records.assets import WEB
from specviz.records.words import LANGUAGES, words

TYPES = {".js": "text/javascript", ".css": "text/css"}
FILES = {path.relative_to(WEB).as_posix(): path.read_bytes() for path in sorted(WEB.rglob("*")) if path.suffix in TYPES}
#: All texts that scripts say, a module for each language.
_WORDS = "// The page's texts.\nexport const words = %s;\n"
FILES |= {f"words/{language}.js": (_WORDS % json.dumps(words(language).for_page())).encode() for language in LANGUAGES}

#: After an update every file has a new address, so that no browser mixes old modules with new; and files are served as
#: they were when the server started, which starlette's StaticFiles would not do.
VERSION = hashlib.sha256(b"".join(name.encode() + held for name, held in FILES.items())).hexdigest()[:12]
#: Relative to the page: below Gradio's own addresses, which every proxy in front of it lets through.
ADDRESS = f"gradio_api/specviz/{VERSION}"


def text_of(name: str) -> str:
    """A file's text, by its path below assets/web."""
    return FILES[name].decode()


#: Gradio's bar of routes would stand on the page until its style sheet is there, and move all of it: the page names its
#: languages itself. And a frame gets its height, and keys are heard, before there is any component.
HEAD = "<style>.nav-holder { display: none; }</style>" + "".join(
    f'<script type="module" src="{ADDRESS}/gradio/{name}.js"></script>' for name in ("framed", "keyboard", "names")
)


#: Folders of what stands in tabs that are opened later: a browser warns of a preloaded style sheet that waits.
LATER = ("compare/", "lossless/", "race/", "served/", "server/", "why/")


def preloads() -> str:
    """Links, for a page's head, that fetch all files while Gradio sets up, instead of one after the other later."""

    def kind(name: str) -> str:
        if name.endswith(".js"):
            return 'rel="modulepreload"'
        return 'rel="prefetch" crossorigin' if name.startswith(LATER) else 'rel="preload" as="fetch" crossorigin'

    return "".join(
        f'<link {kind(name)} fetchpriority="low" href="{ADDRESS}/{name}">'
        for name in FILES
        # Files outside a folder come with the page, which needs its own language alone; those in file/, notes/, static/
        # and wall/, and the frame of theirs, are for other pages.
        if "/" in name and not name.startswith(("words/", "file/", "notes/", "static/", "wall/", "shared/page.css"))
    )


def page_css() -> str:
    """The look of the whole page, for `launch(css=...)`."""
    return text_of("colours.css") + text_of("page.css")


async def _web_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in FILES:
        raise HTTPException(404)
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(FILES[name], media_type=TYPES[pathlib.PurePath(name).suffix], headers=headers)


ROUTE = Route(f"/{ADDRESS}/{{name:path}}", _web_file)
