"""The reports of both benchmarks for people: sentences, and tables by pandas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from specviz.bench.bench_rows import FormulaCheck, Overhead
from specviz.bench.equal_texts import Agreement
from specviz.bench.growth import Growth
from specviz.bench.machine import Facts
from specviz.bench.machine_limits import BandwidthLimit
from specviz.bench.report import BenchReport
from specviz.bench.rule_replay import RulesRow
from specviz.bench.size_benchmark import Bandwidth, SizeReport, SizeRow

#: Heading, field and format of a table's columns.
Columns = Sequence[tuple[str, str, str]]

WHOLE_RANGE, RANGE = "{0[0]:.0f}–{0[1]:.0f}", "{0[0]:.2f}–{0[1]:.2f}"

ROW_COLUMNS: Columns = (
    ("tok/s", "tokens_per_second", "{:.0f}"),
    ("spread", "spread", WHOLE_RANGE),
    ("speedup", "speedup_measured", "{:.2f}"),
    ("spread", "speedup_spread", RANGE),
    ("formula", "speedup_formula", "{:.2f}"),
    ("α", "acceptance_rate", "{:.2f}"),
    ("len", "acceptance_length", "{:.2f}"),
    ("c", "cost_coefficient", "{:.2f}"),
    ("draft", "phase_share.draft", "{:.0%}"),
    ("verify", "phase_share.verify", "{:.0%}"),
    ("rest", "phase_share.rest", "{:.0%}"),
    ("outside", "overhead_share", "{:.1%}"),
)
SUMMARY_COLUMNS: Columns = (
    ("tok/s", "tokens_per_second", "{:.0f}"),
    ("speedup", "speedup_measured", "{:.2f}"),
    ("len", "acceptance_length", "{:.2f}"),
    ("vs transformers", "against_transformers", "{:.2f}"),
)
RULES_COLUMNS: Columns = (
    ("rounds", "rounds", "{}"),
    ("token", "accepted_token", "{}"),
    ("block", "accepted_block", "{}"),
    ("block − token a round", "difference", "{:+.3f}"),
    ("±", "standard_error", "{:.3f}"),
    ("block longer", "block_longer", "{}"),
    ("token longer", "token_longer", "{}"),
)
OVERHEAD_COLUMNS: Columns = (
    ("outside, µs", "outside_microseconds", "{:.0f}"),
    ("a round, µs", "round_microseconds", "{:.0f}"),
    ("share", "share", "{:.1%}"),
)
TRACING_COLUMNS: Columns = (("ratio", "ratio", "{:.2f}"), ("spread", "spread", RANGE))
FORMULA_COLUMNS: Columns = (
    ("measured", "measured", "{:.2f}"),
    ("formula", "formula", "{:.2f}"),
    ("ratio", "ratio", "{:.2f}"),
)
SIZE_COLUMNS: Columns = (
    ("tok/s", "tokens_per_second", "{:.1f}"),
    ("spread", "spread", "{0[0]:.1f}–{0[1]:.1f}"),
    ("speedup", "speedup_measured", "{:.2f}"),
    ("spread", "speedup_spread", RANGE),
    ("formula", "speedup_formula", "{:.2f}"),
    ("ratio", "measured_over_formula", "{:.2f}"),
    ("by rounds", "speedup_by_rounds", "{:.2f}"),
    ("α asked", "alpha_asked", "{:g}"),
    ("α", "acceptance_rate", "{:.3f}"),
    ("len", "acceptance_length", "{:.2f}"),
    ("c", "cost_coefficient", "{:.3f}"),
    ("pass", "pass_ratio", "{:.2f}"),
    ("outside", "overhead_share", "{:.1%}"),
    ("known", "known_share", "{:.0%}"),
)
CONTEXT_COLUMNS: Columns = (
    ("a plain token, ms", "plain_seconds", "{:.2f}"),
    ("a round, ms", "round_seconds", "{:.2f}"),
)
ROUNDS_COLUMNS: Columns = (("a round, ms", "round_seconds", "{:.2f}"), ("memory, MB", "resident_mb", "{:.0f}"))
AGEING_COLUMNS: Columns = (
    ("rounds", "rounds", "{}"),
    ("first tenth, ms each", "first_tenth_seconds", "{:.2f}"),
    ("last tenth, ms each", "last_tenth_seconds", "{:.2f}"),
    ("MB before", "resident_mb_start", "{:.0f}"),
    ("MB after", "resident_mb_end", "{:.0f}"),
)
GAMMA_COLUMNS: Columns = (
    ("a round, ms", "round_seconds", "{:.2f}"),
    ("tokens a pass", "acceptance_length", "{:.2f}"),
    ("tok/s", "tokens_per_second", "{:.0f}"),
)
VISITORS_COLUMNS: Columns = (
    ("first round, s (median)", "first_round_seconds", "{:.2f}"),
    ("first round, s (last)", "last_first_round_seconds", "{:.2f}"),
    ("tok/s together", "tokens_per_second", "{:.0f}"),
)
#: Headings of the fields at the left.
TITLES = {"temperature": "T", "title": "contestant", "mode": "drafter", "num_draft_tokens": "γ"}


def bench_text(report: BenchReport) -> str:
    """The benchmark: each contestant on each preset, then groups of presets, then what else was measured."""
    return _paragraphs(
        [*_machine_lines(report.machine), *filter(None, (report.busy, report.unsteady))],
        equality_lines(report.equality, str(report.machine.get("dtype"))),
        _table(_frame(report.rows), ["preset", "temperature", "title"], ROW_COLUMNS),
        _table(_frame(report.summary), ["group", "temperature", "title"], SUMMARY_COLUMNS),
        _rules_lines(report.rules),
        _overhead_lines(report.overhead),
        [f"The page, watched by a browser: {report.page['ratio']:.2f} of the speed without one"] if report.page else (),
        _limit_lines(report.limit),
        _formula_lines(report.formula),
        growth_lines(report.growth) if report.growth else (),
        report.findings,
        [f"Left out, {entry['mode']}: {entry['reason']}" for entry in report.left_out],
        [f"Peak memory of this process up to the last row: {max(row.peak_mb or 0 for row in report.rows):.0f} MB"],
    )


def size_text(report: SizeReport) -> str:
    """The benchmark of a size: its contestants, and what keeps them from the formula and from the machine's limit."""
    pair = report.pair
    return _paragraphs(
        [
            *_machine_lines(report.machine),
            *(f"{role}: {pair[role]}, {pair[f'{role}_parameters']:,} parameters" for role in ("target", "draft")),
            "{prompt_tokens} + {new_tokens} tokens, {repeats} repeats, greedy".format(**report.settings),
            *report.notes,
        ],
        _table(_frame(report.rows), ["title"], SIZE_COLUMNS),
        [
            *(_lengths_line(row) for row in report.rows if row.mode == "adaptive"),
            *(_formula_line(row) for row in report.rows if row.measured_over_formula),
            _bandwidth_line(report.bandwidth),
        ],
    )


def _paragraphs(*parts: Iterable[str]) -> str:
    """Lines of text, an empty one between parts; a part without lines is left out."""
    return "\n\n".join(filter(None, ("\n".join(part) for part in parts)))


# Tables


def _frame(entries: Sequence[Any]) -> pd.DataFrame:
    """Dataclasses as rows; a field of a field is named ``phase_share.draft``."""
    return pd.json_normalize([asdict(entry) for entry in entries])


def _in_milliseconds(entries: Sequence[Any]) -> pd.DataFrame:
    frame = _frame(entries)
    timed = [name for name in frame.columns if name.endswith("_seconds")]
    return frame.assign(**1000 * frame[timed])


def _by_contestant(frame: pd.DataFrame, **figures: Any) -> pd.DataFrame:
    """The figures over all presets: by temperature and contestant, in the order in which these come."""
    return frame.groupby(["temperature", "title"], sort=False).agg(figures).reset_index()


def _table(frame: pd.DataFrame, titles: Sequence[str], columns: Columns) -> list[str]:
    """The lines of a table. titles: fields that stand at the left, each printed once for the rows that share it."""
    headings, fields, formats = zip(*columns)
    if "temperature" in titles:
        frame = frame.assign(temperature=frame["temperature"].map("{:g}".format))
    shown = frame.set_index(list(titles)).reindex(columns=fields)
    shown.index.names = [TITLES.get(title, title) for title in titles]
    # None becomes NaN, which is what na_rep stands for.
    text = shown.mask(shown.isna()).to_string(header=headings, formatters=[form.format for form in formats], na_rep="–")
    return [line.rstrip() for line in text.splitlines()]


def _rules_lines(rules: Sequence[RulesRow]) -> Iterator[str]:
    if rules:
        yield "Draft tokens kept by block verification and token by token, on the same drafts and coins:"
        yield from _table(_frame(rules), ["temperature", "mode", "num_draft_tokens"], RULES_COLUMNS)


def _overhead_lines(overhead: Overhead) -> Iterator[str]:
    yield "Overhead, a round's time outside the models; medians over presets:"
    medians = dict.fromkeys((name for _, name, _ in OVERHEAD_COLUMNS), "median")
    yield from _table(_by_contestant(_frame(overhead.rounds), **medians), ["temperature", "title"], OVERHEAD_COLUMNS)
    for without, what in (("untraced", "the same loop without records"), ("bare", "a bare loop")):
        costs = [one for one in overhead.tracing if one.without == without]
        if costs:
            yield f"Tracing, speed with the full trace over that of {what}, in the same repeats:"
            found = _by_contestant(_frame(costs), ratio="median", spread=_widest)
            yield from _table(found, ["temperature", "title"], TRACING_COLUMNS)


def _widest(spreads: Iterable[tuple[float, float]]) -> tuple[float, float]:
    lows, highs = zip(*spreads)
    return min(lows), max(highs)


def _formula_lines(checks: Sequence[FormulaCheck]) -> Iterator[str]:
    if checks:
        yield "Measured speedup beside the formula's, by the measured α and c; medians over presets:"
        medians = dict.fromkeys((name for _, name, _ in FORMULA_COLUMNS), "median")
        yield from _table(_by_contestant(_frame(checks), **medians), ["temperature", "title"], FORMULA_COLUMNS)


def growth_lines(growth: Growth) -> Iterator[str]:
    yield f"Growth, {growth.drafter} γ={growth.num_draft_tokens}, with the tokens of text before it:"
    yield from _table(_in_milliseconds(growth.contexts), ["context"], CONTEXT_COLUMNS)
    yield "With the rounds before it, in runs of bounded length:"
    yield from _table(_in_milliseconds(growth.rounds), ["rounds"], ROUNDS_COLUMNS)
    yield "In all of these runs, and in one run to the end of the context:"
    ageing = _in_milliseconds([growth.many_runs, growth.long_run]).assign(runs=["these runs", "one run"])
    yield from _table(ageing, ["runs"], AGEING_COLUMNS)
    yield "With the draft length:"
    yield from _table(_in_milliseconds(growth.gammas), ["num_draft_tokens"], GAMMA_COLUMNS)
    if growth.visitors:
        yield "With the number of visitors who press at once:"
        yield from _table(_frame(growth.visitors), ["visitors"], VISITORS_COLUMNS)


# Sentences


def _machine_lines(machine: Facts) -> list[str]:
    return [f"{key}: {value}" for key, value in machine.items() if value is not None]


def equality_lines(agreements: Sequence[Agreement], dtype: str) -> Iterator[str]:
    """One line for all that agree, one for each place where texts part."""
    if not agreements:
        yield "Equality: nothing was decoded greedily, so no text has to be equal."
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
            f"token is the target's best to within {max(one.largest_gap for one in found):.3f}."
        )


def _limit_lines(limits: Sequence[BandwidthLimit]) -> Iterator[str]:
    if limits:
        yield "Share of the limit: one token's bytes over the bandwidth of a copy or a read, whichever is faster:"
    for one in limits:
        speeds = f"copy {_gb(one.copy_bandwidth)}/s, read {_gb(one.read_bandwidth)}/s"
        yield (
            f"  {one.role}, after {one.context} tokens: {_mb(one.weight_bytes)} of weights and {_mb(one.cache_bytes)} "
            f"of keys and values take at least {_ms(one.limit_seconds)} at {_gb(one.bandwidth)}/s ({speeds}); a pass "
            f"takes {_ms(one.pass_seconds)}: {one.share_of_pass:.0%} of the limit."
        )
        if one.share_of_plain is not None:
            yield (
                f"  Plain decoding: {one.plain_tokens_per_second:.0f} tokens/s of {1 / one.limit_seconds:.0f} at the "
                f"limit, {one.share_of_plain:.0%}."
            )


def _lengths_line(row: SizeRow) -> str:
    lengths = ", ".join(f"γ={length} {count / row.rounds:.0%}" for length, count in row.rounds_by_length.items())
    return f"{row.title} drafted: {lengths} of its rounds."


def _formula_line(row: SizeRow) -> str:
    return (
        f"{row.title}: measured / formula {row.measured_over_formula:.2f}. The formula knows only α and c, not that a "
        f"target pass took {row.pass_ratio:.2f} times as long here as in a plain step, nor that "
        f"{row.overhead_share:.1%} of a round is outside the models; with whole rounds as measured it says "
        f"{row.speedup_by_rounds:.2f}."
    )


def _bandwidth_line(found: Bandwidth) -> str:
    return (
        f"Plain decoding reads {_gb(found.bytes_per_token, 3)} a token. At the {_gb(found.bytes_per_second)}/s "
        f"measured here that allows {found.limit:.1f} tokens/s, of which it reached {found.share:.0%}."
    )


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"


def _gb(size: float, digits: int = 1) -> str:
    return f"{size / 1e9:.{digits}f} GB"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
