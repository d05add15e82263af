"""Drafting with one layer over the target's own features, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from specviz.drafters.base import Setting, Verdict
from specviz.drafters.headed import Headed
from specviz.heads import EagleRows
from specviz.verify import shape_of


class Eagle(Headed):
    """Continues the target's hidden states rather than its text: it knows what the target was about to say.

    EAGLE, Li et al., arXiv 2401.15077; tree of its surest branches, EAGLE-2, arXiv 2406.16858; features of several
    layers and the head's own state fed back, EAGLE-3, arXiv 2503.01840. After each round the rows of draft tokens are
    forgotten, and the kept ones read again with the features that the target has now computed for them.
    """

    name: ClassVar[str] = "eagle"

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self.rows = EagleRows(self.head)
        self.text_rows = 0
        self.states: Tensor | None = None

    def source(self, depth: int) -> str:
        return f"step {depth + 1}"

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.features = features

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        """Reads the text's new rows: the feature of a token beside the embedding of the one after it."""
        if self.features is None:
            return None
        start = self.rows.length
        with self.stopwatch.span():
            tokens = torch.tensor(committed[start + 1 :], device=self.features.device)
            positions = torch.arange(start, start + len(tokens), device=self.features.device)
            embeddings = self.head.embed(tokens, self.target)
            states = self.head(self.head.fuse(self.features), embeddings, positions, self.rows)
            self.text_rows = self.rows.length
            self.states = states[-1:]
            return self.head.logits(self.states, self.target)

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        """Reads a level of the draft; each token's feature is the head's own state after its parent."""
        shape = shape_of(parents, tokens.device)
        ancestors = shape.ancestors[len(parents) - len(tokens) :]
        mask = None
        if self.width > 1:
            mask = torch.cat([ancestors.new_ones(len(tokens), self.text_rows), ancestors], -1)
        with self.stopwatch.span():
            # states[0] is the text's last one, states[i + 1] that after draft token i: a token's judging row.
            features = self.states.index_select(0, shape.rows[-len(tokens) :])
            positions = self.text_rows + ancestors.sum(-1) - 1
            states = self.head(features, self.head.embed(tokens, self.target), positions, self.rows, mask)
            self.states = torch.cat([self.states, states])
            return self.head.logits(states, self.target)

    def observe(self, verdict: Verdict) -> None:
        self.rows.rewind(self.text_rows)
        self.features = verdict.features
