"""The homework's right solution, made of parts that a mistake replaces. Rows are lists of float64, over few ids.

Leviathan et al. 2023, arXiv 2211.17192, Alg. 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

Row = Sequence[float]
Rows = Sequence[Row]

#: The distribution after each prefix of some ids.
Model = Callable[[Sequence[int]], Rows]


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
    return u < (p[token] / q[token] if q[token] else math.inf)


def residual(p: Row, q: Row) -> Row:
    """norm(max(0, p − q)); p itself where nothing is left."""
    return scaled([max(0.0, a - b) for a, b in zip(p, q)], p)


def draw(probs: Row, u: float) -> int:
    """The first id whose cumulative probability exceeds u."""
    sums = list(accumulate(probs))
    return next((id for id, total in enumerate(sums) if total > u * sums[-1]), len(probs) - 1)


def scaled(row: Row, otherwise: Row) -> Row:
    """A row that sums to one; another one where it sums to 0."""
    total = sum(row)
    return [part / total for part in row] if total > 0 else otherwise


def same(row: Row) -> Row:
    return row


@dataclass(frozen=True)
class Solution:
    """One way to solve the homework; as it stands, the right one.

    after: the distribution after a rejection. bonus: after a draft that was wholly accepted, from all rows of p and q;
    None for no token, and `missing` in its place. coin: the next token's, from the judging coins, u_next and how many
    passed. coins: those that judge, from `us`. judged: which row of p judges a token, by its place and how many rows
    there are. replaced: how many rows too late a token is replaced. going_on: from which row the next token comes if
    what follows a rejection is judged too, or "in place". warped_p, warped_q: what becomes of a model's distribution
    before it is used. drawn: what drafts are drawn from. judging_coin: from the coins that drew and judge a draft
    token. since: how many rows too late p begins. appended: how often the next token is, by whether one was rejected.
    extra: more draft tokens than asked for. spared: how many fewer than are left to write; for a right solution that
    makes no difference. cuts: at the length. verifying: in place of `verify`.
    """

    passing: Callable[[Row, Row, int, float], bool] = passes
    after: Callable[[Row, Row], Row] = residual
    bonus: Callable[[Rows, Rows], Row | None] = lambda p, q: p[-1]
    missing: int | None = None
    drawing: Callable[[Row, float], int] = draw
    coin: Callable[[Sequence[float], float, int], float] = lambda us, u_next, accepted: u_next
    coins: Callable[[Sequence[float]], Sequence[float]] = same
    judged: Callable[[int, int], int] = lambda place, rows: place
    replaced: int = 0
    going_on: str = ""
    counted: int = 0
    warped_p: Callable[[Row], Row] = same
    warped_q: Callable[[Row], Row] = same
    drawn: Callable[[Row], Row] = same
    judging_coin: Callable[[float, float], float] = lambda drawn, judged: judged
    since: int = 0
    appended: Callable[[bool], int] = lambda rejected: 1
    rewinds: bool = True
    one_by_one: bool = False
    extra: int = 0
    spared: int = 0
    cuts: bool = True
    verifying: Callable[..., tuple[int, int | None]] | None = None

    def call(self, name: str, *given: Any) -> Any:
        """As `Student.call`."""
        return getattr(self, name)(*given)

    def accept(self, p: Row, q: Row, token: int, u: float) -> bool:
        return self.passing(self.warped_p(p), self.warped_q(q), token, u)

    def residual(self, p: Row, q: Row) -> Row:
        return self.after(self.warped_p(p), self.warped_q(q))

    def verify(
        self, p: Rows, q: Rows, tokens: Sequence[int], us: Sequence[float], u_next: float
    ) -> tuple[int, int | None]:
        p, q = [*map(self.warped_p, p)], [*map(self.warped_q, q)]
        judging = [p[self.judged(place, len(p))] for place in range(len(tokens))]
        passed = [self.passing(*one) for one in zip(judging, q, tokens, self.coins(us))]
        refused = [place for place, good in enumerate(passed) if not good] or [len(tokens)]
        row = {"count": sum(passed), "last": refused[-1]}.get(self.going_on, refused[0])
        accepted = sum(passed) if self.going_on == "first" else row
        source = self.after(p[min(row + self.replaced, len(tokens))], q[row]) if row < len(tokens) else self.bonus(p, q)
        next_token = self.missing if source is None else self.drawing(source, self.coin(us, u_next, accepted))
        return accepted + self.counted, next_token

    def speculate(
        self, target: Model, draft: Model, prompt: Sequence[int], gamma: int, length: int, rng: Coins
    ) -> list[int]:
        text: list[int] = list(prompt)
        new: list[int] = []
        while len(new) < length:
            tokens: list[int] = []
            coins, q = [], []
            left = length - len(new) - self.spared if self.cuts else gamma
            for _ in range(min(gamma + self.extra, left)):
                q.append(draft(text + tokens)[-1])
                coins.append(rng.random())
                tokens.append(self.drawing(self.drawn(q[-1]), coins[-1]))
            p = [*target(text + tokens)[len(text) - 1 + self.since :]]
            p += p[-1:] * (len(tokens) + 1 - len(p))
            for end in range(len(tokens) if self.one_by_one else 0):
                target(text + tokens[:end])
            us = [self.judging_coin(u, rng.random()) for u in coins]
            kept = self._kept(p, q, tokens, us, rng)
            new += kept
            text += kept if self.rewinds else [*tokens, kept[-1]]
        return new[:length] if self.cuts else new

    def _kept(self, p: Rows, q: Rows, tokens: list[int], us: list[float], rng: Coins) -> list[int]:
        """The new tokens of a round."""
        if not self.going_on.startswith("in place"):
            accepted, token = (self.verifying or self.verify)(p, q, tokens, us, rng.random())
            return tokens[:accepted] + ([] if token is None else [token] * self.appended(accepted < len(tokens)))
        passed = [passes(*one) for one in zip(p, q, tokens, us)]
        kept = [
            token if good else draw(residual(*rows), rng.random()) for *rows, token, good in zip(p, q, tokens, passed)
        ]
        return kept if "no bonus" in self.going_on and not all(passed) else [*kept, draw(p[-1], rng.random())]


RIGHT = Solution()
