"""The recipe of Medusa heads (Cai et al., arXiv 2401.10774, §2.2.1), which learn on a target that stays fixed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specviz.parts.medusa import PublishedMedusa
from specviz.parts.published import hidden_size_of, logit_width
from specviz.training.parts import Both, Files, PartRecipe

#: How far ahead a new part looks.
_HEADS = 4


class MedusaRecipe(PartRecipe):
    """Head k at row t learns the target's row t + k along the text, from the hidden state of row t alone.

    Written as vLLM loads it: one output matrix for all heads, which starts as the target's and learns with them.
    """

    name: ClassVar[str] = "medusa"
    part: ClassVar[type[PublishedMedusa]] = PublishedMedusa
    depth: ClassVar[str] = "head"

    def new(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> Files:
        """Heads whose blocks add nothing yet: each says what the target's own row says (§2.2.1)."""
        d, vocab = hidden_size_of(target), logit_width(target)
        tensors = {"lm_heads.0.weight": target.get_output_embeddings().weight.detach().clone()}
        for head in range(_HEADS):
            tensors[f"blocks.{head}.layers.0.weight"] = torch.zeros(d, d)
            tensors[f"blocks.{head}.layers.0.bias"] = torch.zeros(d)
        settings = {
            "architectures": ["MedusaModel"],
            "dtype": "bfloat16",
            "model_type": "medusa",
            "hidden_size": d,
            "num_heads": _HEADS,
            "num_hidden_layers": 1,
            "medusa_fc_bias": True,
            "original_lm_head": True,
            "vocab_size": vocab,
            "truncated_vocab_size": vocab,
        }
        return settings, tensors

    def drafts(self, ids: Tensor, step: int | None) -> Iterator[Both]:
        """At the n rows where all heads have a label."""
        text, heads = self.target.read(ids), self.student.num_heads
        n = ids.shape[1] - heads
        for k, state in enumerate(self.student.states(text.features[:, :n]), start=1):
            yield self.student.output_head(k - 1, self.target.model)(state), text.logits[:, k : k + n]
