"""The benchmark's report: rows, conclusions from them, the values of its JSON file, ``specviz.bench/1``, and text."""

from __future__ import annotations

import json
import math
import operator
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specviz.bench.contest import INTERRUPTED, Row
from specviz.bench.contestants import PLAIN
from specviz.bench.equal_texts import Agreement
from specviz.bench.machine import Facts
from specviz.records.prompts import STORIES
from specviz.records.tables import aligned
from specviz.theory.statistics import Ratio

SCHEMA = "specviz.bench/1"

#: The presets that are prose, taken together.
STORY_GROUP = "stories"

#: The fields of a row that say who it is, once more together in a report on the user's prompts.
CONTESTANT = ("mode", "num_draft_tokens", "branches", "rule", "exit_layer", "bits", "engine")

#: A row that follows from others, as in the file.
Values = dict[str, Any]


def group_of(row: Row) -> str:
    """The presets with which it is taken together."""
    return STORY_GROUP if any(row.preset == story.name for story in STORIES) else row.preset


@dataclass(slots=True)
class BenchReport:
    """A whole benchmark: the measurements, and conclusions from its rows."""

    machine: Facts
    pair: dict[str, str | int | None]
    settings: dict[str, Any]
    rows: list[Row]
    memory: Values | None = None  # see `specviz.models.memory_share.memory_values`
    left_out: list[dict[str, str]] = field(default_factory=list)  # drafters this pair cannot run: "mode" and "reason"
    failed: list[dict[str, str]] = field(default_factory=list)  # contestants that failed: "title" and "reason"
    interrupted: bool = False  # it was ended before it was over
    equality: list[Agreement] = field(default_factory=list)  # of each greedy text, before it was timed
    busy: str | None = field(init=False)  # a sentence where the machine was busy at the start
    unsteady: str | None = field(init=False)  # a sentence where it was disturbed meanwhile
    summary: list[Values] = field(init=False)
    findings: list[str] = field(init=False)
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        self.busy = busy(self.machine)
        self.unsteady = unsteady(self.rows, self.settings, self.interrupted)
        self.summary = summaries(self.rows)
        self.findings = [*_best(self.summary), *_formula(self.rows), *_loops(self.rows)]


@dataclass(slots=True)
class PromptsReport:
    """The values of the JSON file of a benchmark on the user's prompts, as far as it has come."""

    machine: Facts
    pair: dict[str, str | int | None]
    temperature: float
    prompts: int
    rows: list[Row] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)  # contestants that failed: "title" and "reason"
    interrupted: bool = False  # it was ended before it was over
    schema: str = "specviz.work/1"


def save(report: BenchReport | PromptsReport, path: pathlib.Path) -> None:
    """Writes a report's values to a file."""
    values = asdict(report)
    if isinstance(report, PromptsReport):
        for row in values["rows"]:
            row["contestant"] = {name: row[name] for name in CONTESTANT}
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False), encoding="utf-8")


# Groups of presets

#: The fields of a summary that are those of its rows.
SHARED = (*("temperature", "title", "engine", "mode", "num_draft_tokens", "rule", "branches", "exit_layer", "bits"),)


def summaries(rows: Sequence[Row]) -> list[Values]:
    """Each contestant over the story presets together and over each other preset, by temperature."""
    members: dict[tuple[float, str, str], list[Row]] = {}
    for row in rows:
        members.setdefault((row.temperature, group_of(row), row.title), []).append(row)
    # A contestant of transformers is titled like ours, with the library's name before it.
    return [
        _summary(group_rows, members.get((temperature, group, f"transformers {title}"), ()))
        for (temperature, group, title), group_rows in members.items()
    ]


def _summary(rows: Sequence[Row], counterpart: Sequence[Row]) -> Values:
    """Speeds are those of equally long texts: harmonic means over presets.

    The speedup is the geometric mean over presets, each of which was measured in turn with plain decoding, and its
    interval is made of theirs; None of plain decoding itself. counterpart: rows of the same way in transformers.
    """
    ratios = [row.ratio for row in rows if row.mode != PLAIN and row.ratio is not None]
    mean = statistics.geometric_mean([ratio.value for ratio in ratios]) if len(ratios) == len(rows) else None
    accepted = sum((row.acceptance_length or 0.0) * (row.rounds or 0) for row in rows)
    rounds, speed = sum(row.rounds or 0 for row in rows), _speed(rows)
    return (
        {"group": group_of(rows[0])}
        | {name: getattr(rows[0], name) for name in SHARED}
        | {
            "tokens_per_second": speed,
            "speedup_measured": mean,
            "speedup_interval": None if mean is None else _interval(mean, ratios),
            "acceptance_length": accepted / rounds if rounds else None,
            "against_transformers": speed / _speed(counterpart) if counterpart else None,
        }
    )


def _interval(mean: float, ratios: Sequence[Ratio]) -> tuple[float, float] | None:
    """Of the geometric mean of ratios that were measured independently."""
    reaches = [math.log(ratio.high / ratio.value) for ratio in ratios if ratio.high is not None]
    if len(reaches) < len(ratios):
        return None
    reach = math.exp(math.hypot(*reaches) / len(ratios))
    return mean / reach, mean * reach


def _speed(rows: Sequence[Row]) -> float:
    return statistics.harmonic_mean([row.tokens_per_second or 0.0 for row in rows])


# Sentences


def _best(groups: Sequence[Values]) -> Iterator[str]:
    best: dict[tuple[float, str], Values] = {}
    for summary in groups:
        key = summary["temperature"], summary["group"]
        if summary["engine"] == "specviz" and summary["speedup_measured"] is not None:
            best[key] = max(best.get(key, summary), summary, key=operator.itemgetter("speedup_measured"))
    for (temperature, group), summary in best.items():
        yield (
            f"Best at temperature {temperature:g} on {group}: {summary['title']}, "
            f"{summary['speedup_measured']:.2f} × plain, {summary['acceptance_length']:.2f} tokens a pass."
        )


def _formula(rows: Sequence[Row]) -> Iterator[str]:
    """Chains' measured speedups over the formula's (Leviathan et al. 2023, Thm 3.8) for their α and c, which leaves out
    reading the prompt, the engine's work between passes, and that a wide target pass takes longer than one token's.

    Only of rows judged token by token: α is that rule's, and another rule accepts more or fewer of the same drafts.
    """

    by_mode: dict[tuple[float, str], list[tuple[float, Row]]] = {}
    for row in rows:
        if row.speedup_formula and row.speedup_measured and row.rule == "token":
            share = row.speedup_measured / row.speedup_formula
            by_mode.setdefault((row.temperature, row.mode), []).append((share, row))
    for (temperature, mode), shares in by_mode.items():
        least, row = min(shares, key=operator.itemgetter(0))
        yield (
            f"Measured / formula at temperature {temperature:g}, chains of {mode}: median "
            f"{statistics.median(share for share, _ in shares):.2f}, least {least:.2f} ({row.title} on {row.preset})."
        )


def _loops(rows: Sequence[Row]) -> Iterator[str]:
    """The texts that flatter every drafter."""
    shares: dict[tuple[float, str], list[float]] = {}
    for row in rows:
        if row.mode != PLAIN and row.loops is not None:
            shares.setdefault((row.temperature, row.preset), []).append(row.loops)
    for (temperature, preset), share in shares.items():
        yield (
            f"Loops at temperature {temperature:g} on {preset}: up to {max(share):.0%} of the tokens only repeat what "
            "stands before them, which is easy to draft. Speedups there are flattered."
        )


def busy(machine: Facts) -> str | None:
    """A sentence where others were using the machine when the benchmark began."""
    load, cores = machine.get("load_average_start"), machine.get("cores")
    if not isinstance(load, float) or not isinstance(cores, int) or load <= cores:
        return None
    return (
        f"The machine was busy at the start: a load of {load:g} on {cores} cores. Trust ratios and their "
        "intervals, not tokens per second."
    )


def unsteady(rows: Sequence[Row], settings: Values, interrupted: bool = False) -> str | None:
    """Disturbances of the benchmark: others wanted the processor, time ran short, or it was ended."""
    disturbed, parts = sum(row.busy for row in rows), []
    if disturbed:
        parts.append(
            f"Other programs used the processor in {disturbed} of {len(rows)} rows: their intervals account for that."
        )
    planned, repeats_made = settings.get("repeats"), settings.get("repeats_made")
    if interrupted:
        parts.append(INTERRUPTED)
    elif repeats_made != planned:
        parts.append(f"A quick run had time for only {repeats_made} of {planned} repeats.")
    return " ".join(parts) or None


# As text

#: Field -> heading and format.
CELLS: dict[str, tuple[str, str]] = {
    "preset": ("preset", "{}"),
    "group": ("group", "{}"),
    "temperature": ("T", "{:g}"),
    "title": ("contestant", "{}"),
    "tokens_per_second": ("tok/s", "{:.0f}"),
    "spread": ("spread", "{0[0]:.0f}–{0[1]:.0f}"),
    "speedup_measured": ("speedup", "{:.2f}"),
    "speedup_interval": ("90 %", "{0[0]:.2f}–{0[1]:.2f}"),
    "speedup_formula": ("formula", "{:.2f}"),
    "acceptance_rate": ("α", "{:.2f}"),
    "acceptance_length": ("len", "{:.2f}"),
    "drafted_per_round": ("drafted", "{:.1f}"),
    "cost_coefficient": ("c", "{:.2f}"),
    "phase_share.draft": ("draft", "{:.0%}"),
    "phase_share.verify": ("verify", "{:.0%}"),
    "phase_share.rest": ("rest", "{:.0%}"),
    "overhead_share": ("outside", "{:.1%}"),
    "against_transformers": ("vs transformers", "{:.2f}"),
}

ROW_FIELDS = (
    *("tokens_per_second", "spread", "speedup_measured", "speedup_interval", "speedup_formula"),
    *("drafted_per_round", "acceptance_rate", "acceptance_length", "cost_coefficient"),
    *("phase_share.draft", "phase_share.verify", "phase_share.rest", "overhead_share"),
)
SUMMARY_FIELDS = ("tokens_per_second", "speedup_measured", "acceptance_length", "against_transformers")


def bench_text(report: BenchReport) -> str:
    """The benchmark: each contestant on each preset, then groups of presets, then everything else."""
    parts: list[Iterable[str]] = [
        [f"{key}: {value}" for key, value in report.machine.items() if value is not None],
        [f"share of the memory's bandwidth: {report.memory['sentence']}"] if report.memory else [],
        filter(None, (report.busy, report.unsteady)),
        [f"✗ {entry['title']}: {entry['reason']}" for entry in report.failed],
        equality_lines(report.equality, str(report.machine.get("dtype"))),
        _table(map(asdict, report.rows), ["preset", "temperature", "title"], ROW_FIELDS),
        _table(report.summary, ["group", "temperature", "title"], SUMMARY_FIELDS),
        report.findings,
        [f"Left out, {entry['mode']}: {entry['reason']}" for entry in report.left_out],
        [f"Peak memory of this process up to the last row: {max(row.peak_mb or 0 for row in report.rows):.0f} MB"],
    ]
    return "\n\n".join(filter(None, ("\n".join(part) for part in parts)))


def _table(entries: Iterable[Values], left: Sequence[str], fields: Sequence[str]) -> list[str]:
    """The lines of a table.

    entries: its rows; a field of a field is named ``phase_share.draft``. left: fields at the left, each printed once
    for the rows that share it and those before it. fields: the others.
    """
    table, shown = [[CELLS[name][0] for name in (*left, *fields)]], [""] * len(left)
    for entry in entries:
        cells = [_cell(entry, name) for name in (*left, *fields)]
        same = next((place for place, cell in enumerate(shown) if cells[place] != cell), len(left))
        shown = cells[: len(left)]
        table.append([*[""] * same, *cells[same:]])
    return aligned(table, len(left)).splitlines()


def _cell(entry: Values, name: str) -> str:
    value: Any = entry
    for part in name.split("."):
        value = None if value is None else value.get(part)
    return "–" if value is None else CELLS[name][1].format(value)


def equality_lines(agreements: Sequence[Agreement], dtype: str) -> Iterator[str]:
    """One line for all that agree, one for each place where texts part."""
    if not agreements:
        yield "Equality: nothing was decoded greedily, so no texts have to be equal."
        return
    same, presets = sum(agreement.identical for agreement in agreements), {agreement.preset for agreement in agreements}
    yield (
        f"Equality, before each text was timed: {same} of {len(agreements)} greedy texts (prompts: {len(presets)}) "
        f"equal plain decoding's, token by token ({dtype})."
    )
    parted: dict[tuple[str, int, float], list[Agreement]] = {}
    for agreement in agreements:
        if agreement.place is not None and agreement.margin is not None:
            parted.setdefault((agreement.preset, agreement.place, agreement.margin), []).append(agreement)
    for agreement in agreements:
        if agreement.place is not None and agreement.margin is None:
            yield (
                f"  On {agreement.preset} token {agreement.place + 1} differs, which its own weights and rounding may "
                f"explain: {agreement.title}."
            )
    for (preset, place, margin), agreements_there in parted.items():
        titles = ", ".join(agreement.title for agreement in agreements_there)
        gap = max(agreement.largest_gap or 0.0 for agreement in agreements_there)
        yield (
            f"  On {preset} token {place + 1} differs, where the target's best two lie {margin:.3f} apart in log "
            f"probability, which is rounding in {dtype}: {titles}. From there on each token is the target's best to "
            f"within {gap:.3f}."
        )
