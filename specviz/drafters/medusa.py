"""Drafting with extra heads on the target's last hidden state: all draft positions at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from specviz.drafters.base import Setting, Verdict
from specviz.drafters.headed import Headed
from specviz.models.pair import ModelPair
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft
from specviz.rules.transfer import to_device
from specviz.rules.tree_shape import tree_shape


class Medusa(Headed):
    """Head k guesses the k-th token ahead from what the target knew when it wrote the last one.

    Cai et al. 2024, arXiv 2401.10774. The heads do not see each other's guesses, so all branches share one
    distribution at each depth: the whole draft costs one small pass, and its candidates form a tree.
    """

    name: ClassVar[str] = "medusa"
    default_branches: ClassVar[int] = 4

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self.rows: Tensor | None = None

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"heads": pair.parts[cls.name].config.num_heads}

    def source(self, depth: int) -> str:
        return f"head {depth + 1}"

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.features = None if features is None else features[-1:]

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        return super().propose(committed, min(budget, self.head.config.num_heads), uniforms)

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        if self.features is None:
            return None
        with self.stopwatch.span():
            token = self.target.get_input_embeddings()(to_device(committed[-1:], self.features.device))
            states = self.head(self.features, token.to(self.features.device))[0]
            self.rows = self.target.get_output_embeddings()(states).to(self.features.device)
        return self.rows[:1]

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        # The last token's branch is as long as the number of heads used.
        spent = int(tree_shape(parents, torch.device("cpu")).ancestors[-1].sum())
        return self.rows[spent].expand(len(tokens), -1)

    def observe(self, verdict: Verdict) -> None:
        self.features = verdict.features[-1:]

    watch = observe
