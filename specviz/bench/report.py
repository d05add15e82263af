"""The benchmark's report: its rows, conclusions from them, and the values of its JSON file, ``specviz.bench/1``."""

from __future__ import annotations

import json
import math
import operator
import pathlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specviz.bench.advice import INTERRUPTED, WorkReport
from specviz.bench.contestants import PLAIN, Figures
from specviz.bench.equal_texts import Agreement
from specviz.bench.machine import Facts
from specviz.records.prompts import STORIES
from specviz.theory.statistics import Ratio

SCHEMA = "specviz.bench/1"

#: The presets that are prose, taken together.
STORY_GROUP = "stories"

#: A row that follows from others, as in the file.
Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow(Figures):
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
    rounds: int | None = None  # of all repeats
    peak_mb: float | None = None  # peak memory so far, of the process or the CUDA device
    repeats: int  # that were made
    busy: bool = False  # something else wanted the processor meanwhile, so the interval is wider
    round_microseconds: float | None = None  # of a round, mean
    outside_microseconds: float | None = None  # of its part outside the models' forward passes

    @property
    def group(self) -> str:
        return STORY_GROUP if any(self.preset == story.name for story in STORIES) else self.preset


@dataclass(slots=True)
class BenchReport:
    """A whole benchmark: the measurements, and conclusions from its rows."""

    machine: Facts
    pair: dict[str, str | int | None]
    settings: dict[str, int | float | bool | list[str]]
    rows: list[BenchRow]
    left_out: list[dict[str, str]] = field(default_factory=list)  # drafters this pair cannot run: "mode" and "reason"
    failed: list[dict[str, str]] = field(default_factory=list)  # contestants that failed: "title" and "reason"
    interrupted: bool = False  # it was ended before it was over
    equality: list[Agreement] = field(default_factory=list)  # of each greedy text, before anything was timed
    overhead: list[Values] = field(init=False)  # a round's time outside the models' passes
    formula: list[Values] = field(init=False)
    busy: str | None = field(init=False)  # a sentence where the machine was busy at the start
    unsteady: str | None = field(init=False)  # a sentence where it was disturbed meanwhile
    summary: list[Values] = field(init=False)
    findings: list[str] = field(init=False)
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        names = ("title", "preset", "temperature", "round_microseconds", "outside_microseconds")
        self.overhead = [
            {name: getattr(row, name) for name in names} | {"share": row.overhead_share}
            for row in self.rows
            if row.round_microseconds is not None
        ]
        self.formula = formula_checks(self.rows)
        self.busy = busy(self.machine)
        self.unsteady = unsteady(self.rows, self.settings, self.interrupted)
        self.summary = summaries(self.rows)
        self.findings = findings(self.summary, self.formula)


def save(report: BenchReport | WorkReport, path: pathlib.Path | None) -> None:
    """Writes a report's values to a file, if one is named."""
    if path:
        path.write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False), encoding="utf-8")


def formula_checks(rows: Sequence[BenchRow]) -> list[Values]:
    """A chain's measured speedup, the formula's (Leviathan et al. 2023, Thm 3.8) for its α and c, and their ratio.

    Of the chains judged token by token: α is that rule's, another one keeps more or less of the same drafts.
    """
    return [
        {name: getattr(row, name) for name in ("title", "mode", "preset", "temperature")}
        | {"measured": row.speedup_measured, "formula": row.speedup_formula}
        | {"ratio": row.speedup_measured / row.speedup_formula}
        for row in rows
        if row.speedup_formula and row.speedup_measured and row.rule == "token"
    ]


# Groups of presets

#: The fields of a summary that are those of its rows.
SHARED = (
    *("group", "temperature", "title", "engine", "mode", "num_draft_tokens", "rule", "branches", "exit_layer", "bits"),
)


def summaries(rows: Sequence[BenchRow]) -> list[Values]:
    """Each contestant over the story presets together and over each other preset, by temperature."""
    members: dict[tuple[float, str, str], list[BenchRow]] = {}
    for row in rows:
        members.setdefault((row.temperature, row.group, row.title), []).append(row)
    # A contestant of transformers is titled like ours, with the library's name before it.
    return [
        _summary(found, members.get((temperature, group, f"transformers {title}"), ()))
        for (temperature, group, title), found in members.items()
    ]


def _summary(rows: Sequence[BenchRow], counterpart: Sequence[BenchRow]) -> Values:
    """Speeds are those of equally long texts: harmonic means over presets.

    The speedup is the geometric mean over presets, each of which was measured in turn with plain decoding, and its
    interval is made of theirs; None of plain decoding itself. counterpart: rows of the same way in transformers.
    """
    ratios = [row.ratio for row in rows if rows[0].mode != PLAIN]
    mean = statistics.geometric_mean([one.value for one in ratios]) if ratios and None not in ratios else None
    rounds, speed = sum(row.rounds or 0 for row in rows), _speed(rows)
    return {name: getattr(rows[0], name) for name in SHARED} | {
        "tokens_per_second": speed,
        "speedup_measured": mean,
        "speedup_interval": None if mean is None else _interval(mean, ratios),
        "acceptance_length": sum(row.acceptance_length * row.rounds for row in rows) / rounds if rounds else None,
        "against_transformers": speed / _speed(counterpart) if counterpart else None,
    }


def _interval(mean: float, ratios: Sequence[Ratio]) -> tuple[float, float] | None:
    """Of the geometric mean of ratios that were measured independently."""
    if any(one.low is None for one in ratios):
        return None
    reach = math.exp(math.hypot(*(math.log(one.high / one.value) for one in ratios)) / len(ratios))
    return mean / reach, mean * reach


def _speed(rows: Sequence[BenchRow]) -> float:
    return statistics.harmonic_mean([row.tokens_per_second for row in rows])


# Sentences


def findings(groups: Sequence[Values], checks: Sequence[Values]) -> list[str]:
    """The best drafter on each group of presets, and theory against measurement."""
    return [*_best(groups), *_formula(checks)]


def _best(groups: Sequence[Values]) -> Iterator[str]:
    best: dict[tuple[float, str], Values] = {}
    for one in groups:
        key = one["temperature"], one["group"]
        if one["engine"] == "specviz" and one["speedup_measured"] is not None:
            best[key] = max(best.get(key, one), one, key=operator.itemgetter("speedup_measured"))
    for (temperature, group), one in best.items():
        yield (
            f"Best at temperature {temperature:g} on {group}: {one['title']}, {one['speedup_measured']:.2f} × plain, "
            f"{one['acceptance_length']:.2f} tokens a pass."
        )


def _formula(checks: Sequence[Values]) -> Iterator[str]:
    """Thm 3.8 leaves out reading the prompt, the engine's work between passes, and that a wide target pass takes longer
    than one token's."""
    by_mode: dict[tuple[float, str], list[Values]] = {}
    for check in checks:
        by_mode.setdefault((check["temperature"], check["mode"]), []).append(check)
    for (temperature, mode), found in by_mode.items():
        least = min(found, key=operator.itemgetter("ratio"))
        median = statistics.median(check["ratio"] for check in found)
        yield (
            f"Measured / formula at temperature {temperature:g}, chains of {mode}: median {median:.2f}, "
            f"least {least['ratio']:.2f} ({least['title']} on {least['preset']})."
        )


def busy(machine: Facts) -> str | None:
    """A sentence where others were using the machine when the benchmark began."""
    load, cores = machine.get("load_average_start"), machine.get("cores")
    if load is None or cores is None or load <= cores:
        return None
    return (
        f"The machine was busy when this began: a load of {load:g} on {cores} cores. Trust ratios and their "
        "intervals, not tokens per second."
    )


def unsteady(rows: Sequence[BenchRow], settings: Values, interrupted: bool = False) -> str | None:
    """Disturbances of the benchmark: others wanted the processor, time ran short, or it was ended."""
    disturbed, parts = sum(row.busy for row in rows), []
    if disturbed:
        parts.append(
            f"Something else wanted the processor in {disturbed} of {len(rows)} rows: their intervals allow for it."
        )
    planned, made = settings.get("repeats"), settings.get("repeats_made")
    if interrupted:
        parts.append(INTERRUPTED)
    elif made != planned:
        parts.append(f"{made} of {planned} repeats fitted into the time of a quick run.")
    return " ".join(parts) or None
