"""The rows of the benchmark, and what rows come to: groups of presets, overhead, the formula beside the measurement."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specviz.bench.contestants import PLAIN, Standing
from specviz.records.presets import STORIES
from specviz.theory.statistics import Ratio

#: The presets that are prose, taken together.
STORY_GROUP = "stories"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow(Standing):
    """One contestant on one preset at one temperature; None where a figure does not apply.

    The measured speedup is against the same engine's plain row.
    """

    title: str
    engine: str  # these three as in `Contestant`
    mode: str
    num_draft_tokens: int | str | None
    temperature: float
    preset: str
    tokens: int  # of all repeats
    rule: str | None = None  # these four as they were in the run, defaults filled in
    branches: int | None = None
    exit_layer: int | None = None
    bits: int | None = None
    rounds: int | None = None  # the same
    peak_mb: float | None = None  # peak memory so far, of the process or the CUDA device
    repeats: int  # that were made
    busy: bool = False  # something else wanted the processor meanwhile, so the interval is wider
    round_microseconds: float | None = None  # of a round, mean
    outside_microseconds: float | None = None  # of its part outside the models' forward passes

    @property
    def group(self) -> str:
        return STORY_GROUP if any(self.preset == story.name for story in STORIES) else self.preset


# Groups of presets

#: The fields of a summary that are those of its rows.
SHARED = (
    "group",
    "temperature",
    "title",
    "engine",
    "mode",
    "num_draft_tokens",
    "rule",
    "branches",
    "exit_layer",
    "bits",
)


@dataclass(frozen=True, slots=True)
class Summary:
    """One contestant over a group of presets."""

    group: str
    temperature: float
    title: str
    engine: str
    mode: str
    num_draft_tokens: int | str | None
    rule: str | None
    branches: int | None
    exit_layer: int | None
    bits: int | None
    tokens_per_second: float  # as of equally long texts
    speedup_measured: float | None  # the geometric mean over presets; of plain decoding itself None
    acceptance_length: float | None
    against_transformers: float | None  # its speed over its counterpart's there, the same


def summaries(rows: Sequence[BenchRow]) -> list[Summary]:
    """Each contestant over the story presets together and over each other preset, by temperature."""
    members: dict[tuple[float, str], dict[str, list[BenchRow]]] = {}
    for row in rows:
        members.setdefault((row.temperature, row.group), {}).setdefault(row.title, []).append(row)
    return [_summary(of_one, by_title) for by_title in members.values() for of_one in by_title.values()]


def _summary(rows: Sequence[BenchRow], by_title: dict[str, list[BenchRow]]) -> Summary:
    """rows: of one contestant; by_title: those of all contestants in the same group."""
    one = rows[0]
    # A contestant of transformers is titled like ours, with the library's name before it.
    counterpart = by_title.get(f"transformers {one.title}")
    rounds = sum(row.rounds or 0 for row in rows)
    return Summary(
        **{name: getattr(one, name) for name in SHARED},
        tokens_per_second=_speed(rows),
        speedup_measured=None if one.mode == PLAIN else _mean_speedup(rows),
        acceptance_length=sum(row.acceptance_length * row.rounds for row in rows) / rounds if rounds else None,
        against_transformers=_ratio(rows, counterpart) if counterpart else None,
    )


def _mean_speedup(rows: Sequence[BenchRow]) -> float | None:
    """The geometric mean over presets, each of which was measured in turn with plain decoding."""
    known = [row.speedup_measured for row in rows]
    return None if None in known else statistics.geometric_mean(known)


def _ratio(rows: Sequence[BenchRow], others: Sequence[BenchRow]) -> float:
    return _speed(rows) / _speed(others)


def _speed(rows: Sequence[BenchRow]) -> float:
    """Tokens per second over several presets: the harmonic mean, as of equally long texts."""
    return statistics.harmonic_mean([row.tokens_per_second for row in rows])


# Overhead


@dataclass(frozen=True, slots=True)
class RoundOverhead:
    """What a round of ours spends outside the models' passes: records, coins, the rule, text."""

    title: str
    preset: str
    temperature: float
    round_microseconds: float
    outside_microseconds: float
    share: float


@dataclass(frozen=True, slots=True)
class TraceCost:
    """The same decoding with its full trace and by the bare loop, in turn."""

    title: str
    preset: str
    temperature: float
    ratio: Ratio  # of the speeds, traced over bare


def overhead(rows: Sequence[BenchRow]) -> list[RoundOverhead]:
    """What rounds spend outside the models."""
    return [
        RoundOverhead(
            row.title,
            row.preset,
            row.temperature,
            row.round_microseconds,
            row.outside_microseconds,
            row.overhead_share,
        )
        for row in rows
        if row.round_microseconds is not None
    ]


# The formula


@dataclass(frozen=True, slots=True)
class FormulaCheck:
    """A chain's measured speedup beside what Leviathan et al. 2023, Thm 3.8, promises for its α and c."""

    title: str
    mode: str
    preset: str
    temperature: float
    measured: float
    formula: float
    ratio: float  # measured over formula


def formula_checks(rows: Sequence[BenchRow]) -> list[FormulaCheck]:
    """Of the chains judged token by token: α is that rule's, another one keeps more or less of the same drafts."""
    return [
        FormulaCheck(
            title=row.title,
            mode=row.mode,
            preset=row.preset,
            temperature=row.temperature,
            measured=row.speedup_measured,
            formula=row.speedup_formula,
            ratio=row.speedup_measured / row.speedup_formula,
        )
        for row in rows
        if row.speedup_formula and row.speedup_measured and row.rule == "token"
    ]
