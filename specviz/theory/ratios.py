"""How many times as fast: the ratio of two rates, and the interval in which it lies.

Two contestants take turns over parts of a text, so whatever else a machine does meanwhile meets both alike. What their
times still disagree on, from one pair of turns to the next, is what the interval is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy

#: How often the true ratio lies inside the interval.
LEVEL = 0.90

#: The normal distribution's quantile for that: Φ(z) = (1 + LEVEL) / 2.
_Z = 1.6448536269514722

#: An interval whose ends are further apart than this factor says nothing.
WIDEST = 3.0

#: Samples of prompts that a bootstrap draws.
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two rates with its 90 % interval. Where no interval can be told, its ends are None."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def known(self) -> bool:
        """Whether the interval is there and narrow enough to say something."""
        return self.low is not None and self.high <= WIDEST * self.low


@dataclass(frozen=True, slots=True)
class TurnPair:
    """One turn of each contestant over the same part of a text; tokens and seconds of the one, and of the other."""

    tokens: float
    seconds: float
    base_tokens: float
    base_seconds: float
    #: Pairs of one stratum did the same work, so they differ by the machine alone; None: each pair's work is its own.
    stratum: Hashable = None


def ratio_of(pairs: Sequence[TurnPair]) -> Ratio | None:
    """The rate of one contestant over the other's, all tokens by all seconds; None without pairs.

    The interval is by the delta method: each pair's influence on the logarithm of the ratio, whose variance is taken
    within strata where these repeat, else over all pairs, with Student's t for as many degrees of freedom.
    """
    if not pairs:
        return None
    columns = numpy.array([(one.tokens, one.seconds, one.base_tokens, one.base_seconds) for one in pairs])
    tokens, seconds, base_tokens, base_seconds = sums = columns.sum(0)
    value = float((tokens / seconds) / (base_tokens / base_seconds))
    influence = (columns / sums) @ numpy.array([1.0, -1.0, -1.0, 1.0])
    variance, degrees = _variance_of_sum(influence, [one.stratum for one in pairs])
    if degrees < 2:
        return Ratio(value)
    reach = math.exp(student_t(degrees) * math.sqrt(variance))
    return Ratio(value, value / reach, value * reach)


def _variance_of_sum(parts: numpy.ndarray, strata: Sequence[Hashable]) -> tuple[float, int]:
    """The variance of the sum of `parts`, and the degrees of freedom behind it."""
    members: dict[Hashable, list[int]] = {}
    for place, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(place)
    repeated = [found for stratum, found in members.items() if stratum is not None and len(found) > 1]
    groups = repeated or [list(range(len(parts)))]
    degrees = sum(len(found) - 1 for found in groups)
    within = sum(float(numpy.square(parts[found] - parts[found].mean()).sum()) for found in groups)
    return (len(parts) * within / degrees if degrees else 0.0), degrees


def student_t(degrees: int) -> float:
    """Student's t that leaves (1 − LEVEL) / 2 above it (Abramowitz & Stegun 26.7.5); good to 2 % from 2 degrees on."""
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, start=1))


def alike(one: Ratio, other: Ratio) -> bool:
    """Whether two ratios, measured apart, cannot be told apart: their difference lies within both intervals' reach."""
    if one.low is None or other.low is None:
        return True
    reach = math.hypot(math.log(one.high / one.value), math.log(other.high / other.value))
    return abs(math.log(one.value / other.value)) <= reach


def over_prompts(
    sums: Sequence[Sequence[float]], statistic: Callable[[numpy.ndarray], numpy.ndarray], seed: int = 0
) -> Ratio:
    """A statistic of sums over prompts, and between what it would lie for other prompts of the same kind.

    sums: what each prompt adds, [prompts, columns]. statistic: of sums [n, columns], n values. The interval is the
    percentile bootstrap's, which resamples prompts (Efron 1979); of a single prompt there is none.
    """
    columns = numpy.asarray(sums, dtype=float)
    value = float(statistic(columns.sum(0, keepdims=True))[0])
    if len(columns) < 2:
        return Ratio(value)
    drawn = numpy.random.default_rng(seed).integers(len(columns), size=(RESAMPLES, len(columns)))
    with numpy.errstate(divide="ignore", invalid="ignore"):
        found = statistic(columns[drawn].sum(1))
    low, high = numpy.nanquantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Ratio(value, float(low), float(high))
