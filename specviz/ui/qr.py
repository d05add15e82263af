"""Links as QR codes, for the phones of a class. Made here: no link leaves the machine for one."""

from __future__ import annotations

import io

import segno
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

#: The side of a module in the picture, and the quiet zone around the code in modules (ISO/IEC 18004: four).
SCALE, BORDER = 4, 4


def svg(text: str) -> bytes:
    """The QR code of a text as a picture, black on white in dark rooms too.

    Raises segno.DataOverflowError for more than 2,953 bytes.
    """
    picture = io.BytesIO()
    segno.make_qr(text, error="l").save(picture, kind="svg", scale=SCALE, border=BORDER, light="white")
    return picture.getvalue()


async def _answer(request: Request) -> Response:
    try:
        return Response(svg(request.query_params.get("text", "")), media_type="image/svg+xml")
    except segno.DataOverflowError as error:
        raise HTTPException(422, str(error)) from error


#: For `launch(app_kwargs={"routes": [ROUTE]})`; assets/web/run asks for it beside the folder of its own files.
ROUTE = Route("/gradio_api/specviz/qr", _answer)
