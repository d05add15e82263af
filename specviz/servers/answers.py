"""A request, and its answer as it comes: piece by piece, with what the engine says of its drafts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from specviz.records.prompts import token_ids
from specviz.records.settings import SETTINGS, check_settings, setting

#: Why an answer ended: an end token, its length, a stop text, or the connection.
End = Literal["end", "length", "stop", "broken"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Raises SpecvizError, with `field` set, for values that no server takes."""

    prompt: str | tuple[int, ...]  # text, or token ids where the engine takes them
    max_new_tokens: int = field(default=128, metadata={"setting": SETTINGS["max_new_tokens"]})
    temperature: float = field(default=0.0, metadata={"setting": SETTINGS["temperature"]})
    seed: int = field(default=0, metadata={"setting": SETTINGS["seed"]})
    neutral: bool = setting(True, "every other sampler is named and switched off; else the server's defaults count")
    depth: int | None = setting(
        None,
        "draft tokens per round: 0 asks for plain decoding, None for what the server is set up for; few honour it",
        int,
        least=0,
    )

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):
            object.__setattr__(self, "prompt", token_ids(self.prompt))
        check_settings(self)


@dataclass(frozen=True, slots=True)
class Piece:
    """What arrived at once. Counts are of the answer so far; None where the engine does not say."""

    at: float  # seconds since the request was sent
    text: str = ""
    #: Which tokens: none where the engine never says, None in place of one that it left out.
    ids: tuple[int | None, ...] = ()
    drafted: int | None = None
    accepted: int | None = None
    passes: int | None = None  # that verified a draft
    made: int | None = None  # tokens
    seconds: float | None = None  # of making tokens, by the server's clock
    end: End | None = None  # on the last piece
    said: dict[str, Any] = field(default_factory=dict)  # on the last piece: the whole event, with an engine's figures
    texts: tuple[str, ...] = ()  # of each token, where it says that; together they are `text`


@dataclass(slots=True)
class Answer:
    """The pieces of one request, as far as they have come."""

    ask: Ask
    pieces: list[Piece] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def ids(self) -> tuple[int | None, ...]:
        return tuple(id for piece in self.pieces for id in piece.ids)

    @property
    def end(self) -> End | None:
        return self.pieces[-1].end if self.pieces else None

    @property
    def seconds(self) -> float:
        """From the request to its last piece, as its client sees it."""
        return self.pieces[-1].at if self.pieces else 0.0

    @property
    def first_seconds(self) -> float:
        """From the request to its first token."""
        return self.pieces[0].at if self.pieces else 0.0

    @property
    def made(self) -> int | None:
        """Tokens, by the server's count or by their ids."""
        counted = _last(piece.made for piece in self.pieces)
        return counted if counted is not None else len(self.ids) or None

    @property
    def drafted(self) -> int | None:
        return _last(piece.drafted for piece in self.pieces)

    @property
    def accepted(self) -> int | None:
        return _last(piece.accepted for piece in self.pieces)

    @property
    def passes(self) -> int | None:
        return _last(piece.passes for piece in self.pieces)


def _last(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return known[-1] if known else None
