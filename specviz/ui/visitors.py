"""What the page keeps of its visitors: their last runs, what was measured for them, and who pressed Stop."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from specviz.ui.lab import Lab
from specviz.ui.live_runs import LiveRuns
from specviz.ui.offered_files import ResultPage


class Stops:
    """Who pressed Stop: one flag a visitor, raised by the button and seen by the run between two batches."""

    def __init__(self, most: int = 1024):
        self.most = most
        self.flags: OrderedDict[str | None, threading.Event] = OrderedDict()

    def arm(self, session: str | None) -> None:
        """A new run is asked for: whatever was pressed before does not count."""
        self.flags[session] = threading.Event()
        while len(self.flags) > self.most:
            self.flags.popitem(last=False)

    def flag(self, session: str | None) -> threading.Event:
        return self.flags.setdefault(session, threading.Event())

    def press(self, session: str | None) -> None:
        self.flag(session).set()


class Results:
    """The page in a file of each visitor's last race and comparison."""

    def __init__(self, most: int = 256):
        self.most = most
        self._pages: OrderedDict[tuple[str | None, str], ResultPage] = OrderedDict()

    def keep(self, session: str | None, kind: str, page: str) -> None:
        self._pages[session, kind] = ResultPage(kind, page)
        self._pages.move_to_end((session, kind))
        while len(self._pages) > self.most:
            self._pages.popitem(last=False)

    def path(self, session: str | None, kind: str) -> str | None:
        page = self._pages.get((session, kind))
        return page and str(page.file)


@dataclass(frozen=True)
class Visit:
    """One press of a button by one visitor."""

    session: str | None
    halt: threading.Event  # set once they press Stop


class Visitors:
    """Shared by the page in all its languages."""

    def __init__(self) -> None:
        self.runs = LiveRuns()
        self.lab = Lab(self.runs)
        self.stops = Stops()
        self.results = Results()
