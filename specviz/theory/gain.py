"""What a class learned: the normalised gain, the gains of two groups compared, and how many people that takes.

⟨g⟩ = (mean after − mean before) / (1 − mean before), with the shares of right answers [Hake 1998, Am. J. Phys. 66, 64]:
of all that a class did not know, the part that it learned. Guessing does not change it on average: whoever guesses one
of k options where they know nothing is right 1/k of the time there, before and after, and the factor 1 − 1/k cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy

from specviz.theory.statistics import student_t

#: How often the true gain lies inside the interval, and how often a difference is to be seen that is there.
LEVEL, POWER = 0.95, 0.8


@dataclass(frozen=True, slots=True)
class Gain:
    """A normalised gain, or a difference of two, with its 95 % interval, whose ends are None where it is not known."""

    value: float
    spread: float | None = None  # of one person; the standard error for n people is spread / √n
    low: float | None = None
    high: float | None = None


def normalised_gain(before: Sequence[float], after: Sequence[float]) -> Gain | None:
    """The gain of a class; None where everything was right before. before, after: each person's share of right answers.

    The interval is Fieller's for a ratio of means [1954, J. R. Stat. Soc. B 16, 175]: each g for which Student's t does
    not tell the mean of (after − before) − g (1 − before) from 0. There is none for fewer than three people, if all fit
    one g exactly, as where everything was right after, or if so little was wrong before that any g would do.
    """
    learned, missing = numpy.subtract(after, before), numpy.subtract(1.0, before)
    n, gained, left = len(missing), float(learned.mean()), float(missing.mean())
    if left == 0:
        return None
    value = gained / left
    if n < 3:
        return Gain(value)
    spread = float((learned - value * missing).std(ddof=1)) / left
    # (gained − g left)² ≤ t² / n · (variance of learned − g missing), that is a g² − 2 b g + c ≤ 0.
    (of_learned, of_both), (_, of_missing) = (student_t(n - 1, LEVEL) ** 2 / n * numpy.cov(learned, missing)).tolist()
    a, b, c = left**2 - of_missing, gained * left - of_both, gained**2 - of_learned
    if a <= 0 or spread < 1e-9:
        return Gain(value)
    reach = math.sqrt(max(0.0, b**2 - a * c))
    return Gain(value, spread, (b - reach) / a, (b + reach) / a)


def difference(one: Gain, other: Gain) -> Gain:
    """one − other, of two groups. The interval is made of theirs [Zou & Donner 2008, Stat. Med. 27, 1693]; spread: of
    one person in either group."""
    value = one.value - other.value
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Gain(value)
    low = value - math.hypot(one.value - one.low, other.high - other.value)
    high = value + math.hypot(one.high - one.value, other.value - other.low)
    return Gain(value, math.hypot(one.spread or 0, other.spread or 0) / math.sqrt(2), low, high)


def people_needed(size: float, spread: float) -> int:
    """How many people each of two groups needs for a difference of `size` between their gains to be seen, `POWER` of
    the time: 2 (z + z′)² (spread / size)² + z² / 4, for a two-sided test of level 1 − `LEVEL` by Student's t
    [Guenther 1981, Am. Stat. 35, 243]."""
    z, power = (NormalDist().inv_cdf(share) for share in ((1 + LEVEL) / 2, POWER))
    return math.ceil(2 * ((z + power) * spread / size) ** 2 + z**2 / 4)
