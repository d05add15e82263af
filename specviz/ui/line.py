"""The line for the models: one piece of work at a time, first come, first served. Two at once would falsify both."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from specviz.records.errors import SpecvizError
from specviz.records.words import Words

#: How many of the last pieces of a kind tell how long such a piece takes.
REMEMBERED = 8

#: Seconds between two looks at whether somebody has left, and between two sentences to who waits.
LOOK_EVERY, TELL_EVERY = 0.1, 1.0


@dataclass(eq=False)
class Turn:
    """One place in line."""

    kind: str  # of what is asked for; the key of its name is ``line.kind``
    began: float | None = None  # when its turn had come


class Line:
    """Who is in line; the first one's work is being done. most: how many may wait."""

    def __init__(self, most: int):
        self.most = most
        self._changed = threading.Condition()
        self._turns: list[Turn] = []
        self._took: dict[str, deque[float]] = {}  # seconds of the last pieces, by kind

    @contextlib.contextmanager
    def joined(self, kind: str) -> Iterator[Turn]:
        """A place at the end of the line, until the block is left. Raises SpecvizError if there is none."""
        turn = Turn(kind)
        with self._changed:
            if len(self._turns) > self.most:
                raise SpecvizError("{count} are in line already: try again in a moment.", count=self.most)
            self._turns.append(turn)
        try:
            yield turn
        finally:
            with self._changed:
                self._turns.remove(turn)
                if turn.began is not None:
                    took = self._took.setdefault(kind, deque(maxlen=REMEMBERED))
                    took.append(time.monotonic() - turn.began)
                self._changed.notify_all()

    def reached(self, turn: Turn, within: float | None = None) -> bool:
        """Whether its turn has come; waits for that, by default as long as it takes, else so many seconds."""
        with self._changed:
            come = self._changed.wait_for(lambda: self._turns[0] is turn, within)
            if come and turn.began is None:
                turn.began = time.monotonic()
        return come

    def before(self, turn: Turn) -> tuple[list[str], float | None]:
        """The kinds of what is to be done before this turn, and about how many seconds that takes; None where nothing
        of its kind was done before."""
        with self._changed:
            return self._told(self._turns[: self._turns.index(turn)])

    def now(self) -> tuple[list[str], float | None]:
        """The same for all that is in line; the first one's work is being done."""
        with self._changed:
            return self._told(self._turns)

    def _told(self, turns: list[Turn]) -> tuple[list[str], float | None]:
        left = [self._left(one) for one in turns]
        return [one.kind for one in turns], None if None in left else sum(left)

    def _left(self, turn: Turn) -> float | None:
        if turn.kind not in self._took:
            return None
        done = 0.0 if turn.began is None else time.monotonic() - turn.began
        return max(0.0, statistics.median(self._took[turn.kind]) - done)

    def waiting(self, turn: Turn, halt: threading.Event, say: Words) -> Iterator[str]:
        """What to tell who waits, once a second, until their turn comes or `halt` is set."""
        told = -TELL_EVERY
        while not halt.is_set() and not self.reached(turn, LOOK_EVERY):
            if time.monotonic() - told < TELL_EVERY:
                continue
            told = time.monotonic()
            kinds, seconds = self.before(turn)
            if kinds:
                yield _told(kinds, seconds, say)


def _told(kinds: list[str], seconds: float | None, say: Words) -> str:
    sentences = [say("line.before", n=len(kinds), what=say(f"line.{kinds[0]}"))]
    if seconds is not None:
        sentences.append(say("line.seconds", seconds=max(1, round(seconds))))
    return " ".join(sentences)
