"""Whether tokens were drawn from a known distribution, each after its own text.

A token's text is drawn, too, so nothing is known of it beforehand; but whatever it is, the token is drawn from a
distribution that is known by then. So sums over all tokens of what is left of a figure once its expectation under that
distribution is taken off are martingales, and close to normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy
from numpy.typing import NDArray

from specviz.theory.statistics import SIGNIFICANT, chi_square, tail

#: Arrays of float64; below, T is how many tokens there are, K how many symbols a row lists.
Floats = NDArray[numpy.float64]

#: The most symbols whose counts are tested, and how often one must be expected.
MOST_COUNTED, LEAST_EXPECTED = 64, 10.0

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

    Which symbols are counted is chosen by what the first rows expect, not by what was drawn.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.impossible = 0  # tokens of probability 0
        self._excess = self._variance = self._third = 0.0
        self._counted: NDArray[numpy.int64] | None = None
        self._counts = self._expected = numpy.zeros(0)
        self._first_counts: dict[int, float] = {}
        self._first_probs: dict[int, float] = {}
        self._firsts = 0

    def add(self, rows: Rows) -> None:
        """Takes tokens in the order in which they were drawn."""
        drawn = rows.log_probs[numpy.arange(len(rows.drawn)), rows.drawn]
        possible = numpy.isfinite(drawn)
        self.impossible += int((~possible).sum())
        self.tokens += len(drawn)
        # Finite in place of −∞, since that times a probability of 0 is to be 0.
        log_probs = numpy.maximum(rows.log_probs, LEAST_LOG)
        probs = numpy.exp(log_probs)
        entropy = -numpy.einsum("tk,tk->t", probs, log_probs)
        square = numpy.einsum("tk,tk,tk->t", probs, log_probs, log_probs)
        cube = -numpy.einsum("tk,tk,tk,tk->t", probs, log_probs, log_probs, log_probs)
        self._excess += float((-drawn - entropy)[possible].sum())
        self._variance += float((square - entropy**2).clip(min=0).sum())
        self._third += float((cube - 3 * entropy * square + 2 * entropy**3).sum())
        self._count(rows, probs)
        self._count_first(rows, probs)

    def _count(self, rows: Rows, probs: Floats) -> None:
        ids = numpy.broadcast_to(rows.ids, probs.shape)
        if self._counted is None:
            means = numpy.bincount(ids[ids >= 0], weights=probs[ids >= 0])
            self._counted = numpy.sort(numpy.argsort(means)[::-1][:MOST_COUNTED])
            self._counts, self._expected = numpy.zeros(len(self._counted)), numpy.zeros(len(self._counted))
        drawn = ids[numpy.arange(len(rows.drawn)), rows.drawn]
        if rows.ids.ndim == 1:
            listed = numpy.searchsorted(rows.ids, self._counted)
            self._expected += probs[:, listed].sum(0)
        else:
            for column in range(ids.shape[1]):
                self._expected += _tallied(self._counted, ids[:, column], probs[:, column])
        self._counts += _tallied(self._counted, drawn, numpy.ones(len(drawn)))

    def _count_first(self, rows: Rows, probs: Floats) -> None:
        ids = numpy.broadcast_to(rows.ids, probs.shape)
        for row in numpy.flatnonzero(rows.first):
            if not self._firsts:
                self._first_probs = dict(zip(ids[row].tolist(), probs[row].tolist()))
            id = int(ids[row, rows.drawn[row]])
            self._first_counts[id] = self._first_counts.get(id, 0.0) + 1
            self._firsts += 1

    def surprisal(self) -> TestResult:
        """The sum of −log p − entropy over the root of the summed variances, with its skewness taken off (Cornish and
        Fisher 1938): close to a standard normal."""
        deviation = math.sqrt(self._variance) or 1.0
        z = self._excess / deviation
        skewness = self._third / deviation**3
        # Far out the correction is not monotone any more; there it decides nothing.
        normal = z - skewness * (z * z - 1) / 6 if abs(z * skewness) < 1 else z
        return TestResult("surprisal", z, two_sided(normal), {"nats": self._excess / max(1, self.tokens)})

    def counts(self) -> TestResult:
        """The symbol whose count lies furthest from what is expected, by Poisson's tails, which are wider than those of
        a sum of different chances (Hoeffding 1956); corrected for how many symbols were counted."""
        ids = self._counted if self._counted is not None else numpy.zeros(0, numpy.int64)
        often = [
            (poisson_tail(int(count), float(expected)), int(id), count, expected)
            for id, count, expected in zip(ids, self._counts, self._expected)
            if expected >= LEAST_EXPECTED
        ]
        if not often:
            return TestResult("counts", 0.0, 1.0)
        p_value, id, count, expected = min(often)
        detail = {"id": float(id), "count": float(count), "expected": float(expected), "symbols": float(len(often))}
        return TestResult("counts", float(count / expected), min(1.0, p_value * len(often)), detail)

    def first(self) -> TestResult:
        """The first tokens of answers to one prompt, by χ²."""
        symbols = list(self._first_probs)
        probs = [self._first_probs[id] for id in symbols]
        counts = [int(self._first_counts.get(id, 0)) for id in symbols]
        outside = self._firsts - sum(counts)
        test = chi_square(counts, probs, probs, probs, outside) if self._firsts else None
        if test is None or test.p_value is None:
            return TestResult("first", 0.0, 1.0)
        return TestResult("first", test.statistic, test.p_value, {"cells": float(test.cells)})

    def tests(self) -> list[TestResult]:
        return [self.surprisal(), self.counts(), self.first()]

    @property
    def found(self) -> dict[str, float]:
        """The size of the faults that this many tokens find in `POWER` of all cases: how many times too likely a symbol
        of 5 % would have to be, and how far off the mean surprisal, in nats."""
        tests, n = 3, max(1, self.tokens)
        reach = _NORMAL.inv_cdf(1 - SIGNIFICANT / tests / 2) + _NORMAL.inv_cdf(POWER)
        among = _NORMAL.inv_cdf(1 - SIGNIFICANT / tests / MOST_COUNTED / 2) + _NORMAL.inv_cdf(POWER)
        return {"times": 1 + among / math.sqrt(0.05 * n), "nats": reach * math.sqrt(self._variance) / n}


def _tallied(counted: NDArray[numpy.int64], ids: NDArray[numpy.int64], weights: Floats) -> Floats:
    """The weights of the ids that are counted, summed by id."""
    place = numpy.searchsorted(counted, ids).clip(max=len(counted) - 1)
    among = counted[place] == ids
    return numpy.bincount(place[among], weights=weights[among], minlength=len(counted)).astype(numpy.float64)


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


def two_samples(counts: Floats, others: Floats) -> TestResult:
    """Whether two servers' answers come from one distribution: of the symbol whose mean count per answer differs most,
    Welch's statistic (1947), corrected for how many symbols were compared.

    counts, others: [answers, symbols], how often each symbol stands in each answer.
    """
    means = counts.mean(0) - others.mean(0)
    spread = numpy.sqrt(counts.var(0, ddof=1) / len(counts) + others.var(0, ddof=1) / len(others))
    compared = spread > 0
    if not compared.any():
        return TestResult("counts", 0.0, 1.0)
    z = numpy.where(compared, means / numpy.where(compared, spread, 1.0), 0.0)
    furthest = int(numpy.abs(z).argmax())
    p_value = min(1.0, two_sided(float(z[furthest])) * int(compared.sum()))
    detail = {"symbol": float(furthest), "count": float(counts[:, furthest].sum())}
    return TestResult("counts", float(z[furthest]), p_value, detail | {"other": float(others[:, furthest].sum())})
