"""Exact laws: what a function does over all coins, found by asking it at few of them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from specviz.grading.solutions import Coins, Row
from specviz.theory.statistics import tail

#: Coins that `accept` is asked about; how often the interval around its threshold is halved after that.
_GRID = (2.0**-40, *((place + 0.5) / 32 for place in range(32)), 1 - 2.0**-53)
_HALVINGS = 40

#: The most ways in which coins are let fall, and the coins of one run.
MOST_FALLS, MOST_COINS = 6000, 80

#: Of longer texts, how many are drawn, and how often a right solution may look wrong by chance.
LONG_TEXTS, CHANCE = 250, 1e-9


class Functions(Protocol):
    """A student's file or one of our own solutions."""

    def call(self, name: str, *given: Any) -> Any: ...


def threshold(passed: Callable[[float], bool]) -> float | list[bool]:
    """The coin below which a token passes, and so its probability of passing; exact to 1e-12.

    The answers at some coins, if those that pass do not lie below those that do not.
    """
    answers = [passed(u) for u in _GRID]
    last = sum(answers)
    if answers != sorted(answers, reverse=True):
        return answers
    if last in (0, len(_GRID)):
        return float(last > 0)
    low, high = _GRID[last - 1], _GRID[last]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if passed(middle) else (low, middle)
    return high


@dataclass(frozen=True)
class Setup:
    """Models, a prompt and lengths for `speculate`.

    pairs: p and q, one of which follows each prefix, by all of its ids. cells: every threshold of a right solution is a
    multiple of 1/cells, so that coins from all cells give its law exactly. within: where in its cell a coin lies: to a
    right solution that makes no difference.
    """

    pairs: tuple[tuple[Row, Row], ...]
    gamma: int
    length: int
    cells: int = 0
    within: float = 0.5
    prompt: tuple[int, ...] = (0,)

    def places(self, ids: Sequence[int]) -> Iterator[int]:
        """Which pair follows each prefix. Raises LookupError for an id that is none."""
        place = 0
        for id in ids:
            if not 0 <= id < len(self.pairs[0][0]):
                raise LookupError(id)
            place = (3 * place + id + 1) % len(self.pairs)
            yield place

    def target(self, ids: Sequence[int]) -> list[Row]:
        return [self.pairs[place][0] for place in self.places(ids)]

    def draft(self, ids: Sequence[int]) -> list[Row]:
        return [self.pairs[place][1] for place in self.places(ids)]

    def steps(self, text: Sequence[int]) -> list[tuple[int, int]]:
        """New ids, each with the place of the pair that it follows."""
        return list(zip([*self.places([*self.prompt, *text])][len(self.prompt) - 1 :], text))

    def run(self, functions: Functions, coins: Coins) -> tuple[tuple[int, ...], int]:
        """New ids, and how often the target was asked."""
        asked = 0

        def target(ids: Sequence[int]) -> list[Row]:
            nonlocal asked
            asked += 1
            return self.target(ids)

        text = functions.call("speculate", target, self.draft, list(self.prompt), self.gamma, self.length, coins)
        return tuple(text), asked


@dataclass
class Speculated:
    """What `speculate` does over all coins: the law of its texts, its mean number of target passes, and its lengths."""

    law: dict[tuple[int, ...], float] = field(default_factory=lambda: defaultdict(float))
    passes: float = 0.0
    lengths: set[int] = field(default_factory=set)

    def distance(self, other: Speculated) -> float:
        """The total variation between two laws."""
        texts = self.law.keys() | other.law.keys()
        return sum(abs(self.law.get(text, 0.0) - other.law.get(text, 0.0)) for text in texts) / 2


def speculated(functions: Functions, setup: Setup) -> Speculated | None:
    """Runs `speculate` once for each way in which its coins can fall; None if there are too many of them."""
    found = Speculated()
    for falls, coins in enumerate(_ways_to_fall(setup.cells, setup.within)):
        if falls == MOST_FALLS:
            return None
        text, passes = setup.run(functions, coins)
        weight = float(setup.cells) ** -coins.used
        found.law[text[: setup.length]] += weight
        found.passes += weight * passes
        found.lengths.add(len(text))
    return found


def _ways_to_fall(cells: int, within: float) -> Iterator[Coins]:
    """Coins for one run after the other, which differ from those before among the coins that the run took."""
    begun: list[int] = []
    while True:
        begun += [0] * (MOST_COINS - len(begun))
        coins = Coins([(cell + within) / cells for cell in begun])
        yield coins
        del begun[coins.used :]
        while begun and begun[-1] == cells - 1:
            begun.pop()
        if not begun:
            return
        begun[-1] += 1


def same_twice(functions: Functions, setup: Setup) -> bool:
    """Whether the same coins give the same text again."""
    chance = random.Random(1)
    tosses = [[chance.random() for _ in range(MOST_COINS)] for _ in range(4)]
    first, again = ([setup.run(functions, Coins(values))[0] for values in tosses] for _ in range(2))
    return first == again


def long_texts(functions: Functions, setup: Setup) -> tuple[float, str]:
    """Longer texts than can be enumerated: how likely counts at least as far off are, and the count furthest off.

    Each id is drawn after its own prefix, so that the sum over cells of (count − expected)² / expected is close to χ²,
    whatever the prefixes: with as many degrees of freedom as there are pairs, times ids but one.
    """
    chance, ids = random.Random(2), range(len(setup.pairs[0][0]))
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for _ in range(LONG_TEXTS):
        for step in setup.steps(setup.run(functions, Coins([chance.random() for _ in range(MOST_COINS)]))[0]):
            counts[step] += 1
    cells = []
    for place, (p, _) in enumerate(setup.pairs):
        total = sum(counts[place, id] for id in ids)
        cells += [(counts[place, id], max(1.0, total * p[id]), place, id) for id in ids]
    count, expected, place, id = max(cells, key=lambda cell: (cell[0] - cell[1]) ** 2 / cell[1])
    worst = f"where p = {setup.pairs[place][0]}, id {id} came {count} times instead of about {expected:.0f}"
    statistic = sum((count - expected) ** 2 / expected for count, expected, *_ in cells)
    return tail(statistic, len(setup.pairs) * (len(ids) - 1)), worst
