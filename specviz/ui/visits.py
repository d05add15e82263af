"""A visitor's press of a button, and who has pressed Stop since."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True)
class Visit:
    """One press of a button by one visitor."""

    session: str | None
    halt: threading.Event  # set once they press Stop


class Stops:
    """Who pressed Stop: one flag a visitor, raised by the button and seen by the run between two batches."""

    def __init__(self, most: int = 1024):
        self.most = most
        self.flags: OrderedDict[str | None, threading.Event] = OrderedDict()

    def arm(self, session: str | None) -> None:
        """A new run is asked for: whatever was pressed before does not count."""
        self.flags[session] = threading.Event()
        self.flags.move_to_end(session)
        while len(self.flags) > self.most:
            self.flags.popitem(last=False)

    def flag(self, session: str | None) -> threading.Event:
        return self.flags.setdefault(session, threading.Event())

    def press(self, session: str | None) -> None:
        self.flag(session).set()
