"""What the page keeps of its visitors: their last runs, what was measured for them, and who pressed Stop."""

from __future__ import annotations

import pathlib
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass

from specviz.ui.lab import Lab
from specviz.ui.live_runs import LiveRuns


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
        self._paths: OrderedDict[tuple[str | None, str], str] = OrderedDict()

    def keep(self, session: str | None, kind: str, page: str) -> None:
        """Writes it where Gradio may serve it from."""
        path = pathlib.Path(tempfile.mkdtemp(prefix="specviz-")) / f"specviz-{kind}.html"
        path.write_text(page, encoding="utf-8")
        self._paths[session, kind] = str(path)
        self._paths.move_to_end((session, kind))
        while len(self._paths) > self.most:
            self._paths.popitem(last=False)

    def path(self, session: str | None, kind: str) -> str | None:
        return self._paths.get((session, kind))


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
