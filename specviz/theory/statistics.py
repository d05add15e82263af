"""What counts and times show beyond chance: how far counts lie from a distribution, and ratios with their intervals.

A distribution is a sequence of probabilities, one for each outcome; counts follow the same order, and `outside` counts
outcomes that the distribution says cannot happen.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

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
    that many are not evidence either; the same holds for `outside`, draws of impossible outcomes, on their own.
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
    """P(χ² ≥ statistic) with that many degrees of freedom: Q(degrees / 2, statistic / 2), the upper incomplete gamma.

    Summed from Q(1/2, x) = erfc(√x) or Q(1, x) = e^−x by Q(a + 1, x) = Q(a, x) + x^a e^−x / Γ(a + 1) (DLMF 8.8.6).
    """
    x = statistic / 2
    if x == 0:
        return 1.0
    first, least = (math.erfc(math.sqrt(x)), 0.5) if degrees % 2 else (math.exp(-x), 1.0)
    orders = (least + step for step in range((degrees - 1) // 2))
    return math.fsum([first, *(math.exp(a * math.log(x) - x - math.lgamma(a + 1)) for a in orders)])


def noticed(cells: int, n: int) -> float:
    """The total variation from which on a deviation is `SIGNIFICANT` in `n` draws nine times in ten, whatever its shape
    in the `cells` compared; a few per cent too large where these are few.

    Pearson's statistic then has the noncentrality λ = n Σ (q − p)² / p, which is at least 4 n TV² (Cauchy-Schwarz). By
    its mean k + λ and variance 2 (k + 2λ), with Wilson & Hilferty's quantile (1931) for the limit that it has to pass.
    """
    k, often = cells - 1, NormalDist().inv_cdf(0.9)
    limit = k * (1 - 2 / (9 * k) + NormalDist().inv_cdf(1 - SIGNIFICANT) * math.sqrt(2 / (9 * k))) ** 3
    spread = 2 * often + 2 * math.sqrt(often**2 + limit - k / 2)
    return math.sqrt((spread**2 / 2 - k) / 2 / n) / 2


def noise(probs: Sequence[float], sizes: Sequence[int], seed: int = 0) -> list[Noise]:
    """How far samples of `probs` lie from it, for each sample size, measured on `DRAWS` samples of each."""
    # In falling order, because a multinomial draw is done once nothing is left to deal out.
    p = numpy.sort(numpy.asarray(probs, dtype=numpy.float64))[::-1]
    p = p / p.sum()
    generator, noises = numpy.random.default_rng(seed), []
    for size in sizes:
        shares = generator.multinomial(size, p, size=DRAWS) / size
        distances = numpy.abs(shares - p).sum(-1) / 2
        low, high = numpy.quantile(distances, [1 - QUANTILE, QUANTILE])
        noises.append(Noise(size, float(distances.mean()), float(low), float(high)))
    return noises


#: The smallest number of runs for which the distance is drawn.
FIRST_SHOWN = 10


def steps(last: int, count: int) -> list[int]:
    """About `count` numbers of runs from `FIRST_SHOWN` to `last`, evenly spread on a logarithmic scale."""
    first = min(FIRST_SHOWN, last)
    return sorted({round(first * (last / first) ** (i / (count - 1))) for i in range(count)})


class Evidence:
    """Counts of outcomes as they come in, with their exact probabilities and bounds (see `chi_square`)."""

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


# --- ratios of two rates ----------------------------------------------------------------------------------------------
# Two contestants take turns over parts of a text, so that anything else the machine does slows both alike. The interval
# comes from the differences that remain between one pair of turns and the next.

#: How often the true ratio lies inside the interval.
LEVEL = 0.90

#: An interval whose ends are further apart than this factor says nothing.
WIDEST = 3.0

#: Samples of prompts that a bootstrap draws.
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two rates with its 90 % interval, whose ends are None where it is not known."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def known(self) -> bool:
        """Whether the interval is there and narrow enough to say something."""
        return self.low is not None and self.high is not None and self.high <= WIDEST * self.low


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
    """The rate of one contestant over the other's, all tokens by all seconds; None where one of them did nothing.

    The interval is by the delta method: each pair's influence on the logarithm of the ratio, whose variance is taken
    within strata where these repeat, else over all pairs, with Student's t for as many degrees of freedom.
    """
    columns = numpy.array([(pair.tokens, pair.seconds, pair.base_tokens, pair.base_seconds) for pair in pairs])
    sums = columns.sum(0)
    if not (pairs and sums.all()):
        return None
    tokens, seconds, base_tokens, base_seconds = sums
    value = float((tokens / seconds) / (base_tokens / base_seconds))
    influence = (columns / sums) @ numpy.array([1.0, -1.0, -1.0, 1.0])
    variance, degrees = _variance_of_sum(influence, [pair.stratum for pair in pairs])
    if degrees < 2:
        return Ratio(value)
    reach = math.exp(student_t(degrees) * math.sqrt(variance))
    return Ratio(value, value / reach, value * reach)


def _variance_of_sum(parts: numpy.ndarray, strata: Sequence[Hashable]) -> tuple[float, int]:
    """The variance of the sum of `parts`, and the degrees of freedom behind it."""
    members: dict[Hashable, list[int]] = {}
    for place, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(place)
    repeated = [group for stratum, group in members.items() if stratum is not None and len(group) > 1]
    groups = repeated or [list(range(len(parts)))]
    degrees = sum(len(group) - 1 for group in groups)
    within = sum(float(numpy.square(parts[group] - parts[group].mean()).sum()) for group in groups)
    return (len(parts) * within / degrees if degrees else 0.0), degrees


def student_t(degrees: int, level: float = LEVEL) -> float:
    """Student's t that leaves (1 − level) / 2 above it (Abramowitz & Stegun 26.7.5); good to 2 % from 2 degrees on."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, start=1))


class Share(NamedTuple):
    """A share of a total, with its interval."""

    value: float
    low: float
    high: float


def proportion(count: float, total: float, level: float = LEVEL) -> Share | None:
    """count / total with Wilson's interval (1927), which holds for small counts too; None for a total of 0."""
    if not total:
        return None
    z, share = NormalDist().inv_cdf((1 + level) / 2), count / total
    middle, spread = share + z**2 / (2 * total), z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    scale = 1 + z**2 / total
    return Share(share, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def alike(ratio: Ratio, base: Ratio) -> bool:
    """True if two ratios that were measured separately do not differ by more than both intervals allow."""
    if ratio.high is None or base.high is None:
        return True
    reach = math.hypot(math.log(ratio.high / ratio.value), math.log(base.high / base.value))
    return abs(math.log(ratio.value / base.value)) <= reach


def over_prompts(
    sums: Sequence[Sequence[float]],
    statistic: Callable[[numpy.ndarray], numpy.ndarray],
    seed: int = 0,
    level: float = LEVEL,
) -> Ratio:
    """A statistic of sums over prompts, with the interval in which it would lie for other prompts of the same kind.

    sums: what each prompt adds, [prompts, columns]. statistic: of sums [n, columns], n values. The interval is the
    percentile bootstrap's, which resamples prompts (Efron 1979); for a single prompt there is none.
    """
    columns = numpy.asarray(sums, dtype=float)
    value = float(statistic(columns.sum(0, keepdims=True))[0])
    if len(columns) < 2:
        return Ratio(value)
    drawn = numpy.random.default_rng(seed).integers(len(columns), size=(RESAMPLES, len(columns)))
    with numpy.errstate(divide="ignore", invalid="ignore"):
        values = statistic(columns[drawn].sum(1))
    low, high = numpy.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Ratio(value, float(low), float(high))
