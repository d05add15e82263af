"""Two runs of one prompt side by side: how much faster, whether the text is the same, and where they diverge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from specviz.records.metrics import tally
from specviz.records.runs import Run

#: In half precision neighbouring values of a likely token's logit lie 0.06 to 0.12 apart: closer calls can flip.
NEAR_TIE = 0.25


def compare(plain: Run, speculative: Run) -> dict[str, Any]:
    """The outcome of a race.

    speedup: the ratio of tokens per second, both measured. identical: whether the texts are the same; None for sampled
    runs, which use their coins differently. parting: where greedy texts diverge, else None.
    """
    greedy = plain.sampling.greedy
    identical = plain.token_ids == speculative.token_ids if greedy else None
    return {
        "speedup": speedup(plain, speculative),
        "greedy": greedy,
        "identical": identical,
        "parting": _parting(plain, speculative) if identical is False else None,
    }


def speedup(plain: Run, speculative: Run) -> float | None:
    """Tokens per second of the speculative run over those of the plain one; None while either has no round."""
    fast, slow = tally(speculative.rounds).tokens_per_second, tally(plain.rounds).tokens_per_second
    return fast / slow if fast and slow else None


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position where tokens differ, or the end of the shorter list; None if both are the same."""
    if list(one) == list(other):
        return None
    return next(
        (place for place, (left, right) in enumerate(zip(one, other)) if left != right), min(map(len, (one, other)))
    )


def margin(plain: Run, position: int) -> float | None:
    """log p(best) − log p(second) in the plain run's target pass at a position; None beyond its end."""
    if position >= len(plain.rounds):
        return None
    (_, best), *others = plain.rounds[position].top[0].p_raw
    if not others:
        return None
    # The second best may have underflowed to 0.
    return math.log(best / others[0][1]) if others[0][1] else math.inf


def _parting(plain: Run, speculative: Run) -> dict[str, Any]:
    """Where two texts diverge, and how close the target's best two tokens were there.

    margin: in the plain run's target pass, which both runs share up to rounding.
    """
    position = first_difference(plain.token_ids, speculative.token_ids)
    return {
        "position": position,
        "plain": _token(plain, position),
        "speculative": _token(speculative, position),
        "margin": margin(plain, position),
        "half_precision": plain.pair.dtype != "float32",
    }


def _token(run: Run, position: int) -> str:
    """The token's text; empty if the run had ended."""
    return run.vocabulary.get(run.token_ids[position], "") if position < len(run.token_ids) else ""
