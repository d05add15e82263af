"""Files that the page serves: its own scripts and styles, links as QR codes, and visitors' downloads."""

import hashlib
import io
import pathlib
import shutil
import tempfile
import weakref

import gradio as gr
import segno
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specviz.records import links
from specviz.records.assets import ASSETS
from specviz.records.runs import Run
from specviz.records.tables import save_table
from specviz.records.words import Words
from specviz.views.pages import run_page

WEB = ASSETS / "web"

TYPES = {".js": "text/javascript", ".css": "text/css"}
FILES = {path.relative_to(WEB).as_posix(): path.read_bytes() for path in sorted(WEB.rglob("*")) if path.suffix in TYPES}

#: After an update every file has a new address, so that no browser mixes old modules with new; and files are served as
#: they were when the server started, which starlette's StaticFiles would not do.
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


async def _web_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in FILES:
        raise HTTPException(404)
    kept = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(FILES[name], media_type=TYPES[pathlib.PurePath(name).suffix], headers=kept)


#: The side of a module in the picture, and the quiet zone around the code in modules (ISO/IEC 18004: four).
SCALE, BORDER = 4, 4


def qr_code(text: str) -> bytes:
    """The QR code of a text as an SVG picture, black on white in dark mode too: no link leaves the machine for one.

    Raises segno.DataOverflowError for more than 2,953 bytes.
    """
    picture = io.BytesIO()
    segno.make_qr(text, error="l").save(picture, kind="svg", scale=SCALE, border=BORDER, light="white")
    return picture.getvalue()


async def _qr_code(request: Request) -> Response:
    try:
        return Response(qr_code(request.query_params.get("text", "")), media_type="image/svg+xml")
    except segno.DataOverflowError as error:
        raise HTTPException(422, str(error)) from error


#: For `launch(app_kwargs={"routes": ROUTES})`.
ROUTES = [Route(f"/{ADDRESS}/{{name:path}}", _web_file), Route("/gradio_api/specviz/qr", _qr_code)]


#: Gradio copies downloads: it looks every so many seconds for copies that are older than so many, and removes them.
KEPT = (3_600, 86_400)


class Folder:
    """A new folder, which is removed with this object, at the latest when the process ends."""

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
    """The page of a result. kind: of result, for the file's name."""

    def __init__(self, kind: str, page: str):
        super().__init__()
        self.file = self.path / f"specviz-{kind}.html"
        self.file.write_text(page, encoding="utf-8")
