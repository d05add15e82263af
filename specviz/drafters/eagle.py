"""Drafting with one layer over the target's own features, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specviz.drafters.base import Setting, Verdict
from specviz.drafters.headed import Headed
from specviz.passes.static_passes import WIDEST, FastPasses
from specviz.passes.trained_heads import EagleCache, EagleHead
from specviz.rules.transfer import to_device
from specviz.rules.tree_shape import tree_shape


class EagleReader:
    """An EAGLE head reading one text, run eagerly. length: rows held."""

    def __init__(self, head: EagleHead, target: PreTrainedModel):
        self.head = head
        self.target = target
        self.rows = EagleCache(head)

    @property
    def length(self) -> int:
        return self.rows.length

    def read(
        self, features: Tensor, tokens: Tensor, keep: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits [keep, vocab] of the last tokens and hidden states [n, d] of all; see `EagleHead.forward`.

        tokens: [n] int64, each following its feature's token. positions: by default those after the rows held.
        """
        if positions is None:
            positions = torch.arange(self.length, self.length + len(tokens), device=tokens.device)
        states = self.head(features, self.head.embed(tokens, self.target), positions, self.rows, mask)
        return self.head.logits(states[-keep:], self.target), states

    def rewind(self, length: int) -> None:
        self.rows.rewind(length)


class StaticEagleReader:
    """The same over static buffers, with passes prepared for them."""

    def __init__(self, passes: FastPasses):
        self.passes = passes
        self.buffers = passes.buffers(self)
        self.length = 0

    def read(
        self, features: Tensor, tokens: Tensor, keep: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As in `EagleReader`."""
        logits, states = [], []
        for part, ids in zip(features.split(WIDEST), tokens.split(WIDEST)):
            where, visible = self.buffers.places(self.length, len(ids), mask)
            given = self.passes.run(
                ids, where if positions is None else positions, where, visible, part, *self.buffers.tensors
            )
            logits.append(given[0])
            states.append(given[1])
            self.length += len(ids)
        return torch.cat(logits)[-keep:], torch.cat(states)

    def rewind(self, length: int) -> None:
        self.length = length


class Eagle(Headed):
    """Continues the target's hidden states, not just its text, so it knows what the target was about to say.

    EAGLE, Li et al., arXiv 2401.15077; a tree of its most confident branches, EAGLE-2, arXiv 2406.16858; features of
    several layers and the head's own state fed back, EAGLE-3, arXiv 2503.01840. After each round the draft tokens'
    rows are dropped, and the kept tokens are read again with the features that the target has computed for them.
    """

    name: ClassVar[str] = "eagle"

    def __init__(self, setting: Setting):
        super().__init__(setting)
        fast = setting.passes.get(self.name)
        self.reader = EagleReader(self.head, self.target) if fast is None else StaticEagleReader(fast)
        self.text_rows = 0
        self.states: Tensor | None = None

    def source(self, depth: int) -> str:
        return f"step {depth + 1}"

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.features = features

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        """Reads the text's new rows, each a token's feature beside the embedding of the next token."""
        if self.features is None:
            return None
        start = self.reader.length
        with self.stopwatch.span():
            tokens = to_device(committed[start + 1 :], self.features.device)
            logits, states = self.reader.read(self.head.fuse(self.features), tokens, keep=1)
            self.text_rows = self.reader.length
            self.states = states[-1:]
            return logits

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        """Reads one level of the draft; a token's feature is the head's own state after its parent."""
        shape = tree_shape(parents, tokens.device)
        ancestors = shape.ancestors[len(parents) - len(tokens) :]
        mask = None
        if self.width > 1:
            mask = torch.cat([ancestors.new_ones(len(tokens), self.text_rows), ancestors], -1)
        with self.stopwatch.span():
            # states[0] is the text's last, states[i + 1] draft token i's: indexed like judging rows.
            features = self.states.index_select(0, shape.rows[-len(tokens) :])
            positions = self.text_rows + ancestors.sum(-1) - 1
            logits, states = self.reader.read(features, tokens, len(tokens), positions, mask)
            self.states = torch.cat([self.states, states])
            return logits

    def observe(self, verdict: Verdict) -> None:
        self.reader.rewind(self.text_rows)
        self.features = verdict.features
