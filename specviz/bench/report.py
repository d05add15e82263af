"""What the benchmark's rows come to: groups of presets, answers to the questions people ask, a table to read.

Plain values in, plain values out; the rows themselves are measured in `bench`.
"""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specviz.bench import sections
from specviz.bench.contest import PLAIN, Contestant
from specviz.bench.rows import STORY_GROUP, Row
from specviz.bench.sections import Agreement, FormulaCheck, Growth, Limit, Overhead

SCHEMA = "specviz.bench/1"


@dataclass(frozen=True, slots=True)
class Summary:
    """One contestant over a group of presets. against_transformers: its speed over its counterpart's there."""

    group: str
    temperature: float
    title: str
    engine: str
    mode: str
    num_draft_tokens: int | None
    rule: str | None
    branches: int | None
    exit_layer: int | None
    tokens_per_second: float
    speedup_measured: float | None
    acceptance_length: float | None
    against_transformers: float | None


@dataclass(frozen=True, slots=True)
class RulesRow:
    """Token by token and block verification on the same drafts and the same coins.

    accepted_token, accepted_block: draft tokens kept, of all rounds. difference: mean per round of block less token;
    standard_error: of that mean. block_longer, token_longer: rounds in which that rule kept more.
    """

    mode: str
    num_draft_tokens: int
    temperature: float
    rounds: int
    accepted_token: int
    accepted_block: int
    difference: float
    standard_error: float
    block_longer: int
    token_longer: int

    @classmethod
    def of(cls, mode: str, num_draft_tokens: int, temperature: float, kept: Sequence[tuple[int, int]]) -> RulesRow:
        """kept: of each round, two at least, how many draft tokens the token rule and the block rule kept."""
        differences = [block - token for token, block in kept]
        return cls(
            mode=mode,
            num_draft_tokens=num_draft_tokens,
            temperature=temperature,
            rounds=len(kept),
            accepted_token=sum(token for token, _ in kept),
            accepted_block=sum(block for _, block in kept),
            difference=statistics.mean(differences),
            standard_error=statistics.stdev(differences) / len(kept) ** 0.5,
            block_longer=sum(difference > 0 for difference in differences),
            token_longer=sum(difference < 0 for difference in differences),
        )


@dataclass(slots=True)
class Report:
    """A whole benchmark. left_out: drafters that this pair cannot run, and why. rules: one row a γ.

    equality: a verdict on each greedy text, given before anything was timed. busy, unsteady: sentences about a machine
    that had other things to do, at the start and meanwhile. growth, page: there if they were asked for. For all of
    these see `specviz.bench.sections`.
    """

    machine: dict[str, str | int | float | None]
    pair: dict[str, str | int | None]
    settings: dict[str, int | float | bool | list[str]]
    rows: list[Row]
    rules: list[RulesRow] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)
    equality: list[Agreement] = field(default_factory=list)
    limit: list[Limit] = field(default_factory=list)
    growth: Growth | None = None
    page: dict[str, float] | None = None
    overhead: Overhead = field(init=False)
    formula: list[FormulaCheck] = field(init=False)
    busy: str | None = field(init=False)
    unsteady: str | None = field(init=False)
    summary: list[Summary] = field(init=False)
    findings: list[str] = field(init=False)
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        self.overhead = sections.overhead(self.rows)
        self.formula = sections.formula_checks(self.rows)
        self.busy = sections.busy(self.machine)
        self.unsteady = sections.unsteady(self.rows, self.settings)
        self.summary = summaries(self.rows)
        self.findings = findings(self.rows, self.summary)


def save(report: Report, path: pathlib.Path) -> None:
    path.write_text(json.dumps(as_plain(report), indent=1, ensure_ascii=False), encoding="utf-8")


def as_plain(report: Report) -> dict[str, Any]:
    """The report as its file holds it."""
    return asdict(report)


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """Each contestant over the story presets together and over each other preset, by temperature."""
    members: dict[tuple[float, str], dict[str, list[Row]]] = {}
    for row in rows:
        members.setdefault((row.temperature, row.group), {}).setdefault(row.title, []).append(row)
    return [_summary(of_one, by_title) for by_title in members.values() for of_one in by_title.values()]


def _summary(rows: Sequence[Row], by_title: dict[str, list[Row]]) -> Summary:
    """rows: of one contestant; by_title: those of all contestants in the same group."""
    one, speed = rows[0], _speed(rows)
    plain = by_title[Contestant(PLAIN, engine=one.engine).title]
    # The title of a contestant of transformers is ours with the library's name before it.
    counterpart = by_title.get(f"transformers {one.title}")
    rounds = sum(row.rounds or 0 for row in rows)
    return Summary(
        group=one.group,
        temperature=one.temperature,
        title=one.title,
        engine=one.engine,
        mode=one.mode,
        num_draft_tokens=one.num_draft_tokens,
        rule=one.rule,
        branches=one.branches,
        exit_layer=one.exit_layer,
        tokens_per_second=speed,
        speedup_measured=None if one.mode == PLAIN else speed / _speed(plain),
        acceptance_length=sum(row.acceptance_length * row.rounds for row in rows) / rounds if rounds else None,
        against_transformers=speed / _speed(counterpart) if counterpart else None,
    )


def _speed(rows: Sequence[Row]) -> float:
    """Tokens per second over several presets: the harmonic mean, as of equally long texts."""
    return statistics.harmonic_mean([row.tokens_per_second for row in rows])


def findings(rows: Sequence[Row], groups: Sequence[Summary]) -> list[str]:
    """Answers in sentences: the best drafter, EAGLE beside the draft model, trees beside chains, theory beside fact."""
    stories = [entry for entry in groups if entry.group == STORY_GROUP and entry.engine == "specviz"]
    return [*_best(groups), *_eagle_beside_draft_model(stories), *_trees_beside_chains(stories), *_formula(rows)]


def _best(groups: Sequence[Summary]) -> Iterator[str]:
    contests: dict[tuple[float, str], list[Summary]] = {}
    for entry in groups:
        if entry.engine == "specviz" and entry.mode != PLAIN:
            contests.setdefault((entry.temperature, entry.group), []).append(entry)
    for (temperature, group), entries in contests.items():
        best = max(entries, key=lambda entry: entry.speedup_measured)
        yield (
            f"Best at temperature {temperature:g} on {group}: {best.title}, {best.speedup_measured:.2f} × plain, "
            f"{best.acceptance_length:.2f} tokens a pass."
        )


def _eagle_beside_draft_model(stories: Sequence[Summary]) -> Iterator[str]:
    drafts = {_setting(entry): entry for entry in stories if entry.mode == "draft_model"}
    for eagle in stories:
        other = drafts.get(_setting(eagle)) if eagle.mode == "eagle" else None
        if other:
            yield (
                f"Tokens a pass at temperature {eagle.temperature:g} on {STORY_GROUP}: {eagle.title} "
                f"{eagle.acceptance_length:.2f}, {other.title} {other.acceptance_length:.2f}."
            )


def _setting(entry: Summary) -> tuple[float, int | None, int | None, str | None]:
    return (entry.temperature, entry.num_draft_tokens, entry.branches, entry.rule)


def _trees_beside_chains(stories: Sequence[Summary]) -> Iterator[str]:
    chains = {
        (entry.temperature, entry.mode, entry.num_draft_tokens): entry
        for entry in stories
        if entry.branches == 1 and entry.rule == "token"
    }
    for tree in stories:
        chain = chains.get((tree.temperature, tree.mode, tree.num_draft_tokens)) if (tree.branches or 1) > 1 else None
        if chain:
            yield (
                f"Tree beside chain at temperature {tree.temperature:g} on {STORY_GROUP}: {tree.title} "
                f"{tree.acceptance_length:.2f} tokens a pass and {tree.speedup_measured:.2f} × plain, {chain.title} "
                f"{chain.acceptance_length:.2f} and {chain.speedup_measured:.2f}."
            )


def _formula(rows: Sequence[Row]) -> Iterator[str]:
    """Measured speedup over what Thm 3.8 gives from the measured α and c. It leaves out the prompt's reading, what
    the engine does between the passes, and what a wide target pass costs more than one token's."""
    ratios: dict[tuple[float, str], list[tuple[float, Row]]] = {}
    for row in rows:
        # α is that of the token rule: another one keeps more or less of the same drafts.
        if row.speedup_formula and row.rule == "token":
            ratios.setdefault((row.temperature, row.mode), []).append((row.speedup_measured / row.speedup_formula, row))
    for (temperature, mode), found in ratios.items():
        least, row = min(found, key=lambda pair: pair[0])
        median = statistics.median(ratio for ratio, _ in found)
        yield (
            f"Measured / formula at temperature {temperature:g}, chains of {mode}: median {median:.2f}, "
            f"least {least:.2f} ({row.title} on {row.preset})."
        )


def table(report: Report) -> str:
    """The report for people: each contestant on each preset, then the groups, the sections and the findings."""
    lines = [f"{key}: {value}" for key, value in report.machine.items() if value is not None]
    lines += filter(None, (report.busy, report.unsteady))
    for part in (
        sections.equality_lines(report.equality, str(report.machine.get("dtype"))),
        _row_lines(report.rows),
        _summary_lines(report.summary),
        _rules_lines(report.rules),
        _overhead_lines(report),
        sections.limit_lines(report.limit),
        sections.formula_lines(report.formula),
        sections.growth_lines(report.growth) if report.growth else (),
        report.findings,
        (f"Left out, {entry['mode']}: {entry['reason']}" for entry in report.left_out),
        [f"peak memory of this process up to the last row: {max(row.peak_mb or 0 for row in report.rows):.0f} MB"],
    ):
        found = list(part)
        lines += ["", *found] if found else []
    return "\n".join(lines)


def _row_lines(rows: Sequence[Row]) -> Iterator[str]:
    header = (
        f"{'preset':<12}{'T':>4}  {'contestant':<30}{'tok/s':>7}{'spread':>12}{'speedup':>9}{'spread':>12}"
        f"{'formula':>9}{'α':>6}{'len':>6}{'c':>6}{'draft':>7}{'verify':>8}{'rest':>6}{'outside':>9}"
    )
    yield from (header, "-" * len(header), *map(_row_line, rows))


def _summary_lines(summary: Sequence[Summary]) -> Iterator[str]:
    yield f"{'group':<12}{'T':>4}  {'contestant':<30}{'tok/s':>7}{'speedup':>9}{'len':>6}{'vs transformers':>17}"
    yield from map(_summary_line, summary)


def _rules_lines(rules: Sequence[RulesRow]) -> Iterator[str]:
    if rules:
        yield "Block verification beside token by token, on the same drafts and coins:"
    yield from map(_rules_line, rules)


def _overhead_lines(report: Report) -> Iterator[str]:
    yield from sections.overhead_lines(report.overhead)
    if report.page:
        yield f"The page, watched by a browser: {report.page['ratio']:.2f} of the speed without one"


def _row_line(row: Row) -> str:
    shares = row.phase_share or {}
    return (
        f"{row.preset:<12}{row.temperature:>4g}  {row.title:<30}{row.tokens_per_second:>7.0f}"
        f"{_range(row.spread, '.0f', 12)}{_cell(row.speedup_measured, '.2f', 9)}{_range(row.speedup_spread, '.2f', 12)}"
        f"{_cell(row.speedup_formula, '.2f', 9)}{_cell(row.acceptance_rate, '.2f', 6)}"
        f"{_cell(row.acceptance_length, '.2f', 6)}{_cell(row.cost_coefficient, '.2f', 6)}"
        f"{_cell(shares.get('draft'), '.0%', 7)}{_cell(shares.get('verify'), '.0%', 8)}"
        f"{_cell(shares.get('rest'), '.0%', 6)}{_cell(row.overhead_share, '.1%', 9)}"
    )


def _summary_line(entry: Summary) -> str:
    return (
        f"{entry.group:<12}{entry.temperature:>4g}  {entry.title:<30}{entry.tokens_per_second:>7.0f}"
        f"{_cell(entry.speedup_measured, '.2f', 9)}{_cell(entry.acceptance_length, '.2f', 6)}"
        f"{_cell(entry.against_transformers, '.2f', 17)}"
    )


def _rules_line(row: RulesRow) -> str:
    return (
        f"{row.mode} γ={row.num_draft_tokens}, temperature {row.temperature:g}, {row.rounds} rounds: "
        f"token {row.accepted_token} accepted, block {row.accepted_block}; "
        f"{row.difference:+.3f} ± {row.standard_error:.3f} a round "
        f"(block kept more in {row.block_longer} rounds, token in {row.token_longer})"
    )


def _cell(value: float | None, form: str, width: int) -> str:
    return f"{'–' if value is None else format(value, form):>{width}}"


def _range(ends: tuple[float, float] | None, form: str, width: int) -> str:
    return f"{'–' if ends is None else f'{ends[0]:{form}}–{ends[1]:{form}}':>{width}}"
