"""Two runs of one prompt side by side: how much faster, the same text or not, and where they part."""

from __future__ import annotations

import math
from typing import Any

from specviz.metrics import tally
from specviz.records import Run


def compare(plain: Run, speculative: Run) -> dict[str, Any]:
    """What a race came to.

    speedup: ratio of tokens per second, both measured. identical: whether the texts are the same; None for sampled
    runs, whose coins are not used alike. parting: where greedy texts part, else None.
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


def _parting(plain: Run, speculative: Run) -> dict[str, Any]:
    """The first position with different tokens, and how close the target's best two were there.

    margin: log p(best) − log p(second) of the plain run's target pass, which both runs share up to rounding.
    """
    pairs = list(zip(plain.token_ids, speculative.token_ids))
    position = next((index for index, (one, other) in enumerate(pairs) if one != other), len(pairs))
    margin = None
    if position < len(plain.rounds):
        best = plain.rounds[position].top[0].p_raw
        margin = math.log(best[0][1] / best[1][1]) if len(best) > 1 else None
    return {
        "position": position,
        "plain": _token(plain, position),
        "speculative": _token(speculative, position),
        "margin": margin,
        "half_precision": plain.pair.dtype != "float32",
    }


def _token(run: Run, position: int) -> str:
    """The token's text, or nothing where the run had ended."""
    return run.vocabulary.get(run.token_ids[position], "") if position < len(run.token_ids) else ""
