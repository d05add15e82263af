"""The values of the four live charts; charts/figures.js in assets/web turns them into plotly's figures.

The process that runs the models counts several times a second, so the values are short lists, however long the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from specviz.records.metrics import Tally
from specviz.records.runs import Round
from specviz.theory.along_texts import Pass, passes_of

#: At most this many points or bars per chart; beyond that, neighbouring rounds share one.
MAX_POINTS = 240

#: During a run a chart is drawn with every third batch, three or four a second; the four of them take turns.
BATCHES_PER_CHART = 3

#: Parts of the text whose own rate of acceptance is drawn, once there are as many rounds.
PARTS = 16


@dataclass(slots=True)
class Trail:
    """The part of the rounds so far that the charts need; `add` takes constant time."""

    counts: Tally = field(default_factory=Tally)
    rates: list[float | None] = field(default_factory=list)  # α after each round; None until a token is judged
    passes: list[Pass] = field(default_factory=list)

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Trail:
        trail = cls()
        for round_ in rounds:
            trail.add(round_)
        return trail

    def add(self, round_: Round) -> None:
        self.counts.add(round_)
        self.rates.append(self.counts.acceptance_rate)
        self.passes += passes_of([round_])

    def charts(self, turn: int | None = None) -> dict[int, dict[str, Any]]:
        """All four charts by position on the page, ready for JSON; given a turn, only the one whose turn it is.

        During a run they take turns: drawing all each time would cost the page more than the run it shows.
        """
        places = range(len(CHARTS)) if turn is None else [turn % len(CHARTS)]
        return {place: CHARTS[place](self) for place in places}


def acceptance_chart(trail: Trail) -> dict[str, Any]:
    """Running acceptance rate α: accepted / judged draft tokens, from the first round to each round shown.

    parts: neighbouring rounds by themselves, as the last round, the last token of the text, accepted, judged.
    """
    rates, step = trail.rates, _step(trail.rates)
    # Every step-th round, and always the newest.
    shown = sorted({*range(step - 1, len(rates), step), len(rates) - 1}) if rates else []
    return {"rounds": [i + 1 for i in shown], "rates": [rates[i] for i in shown], "parts": _parts(trail.passes)}


def _parts(passes: list[Pass]) -> list[list[int]]:
    size, parts, tokens = max(1, math.ceil(len(passes) / PARTS)), [], 0
    for first in range(0, len(passes), size):
        accepted, judged, emitted = map(sum, zip(*passes[first : first + size]))
        tokens += emitted
        parts.append([min(first + size, len(passes)), tokens, accepted, judged])
    return parts


def tokens_per_pass_chart(trail: Trail) -> dict[str, Any]:
    """Tokens per target pass, with their mean. In long runs, `step` rounds share a bar that shows their mean."""
    counts, step = [one.tokens for one in trail.passes], _step(trail.passes)
    groups = [counts[i : i + step] for i in range(0, len(counts), step)]
    means = [sum(group) / len(group) for group in groups]
    return {"rounds": len(counts), "step": step, "means": means, "mean": sum(counts) / len(counts) if counts else None}


def position_chart(trail: Trail) -> dict[str, Any]:
    """Accepted and judged draft tokens by draft position, in trees each sibling that was tried."""
    counts = trail.counts
    return {"accepted": [*counts.accepted_at], "judged": [*counts.judged_at], "trees": bool(counts.drafted_trees)}


def time_chart(trail: Trail) -> dict[str, Any]:
    """Where time goes, in milliseconds per round: drafting, verifying, the rest.

    unknown: whether rounds are over and nobody says how long they took, as of a server.
    """
    counts = trail.counts
    seconds = counts.draft_seconds, counts.verify_seconds, counts.accept_seconds
    return {
        "rounds": counts.rounds if counts.seconds else 0,
        "unknown": bool(counts.rounds and not counts.seconds),
        "milliseconds": [1000 * phase / max(1, counts.rounds) for phase in seconds],
    }


CHARTS = (acceptance_chart, tokens_per_pass_chart, position_chart, time_chart)


def _step(rounds: list[Any]) -> int:
    return max(1, math.ceil(len(rounds) / MAX_POINTS))
