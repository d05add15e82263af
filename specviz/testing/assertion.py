"""`assert_lossless`: many samples of an engine against the distribution that they should come from.

Each token is counted at each position, and its count compared with a binomial one. That holds however few the draws and
however rare the token. Where the text before, and so the chance, differs from draw to draw, the binomial count of their
mean has no lighter tails than the real one (Hoeffding 1956, On the distribution of the number of successes in
independent trials).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy
from numpy.typing import ArrayLike, NDArray

from specviz.records.errors import SpecvizError
from specviz.theory.sample_tests import MOST_CELLS, POWER, Floats, binomial_tail

#: For so many counts the number of draws is chosen, about 15 positions: among more, less is found.
COUNTS = 1000

#: Rows [vocab], one for all positions or one for each; or what gives the row after the tokens drawn so far.
Probs = ArrayLike | Callable[[tuple[int, ...]], ArrayLike]


@dataclass(frozen=True)
class Count:
    """How often something came at a position, and how often it should have."""

    position: int  # from 0
    what: str  # in words
    count: int
    draws: int
    chance: float  # the mean over the draws
    p_value: float

    def __str__(self) -> str:
        return (
            f"at position {self.position}, {self.what} came {self.count:,} times in {self.draws:,} draws "
            f"({self.count / self.draws:.2%}), where the target gives {self.chance:.2%}"
        )


@dataclass(frozen=True)
class Checked:
    """What was found. p_value: of the count that is furthest off, corrected for how many there are; never too small.
    bias: by position, how far a token's share has to be off to be found in nine tests of ten."""

    p_value: float
    furthest: Count
    counts: int
    bias: tuple[float, ...]

    def __str__(self) -> str:
        off = ", ".join(f"{100 * bias:.1f}" for bias in self.bias)
        return (
            f"Of {self.counts} counts, furthest off: {self.furthest} (p = {self.p_value:.2g}). A token whose share is "
            f"off by {off} percentage points, by position, would be found nine times in ten."
        )


def assert_lossless(
    sample: Callable[[int], Any],
    target_probs: Probs,
    *,
    draft_probs: Probs | None = None,
    bias: float = 0.02,
    draws: int | None = None,
    false_alarms: float = 1e-6,
) -> Checked:
    """Raises AssertionError if samples do not follow the target; else says what would have been found.

    sample: is given a number of draws, and returns their tokens, [draws] or [draws, positions] with −1 where a text has
    ended; or how often each token came, a mapping for each position. Draws must be independent, and whether one goes
    on may depend only on what it has drawn: whole texts do, and single rounds of rules that judge token by token.
    draft_probs: the drafter's rows; then the tokens that it prefers are counted together, too: many small faults of
    one direction. bias: a token whose share is so far off, among the `MOST_CELLS` likeliest of a position that all
    draws reach, is found nine times in ten; so many draws are made, unless their number is given. false_alarms: how
    often an exact engine fails at most.

    Raises SpecvizError for samples or probabilities that cannot be meant.
    """
    for name, share in (("bias", bias), ("false_alarms", false_alarms)):
        if not 0 < share < 1:
            raise SpecvizError("{name} must be above 0 and below 1, not {value}.", name, name=name, value=share)
    wanted = math.ceil((_reach(false_alarms, COUNTS) / (2 * bias)) ** 2) if draws is None else draws
    tokens = _as_tokens(sample(wanted))
    counts: list[Count] = []
    for position in range(tokens.shape[1]):
        counts += _counts_at(position, tokens[tokens[:, position] >= 0], target_probs, draft_probs)
    if not counts:
        raise SpecvizError("The sample holds no tokens.")
    furthest = min(counts, key=lambda count: count.p_value)
    found = {count.position: _reach(false_alarms, len(counts)) / (2 * math.sqrt(count.draws)) for count in counts}
    checked = Checked(min(1.0, len(counts) * furthest.p_value), furthest, len(counts), tuple(found.values()))
    if checked.p_value < false_alarms:
        raise AssertionError(
            f"The samples do not follow the target: {furthest}. p = {checked.p_value:.2g}, corrected for {len(counts)} "
            f"counts; an exact engine fails here once in {1 / false_alarms:,.0f} tests at most."
        )
    return checked


def _reach(false_alarms: float, counts: int) -> float:
    """How many standard deviations a share has to be off so that one of so many counts shows it in `POWER` of all
    cases; no share has a larger deviation than 1/2 over the root of the draws."""
    return NormalDist().inv_cdf(1 - false_alarms / (2 * counts)) + NormalDist().inv_cdf(POWER)


def _as_tokens(drawn: Any) -> NDArray[numpy.int64]:
    """[draws, positions]; counts as if they were draws."""
    by_position = [drawn] if isinstance(drawn, Mapping) else drawn
    if isinstance(by_position, Sequence) and by_position and isinstance(by_position[0], Mapping):
        columns = [numpy.repeat(numpy.array([*counts], int), [*counts.values()]) for counts in by_position]
        most = max(map(len, columns))
        return numpy.stack([numpy.pad(column, (0, most - len(column)), constant_values=-1) for column in columns], 1)
    tokens = numpy.asarray(drawn)
    if tokens.ndim not in (1, 2) or not numpy.issubdtype(tokens.dtype, numpy.integer):
        raise SpecvizError("A sample is whole numbers, [draws] or [draws, positions], or counts of each token.")
    return tokens.reshape(len(tokens), -1)


def _counts_at(
    position: int, tokens: NDArray[numpy.int64], target_probs: Probs, draft_probs: Probs | None
) -> list[Count]:
    """The counts of one position, by the draws [draws, positions] that reach it."""
    if not len(tokens):
        return []
    before, drawn = tokens[:, : position if callable(target_probs) else 0], tokens[:, position]
    texts, text_of, often = numpy.unique(before, axis=0, return_inverse=True, return_counts=True)
    rows, weights = _rows(target_probs, position, texts), often / len(drawn)
    if drawn.max() >= rows.shape[1]:
        raise SpecvizError("The rows are {width} wide, but a token is {token}.", width=rows.shape[1], token=drawn.max())
    chances, came = weights @ rows, numpy.bincount(drawn, minlength=rows.shape[1])
    likeliest = numpy.argsort(-chances, kind="stable")
    others = likeliest[MOST_CELLS:]
    found = [(f"token {token}", came[token], chances[token]) for token in likeliest[:MOST_CELLS]]
    if len(others):
        found.append(("one of the unlikeliest tokens", came[others].sum(), chances[others].sum()))
    if draft_probs is not None:
        preferred = _rows(draft_probs, position, texts) > rows
        chance = weights @ (rows * preferred).sum(1)
        found.append(("a token that the drafter prefers", preferred[text_of.ravel(), drawn].sum(), chance))
    return [
        Count(position, what, count, len(drawn), chance, binomial_tail(int(count), len(drawn), float(chance)))
        for what, count, chance in found
    ]


def _rows(probs: Probs, position: int, texts: NDArray[numpy.int64]) -> Floats:
    """The rows of a position after each text, [texts, vocab], each with its sum divided out."""
    if callable(probs):
        rows = numpy.stack([numpy.asarray(probs(tuple(text)), float) for text in texts.tolist()])
    else:
        given = numpy.atleast_2d(numpy.asarray(probs, float))
        rows = given[[min(position, len(given) - 1)] * len(texts)]
    sums = rows.sum(-1, keepdims=True)
    if not (rows >= 0).all() or abs(sums - 1).max() > 1e-3:
        raise SpecvizError("The probabilities of position {position} are no distribution.", position=position)
    return rows / sums
