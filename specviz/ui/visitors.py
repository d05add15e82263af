"""What the page keeps for its visitors, who are known by their session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specviz.theory.roofline import PassTimes
from specviz.ui.device import PairName
from specviz.ui.downloads import Downloads
from specviz.ui.runner import Recent, Stops
from specviz.ui.runs import LiveRuns
from specviz.views.server_messages import ShownWatch


@dataclass(frozen=True)
class Visitors:
    """Shared by the page in all its languages."""

    runs: LiveRuns = field(default_factory=LiveRuns)
    stops: Stops = field(default_factory=Stops)
    #: By visitor and kind, the page in a file of the last race or comparison.
    results: Recent[tuple[str | None, str], Downloads] = field(default_factory=lambda: Recent(256))
    #: What each visitor's last advice was about, where it left something open.
    undecided: Recent[str | None, Any] = field(default_factory=lambda: Recent(256))
    #: The pair that each visitor loaded last.
    pairs: Recent[str | None, PairName] = field(default_factory=lambda: Recent(1024))
    #: The passes last measured for each visitor, in the Why it works tab.
    passes: Recent[str | None, PassTimes] = field(default_factory=lambda: Recent(256))
    #: The answers of other servers that were watched last, by their keys.
    watches: Recent[str, ShownWatch] = field(default_factory=lambda: Recent(64))
