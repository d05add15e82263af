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

#: The most runs over all coins; the coins of one run; and the runs with random coins where there are more ways to fall.
MOST_RUNS, MOST_COINS, DRAWN_RUNS = 6000, 80, 2000

#: The longer text: its runs, and how often a right solution may look wrong by chance.
LONG_RUNS, CHANCE = 250, 1e-9

Text = tuple[int, ...]


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


def coins_of(pattern: int, coins: int, cells: int) -> list[float]:
    """The middles of cells, one for each coin: the digits of a number."""
    return [(pattern // cells**place % cells + 0.5) / cells for place in range(coins)]


@dataclass(frozen=True)
class Setup:
    """Models, a prompt and lengths for `speculate`.

    pairs: p and q, one of which follows each prefix, by all of its ids. cells: every threshold of a right solution is a
    multiple of 1/cells, so that coins from all cells give its law exactly. within: where in its cell a coin lies, in one
    turn after the other: to a right solution that makes no difference.
    """

    pairs: tuple[tuple[Row, Row], ...]
    gamma: int
    length: int
    cells: int = 0
    within: tuple[float, ...] = (0.5,)
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

    def probability(self, text: Text) -> float:
        """Of new ids under the target alone."""
        product = 1.0
        for row, id in zip(self.target([*self.prompt, *text])[len(self.prompt) - 1 :], text):
            product *= row[id]
        return product


@dataclass
class Speculated:
    """What `speculate` does over all coins: the law of its texts, its mean number of target passes, and its lengths.
    exact: False where there were too many coins, and some were drawn at random."""

    law: dict[Text, float] = field(default_factory=lambda: defaultdict(float))
    passes: float = 0.0
    lengths: set[int] = field(default_factory=set)
    exact: bool = True

    def add(self, text: Text, passes: int, weight: float, length: int) -> None:
        self.law[text[:length]] += weight
        self.passes += weight * passes
        self.lengths.add(len(text))

    def distance(self, other: Speculated) -> float:
        """The total variation; 0 where random coins do not tell the laws apart."""
        texts = self.law.keys() | other.law.keys()
        pairs = [(self.law.get(text, 0.0), other.law.get(text, 0.0)) for text in texts]
        if not self.exact:
            square = sum((mine - theirs) ** 2 / max(theirs, 1 / DRAWN_RUNS) for mine, theirs in pairs)
            if tail(DRAWN_RUNS * square, len(pairs) - 1) > CHANCE:
                return 0.0
        return sum(abs(mine - theirs) for mine, theirs in pairs) / 2


def speculated(functions: Functions, setup: Setup) -> Speculated:
    """Runs `speculate` once for each way in which its coins can fall."""
    found, runs = Speculated(), 0
    for within in setup.within:
        for coins, weigh in _ways_to_fall(setup.cells, within):
            text, passes = run(functions, setup, coins)
            found.add(text, passes, weigh() / len(setup.within), setup.length)
            runs += 1
            if runs > MOST_RUNS:
                return _drawn(functions, setup)
    return found


def _drawn(functions: Functions, setup: Setup) -> Speculated:
    found, chance = Speculated(exact=False), random.Random(0)
    for _ in range(DRAWN_RUNS):
        text, passes = run(functions, setup, _random(chance))
        found.add(text, passes, 1 / DRAWN_RUNS, setup.length)
    return found


def _random(chance: random.Random) -> Coins:
    return Coins([chance.random() for _ in range(MOST_COINS)])


def run(functions: Functions, setup: Setup, coins: Coins) -> tuple[Text, int]:
    """New ids, and how often the target was asked."""
    asked = 0

    def target(ids: Sequence[int]) -> list[Row]:
        nonlocal asked
        asked += 1
        return setup.target(ids)

    text = functions.call("speculate", target, setup.draft, list(setup.prompt), setup.gamma, setup.length, coins)
    return tuple(text), asked


def _ways_to_fall(cells: int, within: float) -> Iterator[tuple[Coins, Callable[[], float]]]:
    """Coins for one run after the other, each with its weight once the run has shown how many it takes."""
    begun: list[int] = []
    while True:
        begun += [0] * (MOST_COINS - len(begun))
        coins = Coins([(cell + within) / cells for cell in begun])
        yield coins, lambda coins=coins: float(cells) ** -coins.used
        del begun[coins.used :]
        while begun and begun[-1] == cells - 1:
            begun.pop()
        if not begun:
            return
        begun[-1] += 1


def same_twice(functions: Functions, setup: Setup) -> bool:
    """Whether the same coins give the same text again."""
    chance = random.Random(1)
    tosses = [_random(chance).values for _ in range(4)]
    first, again = ([run(functions, setup, Coins(values))[0] for values in tosses] for _ in range(2))
    return first == again


def long_text(functions: Functions, setup: Setup) -> tuple[float, str]:
    """A longer text than can be enumerated, drawn `LONG_RUNS` times: how likely counts at least as far off are, and the
    count that is furthest off.

    Each id is drawn after its own prefix, so that the sum over cells of (count − expected)² / expected is close to χ²,
    whatever the prefixes: with as many degrees of freedom as there are pairs, times ids but one.
    """
    chance, width = random.Random(2), len(setup.pairs[0][0])
    counts = [[0] * width for _ in setup.pairs]
    for _ in range(LONG_RUNS):
        text, _ = run(functions, setup, _random(chance))
        places = [*setup.places([*setup.prompt, *text])][len(setup.prompt) - 1 :]
        for place, id in zip(places, text):
            counts[place][id] += 1
    cells = [
        (count, sum(row) * p, place, id)
        for place, row in enumerate(counts)
        for id, (count, p) in enumerate(zip(row, setup.pairs[place][0]))
    ]
    statistic = sum((count - expected) ** 2 / max(expected, 1) for count, expected, *_ in cells)
    count, expected, place, id = max(cells, key=lambda cell: (cell[0] - cell[1]) ** 2 / max(cell[1], 1))
    worst = f"where p = {setup.pairs[place][0]}, id {id} came {count} times instead of about {expected:.0f}"
    return tail(statistic, len(setup.pairs) * (width - 1)), worst
