"""What a drafter is: something that proposes tokens and hears what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, on the device.

    tokens: [n] int64, n may be 0. parents: for each token the index of the draft token it continues, −1 for the
    committed text; (−1, 0, 1, ...) is a chain. A parent stands before its children, and siblings differ.
    probs: [n, vocab] float32, the distribution each token was really drawn from, or None for point masses (a copied
    or argmax token has q = 1, whatever a model's softmax says beside it).
    logits: [n, vocab], the drafter's own, for showing only; None where probs are their softmax, or without a model.
    draws: [n] uniforms the tokens were drawn with; None where nothing was drawn.
    """

    tokens: Tensor
    parents: tuple[int, ...]
    probs: Tensor | None = None
    logits: Tensor | None = None
    draws: Tensor | None = None

    @property
    def is_chain(self) -> bool:
        return self.parents == chain(len(self.parents))

    @classmethod
    def copied(cls, tokens: Sequence[int], device: torch.device) -> Draft:
        """A chain of point masses."""
        return cls(torch.tensor(tokens, dtype=torch.long, device=device), chain(len(tokens)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a draft, in host values.

    committed: how many tokens were committed when the draft was made. path: indices of the kept draft tokens, in
    order. next_token: the recovered or bonus token that ends the round.
    """

    committed: int
    path: tuple[int, ...]
    next_token: int


class Drafter(Protocol):
    """Proposes a draft for each round and is told the verdict.

    `name` is what users type; `settings` are the plain values that belong in a trace.
    """

    name: ClassVar[str]
    settings: dict[str, int | float | str | bool]

    def prefill(self, prompt: Sequence[int]) -> None:
        """Reads the prompt before the first round."""
        ...

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        """Up to `budget` ≥ 1 tokens to follow the committed ones; `uniforms` [≥ budget] are to draw with."""
        ...

    def observe(self, verdict: Verdict) -> None:
        """Hears what became of the last draft; a cache rewinds to what was kept."""
        ...


def chain(length: int) -> tuple[int, ...]:
    """The parents of a chain: −1, 0, 1, ..."""
    return tuple(range(-1, length - 1))
