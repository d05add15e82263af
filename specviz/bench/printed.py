"""The benchmark's report for people, as text with tables by pandas."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import pandas as pd

from specviz.bench.equal_texts import Agreement
from specviz.bench.report import BenchReport

Cells = dict[str, tuple[str, str]]

#: Part of a field's name -> the text printed in its place, unit included, and the factor to that unit.
UNITS = {"_seconds": (", ms", 1e3), "_mb": (", MB", 1)}

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
    "round_microseconds": ("a round, µs", "{:.0f}"),
    "outside_microseconds": ("outside, µs", "{:.0f}"),
    "share": ("share", "{:.1%}"),
}

SPEED = ("tokens_per_second", "spread", "speedup_measured", "speedup_interval", "speedup_formula")
JUDGED = ("acceptance_rate", "acceptance_length", "cost_coefficient")
PHASES = ("phase_share.draft", "phase_share.verify", "phase_share.rest")
ROW_FIELDS = (*SPEED, *JUDGED, *PHASES, "overhead_share")
SUMMARY_FIELDS = ("tokens_per_second", "speedup_measured", "acceptance_length", "against_transformers")


def bench_text(report: BenchReport) -> str:
    """The benchmark: each contestant on each preset, then groups of presets, then everything else."""
    parts: list[Iterable[str]] = [
        [f"{key}: {value}" for key, value in report.machine.items() if value is not None],
        filter(None, (report.busy, report.unsteady)),
        [f"✗ {entry['title']}: {entry['reason']}" for entry in report.failed],
        equality_lines(report.equality, str(report.machine.get("dtype"))),
        _table(_frame(report.rows), ["preset", "temperature", "title"], ROW_FIELDS),
        _table(_frame(report.summary), ["group", "temperature", "title"], SUMMARY_FIELDS),
        _section(
            "Overhead, a round's time outside the models; medians over presets:",
            _medians(report.overhead, "round_microseconds", "outside_microseconds", "share"),
        ),
        _section(
            "Measured speedup and the formula's, by the measured α and c; medians over presets:",
            _medians(report.formula, "measured", "formula", "ratio"),
        ),
        report.findings,
        [f"Left out, {entry['mode']}: {entry['reason']}" for entry in report.left_out],
        [f"Peak memory of this process up to the last row: {max(row.peak_mb or 0 for row in report.rows):.0f} MB"],
    ]
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
