"""The homework's right solution, and the wrong ones that have a name: each is the right one with something replaced.

Rows are lists of float64, over small vocabularies. Leviathan et al. 2023, arXiv 2211.17192, Alg. 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = Sequence[float]

#: The distribution after each prefix of some ids.
Model = Callable[[Sequence[int]], Sequence[Row]]


@dataclass
class Coins:
    """Where `speculate` takes its coins from."""

    values: Sequence[float]
    used: int = 0

    def random(self) -> float:
        self.used += 1
        return self.values[self.used - 1]


def passes(p: Row, q: Row, token: int, u: float) -> bool:
    """Accepts with probability min(1, p/q); strictly, as u can be 0 where p is."""
    return u < _ratio(p[token], q[token])


def uncovered(p: Row, q: Row) -> Row:
    """norm(max(0, p − q)); p itself where nothing is left."""
    return scaled([max(0.0, a - b) for a, b in zip(p, q)], p)


def draw(probs: Row, u: float) -> int:
    """The first id whose cumulative probability exceeds u."""
    sums = _sums(probs)
    return next((id for id, total in enumerate(sums) if total > u * sums[-1]), len(probs) - 1)


def same(row: Row) -> Row:
    return row


@dataclass(frozen=True)
class Solution:
    """One way to solve the homework; as it stands, the right one.

    after: the distribution after a rejection. bonus: after a draft that was wholly accepted, from all rows of p and q;
    None for no token. next_coin: from the judging coins, u_next and how many passed. judged_row, after_row: how many
    rows too late. going_on: what is judged after a rejection, and from which row the next token then comes.
    target_row, draft_row: what becomes of a model's distribution before it is used. drawn_row: what drafts are drawn
    from. judging_coin: from the coins of the draft and of the judgement. extra: more draft tokens than asked for; least: where only one
    token is left.
    """

    passing: Callable[[Row, Row, int, float], bool] = passes
    after: Callable[[Row, Row], Row] = uncovered
    bonus: Callable[[Sequence[Row], Sequence[Row]], Row | None] = lambda p, q: p[-1]
    drawing: Callable[[Row, float], int] = draw
    next_coin: Callable[[Sequence[float], float, int], float] = lambda us, u_next, accepted: u_next
    judged_row: int = 0
    after_row: int = 0
    going_on: str = ""
    counted: int = 0
    missing: int | None = None
    target_row: Callable[[Row], Row] = same
    draft_row: Callable[[Row], Row] = same
    drawn_row: Callable[[Row], Row] = same
    judging_coin: Callable[[float, float], float] = lambda drawn, judged: judged
    rewinds: bool = True
    one_by_one: bool = False
    extra: int = 0
    least: int = 0
    cuts: bool = True
    repeats_prompt: bool = False

    def call(self, name: str, *given: Any) -> Any:
        """As `Student.call`."""
        return getattr(self, name)(*given)

    def accept(self, p: Row, q: Row, token: int, u: float) -> bool:
        return self.passing(self.target_row(p), self.draft_row(q), token, u)

    def residual(self, p: Row, q: Row) -> Row:
        return self.after(self.target_row(p), self.draft_row(q))

    def verify(
        self, p: Sequence[Row], q: Sequence[Row], tokens: Sequence[int], us: Sequence[float], u_next: float
    ) -> tuple[int, int | None]:
        n = len(tokens)
        p, q = [*map(self.target_row, p)], [*map(self.draft_row, q)]
        passed = [
            self.passing(p[max(0, place + self.judged_row)], q[place], token, us[place]) for place, token in enumerate(tokens)
        ]
        first = passed.index(False) if False in passed else n
        accepted = sum(passed) if self.going_on else first
        row = accepted if self.going_on in ("", "count") else first
        u = self.next_coin(us, u_next, accepted)
        if row < n:
            source: Row | None = self.after(p[row + self.after_row], q[row])
        else:
            source = self.bonus(p, q)
        return accepted + self.counted, self.missing if source is None else self.drawing(source, u)

    def speculate(
        self, target: Model, draft: Model, prompt: Sequence[int], gamma: int, length: int, rng: Coins
    ) -> list[int]:
        text, new = list(prompt), []
        while len(new) < length:
            tokens: list[int] = []
            q, drawn = [], []
            left = max(self.least, length - len(new) - 1) if self.cuts else gamma
            for _ in range(min(gamma + self.extra, left)):
                q.append(draft(text + tokens)[-1])
                drawn.append(rng.random())
                tokens.append(self.drawing(self.drawn_row(q[-1]), drawn[-1]))
            p = target(text + tokens)[len(text) - 1 :]
            if self.one_by_one:
                for end in range(len(tokens)):
                    target(text + tokens[:end])
            us = [self.judging_coin(u, rng.random()) for u in drawn]
            if self.going_on.startswith("in place"):
                kept = self._in_place(p, q, tokens, us, rng)
            else:
                accepted, token = self.verify(p, q, tokens, us, rng.random())
                kept = [*tokens[:accepted], *([] if token is None else [token])]
            new += kept
            text += kept if self.rewinds else [*tokens, kept[-1]]
        new = new[:length] if self.cuts else new
        return [*prompt, *new] if self.repeats_prompt else new

    def _in_place(
        self, p: Sequence[Row], q: Sequence[Row], tokens: Sequence[int], us: Sequence[float], rng: Coins
    ) -> list[int]:
        """Every rejected token replaced where it stands, and what was drafted after it judged too."""
        passed = [passes(*rows, token, u) for *rows, token, u in zip(p, q, tokens, us)]
        kept = [
            token if good else draw(uncovered(*rows), rng.random()) for *rows, token, good in zip(p, q, tokens, passed)
        ]
        return kept if "no bonus" in self.going_on and not all(passed) else [*kept, draw(p[-1], rng.random())]


RIGHT = Solution()


def scaled(row: Row, otherwise: Row) -> Row:
    """A row that sums to one; another one where it sums to 0."""
    total = sum(row)
    return [part / total for part in row] if total > 0 else otherwise


def sharper(power: float) -> Callable[[Row], Row]:
    """A distribution at temperature 1 / power."""
    return lambda row: scaled([part**power for part in row], row)


def one_hot(row: Row) -> Row:
    best = row.index(max(row)) if isinstance(row, list) else list(row).index(max(row))
    return [float(id == best) for id in range(len(row))]


def _sums(row: Row) -> list[float]:
    total, sums = 0.0, []
    for part in row:
        total += part
        sums.append(total)
    return sums


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.inf
