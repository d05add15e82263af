"""How far counts lie from a distribution, and how far chance alone puts them: total variation and chi-square.

A distribution is a sequence of probabilities, one for each outcome; counts follow the same order, and `outside` counts
what the distribution says cannot happen.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy

#: Cells expected to hold fewer than this are pooled: below it the chi-square approximation no longer holds.
FEWEST_EXPECTED = 5

#: Samples of the exact distribution that the noise is measured on; the quantile below is then good to about 2 %.
DRAWS = 4000

#: The quantile of the noise that is shown: chance alone stays below it 999 times in 1,000.
QUANTILE = 0.999

#: Below this p-value a rule is called wrong. That happens to one in 1,000 correct ones, and to up to three where many
#: cells hold hardly more than `FEWEST_EXPECTED`, so that the statistic's own tail is heavier than chi-square's.
SIGNIFICANT = 0.001


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """Pearson's test."""

    statistic: float
    cells: int  # how many were compared
    pooled: int  # how many outcomes share the last of them
    #: How often a sample of the distribution itself lies at least as far from it; None where fewer than two cells are
    #: left to compare, and 0 where it underflows, below about 1e-300.
    p_value: float | None


@dataclass(frozen=True, slots=True)
class Noise:
    """Total variation between a sample of a distribution and that distribution itself, over many samples."""

    runs: int  # draws in a sample
    mean: float
    low: float  # the quantiles between which 99.8 % of the samples lie
    high: float


def total_variation(counts: Sequence[int], probs: Sequence[float], outside: int = 0) -> float:
    """TV between the shares of `counts` and `probs`: half the sum of |share − probability|. Needs a count."""
    n = sum(counts) + outside
    return (sum(abs(count / n - p) for count, p in zip(counts, probs)) + outside / n) / 2


def chi_square(
    counts: Sequence[int], probs: Sequence[float], low: Sequence[float], high: Sequence[float], outside: int = 0
) -> ChiSquare:
    """Pearson's chi-square of `counts` against probabilities that are known to lie between `low` and `high`.

    Each cell is compared with the expected count within its bounds that is nearest to the actual one, so that
    probabilities known up to rounding are never blamed for the rounding; where low = probs = high this is the plain
    test. Cells expected to hold fewer than `FEWEST_EXPECTED` are pooled. Where the pool itself expects fewer, up to
    that many are no evidence either; the same holds for `outside`, draws of what has no probability, on their own.
    """
    n = sum(counts) + outside
    cells = list(zip(probs, counts, low, high))
    compared = [(count, n * least, n * most) for p, count, least, most in cells if n * p >= FEWEST_EXPECTED]
    pool = [(count, n * least, n * most) for p, count, least, most in cells if n * p < FEWEST_EXPECTED]
    if pool:
        count, least, most = (sum(column) for column in zip(*pool))
        compared.append((count, least, max(most, FEWEST_EXPECTED)))
    if outside:
        compared.append((outside, 0, FEWEST_EXPECTED))
    statistic = sum(_distance(*cell) for cell in compared)
    degrees = len(compared) - 1
    return ChiSquare(statistic, len(compared), len(pool), tail(statistic, degrees) if degrees > 0 else None)


def _distance(count: int, least: float, most: float) -> float:
    expected = min(max(count, least), most)
    return (count - expected) ** 2 / expected if expected else 0.0


def tail(statistic: float, degrees: int) -> float:
    """P(χ² with so many degrees of freedom ≥ statistic): Q(degrees / 2, statistic / 2), the upper incomplete gamma.

    Summed from Q(1/2, x) = erfc(√x) or Q(1, x) = e^−x by Q(a + 1, x) = Q(a, x) + x^a e^−x / Γ(a + 1) (DLMF 8.8.6).
    """
    x = statistic / 2
    if x == 0:
        return 1.0
    first, least = (math.erfc(math.sqrt(x)), 0.5) if degrees % 2 else (math.exp(-x), 1.0)
    orders = (least + step for step in range((degrees - 1) // 2))
    return math.fsum([first, *(math.exp(a * math.log(x) - x - math.lgamma(a + 1)) for a in orders)])


def noise(probs: Sequence[float], sizes: Sequence[int], seed: int = 0) -> list[Noise]:
    """How far samples of `probs` lie from it, for each sample size, measured on `DRAWS` samples of each."""
    # In falling order, because a multinomial draw is done once nothing is left to deal out.
    p = numpy.sort(numpy.asarray(probs, dtype=numpy.float64))[::-1]
    p = p / p.sum()
    generator, found = numpy.random.default_rng(seed), []
    for size in sizes:
        shares = generator.multinomial(size, p, size=DRAWS) / size
        distances = numpy.abs(shares - p).sum(-1) / 2
        low, high = numpy.quantile(distances, [1 - QUANTILE, QUANTILE])
        found.append(Noise(size, float(distances.mean()), float(low), float(high)))
    return found


#: The smallest number of runs at which the distance is drawn.
FIRST_SHOWN = 10


def steps(last: int, count: int) -> list[int]:
    """About `count` numbers of runs from `FIRST_SHOWN` to `last`, evenly spread on a logarithmic scale."""
    first = min(FIRST_SHOWN, last)
    return sorted({round(first * (last / first) ** (i / (count - 1))) for i in range(count)})


class Evidence:
    """Counts of outcomes as they come in, beside their exact probabilities and bounds (see `chi_square`)."""

    def __init__(
        self,
        outcomes: Sequence[Hashable],
        probs: Sequence[float],
        low: Sequence[float],
        high: Sequence[float],
        planned: int,  # how many outcomes are to come
    ):
        self.places = {outcome: place for place, outcome in enumerate(outcomes)}
        self.probs, self.low, self.high = probs, low, high
        self.counts = [0] * len(outcomes)
        self.outside = 0
        self.n = 0
        self.curve: list[tuple[int, float]] = []  # (n, total variation of the first n) at a few n
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
        """Total variation between the counts and the distribution. Needs a count."""
        return total_variation(self.counts, self.probs, self.outside)

    def test(self) -> ChiSquare:
        return chi_square(self.counts, self.probs, self.low, self.high, self.outside)
