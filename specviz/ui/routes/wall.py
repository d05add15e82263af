"""A class's guesses before a coin falls: the question on the wall, a page for phones, and how many guess what.

A wall is a lesson (`lessons`) of another kind: a teacher opens one and gets a code and a key; phones that bring the
code get a seat, and one vote a question. Only the question that is asked now and its counts are held, and nothing once
the teacher's page has gone.
"""

import contextlib
import json
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from specviz.records.words import LANGUAGES, words
from specviz.ui.routes.lessons import Lesson, Lessons, body_of

#: Bytes of a question that are read.
MOST_BYTES = 8192

_PAGE = """<!doctype html>
<html lang="{language}">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="../../{version}/colours.css">
<link rel="stylesheet" href="../../{version}/wall/join.css">
<body>
<script type="application/json" id="words">{texts}</script>
<script type="module" src="../../{version}/wall/join.js"></script>
</body>
</html>
"""


class Question(BaseModel):
    """What is asked; without options there is nothing to vote on now. number: tells votes that come late."""

    model_config = ConfigDict(extra="forbid", strict=True)

    number: int = 0
    text: Annotated[str, Field(max_length=400)] = ""
    options: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=32)] = []


class Vote(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    seat: Annotated[str, Field(max_length=32)]
    number: int
    option: Annotated[int, Field(ge=0)]


@dataclass
class Wall(Lesson):
    """A class before a wall. Its votes by seat are of the question that is asked now."""

    unread: ClassVar[float] = 150  # a page in the background looks once a minute
    pace: ClassVar[tuple[float, float]] = 40, 400

    question: Question = field(default_factory=Question)
    votes: dict[str, int] = field(default_factory=dict)

    def ask(self, question: Question) -> None:
        self.question, self.votes = question, {}

    def vote(self, vote: Vote) -> None:
        """Raises HTTPException 404 for an unknown seat, 409 for another question, or a second vote."""
        if vote.seat not in self.seats:
            raise HTTPException(404)
        if vote.number != self.question.number or vote.seat in self.votes or vote.option >= len(self.question.options):
            raise HTTPException(409)
        self.votes[vote.seat] = vote.option

    def told(self) -> object:
        chosen = list(self.votes.values())
        votes = [chosen.count(option) for option in range(len(self.question.options))]
        return {"seats": len(self.seats), "number": self.question.number, "votes": votes}


def wall_routes(address: str, walls: Lessons, version: str) -> list[Route]:
    """POST opens a wall. Below it, by code: with ``?key=`` POST asks, GET counts and DELETE ends; without, POST takes a
    seat or votes, GET tells the question, null at the end. ``CODE/join`` is the page for phones.

    version: of the scripts, see `web_files.ADDRESS`.
    """

    async def open_one(_: Request) -> Response:
        return JSONResponse(walls.open())

    async def wall_by_code(request: Request) -> Response:
        code, key = request.path_params["code"], request.query_params.get("key")
        if request.method == "DELETE":
            walls.end(code, key or "")
        elif request.method == "GET":
            told = walls.told(code, key) if key is not None else _asked(walls, code)
            return JSONResponse(told, headers={"Cache-Control": "no-store"})
        else:
            body = await body_of(request, MOST_BYTES)
            if not body and key is None:
                return JSONResponse(walls.seat(code))
            with walls.lock:
                _take(_wall(walls, code, key), body, asks=key is not None)
        return Response(status_code=204)

    async def join(request: Request) -> Response:
        asked = request.query_params.get("lang", "")
        say = words(asked if asked in LANGUAGES else next(iter(LANGUAGES)))
        texts = json.dumps(say.texts("wall")).replace("<", "\\u003c")
        page = _PAGE.format(language=say.language, title=say("wall.title"), version=version, texts=texts)
        return HTMLResponse(page)

    return [
        Route(address, open_one, methods=["POST"]),
        Route(f"{address}/{{code}}", wall_by_code, methods=["GET", "POST", "DELETE"]),
        Route(f"{address}/{{code}}/join", join),
    ]


def _asked(walls: Lessons, code: str) -> dict[str, object] | None:
    """The question; None where the class has ended."""
    with contextlib.suppress(HTTPException):
        return _wall(walls, code).question.model_dump()
    return None


def _wall(walls: Lessons, code: str, key: str | None = None) -> Wall:
    wall = walls.find(code, key)
    assert isinstance(wall, Wall)
    return wall


def _take(wall: Wall, body: bytes, asks: bool) -> None:
    """A question or a vote. Raises HTTPException 422 for what is neither."""
    try:
        if asks:
            wall.ask(Question.model_validate_json(body))
        else:
            wall.rate.take()
            wall.vote(Vote.model_validate_json(body))
    except ValidationError as error:
        raise HTTPException(422) from error
