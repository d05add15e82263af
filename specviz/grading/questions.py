"""What each function is asked, smallest numbers first; students' functions and our own solutions answer the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specviz.grading.laws import (
    CHANCE,
    MOST_COINS,
    Functions,
    Setup,
    coins_of,
    long_text,
    run,
    same_twice,
    speculated,
    threshold,
)
from specviz.grading.mistakes import STRICT
from specviz.grading.solutions import Coins, Row
from specviz.grading.student import Fault

#: p and q. The thresholds of all but the last two are multiples of 1/4.
PAIRS: tuple[tuple[Row, Row], ...] = (
    ([0.25, 0.75], [0.5, 0.5]),
    ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]),
    ([0.25, 0.25, 0.5], [0.5, 0.25, 0.25]),
    ([0.0, 0.5, 0.5], [0.5, 0.25, 0.25]),
    ([0.25, 0.5, 0.25], [0.0, 1.0, 0.0]),
    ([0.5, 0.25, 0.25], [0.5, 0.25, 0.25]),
    ([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]),
    ([0.05, 0.45, 0.3, 0.2], [0.3, 0.1, 0.35, 0.25]),
)

#: For `speculate`: multiples of 1/4 and of 1/2; and any, for a longer text.
QUARTERS: tuple[tuple[Row, Row], ...] = (
    ([0.25, 0.0, 0.5, 0.25], [0.5, 0.25, 0.25, 0.0]),
    ([0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]),
    ([0.5, 0.25, 0.25, 0.0], [0.25, 0.0, 0.25, 0.5]),
    ([0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
)
HALVES: tuple[tuple[Row, Row], ...] = (
    ([0.5, 0.0, 0.5], [0.5, 0.5, 0.0]),
    ([0.5, 0.5, 0.0], [1.0, 0.0, 0.0]),
    ([0.0, 0.5, 0.5], [0.0, 1.0, 0.0]),
    ([0.5, 0.5, 0.0], [0.5, 0.5, 0.0]),
)
OTHERS: tuple[tuple[Row, Row], ...] = (
    ([0.0, 0.5, 0.5], [0.0, 1.0, 0.0]),
    ([0.0, 0.5, 0.5], [0.0, 0.5, 0.5]),
    ([0.5, 0.5, 0.0], [1.0, 0.0, 0.0]),
    ([0.5, 0.0, 0.5], [1.0, 0.0, 0.0]),
)
SETUPS = (
    Setup(HALVES, 1, 3, cells=2),
    Setup(QUARTERS, 1, 2, cells=4, within=(0.01, 0.99), prompt=(3,)),
    Setup(HALVES, 2, 3, cells=2, prompt=(0, 0)),
    Setup(OTHERS, 2, 3, cells=2),
    Setup(HALVES, 2, 1, cells=2),
)
LONG = Setup(
    (([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]), ([0.55, 0.15, 0.2, 0.1], [0.25] * 4), *(PAIRS[-1:] * 2)), 3, 8
)


@dataclass(frozen=True)
class Answered:
    """One question. part: which part of a function's points it belongs to. answer: a Fault where there was none."""

    part: str
    given: dict[str, Any]
    answer: Any


def _attempt(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Fault as fault:
        return fault


def _drafted(q: Row) -> list[int]:
    """The tokens that can be drawn from q."""
    return [token for token, share in enumerate(q) if share]


def _accept(functions: Functions) -> Iterator[Answered]:
    for p, q in PAIRS:
        for token in _drafted(q):
            edge = not p[token] or p == q or 1 in q
            given = {"p": p, "q": q, "token": token}

            def passed(u: float, given: tuple[Any, ...] = (p, q, token)) -> bool:
                return bool(functions.call("accept", *given, u))

            yield Answered("edges" if edge else "law", given, _attempt(lambda: threshold(passed)))
            if not p[token]:
                yield Answered("edges", given | {"u": 0.0}, _attempt(lambda: passed(0.0)))


def _residual(functions: Functions) -> Iterator[Answered]:
    for p, q in PAIRS:
        part = "edges" if p == q or 1 in q else "law"
        yield Answered(part, {"p": p, "q": q}, _attempt(lambda: functions.call("residual", p, q)))


def _verify(functions: Functions) -> Iterator[Answered]:
    chance = random.Random(0)

    def answered(part: str, *given: Any) -> Answered:
        names = dict(zip(("p", "q", "tokens", "us", "u_next"), given))
        return Answered(part, names, _attempt(lambda: tuple(functions.call("verify", *given))))

    def drawn(size: int, width: int = 3) -> list[tuple[Row, Row]]:
        return chance.choices([pair for pair in PAIRS if len(pair[0]) == width], k=size)

    for first, bonus in (*((pair, PAIRS[0]) for pair in PAIRS[:1]), *(drawn(2) for _ in range(8))):
        p, q = [first[0], bonus[0]], [first[1]]
        law = [0.0] * len(p[0])
        for token in _drafted(q[0]):
            for pattern in range(16):
                u, u_next = coins_of(pattern, 2, 4)
                asked = answered("coins", p, q, [token], [u], u_next)
                yield asked
                if not isinstance(asked.answer, Fault):
                    accepted, next_token = asked.answer
                    emitted = token if accepted else next_token
                    if emitted in range(len(law)):
                        law[emitted] += q[0][token] / 16
        yield Answered("law", {"p": p, "q": q}, law)
    yield answered("edges", [PAIRS[3][0], PAIRS[1][0]], [PAIRS[3][1]], [0], [0.0], 0.6)
    yield answered("edges", [PAIRS[1][0], PAIRS[3][0]], [PAIRS[1][1]], [0], [0.1], 0.0)
    yield answered("edges", [PAIRS[1][0], PAIRS[2][0]], [PAIRS[1][1]], [0], [0.1], 1 - 2.0**-53)
    for gamma, width, times in ((1, 4, 300), (2, 3, 100), (3, 3, 100)):
        for _ in range(times):
            pairs = drawn(gamma + 1, width)
            tokens = [chance.choice(_drafted(q)) for _, q in pairs[:gamma]]
            us = [chance.random() if width == 4 else (chance.randrange(4) + 0.5) / 4 for _ in pairs]
            yield answered("coins", [p for p, _ in pairs], [q for _, q in pairs[:gamma]], tokens, us[:gamma], us[gamma])


def _speculate(functions: Functions) -> Iterator[Answered]:
    for setup in SETUPS:
        given = {"setup": setup}
        found = _attempt(lambda: speculated(functions, setup))
        if isinstance(found, Fault):
            yield Answered("law", given, found)
            return
        yield from (Answered(part, given, found) for part in ("length", "law", "passes"))


def _beyond(functions: Functions) -> Iterator[Answered]:
    """What only a student's own `speculate` is asked."""

    def fault() -> Fault | None:
        if not same_twice(functions, LONG):
            return Fault("The same coins gave two texts: rng is not its only source of chance, or it remembers a call.")
        text, _ = run(functions, SETUPS[0], Coins([0.0] * MOST_COINS))
        if not SETUPS[0].probability(text):
            return Fault(f"{STRICT} Where all coins are 0 it gives {list(text)}, which has no probability.")
        p_value, worst = long_text(functions, LONG)
        return Fault(f"In longer texts {worst}.") if p_value < CHANCE else None

    yield Answered("longer text", {}, _attempt(fault))


#: By function, its questions; and the parts of its points.
QUESTIONS = {"accept": _accept, "residual": _residual, "verify": _verify, "speculate": _speculate}
PARTS: dict[str, Sequence[str]] = {
    "accept": ("law", "edges"),
    "residual": ("law", "edges"),
    "verify": ("law", "coins", "edges"),
    "speculate": ("law", "length", "passes", "longer text"),
}


def answers(functions: Functions, name: str, own: bool = False) -> list[Answered]:
    """The answers to all questions; to those so far, if the process has ended. own: of one of our own solutions."""
    found: list[Answered] = []
    for answered in QUESTIONS[name](functions):
        found.append(answered)
        if isinstance(answered.answer, Fault) and answered.answer.over:
            return found
    if name == "speculate" and not own:
        found += _beyond(functions)
    return found
