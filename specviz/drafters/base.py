"""What a drafter is: something that proposes tokens and hears what became of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from specviz.models.pair import ModelPair
from specviz.passes.cached_model import CachedModel, has_sliding_windows
from specviz.passes.clock import Stopwatch
from specviz.passes.static_passes import FastPasses
from specviz.records.runs import DraftParams

if TYPE_CHECKING:
    from specviz.drafters.stepwise import Chooser


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, on the device.

    tokens: [n] int64, n may be 0. parents: for each token the index of the draft token it continues, −1 for the
    committed text; (−1, 0, 1, ...) is a chain. A parent stands before its children, and siblings differ; they are
    tried in the order in which they stand.
    probs: [n, vocab] float32, the distribution each token was really drawn from (for a sibling: without those before
    it), or None for point masses (a copied or argmax token has q = 1, whatever a model's softmax says beside it).
    logits: [m, vocab], the drafter's own after each of the m tokens that have children, the committed text before them,
    for showing only; of a chain m = n. None where probs are their softmax, or without a model.
    draws: [n] uniforms the tokens were drawn with; None where nothing was drawn.
    sources: [n] what proposed each token, in a word or two; empty where that goes without saying.
    confidence: the drafter's probability for its last token, where that ended drafting early; else None.
    """

    tokens: Tensor
    parents: tuple[int, ...]
    probs: Tensor | None = None
    logits: Tensor | None = None
    draws: Tensor | None = None
    sources: tuple[str, ...] = ()
    confidence: float | None = None

    @property
    def is_chain(self) -> bool:
        return self.parents == chain(len(self.parents))

    @classmethod
    def copied(cls, tokens: Sequence[int], device: torch.device) -> Draft:
        """A chain of point masses."""
        return cls(torch.tensor(tokens, dtype=torch.long, device=device), chain(len(tokens)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a draft.

    committed: how many tokens were committed when the draft was made. path: indices of the kept draft tokens, in
    order. next_token: the recovered or bonus token that ends the round.
    choices: [n + 1] the target's likeliest token after the committed text and after each draft token.
    features: [tokens read, width], the target's hidden states (the `feature_layers` side by side) of every token
    that the target has newly kept: those it had not read before, then the kept draft tokens. None unless asked for.
    """

    committed: int
    path: tuple[int, ...]
    next_token: int
    choices: tuple[int, ...] = ()
    features: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """What a drafter is built from: the pair, how to draft, the target with its cache, and the run's clock.

    seed: for drafters that begin with a guess of their own; every draw comes from the run's uniforms. passes: the fast
    ones of the pair's models, by role, see `ModelPair`.
    """

    pair: ModelPair
    params: DraftParams
    branches: int
    chooser: Chooser
    target: CachedModel
    stopwatch: Stopwatch
    seed: int = 0
    passes: Mapping[str, FastPasses] = field(default_factory=dict)


class Drafter(ABC):
    """Proposes a draft for each round and is told the verdict.

    name: what users type. default_branches: tokens at each depth where `DraftParams` do not say. settings: the plain
    values that belong in a trace. feature_layers: which of the target's hidden states it reads, as indices into
    transformers' ``hidden_states`` (0: the embeddings; the last one comes after the final norm).
    """

    name: ClassVar[str]
    default_branches: ClassVar[int] = 1
    settings: dict[str, int | float | str | bool]
    feature_layers: tuple[int, ...] = ()

    @classmethod  # noqa: B027, most have nothing to check
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        """Raises SpecvizError if this pair cannot be drafted for in this way. By default every pair can."""

    @classmethod
    @abstractmethod
    def build(cls, setting: Setting) -> Drafter:
        """A drafter for one run, checked before."""

    @classmethod
    def branches(cls, pair: ModelPair, params: DraftParams) -> int:
        """Draft tokens at each depth; more than 1 makes trees. A target that reads chains only gets chains."""
        return params.branches or (1 if has_sliding_windows(pair.target) else cls.default_branches)

    @classmethod
    def most_tokens(cls, num_draft_tokens: int, branches: int) -> int:
        """The size of the largest draft, for `num_draft_tokens` in depth."""
        return num_draft_tokens * branches

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:  # noqa: B027, some read nothing
        """Reads the prompt before the first round. features: of all its tokens but the last, as in `Verdict`."""

    @abstractmethod
    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        """Tokens to follow the committed ones, at most `budget` ≥ 1 deep; `uniforms` are float64 to draw with, as many
        as the largest draft has tokens."""

    def observe(self, verdict: Verdict) -> None:  # noqa: B027, some keep nothing
        """Hears what became of the last draft; a cache rewinds to what was kept. By default there is none."""


def chain(length: int) -> tuple[int, ...]:
    """The parents of a chain: −1, 0, 1, ..."""
    return tuple(range(-1, length - 1))
