"""The target as a teacher: what a trained part may see of it, without gradients for the target's weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Reading:
    """What the target makes of each token it reads."""

    features: Tensor  # [rows, n, layers · d], its hidden states, side by side
    embeddings: Tensor  # [rows, n, d], the token's own
    logits: Tensor  # [rows, n, vocab], of the token after it


class FrozenTarget:
    """A target whose weights stay fixed. feature_layers: the hidden states that a trained part reads."""

    def __init__(self, model: PreTrainedModel, feature_layers: tuple[int, ...] = ()):
        self.model = model.eval().requires_grad_(False)
        self.feature_layers = feature_layers

    @torch.no_grad()
    def read(self, ids: Tensor) -> Reading:
        """One pass over blocks [rows, n] int64."""
        output = self.model(input_ids=ids, output_hidden_states=True, use_cache=False)
        features = torch.cat([output.hidden_states[layer] for layer in self.feature_layers], -1)
        return Reading(features, self.model.get_input_embeddings()(ids), output.logits)

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:
        """[rows, n, vocab] of one pass over blocks [rows, n] int64."""
        return self.model(input_ids=ids, use_cache=False).logits

    def head(self, hidden: Tensor) -> Tensor:
        """The output head on [..., d]: logits [..., vocab]. Gradients flow through it but not into it."""
        return self.model.get_output_embeddings()(hidden)

    def last_scale(self, ids: Tensor) -> Tensor:
        """Root mean square of the last hidden states of some text."""
        return self.read(ids).features[..., -self.model.config.get_text_config().hidden_size :].square().mean().sqrt()
