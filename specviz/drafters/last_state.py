"""Drafting from the hidden state with which the target wrote the text's last token, and from nothing before it."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from specviz.drafters.ahead import DraftAhead, StateAhead
from specviz.drafters.at_once import AtOnce
from specviz.drafters.base import DraftContext
from specviz.drafters.heads import Headed
from specviz.models.pair import ModelPair
from specviz.parts.head_passes import HeadModel, read_alone
from specviz.parts.medusa import MedusaModel
from specviz.passes.cached_model import reader
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft, Verdict, depth
from specviz.rules.transfer import to_device


class FromLastState(Headed):
    """One head for each depth."""

    name: ClassVar[str] = "medusa"
    default_branches: ClassVar[int] = 4

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"heads": cls.most_depths(pair)}

    @classmethod
    def most_depths(cls, pair: ModelPair) -> int:
        """How deep it drafts for this pair at most."""
        return pair.parts[cls.name].num_heads

    def source(self, depth: int) -> str:
        return f"head {depth + 1}"

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.features = None if features is None else features[-1:]

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.features = features[-1:]

    watch = observe


class Medusa(FromLastState, AtOnce):
    """Head k guesses the k-th token ahead from the hidden state with which the target wrote the last one.

    Cai et al. 2024, arXiv 2401.10774. The heads do not see each other's guesses: the whole draft costs one small pass,
    and its candidates form a tree.
    """

    def __init__(self, context: DraftContext):
        super().__init__(context)
        self.model, self.context = MedusaModel(self.head, self.target), context
        self.reader = reader(self.model, self.stopwatch, context.passes.get(self.name))

    def all_rows(self, committed: Sequence[int], depths: int) -> Tensor | None:
        if self.features is None:
            return None
        last = to_device(committed[-1:], self.features.device)
        return read_alone(self.reader, last, self.head.num_heads, self.features)

    def ahead(self, deepest: int) -> DraftAhead | None:
        if not self.grows_on(self.context.target):
            return None
        # It reads no text, so that the buffers are the target's.
        own = self._in_common(self.context.target, deepest)
        return StateAhead(**own, unread=1, shares=True, deepest=self.most, model=self.model)

    def enter(self, committed: Sequence[int]) -> tuple[int, Tensor | None]:
        return len(committed) - 2, self.features

    def leave(self, committed: int, read: int, features: Tensor | None) -> None:
        self.features = features[-1:]


class Speculator(FromLastState):
    """Head k reads the state of head k − 1, the target's for the first, and the token that it led to.

    MLP speculators, Wertheimer et al. 2024, arXiv 2404.19124.
    """

    measured_as: ClassVar[frozenset[str]] = frozenset({"block", "tree"})

    def __init__(self, context: DraftContext):
        super().__init__(context)
        self.readers = [
            reader(HeadModel(head, self.target), self.stopwatch, context.passes.get(head.role), (-1,))
            for head in self.head.heads()
        ]

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        return super().propose(committed, min(budget, self.head.num_heads), uniforms)

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        if self.features is None:
            return None
        token = to_device(committed[-1:], self.features.device)
        logits = read_alone(self.readers[0], token, 1, self.head.enter(self.features))
        # Of the text's last token, then of each draft token: indexed like judging rows.
        self.states = self.readers[0].features
        return logits

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        rows = to_device(parents[-len(tokens) :], tokens.device) + 1
        head = self.readers[depth(parents)]
        logits = read_alone(head, tokens, len(tokens), self.states.index_select(0, rows))
        self.states = torch.cat([self.states, head.features])
        return logits
