"""What a rule judges (a draft, the target's distributions over it, the round's coins) and what it decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.rules.sampling import Warper, first_largest
from specviz.rules.transfer import to_device


def chain(length: int) -> tuple[int, ...]:
    """The parents of a chain: −1, 0, 1, ..."""
    return tuple(range(-1, length - 1))


def depth(parents: Sequence[int]) -> int:
    """How many levels a draft with these parents has; 0 if it is empty."""
    levels: list[int] = []
    for parent in parents:
        levels.append(1 if parent < 0 else levels[parent] + 1)
    return max(levels, default=0)


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, on the device: a chain or a tree, possibly empty.

    `probs` are what the tokens were *really* drawn from. A copied or argmax token is a point mass (q = 1), whatever
    the model's softmax gives it.
    """

    tokens: Tensor  # [n] int64
    # [n] the index of the draft token that each continues, −1 for the committed text. Parents come before their
    # children; siblings are tried in order, and distinct unless each was drawn without regard to the others.
    parents: tuple[int, ...]
    probs: Tensor | None = None  # [n, vocab] float32, each without its elder siblings; None for point masses
    # [m, vocab] the drafter's own, for display: the row after the committed text, then after each token with
    # children (in a chain m = n). None where `probs` are their softmax, or without a model.
    logits: Tensor | None = None
    draws: Tensor | None = None  # [n] the uniforms the tokens were drawn with; None where nothing was drawn
    sources: tuple[str, ...] = ()  # [n] what proposed each token, in a word or two; may be empty
    confidence: float | None = None  # the drafter's probability for its last token, where that ended drafting early

    @property
    def is_chain(self) -> bool:
        return self.parents == chain(len(self.parents))

    @classmethod
    def copied(cls, tokens: Sequence[int], device: torch.device) -> Draft:
        """A chain of point masses."""
        return cls(to_device(tokens, device), chain(len(tokens)))


@dataclass(frozen=True, slots=True)
class TargetRows:
    """The target's n + 1 rows: row 0 follows the committed text, row i + 1 follows draft token i, so row parent + 1
    judges a token."""

    logits: Tensor  # [n + 1, vocab] float32
    probs: Tensor | None  # as sampled from; None if greedy
    choices: Tensor | None  # [n + 1] int64, the likeliest tokens; None unless greedy
    warped: bool = True  # whether temperature or filters make `probs` another distribution than the model's own

    @classmethod
    def of(cls, logits: Tensor, warper: Warper) -> TargetRows:
        logits = logits.float()
        if warper.params.greedy:
            return cls(logits, None, first_largest(logits))
        return cls(logits, warper.probabilities(logits), None, warper.changes_logits)

    @property
    def raw(self) -> Tensor:
        """The target's softmax at temperature 1, [n + 1, vocab]."""
        return self.logits.softmax(-1) if self.warped or self.probs is None else self.probs

    @property
    def likeliest(self) -> Tensor:
        """Each row's likeliest token, [n + 1] int64."""
        return first_largest(self.logits) if self.choices is None else self.choices


@dataclass(frozen=True, slots=True)
class Uniforms:
    """One round's coins, on the device: float32 values held as float64."""

    draft: Tensor  # [most draft tokens], for drawing the draft
    accept: Tensor  # [most draft tokens], one for each decision
    next: Tensor  # [], for drawing the next token


@dataclass(frozen=True, slots=True)
class Decision:
    """What a rule decided about n draft tokens, still on the device."""

    kept: Tensor  # [n] bool or 0/1, the tokens of one path from the root
    p: Tensor  # [n] float32, each token's probability under the target
    q: Tensor | None  # [n] float32, the same under the drafter; None if greedy
    accept_prob: Tensor  # [n] float32, the bound that its coin had to stay below
    row: Tensor  # [1] int64, the target row that the next token comes from
    next_token: Tensor  # [] int64
    next_probs: Tensor | None  # [vocab] float32, what it was drawn from: the residual or a target row; None if greedy
    next_sums: Tensor | None  # [vocab] float64, their running sums; None if greedy
    p_left: Tensor | None = None  # [n] float32, p in what its elder siblings left; None where that equals p
    distance: Tensor | None = None  # [] float32, see `Round`; None under a lossless rule
    # Where the rule picked one of several paths: [n] bool, its tokens, and [n, vocab] what they were then drawn from.
    weighed: Tensor | None = None
    drawn_from: Tensor | None = None
