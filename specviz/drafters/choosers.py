"""How a drafter turns probabilities into tokens: the most likely ones, or draws that a rule can judge."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from specviz.rules.sampling import Warper, draw, first_largest
from specviz.rules.transfer import to_device

#: Roughly how often a good drafter's draw is accepted. Affects only the shape of drawn trees.
ACCEPTED = 0.7


@dataclass(frozen=True, slots=True)
class Children:
    """The next level of a tree: m tokens, siblings in the order of trial."""

    tokens: Tensor  # [m] int64
    places: list[int]  # [m] the row of each token's parent
    confidences: list[float]  # [m] the drafter's probability for each, given its parent
    chances: list[float]  # [m] roughly how likely each is to be accepted, given its parent
    probs: Tensor | None  # [m, vocab] what each was drawn from; None for top choices


class TopChoices:
    """Takes the likeliest tokens, each a point mass (q = 1): for greedy decoding and typical acceptance."""

    warper: Warper | None = None  # shapes the distributions that tokens are drawn from
    temperature: float | None = 0.0  # at which they are drawn from whole rows, if nothing else shapes these

    def choose(self, row: Tensor, u: Tensor) -> tuple[Tensor, None]:
        """The token [1] for a row of logits [1, vocab]."""
        return first_largest(row), None

    def children(self, rows: Tensor, weights: Sequence[float], branches: int, uniforms: Tensor) -> Children:
        """The `branches` likeliest continuations across all branches, by probability from the root.

        rows: [k, vocab] logits; weights: [k] each branch's probability so far. EAGLE-2, arXiv 2406.16858, sec. 4.1.
        """
        probs, ids = (part.tolist() for part in rows.softmax(-1).topk(min(branches, rows.shape[-1])))
        candidates = [
            (weight * prob, place, token, prob)
            for place, weight in enumerate(weights)
            for prob, token in zip(probs[place], ids[place])
        ]
        best = heapq.nlargest(branches, candidates, key=itemgetter(0))
        _, places, tokens, confidences = map(list, zip(*best))
        return Children(to_device(tokens, rows.device), places, confidences, chances=confidences, probs=None)


class Draws:
    """Draws tokens from the drafter's warped distribution, siblings without replacement."""

    def __init__(self, warper: Warper):
        self.warper = warper
        # A class derived from these draws otherwise: what knows only the temperature must not draw in its place.
        self.temperature = warper.temperature_alone if type(self) in (Draws, Paths) else None

    def choose(self, row: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """The token [1] drawn from a row of logits [1, vocab], and the distribution it was drawn from."""
        probs = self.warper.probabilities(row)
        return draw(probs, u), probs

    def children(self, rows: Tensor, weights: Sequence[float], branches: int, uniforms: Tensor) -> Children:
        """`branches` draws, dealt to the k rows in proportion to their weights *before* any is made.

        That keeps the output exact: the number of siblings may depend on earlier draws, but not on their own. Each
        sibling is drawn from the row without its elders, renormalised, and judged by that q. A drawn token's chance of
        acceptance depends little on its q (if the models agree, a rare draw passes as often as a common one) and much
        on its turn: a sibling counts only if its elders are rejected.
        """
        probs = self.warper.probabilities(rows)
        drawing_turns = turns(weights, branches, probs.count_nonzero(-1).tolist())
        tokens: list[Tensor] = []
        places: list[int] = []
        drawn_from: list[Tensor] = []
        remaining = probs.clone()
        for drawing, _ in drawing_turns:
            q = remaining[drawing]
            q.div_(q.sum(-1, keepdim=True))
            tokens.append(draw(q, uniforms[len(places) : len(places) + len(drawing)].unsqueeze(-1)))
            places += drawing
            drawn_from.append(q)
            remaining[drawing, tokens[-1]] = 0
        drawn, chances = torch.cat(tokens), [chance for drawing, chance in drawing_turns for _ in drawing]
        return Children(drawn, places, probs[places, drawn].tolist(), chances, torch.cat(drawn_from))


class Paths(Draws):
    """Draws whole paths, each without regard to the others, for rules that pick one of them."""

    def children(self, rows: Tensor, weights: Sequence[float], branches: int, uniforms: Tensor) -> Children:
        """One token for each path: `branches` of them from the text's row, then one from each path's own."""
        probs = self.warper.probabilities(rows).expand(branches, -1)
        tokens = draw(probs, uniforms[:branches].unsqueeze(-1))
        places = [0] * branches if len(rows) == 1 else list(range(branches))
        confidences = probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).tolist()
        return Children(tokens, places, confidences, [1.0] * branches, probs)


Chooser = TopChoices | Draws


def turns(
    weights: Sequence[float], branches: int, limits: Sequence[int] | None = None
) -> list[tuple[list[int], float]]:
    """The rows that draw a sibling in each turn, and its chance of acceptance. limits: how many each row can draw."""
    shares = deal(weights, branches, limits or [branches] * len(weights))
    return [
        ([place for place, share in enumerate(shares) if share > turn], ACCEPTED * (1 - ACCEPTED) ** turn)
        for turn in range(max(shares))
    ]


def deal(weights: Sequence[float], parts: int, limits: Sequence[int]) -> list[int]:
    """Shares out `parts` in proportion to weights, by largest remainders, none above its limit."""
    total = sum(weights)
    exact = [parts * weight / total for weight in weights] if total > 0 else [parts / len(weights)] * len(weights)
    shares = [int(share) for share in exact]
    order = sorted(range(len(exact)), key=lambda place: shares[place] - exact[place])
    for place in order[: parts - sum(shares)]:
        shares[place] += 1
    return [min(share, limit) for share, limit in zip(shares, limits)]
