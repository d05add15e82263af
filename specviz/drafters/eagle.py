"""Drafting with one layer over the target's own features, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from specviz.drafters.base import DraftContext
from specviz.drafters.headed import Headed
from specviz.passes.static_eagle import EagleReader, StaticEagleReader
from specviz.passes.static_passes import WIDEST
from specviz.rules.draft import Draft, Verdict, tree_shape
from specviz.rules.transfer import to_device


class Eagle(Headed):
    """Continues the target's hidden states, not just its text, so it knows what the target was about to say.

    EAGLE, Li et al., arXiv 2401.15077; a tree of its most confident branches, EAGLE-2, arXiv 2406.16858; features of
    several layers and the head's own state fed back, EAGLE-3, arXiv 2503.01840. After each round the draft tokens'
    rows are dropped, and the kept tokens are read again with the features that the target has computed for them.
    """

    name: ClassVar[str] = "eagle"

    def __init__(self, context: DraftContext):
        super().__init__(context)
        self.reader = self.reader_of(context)
        self.in_one_call = self.chains_in_one_call(self.reader)
        self.text_rows = 0
        self.states: Tensor | None = None  # the text's last at `last`, then one for each draft token
        self.last = 0

    def reader_of(self, context: DraftContext) -> EagleReader | StaticEagleReader:
        """What reads the text with the head."""
        fast = context.passes.get(self.name)
        return EagleReader(self.head, self.target) if fast is None else StaticEagleReader(fast)

    def source(self, depth: int) -> str:
        return f"step {depth + 1}"

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.features = features

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        unread = len(committed) - 1 - self.reader.length
        if not self.in_one_call or self.features is None or unread > WIDEST:
            return super().propose(committed, budget, uniforms)
        tokens = to_device(committed[self.reader.length + 1 :], self.features.device)
        self.text_rows = self.reader.length + unread
        with self.stopwatch.span():
            features = self.reader.fuse(self.features)
            made = self.reader.draft(tokens, budget, self.chooser.temperature, uniforms, features)
        return self.as_draft(made, uniforms)

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        """Reads the text's new rows, each a token's feature beside the embedding of the next token."""
        if self.features is None:
            return None
        start = self.reader.length
        with self.stopwatch.span():
            tokens = to_device(committed[start + 1 :], self.features.device)
            logits, states = self.reader.read(self.reader.fuse(self.features), tokens, keep=1)
            self.text_rows = self.reader.length
            self.states, self.last = states, len(states) - 1
            return logits

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        """Reads one level of the draft; a token's feature is the head's own state after its parent."""
        shape = tree_shape(parents, tokens.device)
        ancestors = shape.ancestors[len(parents) - len(tokens) :]
        mask = None
        if self.width > 1:
            mask = torch.cat([ancestors.new_ones(len(tokens), self.text_rows), ancestors], -1)
        with self.stopwatch.span():
            # From the text's last state on they are indexed like judging rows.
            features = self.states.index_select(0, shape.rows[-len(tokens) :] + self.last)
            positions = self.text_rows + ancestors.sum(-1) - 1
            logits, states = self.reader.read(features, tokens, len(tokens), positions, mask)
            self.states = torch.cat([self.states, states])
            return logits

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.reader.rewind(self.text_rows)
        self.features = features
