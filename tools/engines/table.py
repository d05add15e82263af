"""What engines make of the embedded parts, as a table for documentation."""

from __future__ import annotations

from typing import Any


def table(report: dict[str, Any]) -> str:
    """A row for each part, a column for each engine: tokens a pass, and how much of the texts is equal."""
    engines, parts = (list(dict.fromkeys(row[name] for row in report["rows"])) for name in ("engine", "part"))
    rows = {(row["engine"], row["part"]): row for row in report["rows"]}
    lines = [f"| | {' | '.join(['specviz', *engines])} |", f"|---{'|---' * len(engines)}|---|"]
    for part in parts:
        here = next(row["tokens_per_pass_here"] for row in report["rows"] if row["part"] == part)
        cells = [f"{here:.2f}", *(_cell(rows[engine, part]) for engine in engines)]
        lines.append(f"| `{part}` | {' | '.join(cells)} |")
    stories = f"{report['prompts']} stories of {report['length']} tokens, greedy, γ = {report['gamma']}"
    shown = "tokens a pass, and how many tokens of the texts are those of specviz's plain decoding"
    return f"*{stories}, {report['processor']}, {report['date']}: {shown}.*\n\n" + "\n".join(lines) + "\n"


def _cell(row: dict[str, Any]) -> str:
    if not row["loads"]:
        return f"refused: “{row['reason']}”"
    length = "not told" if row["tokens_per_pass"] is None else f"{row['tokens_per_pass']:.2f}"
    return f"{length}, {row['equal_tokens']} of {row['tokens']} equal"
