"""The file of `tools.gpu_bench`, written again after everything that is measured, and its Markdown table."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specviz.bench.contestants import PLAIN, Contestant
from specviz.bench.lanes import reason_of
from tools.gpu_figures import Timed

SCHEMA = "specviz.gpu_bench/1"

#: The last characters of a failure's traceback that the file keeps: the machine may be gone when somebody asks.
TRACED = 2000

#: A contestant's figures at one temperature, as in the file.
Row = dict[str, Any]

#: The columns behind a row's name: heading, figure and format.
COLUMNS = (
    ("tokens/s", "tokens_per_second", ".1f"),
    ("× plain", "over_plain", ".2f"),
    ("rounds", "rounds", ".0f"),
    ("tokens a pass", "tokens_per_pass", ".2f"),
    ("ms a round of the whole run", "whole_ms", ".2f"),
    ("ms in rounds", "round_ms", ".2f"),
    ("draft", "draft_ms", ".2f"),
    ("verify", "verify_ms", ".2f"),
    ("outside passes", "outside_ms", ".2f"),
    ("tokens as plain", "as_plain", ".0f"),
)


class Report:
    """The values of the file, and what is told meanwhile."""

    def __init__(self, path: pathlib.Path, budget: float):
        self.path, self.budget, self.began = path, budget, time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.values: dict[str, Any] = {"schema": SCHEMA, "settings": {}, "machine": None, "pairs": {}}
        self.values |= {"preparation": {}, "copy_bandwidth": None, "passes": [], "rows": [], "profile": []}
        self.values |= {"check": None, "skipped": [], "failed": [], "seconds": {}}
        self.texts: dict[str, Sequence[int]] = {}  # the first one of each row

    def left(self) -> float:
        """Seconds of the budget."""
        return self.budget - (time.perf_counter() - self.began)

    def say(self, line: str) -> None:
        """Progress; the table alone goes to the standard output."""
        print(line, file=sys.stderr, flush=True)

    def save(self) -> None:
        """Never half of it: the program may be ended at any moment."""
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps(self.values, indent=1, ensure_ascii=False), encoding="utf-8")
        os.replace(new, self.path)

    @property
    def _over(self) -> str:
        return f"the budget of {self.budget:g} s was over"

    def part(self, name: str, work: Callable[[], None]) -> None:
        """Does a part, if there is time for it."""
        if self.left() <= 0:
            return self.skip(name, self._over)
        self.say(f"{name} …")
        began = time.perf_counter()
        with self.telling(name):
            work()
        self.values["seconds"][name] = time.perf_counter() - began
        self.save()

    def skip(self, what: str, why: str) -> None:
        self.values["skipped"].append({"what": what, "reason": why})
        self.say(f"– {what}: {why}")
        self.save()

    def row(
        self,
        part: str,
        contestant: Contestant,
        temperature: float,
        work: Callable[[], list[Timed]],
        reserve: float = 0.0,
    ) -> None:
        """Measures a row, if there is time for it: `work` returns all of its runs so far.

        reserve: seconds that are to be left for later parts.
        """
        what, rows = f"{part}, {contestant.title}, {at(temperature)}", self.values["rows"]
        known = [place for place, one in enumerate(rows) if one["what"] == what]
        if self.left() <= reserve:
            return None if known else self.skip(what, self._over)
        with self.telling(what):
            runs = work()
            self.texts[what] = runs[0].token_ids
            row = {"what": what, "part": part, **row_of(contestant, temperature, runs)}
            place = known[0] if known else len(rows)
            rows[place : place + 1] = [row]
            self._compare()

    def _compare(self) -> None:
        """Every row with plain decoding of its part, engine and temperature: speed, and the tokens of greedy texts."""
        rows = self.values["rows"]
        for row in rows:
            beside = [one for one in rows if all(one[key] == row[key] for key in ("part", "engine", "temperature"))]
            for plain in (one for one in beside if one["mode"] == PLAIN and one is not row):
                row["over_plain"] = row["tokens_per_second"] / plain["tokens_per_second"]
                if row["temperature"] == 0:
                    row["as_plain"] = common_length(self.texts[row["what"]], self.texts[plain["what"]])

    @contextlib.contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Within it, what fails is told and ends alone."""
        try:
            yield
        except Exception as error:
            reason = str(reason_of(error))
            # By the names of files alone: where they lie is this machine's business.
            trace = re.sub(r'File ".*/', 'File "', traceback.format_exc())[-TRACED:]
            self.values["failed"].append({"what": what, "reason": reason, "trace": trace})
            self.say(f"✗ {what}: {reason}")
        self.save()


def row_of(contestant: Contestant, temperature: float, runs: Sequence[Timed]) -> Row:
    """Each figure is the median over the runs."""
    names = runs[0].figures
    return {
        "title": contestant.title,
        "engine": contestant.engine,
        "mode": contestant.mode,
        "num_draft_tokens": contestant.num_draft_tokens,
        "temperature": temperature,
        "runs": len(runs),
        "spread": [pick(run.figures["tokens_per_second"] for run in runs) for pick in (min, max)],
        **{name: statistics.median(run.figures[name] for run in runs) for name in names},
        "over_plain": None,
        "as_plain": None,  # tokens up to which the greedy text is plain decoding's
    }


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts have in common from their start."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other))))


def at(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"T = {temperature:g}"


# The table


def table(values: dict[str, Any]) -> str:
    """All that a file holds, as Markdown."""
    rows = {part: _rows(values, part) for part in ("rounds", "peers", "embedded")}
    profiles = "\n\n".join(map(_kernels, values["profile"]))
    blocks = _caption(values), _passes(values), rows["rounds"], profiles, rows["peers"], rows["embedded"]
    return "\n\n".join(filter(None, [*blocks, _check(values), _notes(values)])) + "\n"


def _caption(values: dict[str, Any]) -> str:
    machine, pairs = values["machine"], values["pairs"]
    if machine is None:
        return "*Nothing was measured.*"
    device = machine["processor"] if machine["device"] == "cpu" else machine["device"]
    models = [
        f"{one['target']} ({one['target_parameters']:,} parameters) with {one['draft']}, {one['dtype']}"
        for one in pairs.values()
    ]
    versions = f"torch {machine['torch']}, transformers {machine['transformers']}"
    return f"*{'; '.join([device, *models, versions, machine['date']])}.*"


def _passes(values: dict[str, Any]) -> str:
    if not values["passes"]:
        return ""
    # A file's keys are texts.
    widths = sorted({int(width) for one in values["passes"] for width in one["ms"]})
    lines = [
        f"Copying runs at {values['copy_bandwidth'] / 1e9:,.0f} GB/s, and no pass can read its weights faster.",
        "",
        f"| ms a pass over | {' | '.join(map(str, widths))} | weights, GB | limit, ms | share of it |",
        f"|---|{'---|' * (len(widths) + 3)}",
    ]
    for one in values["passes"]:
        cells = [f"{ms:.3f}" for _, ms in sorted((int(width), ms) for width, ms in one["ms"].items())]
        cells += [f"{one['weight_bytes'] / 1e9:.3f}", f"{one['limit_ms']:.3f}", f"{one['share']:.0%}"]
        lines.append(f"| {one['role']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(values: dict[str, Any], part: str) -> str:
    rows = [row for row in values["rows"] if row["part"] == part]
    if not rows:
        return ""
    shown = [column for column in COLUMNS if any(row.get(column[1]) is not None for row in rows)]
    tokens = max(row["tokens"] for row in rows)
    lines = [
        f"| {part}, {tokens:.0f} new tokens | {' | '.join(heading for heading, *_ in shown)} |",
        f"|---|{'---|' * len(shown)}",
    ]
    for row in rows:
        cells = ["" if row.get(name) is None else format(row[name], spec) for _, name, spec in shown]
        lines.append(f"| {row['title']}, {at(row['temperature'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _kernels(kernels: dict[str, Any]) -> str:
    sums = f"{kernels['kernels']:.0f} a round, busy for {kernels['busy_ms']:.2f} ms of it"
    lines = [f"| kernels of {kernels['title']}: {sums} | number | ms |", "|---|---|---|"]
    # Names of templates may hold any sign.
    lines += [
        f"| `{one['name'].replace('|', '/')}` | {one['count']:.1f} | {one['ms']:.3f} |" for one in kernels["longest"]
    ]
    return "\n".join(lines)


def _check(values: dict[str, Any]) -> str:
    if values["check"] is None:
        return ""
    counts = ", ".join(f"{count} {state}" for state, count in values["check"]["counts"].items())
    return "\n".join(
        [f"The check of the embedded pair: {counts}.", *(f"- {one}" for one in values["check"]["findings"])]
    )


def _notes(values: dict[str, Any]) -> str:
    """How preparing went, what was left out or failed, and how long it all took."""
    notes = []
    for which, one in values["preparation"].items():
        if one["seconds"] is not None:
            notes.append(f"Prepared in {one['seconds']:.1f} s, {which}: {', '.join(one['ready']) or 'nothing'}.")
        notes += [f"Not prepared, {which}, {role}: {reason}" for role, reason in one["reasons"].items()]
    reasons = dict.fromkeys(one["reason"] for one in values["skipped"])
    for reason in reasons:
        skipped = [one["what"] for one in values["skipped"] if one["reason"] == reason]
        notes.append(f"Left out, since {reason}: {'; '.join(skipped)}.")
    notes += [f"Failed: {one['what']}: {one['reason'].rstrip('.')}." for one in values["failed"]]
    taken = ", ".join(f"{part} {seconds:.0f}" for part, seconds in values["seconds"].items())
    return "\n".join(f"- {note}" for note in [*notes, f"Seconds taken: {taken}."])
