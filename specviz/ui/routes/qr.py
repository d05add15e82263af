"""QR codes of links, drawn here: no link leaves the machine for one."""

import io

import segno
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

#: The side of a module in the picture, and the quiet zone around the code in modules (ISO/IEC 18004: four).
SCALE, BORDER = 4, 4


async def _qr_code(request: Request) -> Response:
    """The QR code of a text as an SVG picture, black on white in dark mode too."""
    picture = io.BytesIO()
    try:
        code = segno.make_qr(request.query_params.get("text", ""), error="l")
    except segno.DataOverflowError as error:  # more than 2,953 bytes
        raise HTTPException(422, str(error)) from error
    code.save(picture, kind="svg", scale=SCALE, border=BORDER, light="white")
    return Response(picture.getvalue(), media_type="image/svg+xml")


ROUTE = Route("/gradio_api/specviz/qr", _qr_code)
