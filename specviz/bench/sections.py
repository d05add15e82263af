"""What the benchmark says beside its rows: equal texts, overhead, the machine's limit, the formula, growth.

Plain values; each section is a key of the JSON file and a part of the table.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from specviz.bench.rows import Row

Entry = TypeVar("Entry")

#: Repeats of one contestant further apart than this say something about the machine, not about the contestant.
UNSTEADY = 2.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """One contestant's greedy text beside our plain one, compared before anything of its setting was timed.

    tokens: how many were compared. place: the first that differs, counted from 0; None if none does. margin: log p of
    the target's best token less its second best, there. largest_gap: from there on, the most by which a token of the
    contestant's lies below the target's best one, given the contestant's own text.
    """

    title: str
    engine: str
    mode: str
    preset: str
    tokens: int
    place: int | None = None
    margin: float | None = None
    largest_gap: float | None = None

    @property
    def identical(self) -> bool:
        return self.place is None


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
    """The same decoding with its full trace and without one, in tokens per second of wall time.

    without: the engine of the other run, ``untraced`` (the same drafter, target passes, coins and rule) or ``bare``
    (passes and argmax alone). ratio: traced over the other, the median over repeats; spread: its least and most.
    """

    title: str
    preset: str
    temperature: float
    without: str
    ratio: float
    spread: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Overhead:
    rounds: list[RoundOverhead]
    tracing: list[TraceCost]


@dataclass(slots=True)
class Limit:
    """A pass over one token beside the least time in which this machine moves the bytes that it reads.

    weight_bytes: of the model's weights, tables that are only looked up left out. cache_bytes: keys and values of
    `context` positions. copy_bandwidth: bytes read plus bytes written a second of copying a buffer as large as the
    weights, with the threads of the runs; read_bandwidth: bytes a second of summing it up. bandwidth: the faster one,
    since a copy touches two such buffers and a pass one, and the processor's cache may hold one and not two.
    limit_seconds: (weight_bytes + cache_bytes) / bandwidth. pass_seconds: the median of passes timed alone.
    plain_tokens_per_second: of the rows, harmonic mean over presets at the first temperature; None for the draft model.
    """

    role: str
    context: int
    weight_bytes: int
    cache_bytes: int
    copy_bandwidth: float
    read_bandwidth: float
    pass_seconds: float
    bandwidth: float = field(init=False)
    limit_seconds: float = field(init=False)
    share_of_pass: float = field(init=False)
    plain_tokens_per_second: float | None = None
    share_of_plain: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.bandwidth = max(self.copy_bandwidth, self.read_bandwidth)
        self.limit_seconds = (self.weight_bytes + self.cache_bytes) / self.bandwidth
        self.share_of_pass = self.limit_seconds / self.pass_seconds
        plain = self.plain_tokens_per_second
        self.share_of_plain = None if plain is None else plain * self.limit_seconds


@dataclass(frozen=True, slots=True)
class FormulaCheck:
    """A chain's measured speedup beside what Leviathan et al. 2023, Thm 3.8, promises for its α and c."""

    title: str
    mode: str
    preset: str
    temperature: float
    measured: float
    formula: float
    ratio: float


@dataclass(frozen=True, slots=True)
class ContextPoint:
    """Median seconds of a plain token and of a round after so many tokens of text."""

    context: int
    plain_seconds: float
    round_seconds: float


@dataclass(frozen=True, slots=True)
class RoundsPoint:
    """After so many rounds in one process: median seconds of those since the last point, and memory held."""

    rounds: int
    round_seconds: float
    resident_mb: float


@dataclass(frozen=True, slots=True)
class Ageing:
    """Whether rounds get slower: medians of the first and the last tenth of them, and the memory held around them."""

    rounds: int
    first_tenth_seconds: float
    last_tenth_seconds: float
    resident_mb_start: float
    resident_mb_end: float

    @classmethod
    def of(cls, seconds: Sequence[float], resident_mb_start: float, resident_mb_end: float) -> Ageing:
        """seconds: of every round, in order, at least one."""
        tenth = max(1, len(seconds) // 10)
        first, last = statistics.median(seconds[:tenth]), statistics.median(seconds[-tenth:])
        return cls(len(seconds), first, last, resident_mb_start, resident_mb_end)


@dataclass(frozen=True, slots=True)
class GammaPoint:
    """One draft length: median seconds of a round, tokens per second and per target pass."""

    num_draft_tokens: int
    round_seconds: float
    tokens_per_second: float
    acceptance_length: float


@dataclass(frozen=True, slots=True)
class VisitorsPoint:
    """So many visitors who press at once, each with a run of their own.

    first_round_seconds: from the press to the first round, the median visitor's; last_first_round_seconds: the last
    one's. tokens_per_second: of all together, from the press to the end of the last run.
    """

    visitors: int
    first_round_seconds: float
    last_first_round_seconds: float
    tokens_per_second: float


@dataclass(slots=True)
class Growth:
    """What grows with what. All with one drafter, greedy except where many different runs are wanted.

    contexts: with the text's length. rounds, many_runs: with the number of rounds, in many runs of bounded length in
    one process; neither time nor memory should. long_run: one run from a short text to the end of the context, so both
    may. gammas: with the draft's length. visitors: with the line before the page's one runner.
    """

    drafter: str
    num_draft_tokens: int
    contexts: list[ContextPoint]
    rounds: list[RoundsPoint]
    many_runs: Ageing
    long_run: Ageing
    gammas: list[GammaPoint]
    visitors: list[VisitorsPoint] = field(default_factory=list)


# From rows to sections


def overhead(rows: Sequence[Row]) -> Overhead:
    """What rounds and their records cost, of rows that include runs without records."""
    known = {(row.preset, row.temperature, row.title): row for row in rows}
    rounds, tracing = [], []
    for row in rows:
        if row.round_microseconds is None:
            continue
        place = (row.title, row.preset, row.temperature)
        rounds.append(RoundOverhead(*place, row.round_microseconds, row.outside_microseconds, row.overhead_share))
        for engine in ("untraced", "bare"):
            other = known.get((row.preset, row.temperature, f"{engine} {row.title}"))
            if other:
                ratios = [with_trace / without for with_trace, without in zip(row.wall_speeds, other.wall_speeds)]
                spread = (min(ratios), max(ratios))
                tracing.append(TraceCost(*place, engine, statistics.median(ratios), spread))
    return Overhead(rounds, tracing)


def formula_checks(rows: Sequence[Row]) -> list[FormulaCheck]:
    """Of the chains that were judged token by token: α is that rule's, another one keeps more or less."""
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
        if row.speedup_formula and row.rule == "token"
    ]


def busy(machine: dict[str, str | int | float | None]) -> str | None:
    """A sentence where others were using the machine when the benchmark began."""
    load, cores = machine.get("load_average_start"), machine.get("cores")
    if load is None or cores is None or load <= cores:
        return None
    return (
        f"The machine was busy when this began: a load of {load:g} on {cores} cores. Trust ratios within a repeat, "
        "not tokens per second."
    )


def unsteady(rows: Sequence[Row], settings: dict[str, Any]) -> str | None:
    """A sentence where repeats of the same work took very different times, or fewer were made: something was slow."""
    found = [row for row in rows if row.spread[1] > UNSTEADY * row.spread[0]]
    planned, made = settings.get("repeats"), settings.get("repeats_made")
    cut = "" if made == planned else f" {made} of {planned} repeats fitted into the time of a quick run."
    if not found:
        return cut.strip() or None
    worst = max(found, key=lambda row: row.spread[1] / row.spread[0])
    return (
        f"Something disturbed this benchmark: in {len(found)} of {len(rows)} rows the fastest repeat is more than "
        f"{UNSTEADY:g} times as fast as the slowest ({worst.title} on {worst.preset}: {worst.spread[0]:.0f} to "
        f"{worst.spread[1]:.0f} tokens/s).{cut}"
    )


# From sections to lines


def equality_lines(agreements: Sequence[Agreement], dtype: str) -> Iterator[str]:
    """One line for all that agree, one for each that does not."""
    if not agreements:
        yield "Equality: nothing was decoded greedily, so there is no text that has to be equal."
        return
    same, presets = sum(one.identical for one in agreements), {one.preset for one in agreements}
    yield (
        f"Equality, before anything was timed: {same} of {len(agreements)} greedy texts ({len(presets)} prompts) are "
        f"plain decoding's, token by token ({dtype})."
    )
    parted: dict[tuple[str, int, float], list[Agreement]] = {}
    for one in agreements:
        if not one.identical:
            parted.setdefault((one.preset, one.place, one.margin), []).append(one)
    for (preset, place, margin), found in parted.items():
        yield (
            f"  On {preset} token {place + 1} differs, where the target's best two lie {margin:.3f} apart in log "
            f"probability, which is rounding in {dtype}: {', '.join(one.title for one in found)}. From there on each "
            f"token is the target's best up to {max(one.largest_gap for one in found):.3f}."
        )


def overhead_lines(section: Overhead) -> Iterator[str]:
    """By contestant and temperature, medians over the presets."""
    yield "Overhead, round time less model time:"
    for (temperature, title), found in _grouped(section.rounds).items():
        outside, whole, share = (
            statistics.median(getattr(one, name) for one in found)
            for name in ("outside_microseconds", "round_microseconds", "share")
        )
        yield f"  {temperature:>4g}  {title:<30}{outside:>7.0f} µs of {whole:>7.0f} a round{share:>8.1%}"
    if section.tracing:
        yield "Tracing, speed with the full trace over speed without, in the same repeats:"
    for without, what in (("untraced", "the same loop without records"), ("bare", "a bare loop")):
        costs = [one for one in section.tracing if one.without == without]
        for (temperature, title), found in _grouped(costs).items():
            ratio = statistics.median(one.ratio for one in found)
            low, high = min(one.spread[0] for one in found), max(one.spread[1] for one in found)
            yield f"  {temperature:>4g}  {title:<30}{ratio:>7.2f} of {what} ({low:.2f}–{high:.2f})"


def limit_lines(limits: Sequence[Limit]) -> Iterator[str]:
    if limits:
        yield "Share of the limit, one token's bytes over the bandwidth of a copy or a read, the faster:"
    for one in limits:
        speeds = f"copy {_gb(one.copy_bandwidth)}/s, read {_gb(one.read_bandwidth)}/s"
        yield (
            f"  {one.role}, after {one.context} tokens: {_mb(one.weight_bytes)} of weights, {_mb(one.cache_bytes)} of "
            f"keys and values at {_gb(one.bandwidth)}/s ({speeds}) take at least {_ms(one.limit_seconds)}; a pass "
            f"takes {_ms(one.pass_seconds)}: {one.share_of_pass:.0%} of the limit."
        )
        if one.share_of_plain is not None:
            limit = 1 / one.limit_seconds
            yield (
                f"  Plain decoding: {one.plain_tokens_per_second:.0f} tokens/s of {limit:.0f} at the limit, "
                f"{one.share_of_plain:.0%}."
            )


def formula_lines(checks: Sequence[FormulaCheck]) -> Iterator[str]:
    """By contestant and temperature, medians over the presets."""
    if checks:
        yield "Measured speedup beside the formula's, from the measured α and c:"
    for (temperature, title), found in _grouped(checks).items():
        measured, formula, ratio = (
            statistics.median(getattr(one, name) for one in found) for name in ("measured", "formula", "ratio")
        )
        yield f"  {temperature:>4g}  {title:<30}{measured:>7.2f} of {formula:.2f}{ratio:>7.2f}"


def growth_lines(growth: Growth) -> Iterator[str]:
    yield f"Growth, {growth.drafter} γ={growth.num_draft_tokens}:"
    for point in growth.contexts:
        yield (
            f"  {point.context:>6} tokens of text: a plain token {_ms(point.plain_seconds)}, "
            f"a round {_ms(point.round_seconds)}"
        )
    for point in growth.rounds:
        yield (
            f"  {point.rounds:>6} rounds in runs of bounded length: a round {_ms(point.round_seconds)}, "
            f"{point.resident_mb:.0f} MB"
        )
    for name, age in (("these rounds", growth.many_runs), ("one run to the end of the context", growth.long_run)):
        yield (
            f"  {name}: {age.rounds} rounds, the first tenth {_ms(age.first_tenth_seconds)} each, the last "
            f"{_ms(age.last_tenth_seconds)}; {age.resident_mb_start:.0f} MB before, {age.resident_mb_end:.0f} after"
        )
    for point in growth.gammas:
        yield (
            f"  γ={point.num_draft_tokens:<4} a round {_ms(point.round_seconds)}, {point.acceptance_length:.2f} tokens "
            f"a pass, {point.tokens_per_second:.0f} tokens/s"
        )
    for point in growth.visitors:
        yield (
            f"  {point.visitors:>6} visitors at once: first round after {point.first_round_seconds:.2f} s (median), "
            f"{point.last_first_round_seconds:.2f} s (last), {point.tokens_per_second:.0f} tokens/s together"
        )


def _grouped(entries: Sequence[Entry]) -> dict[tuple[float, str], list[Entry]]:
    """Entries of all presets by temperature and contestant."""
    groups: dict[tuple[float, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.temperature, entry.title), []).append(entry)
    return groups


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
