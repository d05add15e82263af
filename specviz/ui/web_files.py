"""The scripts and styles of assets/web, as the page serves them.

Their address names their content: after an update every file has a new one, and no browser mixes old modules with new.
They are held as they were when the server started.
"""

from __future__ import annotations

import hashlib
import pathlib

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specviz.records.assets import ASSETS

WEB = ASSETS / "web"

TYPES = {".js": "text/javascript", ".css": "text/css"}
FILES = {path.relative_to(WEB).as_posix(): path.read_bytes() for path in sorted(WEB.rglob("*")) if path.suffix in TYPES}

_VERSION = hashlib.sha256(b"".join(name.encode() + held for name, held in FILES.items())).hexdigest()[:12]
#: Relative to the page: below Gradio's own addresses, which every proxy in front of it lets through.
ADDRESS = f"gradio_api/specviz/{_VERSION}"


def text_of(name: str) -> str:
    """A file's text, by its path below assets/web."""
    return FILES[name].decode()


def preloads() -> str:
    """Links, for a page's head, that fetch all files while Gradio sets up, instead of one after the other later."""
    kinds = {".js": 'rel="modulepreload"', ".css": 'rel="preload" as="fetch" crossorigin'}
    return "".join(
        f'<link {kinds[pathlib.PurePath(name).suffix]} fetchpriority="low" href="{ADDRESS}/{name}">'
        for name in FILES
        if "/" in name and not name.startswith("file/")  # what is in no folder is sent with the page; those are not its
    )


async def _answer(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in FILES:
        raise HTTPException(404)
    kept = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(FILES[name], media_type=TYPES[pathlib.PurePath(name).suffix], headers=kept)


#: For `launch(app_kwargs={"routes": [ROUTE]})`.
ROUTE = Route(f"/{ADDRESS}/{{name:path}}", _answer)
