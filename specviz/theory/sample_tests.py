"""Whether tokens were drawn from a known distribution, each after its own text.

A token's text is drawn, too, so nothing is known of it beforehand; but whatever it is, the token is drawn from a
distribution that is known by then. So sums over all tokens of what is left of a figure once its expectation under that
distribution is taken off are martingales, and close to normal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy
from numpy.typing import NDArray

from specviz.theory.statistics import SIGNIFICANT, chi_square, tail

#: Arrays of float64; below, T is how many tokens there are, K how many symbols a row lists.
Floats = NDArray[numpy.float64]

#: Of two servers, the most symbols whose counts are compared; of one, what the variance of a count must come to.
MOST_COUNTED, LEAST_EXPECTED = 64, 10.0

#: The likeliest tokens of one place that are told apart, and how many must have been drawn there.
MOST_CELLS, LEAST_AT_PLACE = 64, 30

#: The logarithm of a probability that counts as 0.
LEAST_LOG = -700.0

#: How surely a fault of the size that is named would have been found.
POWER = 0.9

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test. p_value: how often the distribution itself would give a statistic at least as far off."""

    name: str
    statistic: float
    p_value: float
    detail: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """Tokens with the distributions that they should come from.

    log_probs: [T, K], of each symbol. drawn: [T], the column of each token. ids: [T, K], or [K] where all rows list the
    same symbols: which token a column is, −1 for all others together. first: [T], true for the first of an answer.
    """

    log_probs: Floats
    drawn: NDArray[numpy.int64]
    ids: NDArray[numpy.int64]
    first: NDArray[numpy.bool_]


class SampleEvidence:
    """Sums over tokens as they come in. Memory does not grow with their number.

    lenient: tokens of probability 0 are left out, for a filter across whose border rounding moves a few; else each of
    them is as unlikely as a number can say.
    """

    def __init__(self, lenient: bool = False) -> None:
        self.lenient = lenient
        self.tokens = 0
        self.impossible = 0  # tokens of probability 0
        self._excess = self._variance = self._third = 0.0
        self._counts = self._expected = self._spread = numpy.zeros(0)  # by id
        self._places: dict[int | None, _Place] = {}  # the first token, and the second after each first one

    def add(self, rows: Rows) -> None:
        """Takes tokens in the order in which they were drawn."""
        drawn = rows.log_probs[numpy.arange(len(rows.drawn)), rows.drawn]
        judged = numpy.isfinite(drawn) | (not self.lenient)
        self.impossible += int((~numpy.isfinite(drawn)).sum())
        self.tokens += len(drawn)
        # Finite in place of −∞, since that times a probability of 0 is to be 0.
        log_probs = numpy.maximum(rows.log_probs, LEAST_LOG)
        probs = numpy.exp(rows.log_probs)
        entropy = -numpy.einsum("tk,tk->t", probs, log_probs)
        square = numpy.einsum("tk,tk,tk->t", probs, log_probs, log_probs)
        cube = -numpy.einsum("tk,tk,tk,tk->t", probs, log_probs, log_probs, log_probs)
        self._excess += float((-numpy.maximum(drawn, LEAST_LOG) - entropy)[judged].sum())
        self._variance += float((square - entropy**2).clip(min=0).sum())
        self._third += float((cube - 3 * entropy * square + 2 * entropy**3).sum())
        self._count(rows, probs)
        self._count_first(rows, probs)

    def _count(self, rows: Rows, probs: Floats) -> None:
        if rows.ids.ndim == 1:
            ids, drawn = rows.ids, rows.ids[rows.drawn]
            expected = probs.sum(0)
            spread = expected - numpy.einsum("tk,tk->k", probs, probs)
        else:
            ids, drawn = rows.ids.ravel(), rows.ids[numpy.arange(len(rows.drawn)), rows.drawn]
            expected, spread = probs.ravel(), (probs * (1 - probs)).ravel()
        named, size = ids >= 0, max(len(self._counts), int(ids.max()) + 1)
        self._counts = _grown(self._counts, size) + numpy.bincount(drawn[drawn >= 0], minlength=size)
        self._expected = _grown(self._expected, size) + numpy.bincount(ids[named], expected[named], size)
        self._spread = _grown(self._spread, size) + numpy.bincount(ids[named], spread[named], size)

    def _count_first(self, rows: Rows, probs: Floats) -> None:
        ids = numpy.broadcast_to(rows.ids, probs.shape)
        for row in numpy.flatnonzero(rows.first):
            first = int(ids[row, rows.drawn[row]])
            self._count_at(None, ids[row], probs[row], first)
            if first >= 0 and row + 1 < len(ids) and not rows.first[row + 1]:
                self._count_at(first, ids[row + 1], probs[row + 1], int(ids[row + 1, rows.drawn[row + 1]]))

    def _count_at(self, before: int | None, ids: NDArray[numpy.int64], probs: Floats, drawn: int) -> None:
        if before not in self._places:
            likeliest = [place for place in numpy.argsort(-probs)[:MOST_CELLS] if ids[place] >= 0]
            self._places[before] = _Place({int(ids[place]): float(probs[place]) for place in likeliest})
        self._places[before].counts[drawn if drawn in self._places[before].probs else None] += 1

    def surprisal(self) -> TestResult:
        """The sum of −log p − entropy over the root of the summed variances, with its skewness taken off (Cornish and
        Fisher 1938): close to a standard normal."""
        variance = self._variance or 1.0
        deviation = math.sqrt(variance)
        z = self._excess / deviation
        # In this order: of rows that are almost certain, the cube of the deviation is too small for a number.
        skewness = self._third / variance / deviation
        # Far out the correction is not monotone any more; there it decides nothing.
        normal = z - skewness * (z * z - 1) / 6 if abs(z * skewness) < 1 else z
        return TestResult("surprisal", z, two_sided(normal), {"nats": self._excess / max(1, self.tokens)})

    def counts(self) -> TestResult:
        """The symbol whose count lies furthest from what is expected, corrected for how many symbols were counted.

        A sum of different chances is close to a Poisson count of the same variance that is shifted to the same mean
        (Röllin 2005), and its tails are no wider.
        """
        often = self._often
        if not len(often):
            return TestResult("counts", 0.0, 1.0)
        counts, expected, spread = self._counts[often], self._expected[often], self._spread[often]
        p_values = []
        for count, mean, variance in zip(counts, expected, spread):
            shifted = count - mean + variance
            # Rounded towards what is expected, so that nothing looks further off than it is.
            whole = math.floor(shifted) if count > mean else math.ceil(shifted)
            p_values.append(poisson_tail(max(0, whole), float(variance)))
        furthest = int(numpy.argmin(p_values))
        count, mean = float(counts[furthest]), float(expected[furthest])
        detail = {"id": float(often[furthest]), "count": count, "expected": mean, "symbols": float(len(often))}
        return TestResult("counts", count / mean, min(1.0, p_values[furthest] * len(often)), detail)

    @property
    def _often(self) -> NDArray[numpy.int64]:
        """The symbols whose counts are tested."""
        return numpy.flatnonzero(self._spread >= LEAST_EXPECTED)

    def first(self) -> TestResult:
        """The first tokens of answers to one prompt, and the second ones after each frequent first one, by χ²."""
        statistic, degrees = 0.0, 0
        for place in self._places.values():
            rest = max(0.0, 1 - sum(place.probs.values()))
            probs, counts = [*place.probs.values(), rest], [place.counts[id] for id in (*place.probs, None)]
            if sum(counts) >= LEAST_AT_PLACE:
                test = chi_square(counts, probs, probs, probs)
                statistic, degrees = statistic + test.statistic, degrees + test.cells - 1
        if not degrees:
            return TestResult("first", 0.0, 1.0)
        return TestResult("first", statistic, tail(statistic, degrees), {"degrees": float(degrees)})

    def tests(self) -> list[TestResult]:
        return [self.surprisal(), self.counts(), self.first()]

    @property
    def sharper(self) -> float:
        """The power of the distribution under which the tokens are likelier: one of Newton's steps from 1."""
        return min(2.0, max(0.5, 1 - self._excess / (self._variance or 1.0)))

    @property
    def found(self) -> dict[str, float]:
        """The size of the faults that this many tokens find in `POWER` of all cases: how many times too likely a symbol
        of 5 % would have to be, and how far off the mean surprisal, in nats."""
        tests, n = 3, max(1, self.tokens)
        nats = _reach(tests) * math.sqrt(self._variance) / n
        return {"times": times_found(n, tests * max(1, len(self._often))), "nats": nats}


@dataclass
class _Place:
    """Tokens drawn from one distribution. probs: of the likeliest; counts: by id, None for all others."""

    probs: dict[int, float]
    counts: Counter[int | None] = field(default_factory=Counter)


def _grown(sums: Floats, size: int) -> Floats:
    return numpy.pad(sums, (0, size - len(sums)))


def times_found(tokens: float, tests: int) -> float:
    """How many times too likely a symbol of 5 % must be so that so many tokens show it in `POWER` of all cases."""
    return 1 + _reach(tests) / math.sqrt(0.05 * tokens)


def _reach(tests: int) -> float:
    """How many standard deviations away one of so many tests finds a fault in `POWER` of all cases."""
    return _NORMAL.inv_cdf(1 - SIGNIFICANT / tests / 2) + _NORMAL.inv_cdf(POWER)


def together(tests: Sequence[TestResult]) -> float:
    """The p-value of several tests of one sample (Bonferroni): never too small, however they depend."""
    return min(1.0, len(tests) * min((test.p_value for test in tests), default=1.0))


def two_sided(z: float) -> float:
    """How often a standard normal lies at least that far from 0."""
    return math.erfc(abs(z) / math.sqrt(2))


def poisson_tail(count: int, expected: float) -> float:
    """How often a Poisson count lies at least as far on its side of `expected`, times two.

    By P(N ≤ c) = Q(c + 1, expected), the upper incomplete gamma (Abramowitz & Stegun 26.4.21), and P(N ≥ c) by the sum
    of its terms, which keeps small ones exact.
    """
    if count <= expected:
        return min(1.0, 2 * tail(2 * expected, 2 * (count + 1)))
    term, total, place = math.exp(count * math.log(expected) - expected - math.lgamma(count + 1)), 0.0, count
    while term > 1e-17 * total:
        total += term
        place += 1
        term *= expected / place
    return min(1.0, 2 * total)


def binomial_tail(count: int, draws: int, chance: float) -> float:
    """How often a binomial count lies at least as far on its side of the mean, times two; 1 within one of the mean.

    Also an upper bound for draws of different chances, whose mean is `chance` (Hoeffding 1956).
    """
    if abs(count - draws * chance) < 1:
        return 1.0
    if count < draws * chance:
        return binomial_tail(draws - count, draws, 1 - chance)
    if chance <= 0:
        return 0.0
    log_term = math.lgamma(draws + 1) - math.lgamma(count + 1) - math.lgamma(draws - count + 1)
    log_term += count * math.log(chance) + (draws - count) * math.log1p(-chance)
    # Beyond 12 standard deviations more nothing is left.
    places = numpy.arange(count, min(draws, count + 20 + int(12 * math.sqrt(draws * chance))))
    ratios = (draws - places) / (places + 1) * chance / (1 - chance)
    return float(min(1.0, 2 * math.exp(log_term) * (1 + ratios.cumprod().sum())))


def two_samples(counts: Floats, others: Floats) -> TestResult:
    """Whether two servers' answers come from one distribution: of the symbol whose mean count per answer differs most,
    Welch's statistic (1947), corrected for how many symbols were compared.

    counts, others: [answers, symbols], how often each symbol stands in each answer.
    """
    means = counts.mean(0) - others.mean(0)
    spread = numpy.sqrt(counts.var(0, ddof=1) / len(counts) + others.var(0, ddof=1) / len(others))
    # Where neither varies and yet they differ, an answer of each might have been another one.
    least = math.hypot(1 / len(counts), 1 / len(others))
    spread = numpy.where((spread == 0) & (means != 0), least, spread)
    compared = spread > 0
    if not compared.any():
        return TestResult("counts", 0.0, 1.0)
    z = numpy.where(compared, means / numpy.where(compared, spread, 1.0), 0.0)
    furthest = int(numpy.abs(z).argmax())
    p_value = min(1.0, two_sided(float(z[furthest])) * int(compared.sum()))
    detail = {"symbol": float(furthest), "count": float(counts[:, furthest].sum())}
    detail |= {"other": float(others[:, furthest].sum())}
    if counts.any() and others.any():
        # Both samples vary, as one of so many tokens would.
        tokens = 1 / (1 / counts.sum() + 1 / others.sum())
        detail |= {"finds_times": times_found(tokens, int(compared.sum()))}
    return TestResult("counts", float(z[furthest]), p_value, detail)
