"""A visitor's press of a button, and who has pressed Stop since."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

Key, Value = TypeVar("Key"), TypeVar("Value")


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
