"""What each function is asked, smallest numbers first; students' functions and our own solutions answer the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

from specviz.grading.laws import CHANCE, MOST_COINS, Functions, Setup, long_texts, same_twice, speculated, threshold
from specviz.grading.mistakes import STRICT
from specviz.grading.solutions import RIGHT, Coins, Row, Solution
from specviz.grading.student import Fault

Pair = tuple[Row, Row]


def _pairs(whole: int, *digits: str) -> tuple[Pair, ...]:
    """p and q as parts of a whole: "13 22" of 4 is (1/4, 3/4) and (1/2, 1/2)."""
    pairs = ((tuple(int(digit) / whole for digit in row) for row in pair.split()) for pair in digits)
    return tuple((p, q) for p, q in pairs)


#: Of two and of three ids, where every threshold is a multiple of 1/4; of four ids.
SMALL = _pairs(4, "13 22")
MIDDLE = _pairs(4, "211 121", "112 211", "022 211", "121 040", "211 211")
LARGE = _pairs(20, "2468 8642", "1964 6275")

#: Models for `speculate`. After one of the prompts an uncertain token follows another: one coin for both would show. Of
#: three pairs, which one comes next would depend on the last id alone.
QUARTERS = _pairs(4, "1021 2110", "2101 1111", "2110 1012", "2200 4000")
HALVES = _pairs(2, "101 110", "110 200", "011 020", "110 110")
OTHERS = _pairs(2, "011 020", "011 011", "110 200", "101 200")
SETUPS = (
    Setup(HALVES, 1, 3, cells=2),
    Setup(HALVES, 2, 1, cells=2),
    Setup(HALVES, 2, 3, cells=2, prompt=(0, 0)),
    Setup(OTHERS, 2, 3, cells=2, prompt=(1,)),
    Setup(QUARTERS, 1, 2, cells=4, within=0.99),
    Setup(QUARTERS, 1, 2, cells=4, within=0.01, prompt=(3,)),
)
LONG = Setup(_pairs(20, "2468 8642", "1964 6275", "9542 5555", "3773 6446"), 3, 8)

#: In turn, for runs whose first two ids the page counts: drafts of one token show a wrong bonus, of two what is wrong
#: after a rejection.
COUNTED, COUNTED_RUNS = (replace(LONG, gamma=1, length=3), replace(LONG, gamma=2, length=3)), 1000

#: Coins from the middle of each cell.
MIDDLES = (0.125, 0.375, 0.625, 0.875)

#: Which part of the right solution a student's function can take the place of.
PART_OF = {"accept": "passing", "residual": "after", "verify": "verifying"}

#: After so many faults no more is asked.
MOST_FAULTS = 4


@dataclass(frozen=True)
class Answered:
    """One question. part: which part of a function's points it belongs to. answer: a Fault where there was none."""

    part: str
    given: dict[str, Any]
    answer: Any


def _attempt(ask: Callable[..., Any], *given: Any) -> Any:
    try:
        return ask(*given)
    except Fault as fault:
        return fault


def _drafted(q: Row) -> list[int]:
    """The tokens that can be drawn from q."""
    return [token for token, share in enumerate(q) if share]


def _accept(functions: Functions) -> Iterator[Answered]:
    for p, q in SMALL + MIDDLE + LARGE:
        for token in _drafted(q):

            def passed(u: float, given: tuple[Any, ...] = (p, q, token)) -> bool:
                return bool(functions.call("accept", *given, u))

            given = {"p": p, "q": q, "token": token}
            part = "edges" if not p[token] or p == q or 1 in q else "law"
            yield Answered(part, given, _attempt(threshold, passed))
            if not p[token]:
                yield Answered("edges", given | {"u": 0.0}, _attempt(passed, 0.0))


def _residual(functions: Functions) -> Iterator[Answered]:
    for p, q in SMALL + MIDDLE + LARGE:
        part = "edges" if p == q or 1 in q else "law"
        yield Answered(part, {"p": p, "q": q}, _attempt(functions.call, "residual", p, q))


def _verify(functions: Functions) -> Iterator[Answered]:
    chance = random.Random(0)

    def asked(part: str, pairs: Sequence[Pair], tokens: list[int], us: Sequence[float], u_next: float) -> Answered:
        p, q = [p for p, _ in pairs], [q for _, q in pairs[:-1]]
        given = {"p": p, "q": q, "tokens": tokens, "us": list(us), "u_next": u_next}
        return Answered(part, given, _attempt(functions.call, "verify", *given.values()))

    # Every draft, and every way in which its coins can fall.
    for pairs in (SMALL * 2, *(chance.choices(MIDDLE, k=2) for _ in range(8)), chance.choices(MIDDLE, k=3)):
        for tokens in product(*(_drafted(q) for _, q in pairs[:-1])):
            for *us, u_next in product(MIDDLES, repeat=len(pairs)):
                yield asked("law", pairs, list(tokens), us, u_next)
    plain, _, without, *_ = MIDDLE
    yield asked("edges", [without, plain], [0], [0.0], 0.6)
    yield asked("edges", [plain, without], [0], [0.1], 0.0)
    yield asked("edges", [plain, plain], [0], [0.1], 1 - 2.0**-53)
    for gamma, pool, times in ((1, LARGE, 300), (3, MIDDLE, 100)):
        for _ in range(times):
            pairs = chance.choices(pool, k=gamma + 1)
            drafted = [chance.choice(_drafted(q)) for _, q in pairs[:-1]]
            *us, u_next = (chance.random() if pool is LARGE else chance.choice(MIDDLES) for _ in pairs)
            yield asked("coins", pairs, drafted, us, u_next)


@cache
def _speculated(solution: Solution, setup: Setup) -> Any:
    """Of one of our own solutions, whom many files may be compared with."""
    return speculated(solution, setup)


def _speculate(functions: Functions) -> Iterator[Answered]:
    """Students' functions are asked whether coins decide alone, too, and for longer texts."""
    ours, faults = isinstance(functions, Solution), False
    if not ours and _attempt(same_twice, functions, LONG) is False:
        unsteady = "The same coins gave two texts: rng is not its only source of chance, or it remembers a call."
        yield Answered("length", {}, Fault(unsteady))
        return
    for setup in SETUPS:
        found = _attempt(_speculated if ours else speculated, functions, setup)
        faults |= isinstance(found, Fault)
        yield from (Answered(part, {"setup": setup}, found) for part in ("length", "law", "passes"))
    if not ours and not faults:
        yield Answered("longer texts", {}, _attempt(_long, functions))


def _long(functions: Functions) -> Fault | None:
    """What is wrong with coins of 0, and with longer texts."""
    text, _ = SETUPS[0].run(functions, Coins([0.0] * MOST_COINS))
    if not all(SETUPS[0].pairs[place][0][id] for place, id in SETUPS[0].steps(text)):
        return Fault(f"{STRICT} Where all coins are 0 it gives {list(text)}.")
    p_value, worst = long_texts(functions, LONG)
    return Fault(f"In longer texts {worst}.") if p_value < CHANCE else None


#: By function, its questions; and the parts of its points.
QUESTIONS = {"accept": _accept, "residual": _residual, "verify": _verify, "speculate": _speculate}
PARTS: dict[str, Sequence[str]] = {
    "accept": ("law", "edges"),
    "residual": ("law", "edges"),
    "verify": ("law", "coins", "edges"),
    "speculate": ("law", "length", "passes", "longer texts"),
}


def answers(functions: Functions, name: str) -> list[Answered]:
    """The answers to all questions; to those so far, if the process has ended, or after many faults."""
    found: list[Answered] = []
    faults = 0
    for answered in QUESTIONS[name](functions):
        found.append(answered)
        if isinstance(answered.answer, Fault):
            faults += 1
            if answered.answer.over or faults == MOST_FAULTS:
                break
    return found


def counted_runs(functions: Functions, name: str) -> Iterator[tuple[int, ...]]:
    """The first two ids of each of `COUNTED_RUNS`, by one of the functions in a program that is right otherwise.

    Raises Fault, or LookupError where the function gives what no program can go on from.
    """
    part: dict[str, Any] = {PART_OF[name]: partial(functions.call, name)} if name in PART_OF else {}
    program = replace(RIGHT, **part) if part else functions
    chance = random.Random(3)
    for run in range(COUNTED_RUNS):
        text, _ = COUNTED[run % 2].run(program, Coins([chance.random() for _ in range(MOST_COINS)]))
        yield text[:2]


def counted_law() -> dict[tuple[int, ...], float]:
    """What these ids must follow."""
    setup = COUNTED[0]
    texts = product(range(len(setup.pairs[0][0])), repeat=2)
    return {text: math.prod(setup.pairs[place][0][id] for place, id in setup.steps(text)) for text in texts}
