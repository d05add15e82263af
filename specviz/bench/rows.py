"""One row of the benchmark: a contestant on a preset at a temperature. Plain values; measured in `bench`."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.bench.contest import Standing
from specviz.records.presets import STORIES

#: The presets that are prose, taken together.
STORY_GROUP = "stories"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Standing):
    """One contestant on one preset at one temperature; None where a figure does not apply.

    engine, mode, num_draft_tokens: see `Contestant`. rule, branches, exit_layer: as they were in the run, defaults
    filled in. tokens, rounds: of all repeats together. The measured speedup is against the same engine's plain row.
    peak_mb: the process's (on CUDA the device's) peak so far. wall_speeds: tokens per second of each repeat, by wall
    time around the whole run; `tokens_per_second` leaves out what happens between our rounds. round_microseconds: mean
    of a round, and outside_microseconds: of its part outside the models' forward passes.
    """

    title: str
    engine: str
    mode: str
    num_draft_tokens: int | None
    temperature: float
    preset: str
    tokens: int
    rule: str | None = None
    branches: int | None = None
    exit_layer: int | None = None
    rounds: int | None = None
    peak_mb: float | None = None
    wall_speeds: tuple[float, ...] = ()
    round_microseconds: float | None = None
    outside_microseconds: float | None = None

    @property
    def group(self) -> str:
        return STORY_GROUP if any(self.preset == story.name for story in STORIES) else self.preset
