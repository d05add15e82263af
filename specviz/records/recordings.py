"""The recorded runs that ship with the page, shown before any model runs, and on pages without a model.

``python -m tools.recorder`` makes them again, by the settings in their traces. Their titles are texts of the area
``traces``, under their names.
"""

import pathlib
from dataclasses import dataclass

from specviz.records.assets import ASSETS
from specviz.records.runs import Run

TRACES = ASSETS / "traces"


@dataclass(frozen=True)
class Recording:
    name: str

    @property
    def path(self) -> pathlib.Path:
        return TRACES / f"{self.name}.json"

    def load(self) -> Run:
        return Run.load(self.path)


#: In the page's order; it opens with the first one.
RECORDINGS = tuple(
    map(Recording, ("sampled", "greedy", "lookup", "hybrid", "tree", "block", "at_once", "mismatch")),
)


def recording_named(name: str) -> Recording | None:
    return next((recording for recording in RECORDINGS if recording.name == name), None)
