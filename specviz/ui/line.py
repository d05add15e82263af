"""Who visits the page, who pressed Stop, and who is in line.

One piece of work at a time, first come, first served: two at once would falsify both. Gradio's own queue would do that,
but it cannot say what is waited for, nor let anybody leave.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from specviz.records.errors import SpecvizError
from specviz.records.words import Words

Key = TypeVar("Key")
Value = TypeVar("Value")

#: How many of the last pieces of a kind tell how long such a piece takes.
REMEMBERED = 8

#: Seconds between two looks for a press of Stop, and between two sentences to those who wait.
LOOK_EVERY, SAY_EVERY = 0.1, 1.0


class Recent(OrderedDict[Key, Value]):
    """The `most` entries that were set last: the page forgets visitors who do not come back."""

    def __init__(self, most: int):
        super().__init__()
        self.most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self.most:
            self.popitem(last=False)


@dataclass(frozen=True)
class Visit:
    """One press of a button by one visitor."""

    session: str | None
    halt: threading.Event  # set once they press Stop
    browser: str | None = None  # its name, the same in all its tabs (assets/web/gradio/brand.js)


class Stops:
    """Who pressed Stop: one flag for each visitor, raised by the button and seen by the run between two batches."""

    def __init__(self, most: int = 1024):
        self.flags: Recent[str | None, threading.Event] = Recent(most)

    def arm(self, session: str | None) -> None:
        """A new run is asked for: earlier presses do not count."""
        self.flags[session] = threading.Event()

    def flag(self, session: str | None) -> threading.Event:
        return self.flags.setdefault(session, threading.Event())

    def press(self, session: str | None) -> None:
        self.flag(session).set()


@dataclass(eq=False)
class Turn:
    """One place in line."""

    kind: str  # of work: a tab's id, or ``load`` or ``api``
    browser: str | None = None  # see `Visit`
    began: float | None = None  # when its turn had come


class Line:
    """Who is in line; the first one's work is under way. most: how many may wait."""

    def __init__(self, most: int):
        self.most = most
        #: How many places one browser may have: whoever presses in thirty tabs leaves the others some.
        self.most_each = max(2, most // 4)
        self._changed = threading.Condition()
        self._turns: list[Turn] = []
        self._took: dict[str, deque[float]] = {}  # seconds of the last pieces, by kind

    @contextlib.contextmanager
    def joined(self, kind: str, browser: str | None = None) -> Iterator[Turn]:
        """A place at the end of the line, until the block is left. Raises SpecvizError if there is none."""
        turn = Turn(kind, browser)
        with self._changed:
            if browser is not None and sum(one.browser == browser for one in self._turns) >= self.most_each:
                raise SpecvizError(
                    "Your tabs have {count} places in the queue already: try again when one of them is done.",
                    count=self.most_each,
                )
            if len(self._turns) > self.most:
                raise SpecvizError("{count} are waiting already: try again in a moment.", count=self.most)
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
        """True once its turn has come. within: how many seconds to wait for that; by default as long as it takes."""
        with self._changed:
            come = self._changed.wait_for(lambda: self._turns[0] is turn, within)
            if come and turn.began is None:
                turn.began = time.monotonic()
        return come

    def before(self, turn: Turn) -> tuple[list[str], float | None]:
        """The kinds of work that come before this turn, and about how many seconds they take together; None where
        nothing of its kind was done before."""
        with self._changed:
            return self._ahead(self._turns[: self._turns.index(turn)])

    def now(self, say: Words) -> tuple[list[str], float | None]:
        """What everything in line is called, and how long all of it takes."""
        with self._changed:
            kinds, seconds = self._ahead(self._turns)
        return [name_of(kind, say) for kind in kinds], seconds

    def _ahead(self, turns: list[Turn]) -> tuple[list[str], float | None]:
        left = [seconds for turn in turns if (seconds := self._left(turn)) is not None]
        return [turn.kind for turn in turns], sum(left) if len(left) == len(turns) else None

    def _left(self, turn: Turn) -> float | None:
        if turn.kind not in self._took:
            return None
        spent = 0.0 if turn.began is None else time.monotonic() - turn.began
        return max(0.0, statistics.median(self._took[turn.kind]) - spent)

    def waiting(self, turn: Turn, halt: threading.Event, say: Words) -> Iterator[str]:
        """What is waited for, once a second, until the turn comes or `halt` is set."""
        due = 0.0
        while not halt.is_set() and not self.reached(turn, LOOK_EVERY):
            if time.monotonic() < due:
                continue
            due = time.monotonic() + SAY_EVERY
            kinds, seconds = self.before(turn)
            if kinds:
                sentence = say("line.before", n=len(kinds), what=name_of(kinds[0], say))
                left = "" if seconds is None else " " + say("line.seconds", seconds=max(1, round(seconds)))
                yield sentence + left


def name_of(kind: str, say: Words) -> str:
    """What a kind of work is called by those who wait for it: in its tab's words, or else by the tab's title."""
    if f"{kind}.in_line" in say:
        return say(f"{kind}.in_line")
    return say(f"line.{kind}") if f"line.{kind}" in say else say("line.tab", tab=say(f"{kind}.tab"))
