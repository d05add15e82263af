"""Drafting with extra heads on the target's last hidden state: all draft positions at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from specviz.drafters.at_once import AtOnce
from specviz.drafters.headed import Headed
from specviz.models.pair import ModelPair
from specviz.records.settings import DraftParams
from specviz.rules.draft import Verdict
from specviz.rules.transfer import to_device


class Medusa(AtOnce, Headed):
    """Head k guesses the k-th token ahead from what the target knew when it wrote the last one.

    Cai et al. 2024, arXiv 2401.10774. The heads do not see each other's guesses: the whole draft costs one small pass,
    and its candidates form a tree.
    """

    name: ClassVar[str] = "medusa"
    default_branches: ClassVar[int] = 4

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"heads": pair.parts[cls.name].config.num_heads}

    @classmethod
    def most_depths(cls, pair: ModelPair) -> int:
        return pair.parts[cls.name].config.num_heads

    def source(self, depth: int) -> str:
        return f"head {depth + 1}"

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.features = None if features is None else features[-1:]

    def all_rows(self, committed: Sequence[int], depths: int) -> Tensor | None:
        if self.features is None:
            return None
        with self.stopwatch.span():
            token = self.target.get_input_embeddings()(to_device(committed[-1:], self.features.device))
            states = self.head(self.features, token.to(self.features.device))[0]
            return self.target.get_output_embeddings()(states).to(self.features.device)

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.features = features[-1:]

    watch = observe
