"""The recorded runs that ship with the page, shown before any model runs, and on pages without a model.

``python -m tools.recorder`` records them again. Their titles are in the texts of the area
``traces``, under their names.
"""

import pathlib
from dataclasses import dataclass
from typing import Any

from specviz.records.assets import ASSETS
from specviz.records.prompts import PRESETS
from specviz.records.runs import Run
from specviz.records.settings import RunSettings

TRACES = ASSETS / "traces"

_PROMPTS = {preset.name: preset.prompt for preset in PRESETS}


@dataclass(frozen=True)
class Recording:
    """A run and its settings."""

    name: str
    settings: RunSettings

    @property
    def path(self) -> pathlib.Path:
        return TRACES / f"{self.name}.json"

    def load(self) -> Run:
        return Run.load(self.path)


def _recording(name: str, preset: str, drafter: str, temperature: float, seed: int, **others: Any) -> Recording:
    """others: more settings, by flat name."""
    asked = {"prompt": _PROMPTS[preset], "drafter": drafter, "temperature": temperature, "seed": seed}
    return Recording(name, RunSettings.of({"max_new_tokens": 32} | asked | others))


#: In the page's order; it opens with the first one.
RECORDINGS = (
    _recording("sampled", "story", "draft_model", 0.8, 31, branches=1),
    _recording("greedy", "story", "draft_model", 0.0, 0, branches=1),
    _recording("lookup", "repeats", "prompt_lookup", 0.0, 0, num_draft_tokens=6, max_new_tokens=40),
    _recording("hybrid", "story_king", "hybrid", 0.0, 0, branches=1, num_draft_tokens=6, max_new_tokens=48),
    _recording("tree", "story_king", "eagle", 0.8, 22, branches=3, max_new_tokens=24),
    _recording("block", "story_sea", "draft_model", 1.0, 25, branches=1, num_draft_tokens=6, rule="block"),
    _recording("at_once", "story_king", "parallel", 0.8, 0, branches=1),
    _recording("mismatch", "story_sea", "draft_model", 1.5, 5, branches=1, max_new_tokens=24),
)


def recording_named(name: str) -> Recording | None:
    return next((one for one in RECORDINGS if one.name == name), None)
