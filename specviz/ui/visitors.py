"""What the page keeps of its visitors: their last runs, what was measured for them, and who pressed Stop."""

from __future__ import annotations

from collections import OrderedDict

from specviz.ui.lab import Lab
from specviz.ui.live_runs import LiveRuns
from specviz.ui.offered_files import ResultPage
from specviz.ui.pairs import PairName
from specviz.ui.visits import Stops


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


class Visitors:
    """Shared by the page in all its languages."""

    def __init__(self) -> None:
        self.runs = LiveRuns()
        self.lab = Lab(self.runs)
        self.stops = Stops()
        self.results = Results()
        self._pairs: OrderedDict[str | None, PairName] = OrderedDict()

    def use(self, session: str | None, pair: PairName, most: int = 1024) -> None:
        """From now on this visitor's page uses that pair."""
        self._pairs[session] = pair
        self._pairs.move_to_end(session)
        while len(self._pairs) > most:
            self._pairs.popitem(last=False)

    def pair_of(self, session: str | None) -> PairName | None:
        """The pair that this visitor loaded last; None if it was none."""
        return self._pairs.get(session)
