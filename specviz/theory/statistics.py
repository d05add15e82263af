"""How far observed counts lie from a law, and how far chance alone puts them: total variation and chi-square.

A law is a sequence of probabilities; counts follow its order, and `outside` counts what it says cannot happen.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy
import torch

#: Cells in which fewer are expected are put together: below that the chi-square law no longer fits.
FEWEST_EXPECTED = 5

#: Samples of the exact law that the noise is measured on; the quantile below is then good to about two per cent.
DRAWS = 4000

#: The quantile of the noise that is shown: chance alone stays below it 999 times in 1,000.
QUANTILE = 0.999


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """Pearson's test. cells: how many were compared. pooled: how many of the law's outcomes share the last of them.

    p_value: how often a sample of the law itself lies at least as far from it; None where fewer than two cells are
    left to compare. It is 0 where float64 has nothing smaller, below about 1e-300.
    """

    statistic: float
    cells: int
    pooled: int
    p_value: float | None


@dataclass(frozen=True, slots=True)
class Noise:
    """Total variation of `runs` draws of a law to that very law: its mean, and the quantiles that hold 99.8 % of it."""

    runs: int
    mean: float
    low: float
    high: float


def total_variation(counts: Sequence[int], law: Sequence[float], outside: int = 0) -> float:
    """TV of the empirical law of `counts` to `law`: half the sum of |share − probability|. At least one is counted."""
    n = sum(counts) + outside
    return (sum(abs(count / n - p) for count, p in zip(counts, law)) + outside / n) / 2


def chi_square(
    counts: Sequence[int], law: Sequence[float], low: Sequence[float], high: Sequence[float], outside: int = 0
) -> ChiSquare:
    """Pearson's chi-square of `counts` against a law whose probabilities are known to lie between `low` and `high`.

    Each cell is compared with the number within its bounds that is nearest to what was counted, so a law that is known
    up to rounding is never blamed for its rounding; where low = law = high this is the plain test. Cells with an
    expected count below `FEWEST_EXPECTED` are pooled, with them what lies outside the law. Where the pool itself
    expects fewer, as many as that are no evidence against the law either.
    """
    n = sum(counts) + outside
    cells = list(zip(law, counts, low, high))
    compared = [(count, n * least, n * most) for p, count, least, most in cells if n * p >= FEWEST_EXPECTED]
    pool = [(count, n * least, n * most) for p, count, least, most in cells if n * p < FEWEST_EXPECTED]
    if pool or outside:
        count, least, most = (sum(column) for column in zip((outside, 0, 0), *pool))
        compared.append((count, least, max(most, FEWEST_EXPECTED)))
    statistic = sum(_distance(*cell) for cell in compared)
    degrees = len(compared) - 1
    return ChiSquare(statistic, len(compared), len(pool), tail(statistic, degrees) if degrees > 0 else None)


def _distance(count: int, least: float, most: float) -> float:
    expected = min(max(count, least), most)
    return (count - expected) ** 2 / expected if expected else 0.0


def tail(statistic: float, degrees: int) -> float:
    """P(χ² with so many degrees of freedom ≥ statistic), the regularised upper incomplete gamma function."""
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(half[0], half[1]).item()


def noise(law: Sequence[float], sizes: Sequence[int], seed: int = 0) -> list[Noise]:
    """How large the total variation of samples of `law` is, for each of the sample sizes: `DRAWS` samples of each."""
    # In falling order, because a multinomial draw is done once nothing is left to deal out.
    p = numpy.sort(numpy.asarray(law, dtype=numpy.float64))[::-1]
    p = p / p.sum()
    generator, found = numpy.random.default_rng(seed), []
    for size in sizes:
        shares = generator.multinomial(size, p, size=DRAWS) / size
        distances = numpy.abs(shares - p).sum(-1) / 2
        low, high = numpy.quantile(distances, [1 - QUANTILE, QUANTILE])
        found.append(Noise(size, float(distances.mean()), float(low), float(high)))
    return found


#: The smallest number of runs of which the distance to the law is drawn.
FIRST_SHOWN = 10


def steps(last: int, count: int) -> list[int]:
    """About `count` numbers of runs from `FIRST_SHOWN` to `last`, evenly spread on a logarithmic scale."""
    first = min(FIRST_SHOWN, last)
    return sorted({round(first * (last / first) ** (i / (count - 1))) for i in range(count)})


class Evidence:
    """Counts of outcomes beside their law, as they come in.

    law: outcomes with their probabilities and the bounds of these, see `chi_square`. planned: how many are to come.
    curve: (n, total variation of the first n) at a few n.
    """

    def __init__(
        self,
        outcomes: Sequence[Hashable],
        law: Sequence[float],
        low: Sequence[float],
        high: Sequence[float],
        planned: int,
    ):
        self.places = {outcome: place for place, outcome in enumerate(outcomes)}
        self.law, self.low, self.high = law, low, high
        self.counts = [0] * len(outcomes)
        self.outside = 0
        self.n = 0
        self.curve: list[tuple[int, float]] = []
        self._steps = set(steps(planned, 60))

    def add(self, outcome: Hashable) -> None:
        place = self.places.get(outcome)
        if place is None:
            self.outside += 1
        else:
            self.counts[place] += 1
        self.n += 1
        if self.n in self._steps:
            self.curve.append((self.n, self.distance))

    @property
    def distance(self) -> float:
        """Total variation of what was counted to the law. At least one is counted."""
        return total_variation(self.counts, self.law, self.outside)

    def test(self) -> ChiSquare:
        return chi_square(self.counts, self.law, self.low, self.high, self.outside)
