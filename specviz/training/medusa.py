"""Medusa heads on the frozen target (Medusa-1, arXiv 2401.10774, §2.2.1), with the target's distributions as labels."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from specviz.passes.trained_heads import MedusaConfig, MedusaHeads
from specviz.training.head import HeadRecipe
from specviz.training.losses import agreement, distillation

#: The weight of each head relative to the one before (§2.2.1: λ_k).
_DECAY = 0.8


class MedusaRecipe(HeadRecipe):
    """0.5 · KL + TV of head k at row t to the frozen target's distribution at row t + k along the text."""

    name = "medusa"
    head_class, config_class = MedusaHeads, MedusaConfig

    def loss(self, ids: Tensor, step: int) -> Tensor:
        weights = [_DECAY**k for k in range(self.student.config.num_heads)]
        terms = [distillation(*both) for both in self._heads(ids)]
        return sum(weight * term for weight, term in zip(weights, terms)) / sum(weights)

    def measure(self, ids: Tensor) -> dict[str, Tensor]:
        return {f"head {k + 1}": agreement(*both) for k, both in enumerate(self._heads(ids))}

    def _heads(self, ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each head's and the target's logits, [rows · n, vocab] each, at the n rows where all heads have a label."""
        text, heads = self.target.read(ids), self.student.config.num_heads
        n = ids.shape[1] - heads
        hidden = self.student(text.features[:, :n].flatten(0, 1), text.embeddings[:, 1 : 1 + n].flatten(0, 1))
        for k in range(1, heads + 1):
            yield self.target.head(hidden[:, k - 1]), text.logits[:, k : k + n].flatten(0, 1)
