"""A class's answers to the five questions (views/quiz.py): in memory for one lesson, nobody named.

A teacher opens a lesson and gets a code for the class and a key for reading the answers. A phone that brings the code
gets a seat, and leaves its answers there. Nothing is kept once the lesson has ended: by its key, or by itself when its
answers have not been read for a while. All is bounded, and what comes faster than a class would is refused.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specviz.views.quiz import CHOICES, QUESTIONS

#: Lessons at a time, and phones in each.
MOST_LESSONS, MOST_SEATS = 32, 200

#: Seconds without a look at the answers after which a lesson has ended, and that it lasts at the most.
UNREAD, LONGEST = 900, 4 * 3600

#: Bytes of a request that are read.
MOST_BYTES = 512

#: Without signs that are easily confused.
_SIGNS = "abcdefghjkmnpqrstuvwxyz23456789"

Phase = Literal["before", "after"]

_EACH = Field(min_length=len(QUESTIONS), max_length=len(QUESTIONS))


class Answers(BaseModel):
    """What one phone has answered: for each of `QUESTIONS` the index of an option of that form, and its seconds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seat: Annotated[str, Field(max_length=32)]
    phase: Phase
    form: Annotated[int, Field(ge=0, le=1)]
    chosen: Annotated[list[Annotated[int, Field(ge=0, lt=CHOICES)]], _EACH]
    seconds: Annotated[list[Annotated[float, Field(ge=0, le=LONGEST)]], _EACH]


@dataclass
class Rate:
    """Lets `burst` through at once and then `each` a second."""

    per_second: float
    burst: float
    clock: Callable[[], float]
    left: float = field(init=False)
    seen: float = field(init=False)

    def __post_init__(self) -> None:
        self.left, self.seen = self.burst, self.clock()

    def take(self) -> None:
        """Raises HTTPException 429 for one too many."""
        now = self.clock()
        self.left, self.seen = min(self.burst, self.left + (now - self.seen) * self.per_second), now
        if self.left < 1:
            raise HTTPException(429)
        self.left -= 1


@dataclass
class Lesson:
    """One class."""

    #: Seconds without a look at the answers after which it has ended; answers a second, and at once.
    unread: ClassVar[float] = UNREAD
    pace: ClassVar[tuple[float, float]] = 5, 60

    key: str
    rate: Rate
    began: float
    read: float  # when its answers were last read
    seats: dict[str, dict[Phase, Answers]] = field(default_factory=dict)

    def told(self) -> object:
        """What the holder of the key reads: each phone's answers by phase, in the order of seats, which go unnamed."""
        return [
            {phase: answer.model_dump(exclude={"seat", "phase"}) for phase, answer in answers.items()}
            for answers in self.seats.values()
        ]


class Lessons:
    """All lessons of this server, of one kind. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, kind: type[Lesson] = Lesson):
        self.clock = clock
        self.kind = kind
        self.lock = threading.Lock()
        self.lessons: dict[str, Lesson] = {}
        self.rate = Rate(0.2, 8, clock)

    def open(self) -> dict[str, str]:
        """A new lesson's code and key. Raises HTTPException 429 where there are too many, and ends none for it."""
        with self.lock:
            self._end_forgotten()
            self.rate.take()
            if len(self.lessons) >= MOST_LESSONS:
                raise HTTPException(429)
            code = "".join(secrets.choice(_SIGNS) for _ in range(8))
            now = self.clock()
            self.lessons[code] = self.kind(secrets.token_urlsafe(16), Rate(*self.kind.pace, self.clock), now, now)
            return {"code": code, "key": self.lessons[code].key}

    def seat(self, code: str) -> dict[str, str]:
        """A seat for another phone. Raises HTTPException 404 for a lesson that has ended, 429 where it is full."""
        with self.lock:
            lesson = self.find(code)
            lesson.rate.take()
            if len(lesson.seats) >= MOST_SEATS:
                raise HTTPException(429)
            seat = secrets.token_urlsafe(12)
            lesson.seats[seat] = {}
            return {"seat": seat}

    def answer(self, code: str, answers: Answers) -> None:
        """Notes a phone's answers, in place of earlier ones. Raises HTTPException 404 for an unknown seat."""
        with self.lock:
            lesson = self.find(code)
            lesson.rate.take()
            if answers.seat not in lesson.seats:
                raise HTTPException(404)
            lesson.seats[answers.seat][answers.phase] = answers

    def told(self, code: str, key: str) -> object:
        """`Lesson.told`, for the holder of the key; others get 404."""
        with self.lock:
            lesson = self.find(code, key)
            lesson.read = self.clock()
            return lesson.told()

    def end(self, code: str, key: str) -> None:
        with self.lock:
            self.find(code, key)
            del self.lessons[code]

    def find(self, code: str, key: str | None = None) -> Lesson:
        """Raises HTTPException 404 for one that has ended, and where a key is given that is not its own."""
        self._end_forgotten()
        lesson = self.lessons.get(code)
        if lesson is None or (key is not None and not secrets.compare_digest(key.encode(), lesson.key.encode())):
            raise HTTPException(404)
        return lesson

    def _end_forgotten(self) -> None:
        now = self.clock()
        for code, lesson in list(self.lessons.items()):
            if now - lesson.read > lesson.unread or now - lesson.began > LONGEST:
                del self.lessons[code]


def lesson_routes(address: str, lessons: Lessons) -> list[Route]:
    """POST opens a lesson; below it, by code, POST takes a seat or leaves answers, GET and DELETE need ``?key=``."""

    async def open_one(request: Request) -> Response:
        return JSONResponse(lessons.open())

    async def lesson_by_code(request: Request) -> Response:
        code, key = request.path_params["code"], request.query_params.get("key", "")
        if request.method == "GET":
            return JSONResponse(lessons.told(code, key), headers={"Cache-Control": "no-store"})
        if request.method == "DELETE":
            lessons.end(code, key)
            return Response(status_code=204)
        body = await body_of(request)
        if not body:
            return JSONResponse(lessons.seat(code))
        try:
            lessons.answer(code, Answers.model_validate_json(body))
        except ValidationError as error:
            raise HTTPException(422) from error
        return Response(status_code=204)

    return [
        Route(address, open_one, methods=["POST"]),
        Route(f"{address}/{{code}}", lesson_by_code, methods=["GET", "POST", "DELETE"]),
    ]


async def body_of(request: Request, most: int = MOST_BYTES) -> bytes:
    """A request's body. Raises HTTPException 413 as soon as it is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise HTTPException(413)
    return body
