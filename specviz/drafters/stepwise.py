"""Drafting step by step: a row of probabilities, a token from it, the next row; as a chain or as a tree.

What draft models, early exits and extra heads have in common. They differ in where a row comes from.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from specviz.drafters.base import Draft, Drafter, chain
from specviz.records.runs import DraftParams
from specviz.rules.sampling import Warper, draw, first_largest, fit_width

#: About how often a good drafter's draw is accepted. Only the shape of drawn trees depends on it.
ACCEPTED = 0.7


@dataclass(frozen=True, slots=True)
class Children:
    """The next level of a tree, m tokens, siblings in the order they are to be tried.

    tokens: [m] int64. places: [m] the row of each token's parent. sure: [m] the drafter's probability for each, given
    its parent. chances: [m] about how likely each is to be kept, given its parent. probs: [m, vocab] what each was
    drawn from; None for top choices.
    """

    tokens: Tensor
    places: list[int]
    sure: list[float]
    chances: list[float]
    probs: Tensor | None


class TopChoices:
    """Takes the likeliest tokens; each is a point mass (q = 1). For greedy decoding, and for typical acceptance."""

    def one(self, row: Tensor, u: Tensor) -> tuple[Tensor, None]:
        """The token [1] for a row of logits [1, vocab]."""
        return first_largest(row), None

    def confidence(self, row: Tensor, token: Tensor, probs: None) -> float:
        """The drafter's softmax at its choice."""
        return row.softmax(-1).max().item()

    def children(self, rows: Tensor, weights: Sequence[float], branches: int, uniforms: Tensor) -> Children:
        """The `branches` likeliest continuations of all branches together, by their probability from the root on.

        rows: [k, vocab] logits; weights: [k] probability of each branch so far. EAGLE-2, arXiv 2406.16858, sec. 4.1.
        """
        probs, ids = (part.tolist() for part in rows.softmax(-1).topk(min(branches, rows.shape[-1])))
        candidates = [
            (weight * prob, place, token, prob)
            for place, weight in enumerate(weights)
            for prob, token in zip(probs[place], ids[place])
        ]
        best = heapq.nlargest(branches, candidates, key=itemgetter(0))
        _, places, tokens, sure = map(list, zip(*best))
        return Children(torch.tensor(tokens, device=rows.device), places, sure, chances=sure, probs=None)


class Draws:
    """Draws tokens from the drafter's warped distribution, siblings without replacement."""

    def __init__(self, warper: Warper):
        self.warper = warper

    def one(self, row: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """The token [1] drawn from a row of logits [1, vocab], and the distribution it was drawn from."""
        probs = self.warper.probabilities(row)
        return draw(probs, u), probs

    def confidence(self, row: Tensor, token: Tensor, probs: Tensor) -> float:
        """q of the drawn token."""
        return probs[0, token].item()

    def children(self, rows: Tensor, weights: Sequence[float], branches: int, uniforms: Tensor) -> Children:
        """`branches` draws, dealt to the k rows in proportion to their weights *before* any is made.

        That keeps the output exact: how many siblings there will be may depend on what was drawn so far, not on them.
        A sibling is drawn from the row without those before it, renormalised, and that is the q it is judged by.
        A drawn token's chance to be kept has little to do with its own q (a rare draw passes as often as a common one
        if the two models agree), and much with its turn: a sibling counts only where those before it are refused.
        """
        probs = self.warper.probabilities(rows)
        shares = deal(weights, branches, probs.count_nonzero(-1).tolist())
        tokens, places, chances, drawn_from = [], [], [], []
        left = probs.clone()
        for turn in range(max(shares)):
            served = [place for place, share in enumerate(shares) if share > turn]
            q = left[served]
            q.div_(q.sum(-1, keepdim=True))
            tokens.append(draw(q, uniforms[len(places) : len(places) + len(served)].unsqueeze(-1)))
            chances += [ACCEPTED * (1 - ACCEPTED) ** turn] * len(served)
            places += served
            drawn_from.append(q)
            left[served, tokens[-1]] = 0
        drawn = torch.cat(tokens)
        return Children(drawn, places, probs[places, drawn].tolist(), chances, torch.cat(drawn_from))


Chooser = TopChoices | Draws


def deal(weights: Sequence[float], parts: int, limits: Sequence[int]) -> list[int]:
    """`parts` things in proportion to weights, by largest remainders; none gets more than its limit."""
    total = sum(weights)
    exact = [parts * weight / total for weight in weights] if total > 0 else [parts / len(weights)] * len(weights)
    shares = [int(share) for share in exact]
    order = sorted(range(len(exact)), key=lambda place: shares[place] - exact[place])
    for place in order[: parts - sum(shares)]:
        shares[place] += 1
    return [min(share, limit) for share, limit in zip(shares, limits)]


class Stepwise(Drafter):
    """A drafter that has a row of logits for every token it may continue.

    branches: tokens at each depth; 1 is a chain. confidence: see `DraftParams`; in a tree the surest token of a depth
    decides.
    """

    def __init__(self, chooser: Chooser, vocab_size: int, branches: int, params: DraftParams):
        self.chooser = chooser
        self.vocab_size = vocab_size
        self.width = branches
        self.confidence = params.confidence
        self.settings = {"branches": branches, "confidence": params.confidence}

    @abstractmethod
    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        """Logits [1, any width] for what follows the committed text; None if there is nothing to go by yet."""

    @abstractmethod
    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        """Logits [k, any width] for what follows `tokens` [k], the last k of a draft with these parents."""

    def source(self, depth: int) -> str:
        """What proposes the tokens at this depth, from 0 on; empty if that goes without saying."""
        return ""

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        row = self.first_row(committed)
        if row is None:
            return Draft.copied((), uniforms.device)
        return self._chain(row, budget, uniforms) if self.width == 1 else self._tree(row, budget, uniforms)

    def _chain(self, row: Tensor, budget: int, uniforms: Tensor) -> Draft:
        """One token after the other; they stay on the device, and no step waits for the host."""
        tokens, rows, probs, stopped = [], [], [], None
        for depth, u in enumerate(uniforms[:budget].unbind()):
            if depth:
                row = self.next_rows(tokens[-1], chain(depth))
            rows.append(fit_width(row, self.vocab_size).float())
            token, drawn_from = self.chooser.one(rows[-1], u)
            tokens.append(token)
            probs.append(drawn_from)
            if self.confidence and depth < budget - 1:
                sure = self.chooser.confidence(rows[-1], token, drawn_from)
                if sure < self.confidence:
                    stopped = sure
                    break
        return self._draft(torch.cat(tokens), chain(len(tokens)), rows, probs, uniforms, stopped)

    def _tree(self, row: Tensor, budget: int, uniforms: Tensor) -> Draft:
        """Level by level, `branches` tokens each, where they are likeliest to be reached and kept."""
        tokens, rows, probs, stopped = [], [], [], None
        parents: tuple[int, ...] = ()
        frontier, weights = [-1], [1.0]
        for depth in range(budget):
            if depth:
                row = self.next_rows(tokens[-1], parents)
            row = fit_width(row, self.vocab_size).float()
            level = self.chooser.children(row, weights, self.width, uniforms[len(parents) :])
            tokens.append(level.tokens)
            rows.append(row if len(row) == 1 else row[list(dict.fromkeys(level.places))])
            probs.append(level.probs)
            weights = [weights[place] * chance for place, chance in zip(level.places, level.chances)]
            start = len(parents)
            parents += tuple(frontier[place] for place in level.places)
            frontier = list(range(start, len(parents)))
            if depth < budget - 1 and max(level.sure) < self.confidence:
                stopped = max(level.sure)
                break
        return self._draft(torch.cat(tokens), parents, rows, probs, uniforms, stopped)

    def _draft(
        self,
        tokens: Tensor,
        parents: tuple[int, ...],
        rows: list[Tensor],
        probs: list[Tensor | None],
        uniforms: Tensor,
        stopped: float | None,
    ) -> Draft:
        drawn = isinstance(self.chooser, Draws)
        own_softmax = drawn and not self.chooser.warper.changes_logits and self.width == 1
        return Draft(
            tokens=tokens,
            parents=parents,
            probs=torch.cat(probs) if drawn else None,
            logits=None if own_softmax else torch.cat(rows),
            draws=uniforms[: len(parents)] if drawn else None,
            sources=self._sources(parents),
            confidence=stopped,
        )

    def _sources(self, parents: tuple[int, ...]) -> tuple[str, ...]:
        if not self.source(0):
            return ()
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple([self.source(depth) for depth in depths])
