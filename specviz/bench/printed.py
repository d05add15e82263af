"""The benchmark's report for people: as text with tables by pandas, and as one Markdown table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import pandas as pd

from specviz.bench.equal_texts import Agreement
from specviz.bench.machine import BandwidthLimit
from specviz.bench.report import SCHEMA, STORY_GROUP, BenchReport, Values
from specviz.records.errors import SpecvizError
from specviz.records.settings import PLAIN

Cells = dict[str, tuple[str, str]]

#: Part of a field's name -> the text printed in its place, unit included, and the factor to that unit.
UNITS = {"_seconds": (", ms", 1e3), "_bytes": (", MB", 1e-6), "bandwidth": ("GB/s", 1e-9), "_mb": (", MB", 1)}

#: Field -> heading and format, where these are not the field's own name and two decimals.
CELLS: Cells = {
    "temperature": ("T", "{:g}"),
    "title": ("contestant", "{}"),
    "mode": ("drafter", "{}"),
    "num_draft_tokens": ("γ", "{}"),
    "tokens_per_second": ("tok/s", "{:.0f}"),
    "spread": ("spread", "{0[0]:.0f}–{0[1]:.0f}"),
    "speedup_measured": ("speedup", "{:.2f}"),
    "speedup_interval": ("90 %", "{0[0]:.2f}–{0[1]:.2f}"),
    "speedup_formula": ("formula", "{:.2f}"),
    "acceptance_rate": ("α", "{:.2f}"),
    "acceptance_length": ("len", "{:.2f}"),
    "cost_coefficient": ("c", "{:.2f}"),
    "phase_share.draft": ("draft", "{:.0%}"),
    "phase_share.verify": ("verify", "{:.0%}"),
    "phase_share.rest": ("rest", "{:.0%}"),
    "overhead_share": ("outside", "{:.1%}"),
    "against_transformers": ("vs transformers", "{:.2f}"),
    "difference": ("block − token a round", "{:+.3f}"),
    "standard_error": ("±", "{:.3f}"),
    "round_microseconds": ("a round, µs", "{:.0f}"),
    "outside_microseconds": ("outside, µs", "{:.0f}"),
    "share": ("share", "{:.1%}"),
    "share_of_pass": ("limit / pass", "{:.0%}"),
    "plain_tokens_per_second": ("plain tok/s", "{:.0f}"),
    "share_of_plain": ("plain / limit", "{:.0%}"),
}

SPEED = ("tokens_per_second", "spread", "speedup_measured", "speedup_interval", "speedup_formula")
JUDGED = ("acceptance_rate", "acceptance_length", "cost_coefficient")
PHASES = ("phase_share.draft", "phase_share.verify", "phase_share.rest")
ROW_FIELDS = (*SPEED, *JUDGED, *PHASES, "overhead_share")
SUMMARY_FIELDS = ("tokens_per_second", "speedup_measured", "acceptance_length", "against_transformers")


def bench_text(report: BenchReport) -> str:
    """The benchmark: each contestant on each preset, then groups of presets, then everything else."""
    return _paragraphs(
        [f"{key}: {value}" for key, value in report.machine.items() if value is not None],
        filter(None, (report.busy, report.unsteady)),
        [f"✗ {entry['title']}: {entry['reason']}" for entry in report.failed],
        equality_lines(report.equality, str(report.machine.get("dtype"))),
        _table(_frame(report.rows), ["preset", "temperature", "title"], ROW_FIELDS),
        _table(_frame(report.summary), ["group", "temperature", "title"], SUMMARY_FIELDS),
        _section(
            "Draft tokens accepted token by token and by block verification, on the same drafts and coins:",
            _frame(report.rules),
            ["temperature", "mode", "num_draft_tokens"],
        ),
        _section(
            "Overhead, a round's time outside the models; medians over presets:",
            _medians(report.overhead, "round_microseconds", "outside_microseconds", "share"),
        ),
        _section(
            "Tracing, speed with the full trace over that of a bare loop, in turn; medians over presets:",
            _medians(report.tracing, "ratio.value").rename(columns={"ratio.value": "ratio"}),
        ),
        _limit_lines(report.limit),
        _section(
            "Measured speedup and the formula's, by the measured α and c; medians over presets:",
            _medians(report.formula, "measured", "formula", "ratio"),
        ),
        report.findings,
        [f"Left out, {entry['mode']}: {entry['reason']}" for entry in report.left_out],
        [f"Peak memory of this process up to the last row: {max(row.peak_mb or 0 for row in report.rows):.0f} MB"],
    )


def _paragraphs(*parts: Iterable[str]) -> str:
    """Lines of text, an empty one between parts; a part without lines is left out."""
    return "\n\n".join(filter(None, ("\n".join(part) for part in parts)))


# Tables


def _frame(entries: Sequence[Any]) -> pd.DataFrame:
    """Entries as rows, in the units of `UNITS`; a field of a field is named ``phase_share.draft``."""
    frame = pd.json_normalize([asdict(entry) if is_dataclass(entry) else entry for entry in entries])
    for part, (unit, scale) in UNITS.items():
        found = {name: name.replace(part, unit) for name in frame.columns if part in name}
        frame = frame.assign(**scale * frame[[*found]].astype(float)).rename(columns=found)
    return frame


def _medians(entries: Sequence[Any], *figures: str) -> pd.DataFrame:
    """Figures of all presets together, by temperature and contestant, in the order in which these come."""
    frame = _frame(entries)
    if frame.empty:
        return frame
    return frame.groupby(["temperature", "title"], sort=False)[[*figures]].median().reset_index()


def _table(
    frame: pd.DataFrame, left: Sequence[str], fields: Sequence[str] | None = None, cells: Cells = CELLS
) -> list[str]:
    """The lines of a table.

    left: fields at the left, each printed once for the rows that share it. fields: the others, all of them if None.
    """
    formats = {name: "{:.2f}" if column.dtype == float else "{}" for name, column in frame.items()}
    cells = {name: (name.replace("_", " "), form) for name, form in formats.items()} | cells
    shown = frame.assign(**{name: frame[name].map(cells[name][1].format) for name in left}).set_index([*left])
    shown = shown.rename_axis([cells[name][0] for name in left]).reindex(columns=fields or shown.columns)
    # None becomes NaN, which na_rep replaces.
    headings, formatters = [cells[name][0] for name in shown], [cells[name][1].format for name in shown]
    text = shown.mask(shown.isna()).to_string(header=headings, formatters=formatters, na_rep="–")
    return [line.rstrip() for line in text.splitlines()]


def _section(heading: str, frame: pd.DataFrame, left: Sequence[str] = ("temperature", "title")) -> list[str]:
    """A heading and a table; nothing where the table has no rows."""
    return [] if frame.empty else [heading, *_table(frame, left)]


def _limit_lines(limits: Sequence[BandwidthLimit]) -> Iterator[str]:
    yield from _section(
        "A pass over one token and its limit: its bytes over the bandwidth of a copy or a read, the faster:",
        _frame(limits),
        ["role", "context"],
    )
    for one in limits:
        if one.limit_seconds is None:
            yield f"The {one.role}'s passes are faster than that bandwidth allows: their limit is not known."


def equality_lines(agreements: Sequence[Agreement], dtype: str) -> Iterator[str]:
    """One line for all that agree, one for each place where texts part."""
    if not agreements:
        yield "Equality: nothing was decoded greedily, so no text has to be equal."
        return
    same, presets = sum(one.identical for one in agreements), {one.preset for one in agreements}
    yield (
        f"Equality, before anything was timed: {same} of {len(agreements)} greedy texts (prompts: {len(presets)}) are "
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


# Markdown


def bench_markdown(report: Values) -> str:
    """A table for documentation, from the values of a benchmark's JSON file.

    A row for each drafter, its best setting on the stories (else on the first preset) at each temperature: tokens per
    target pass, the speedup over plain decoding and its 90 % interval. The caption names date, machine and pair.
    Raises SpecvizError (field ``from``) for any other values.
    """
    if not isinstance(report, dict) or report.get("schema") != SCHEMA or not report.get("summary"):
        raise SpecvizError("This is not a report of the benchmark ({schema}).", "from", schema=SCHEMA)
    summary = report["summary"]
    groups = {one["group"] for one in summary}
    group = STORY_GROUP if STORY_GROUP in groups else summary[0]["group"]
    rows = [one for one in summary if one["group"] == group and one["engine"] != "bare"]
    temperatures = sorted({one["temperature"] for one in rows})
    head = [f"{_at(temperature)} | tokens a pass | speedup, 90 %" for temperature in temperatures]
    ways = dict.fromkeys((one["engine"], one["mode"]) for one in rows)
    lines = [f"| | {' | '.join(head)} |", f"|---{'|---|---|---' * len(head)}|"]
    for engine, mode in sorted(ways, key=lambda way: (way[0] != "specviz", way[1] != PLAIN)):
        own = [one for one in rows if (one["engine"], one["mode"]) == (engine, mode)]
        cells = [_cells([one for one in own if one["temperature"] == temperature]) for temperature in temperatures]
        name = f"`{mode}`" if engine == "specviz" else f"{engine}' `{mode}`"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return f"{_caption(report, group)}\n\n" + "\n".join(lines) + "\n"


def _at(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def _cells(rows: Sequence[Values]) -> str:
    """The setting with the highest speedup, as far as it can be counted on: by the lower ends of the intervals."""
    if not rows:
        return " | | "
    best = max(rows, key=lambda one: (one.get("speedup_interval") or [one["speedup_measured"] or 0.0])[0])
    setting = best["title"].removeprefix("transformers ").removeprefix(best["mode"]).strip()
    if best["mode"] == PLAIN:
        setting = f"{best['tokens_per_second']:.0f} tokens/s"
    length = "" if best["acceptance_length"] is None else f"{best['acceptance_length']:.2f}"
    speedup = "" if best["speedup_measured"] is None else f"{best['speedup_measured']:.2f}×"
    if interval := best.get("speedup_interval"):
        speedup += " ({:.2f}–{:.2f})".format(*interval)
    return f"{setting} | {length} | {speedup}"


def _caption(report: Values, group: str) -> str:
    machine, pair, settings = report["machine"], report["pair"], report["settings"]
    device = machine["processor"] if machine["device"] == "cpu" else machine["device"]
    facts = [
        f"{device}, {machine['cores']} cores, {machine['threads']} threads" if machine["device"] == "cpu" else device,
        f"{pair['name']}, {machine['dtype']}, {pair['passes']} passes",
        f"{group}, {settings['repeats_made']} × {settings['max_new_tokens']} new tokens",
        f"torch {machine['torch']}, transformers {machine['transformers']}",
        *filter(None, [machine.get("date")]),
    ]
    shown = "each drafter with its best setting, by the lower end of the interval"
    return f"*{'; '.join(facts)}. Speedups over the same library's plain decoding, {shown}.*"
