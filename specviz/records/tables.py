"""A run as tables: one row per round, or one per draft token."""

from __future__ import annotations

import pathlib

import pandas as pd

from specviz.records.metrics import draft_depths
from specviz.records.runs import Run


def rounds_table(run: Run) -> pd.DataFrame:
    """One row per target pass: what was drafted, judged, accepted and emitted, and the seconds it took."""
    return pd.DataFrame(
        [
            {
                "round": one.index,
                "drafted": len(one.drafted),
                "judged": one.judged,
                "accepted": one.accepted,
                "next": one.next.text,
                "next_kind": one.next.kind,
                "emitted": len(one.emitted),
                "text": "".join(one.pieces),
                "draft_seconds": one.seconds.draft,
                "verify_seconds": one.seconds.verify,
                "accept_seconds": one.seconds.accept,
                "total_seconds": one.seconds.total,
                "confidence": one.confidence,
                "distance": one.distance,
            }
            for one in run.rounds
        ]
    )


def save_table(run: Run, path: str | pathlib.Path) -> None:
    """Writes `tokens_table` as CSV; for a run that drafted nothing, `rounds_table`, with one token per round."""
    drafted = any(one.drafted for one in run.rounds)
    table = tokens_table(run) if drafted else rounds_table(run)
    table.to_csv(path, index=False, errors="replace")


def tokens_table(run: Run) -> pd.DataFrame:
    """One row per draft token, with its probabilities, coin and verdict.

    token: its index in the round's draft, to which `parent` refers. position: its depth, from 0.
    """
    return pd.DataFrame(
        [
            {
                "round": one.index,
                "token": place,
                "position": depth,
                "parent": token.parent,
                "id": token.id,
                "text": token.text,
                "p": token.p,
                "q": token.q,
                "p_raw": token.p_raw,
                "q_raw": token.q_raw,
                "u": token.u,
                "accept_prob": token.accept_prob,
                "p_left": token.p_left,
                "draft_u": token.draft_u,
                "source": token.source,
                "outcome": token.outcome,
            }
            for one in run.rounds
            for place, (token, depth) in enumerate(zip(one.drafted, draft_depths(one)))
        ]
    )
