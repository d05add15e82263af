"""A run as a table with a row per round or per draft token, several runs as one with a row per run; tables as text."""

import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from specviz.records.errors import SpecvizError, quoted, require_made_by
from specviz.records.metrics import draft_depths, speedup, tally
from specviz.records.runs import Run
from specviz.records.settings import PLAIN


def rounds_table(run: Run) -> pd.DataFrame:
    """One row per target pass: what was drafted, judged, accepted and emitted, and the seconds it took."""
    phases = "draft", "verify", "accept", "total"
    return pd.DataFrame(
        [
            {
                "round": round_.index,
                "drafted": len(round_.drafted),
                "judged": round_.judged,
                "accepted": round_.accepted,
                "next": round_.next.text,
                "next_kind": round_.next.kind,
                "emitted": len(round_.emitted),
                "text": "".join(round_.pieces),
                **{f"{phase}_seconds": round_.seconds and getattr(round_.seconds, phase) for phase in phases},
                "confidence": round_.confidence,
                "distance": round_.distance,
            }
            for round_ in run.rounds
        ]
    )


def runs_table(runs: Iterable[Run]) -> pd.DataFrame:
    """One row per run: how it was made, and its headline figures; in a notebook, the comparison to look at.

    speedup: tokens per second over those of the first plain run among them with the same prompt and pair; None without.
    Raises SpecvizError (field ``runs``) for what is no run.
    """
    plain: dict[Any, Run] = {}
    if not isinstance(runs, Iterable):
        raise SpecvizError("runs must be a list of runs, not {value}.", "runs", value=quoted(runs))
    runs = list(runs)
    for run in runs:
        require_made_by("run", Run, "runs", run)
        if run.drafter is None:
            plain.setdefault((run.prompt.ids, run.pair), run)
    return pd.DataFrame([_figures(run, plain.get((run.prompt.ids, run.pair))) for run in runs])


def save_table(run: Run, path: str | pathlib.Path) -> None:
    """Writes `tokens_table` as CSV; for a run that drafted nothing, `rounds_table`, with one token per round."""
    drafted = any(round_.drafted for round_ in run.rounds)
    table = tokens_table(run) if drafted else rounds_table(run)
    table.to_csv(path, index=False, errors="replace")


def tokens_table(run: Run) -> pd.DataFrame:
    """One row per draft token, with its probabilities, coin and verdict.

    token: its index in the round's draft, to which `parent` refers. position: its depth, from 0.
    """
    names = (
        *("parent", "id", "text", "p", "q", "p_raw", "q_raw", "u", "accept_prob"),
        *("p_left", "draft_u", "source", "outcome"),
    )
    return pd.DataFrame(
        [
            {"round": round_.index, "token": place, "position": depth} | {name: getattr(token, name) for name in names}
            for round_ in run.rounds
            for place, (token, depth) in enumerate(zip(round_.drafted, draft_depths(round_)))
        ]
    )


def _figures(run: Run, plain: Run | None) -> dict[str, str | int | float | None]:
    counts = tally(run.rounds)
    return {
        "drafter": run.drafter or PLAIN,
        "num_draft_tokens": run.num_draft_tokens if run.drafter else None,
        "rule": run.rule if run.drafter else None,
        "temperature": None if run.engine and not run.sampling.greedy else run.sampling.temperature,
        "seed": None if run.engine else run.seed,
        "tokens": counts.tokens,
        "target_passes": counts.rounds,
        "acceptance_rate": counts.acceptance_rate,
        "acceptance_length": counts.acceptance_length,
        "tokens_per_second": counts.tokens_per_second,
        "speedup": speedup(plain, run) if plain else None,
    }


def aligned(table: Sequence[Sequence[str]], left: int | None = None) -> str:
    """A table as lines of text. left: how many columns begin at the left, the others end at the right; None is all."""
    widths = [max(map(len, column)) for column in zip(*table)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths)
        return "  ".join(
            cell.ljust(width) if left is None or place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(cells)
        ).rstrip()

    return "\n".join(map(line, table))
