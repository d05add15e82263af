"""What other sites show of a link to the page: a title, a sentence and a picture.

They read the page without running its scripts, and Gradio's own page speaks of Gradio there, with no say in it; so
these lines of the page are replaced on their way out. The picture needs a whole address, which only a request tells.
"""

import re

from gradio.route_utils import get_root_url
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specviz.records.assets import PREVIEW
from specviz.records.words import LANGUAGES, words
from specviz.views.pages import preview_tags

#: Below Gradio's own addresses, which every proxy in front of it lets through.
PICTURE = "/gradio_api/specviz/preview.png"

#: The pages by their paths: the first language stands at the root.
PAGES = {"" if i == 0 else f"/{language}": language for i, language in enumerate(LANGUAGES)}

_TAGS = re.compile(rb'<meta\s+(?:property="og:|name="twitter:)[^>]*>\s*')
_CHARSET = re.compile(rb"<meta charset[^>]*>")


def _picture(_: Request) -> FileResponse:
    return FileResponse(PREVIEW, headers={"Cache-Control": "public, max-age=86400"})


ROUTE = Route(PICTURE, _picture)


class LinkPreview:
    """Middleware that puts `preview_tags` into the pages; all else passes as it comes."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", "")).rstrip("/")
        if scope["type"] != "http" or scope["method"] != "GET" or path not in PAGES:
            return await self.app(scope, receive, send)
        root = get_root_url(Request(scope), path, scope.get("root_path"))
        say = words(PAGES[path])
        tags = preview_tags(say("page.title"), say("page.preview"), f"{root}{PICTURE}")
        start: Message = {}
        body = b""

        async def sent(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            whole = _CHARSET.sub(lambda match: match[0] + tags.encode(), _TAGS.sub(b"", body), 1)
            length = (b"content-length", str(len(whole)).encode())
            start["headers"] = [pair for pair in start["headers"] if pair[0] != length[0]] + [length]
            await send(start)
            await send({"type": "http.response.body", "body": whole})

        await self.app(scope, receive, sent)
