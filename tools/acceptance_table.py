"""Prints a Markdown table for documentation: how often parts' guesses would be accepted, by the files that
``python -m specviz.training RECIPE --measure FILE`` wrote. ``python -m tools.acceptance_table FOLDER``
"""

import json
import pathlib
import sys
from typing import Any

from specviz.records.streams import carried_out
from tools import asked


def table(folder: pathlib.Path) -> str:
    """A row for the first and the last guess of each part: Σ min(p, q) / agreement of top choices, by text."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    texts = list(reports[0]["texts"])
    lines = [f"| | {' | '.join(texts)} |", "|---" * (1 + len(texts)) + "|"]
    for report in reports:
        for guess in dict.fromkeys([*report["texts"][texts[0]]][place] for place in (0, -1)):
            name = "" if guess == report["recipe"] else f", {guess}"
            cells = [_cell(report["texts"][text][guess]) for text in texts]
            lines.append(f"| `{report['recipe']}`{name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(figures: dict[str, Any]) -> str:
    return f"{figures['accepted']:.2f} / {figures['agreement']:.2f}"


if __name__ == "__main__":
    (folder,) = asked(__doc__, folder="of those files")
    sys.exit(carried_out(lambda: print(table(folder), end="")))
