"""The table in docs/training.md of what engines make of the embedded parts."""

from __future__ import annotations

from typing import Any


def table(report: dict[str, Any]) -> str:
    """A row for each part, a column for each engine and version: tokens a pass there and here, equal tokens."""
    rows = report["rows"]
    engines = list(dict.fromkeys((row["engine"], row["version"]) for row in rows))
    lines = [
        f"| | {' | '.join(f'{engine} {version}' for engine, version in engines)} |",
        "|---" * (len(engines) + 1) + "|",
    ]
    for part in dict.fromkeys(row["part"] for row in rows):
        found = {(row["engine"], row["version"]): row for row in rows if row["part"] == part}
        cells = [_cell(found[engine]) if engine in found else "" for engine in engines]
        lines.append(f"| `{part}` | {' | '.join(cells)} |")
    return f"*{caption(report)}*\n\n" + "\n".join(lines) + "\n"


def caption(report: dict[str, Any]) -> str:
    return (
        f"{report['prompts']} stories of {report['length']} tokens, greedy, γ = {report['gamma']}, "
        f"the engines' settings as `python -m tools.engines` starts them, on {report['processor']}; {report['date']}."
    )


def _cell(row: dict[str, Any]) -> str:
    if not row["loads"]:
        return f"refused: {row['reason']}"
    equal = f"{row['equal_tokens']} of {row['tokens']} tokens equal"
    if row["tokens_per_pass"] is None:
        return equal
    return f"{row['tokens_per_pass']:.2f} tokens a pass, here {row['tokens_per_pass_here']:.2f}; {equal}"
