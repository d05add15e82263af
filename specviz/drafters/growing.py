"""How a draft grows on a device: the choosers' decisions (`specviz.drafters.choosers`) as functions of tensors.

A tree has the same number of tokens at every level. A token's parent may depend on the tokens drawn, and then the host
does not know it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specviz.drafters.choosers import turns
from specviz.rules.draft import Draft, GrownTree, chain
from specviz.rules.sampling import Warper, draw, first_largest


@dataclass(frozen=True, slots=True)
class GrownLevel:
    """The tokens of one level, k of a draft's n."""

    tokens: Tensor  # [k] int64
    first: int  # how many tokens the levels before have
    rows: Tensor | None  # [k] int64, the row that judges each: 0 follows the text, i + 1 token i; None in a chain
    ancestors: Tensor | None  # [k, n] bool, which tokens precede each on its branch, itself included; None in a chain


@dataclass(frozen=True)
class Growing:
    """How tokens are chosen."""

    warper: Warper | None  # shapes the distributions that tokens are drawn from; None takes the likeliest
    branches: int  # tokens of each level; 1 makes chains


@dataclass
class Grown:
    """A draft of `depth` levels in the making."""

    growing: Growing
    depth: int
    device: torch.device
    levels: list[GrownLevel] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)
    weights: Tensor | None = None  # [k] float64, the last level's chances; of likeliest tokens
    chances: list[float] = field(default_factory=lambda: [1.0])  # the same of drawn ones
    widths: list[int] = field(default_factory=list)  # by level, how many siblings there may be

    def add(self, rows: Tensor, uniforms: Tensor) -> GrownLevel:
        """Chooses the next level from rows of logits [k or 1, vocab] float32."""
        first, width = len(self.levels) * self.growing.branches, self.growing.branches
        if self.levels and len(rows) == 1 and width > 1:
            rows = rows.expand(width, -1)  # all tokens of the level before are followed by the same
        self.logits.append(rows)
        u = uniforms[first : first + width]
        if width == 1:
            self.levels.append(GrownLevel(self._next_of_chain(rows, u), first, None, None))
        else:
            warper = self.growing.warper
            tokens, places = self._take_likeliest(rows) if warper is None else self._draw(warper.probabilities(rows), u)
            judging = places + (first - width + 1) if first else places
            self.levels.append(GrownLevel(tokens, first, judging, self._ancestors(first, places)))
        return self.levels[-1]

    def draft(self, uniforms: Tensor, sources: tuple[str, ...]) -> Draft:
        """All of it. sources: by depth."""
        tokens, width = torch.cat([level.tokens for level in self.levels]), self.growing.branches
        n = len(tokens)
        grown = None
        if width > 1:
            rows, ancestors = map(torch.cat, zip(*[(level.rows, level.ancestors) for level in self.levels]))
            grown = GrownTree(rows, ancestors, tuple(self.widths))
        probs, warper = torch.cat(self.probs) if self.probs else None, self.growing.warper
        own_softmax = probs is not None and width == 1 and warper is not None and not warper.changes_logits
        return Draft(
            tokens=tokens,
            parents=chain(n) if grown is None else (-1,) * n,
            probs=probs,
            logits=None if own_softmax else torch.cat(self.logits),
            draws=None if probs is None else uniforms[:n],
            sources=tuple([sources[place // width] for place in range(n)]) if sources else (),
            grown=grown,
        )

    def _next_of_chain(self, row: Tensor, u: Tensor) -> Tensor:
        if self.growing.warper is None:
            return first_largest(row)
        self.probs.append(self.growing.warper.probabilities(row))
        return draw(self.probs[-1], u[0])

    def _take_likeliest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """As `TopChoices.children`."""
        self.widths.append(self.growing.branches)
        probs, ids = rows.softmax(-1).topk(self.growing.branches)
        before = torch.ones(1, dtype=torch.float64, device=self.device) if self.weights is None else self.weights
        chances = (before.unsqueeze(-1) * probs.double()).flatten()
        # Stable: of equal chances the first, as on the host.
        best = chances.sort(descending=True, stable=True).indices[: self.growing.branches]
        self.weights = chances.index_select(0, best)
        return ids.flatten().index_select(0, best), best // self.growing.branches

    def _draw(self, remaining: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """As `Draws.children`, but for rows of fewer tokens than branches: what cannot be drawn has q = 0."""
        drawing_turns = turns(self.chances, self.growing.branches)
        self.widths.append(len(drawing_turns))
        tokens: list[Tensor] = []
        parents: list[Tensor] = []
        for drawing, _ in drawing_turns:
            places = torch.cat([torch.full((1,), place, dtype=torch.long, device=self.device) for place in drawing])
            mass = remaining.index_select(0, places)
            total = mass.sum(-1, keepdim=True)
            q = torch.where(total > 0, mass / total, 0.0)
            drawn = sum(map(len, tokens))
            tokens.append(draw(q, u[drawn : drawn + len(drawing)].unsqueeze(-1)))
            self.probs.append(q)
            parents.append(places)
            remaining.index_copy_(0, places, mass.scatter(-1, tokens[-1].unsqueeze(-1), 0.0))
        self.chances = [self.chances[place] * chance for drawing, chance in drawing_turns for place in drawing]
        return torch.cat(tokens), torch.cat(parents)

    def _ancestors(self, first: int, places: Tensor) -> Tensor:
        width = self.growing.branches
        numbers = torch.arange(self.depth * width, device=self.device)
        itself = numbers[first : first + width].unsqueeze(-1) == numbers
        before = self.levels[-1].ancestors if first else None
        return itself if before is None else before.index_select(0, places) | itself
