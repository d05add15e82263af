"""Prints one Markdown table for documentation, of a report: ``python -m tools.bench_table bench.json > bench.md``."""

import json
import sys
from collections.abc import Sequence

from specviz.bench.report import STORY_GROUP, Values
from specviz.records.settings import PLAIN
from specviz.records.streams import carried_out
from tools import asked


def table(report: Values) -> str:
    """A row for each drafter, its best setting on the stories (else on the first preset) at each temperature.

    Tokens per target pass, the speedup over plain decoding and its 90 % interval. The caption says where.
    """
    summary = report["summary"]
    groups = {row["group"] for row in summary}
    group = STORY_GROUP if STORY_GROUP in groups else summary[0]["group"]
    rows = [row for row in summary if row["group"] == group]
    temperatures = sorted({row["temperature"] for row in rows})
    head = [f"{_at(temperature)} | tokens a pass | speedup, 90 %" for temperature in temperatures]
    ways = dict.fromkeys((row["engine"], row["mode"]) for row in rows)
    lines = [f"| | {' | '.join(head)} |", f"|---{'|---|---|---' * len(head)}|"]
    for engine, mode in sorted(ways, key=lambda way: (way[0] != "specviz", way[1] != PLAIN)):
        same_way = [row for row in rows if (row["engine"], row["mode"]) == (engine, mode)]
        cells = [_cells([row for row in same_way if row["temperature"] == temperature]) for temperature in temperatures]
        name = f"`{mode}`" if engine == "specviz" else f"{engine}' `{mode}`"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return f"{_caption(report, group)}\n\n" + "\n".join(lines) + "\n"


def _at(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def _cells(rows: Sequence[Values]) -> str:
    """The setting with the highest speedup, as far as it can be counted on: by the lower ends of the intervals."""
    if not rows:
        return " | | "
    best = max(rows, key=lambda row: (row.get("speedup_interval") or [row["speedup_measured"] or 0.0])[0])
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
    if machine.get("march", "native") != "native":
        device += f" as {machine['march']}"
    facts = [
        f"{device}, {machine['cores']} cores, {machine['threads']} threads" if machine["device"] == "cpu" else device,
        f"{pair['name']}, {machine['dtype']}, {pair['passes']} passes",
        f"{group}, {settings['repeats_made']} × {settings['max_new_tokens'] or 'several numbers of'} new tokens",
        f"torch {machine['torch']}, transformers {machine['transformers']}",
        *filter(None, [machine.get("date")]),
    ]
    shown = "each drafter with its best setting, by the lower end of the interval"
    return f"*{'; '.join(facts)}. Speedups over the same library's plain decoding, {shown}.*"


if __name__ == "__main__":
    (report,) = asked(__doc__, report="written by python -m specviz bench --json")
    sys.exit(carried_out(lambda: print(table(json.loads(report.read_text(encoding="utf-8"))), end="")))
