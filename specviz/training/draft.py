"""A draft model distilled from the target: from its distributions, not from the text (arXiv 2310.08461)."""

from __future__ import annotations

import pathlib

from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from specviz.training.frozen import FrozenTarget
from specviz.training.loop import Recipe
from specviz.training.losses import agreement, distillation, of_one_width
from specviz.training.target import save_model


class DraftRecipe(Recipe):
    """0.5 · KL + TV to the frozen target's distribution at every row. draft: the student, in float32."""

    name = "draft"

    def __init__(self, target: PreTrainedModel, draft: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase):
        self.target, self.student, self.tokenizer = FrozenTarget(target), draft, tokenizer
        self.device, self.dtype = target.device, target.dtype

    def loss(self, ids: Tensor, step: int) -> Tensor:
        return distillation(*self._both(ids))

    def measure(self, ids: Tensor) -> dict[str, Tensor]:
        return {"draft": agreement(*self._both(ids))}

    def save(self, folder: pathlib.Path) -> None:
        save_model(self.student, self.tokenizer, folder)

    def _both(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return of_one_width(self.student(input_ids=ids, use_cache=False).logits, self.target.logits(ids))
