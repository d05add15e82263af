"""The EAGLE head's pass as a function of tensors, see `specviz.passes.static_passes`."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.passes.static_passes import Static
from specviz.passes.trained_heads import EagleHead, rotation


class StaticEagle(Static):
    """One pass of an EAGLE head. Its further input is fused features or its own states, [n, d]; its rows are keys and
    values."""

    name = "EAGLE head"

    def __init__(self, head: EagleHead, target: PreTrainedModel):
        super().__init__()
        self.head = head
        self.ends = nn.ModuleList([target.get_input_embeddings(), target.get_output_embeddings()])
        self.device, self.dtype = head.scale.device, head.scale.dtype
        self.row_shapes = 2 * [(head.config.num_attention_heads, head.config.head_dim)]
        self.input_widths = (head.config.hidden_size,)

    def described(self) -> str:
        return repr(self.head.config)

    def get_input_embeddings(self) -> nn.Module:
        return self.ends[0]

    def get_output_embeddings(self) -> nn.Module:
        return self.ends[1]

    def forward(
        self, token_ids: Tensor, positions: Tensor, where: Tensor, visible: Tensor, *others: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `EagleHead.forward`; returns logits [n, vocab] in float32 and hidden states [n, d]."""
        features, keys, values = others
        turns = rotation(positions, self.head.config).to(self.dtype)
        entered, queries, new = self.head.project(features, self.head.embed(token_ids, self), turns)
        # New keys and values: [n, 2, heads, head_dim] -> [1, heads, n, head_dim] each.
        new_keys, new_values = new.permute(1, 2, 0, 3)[:, None].unbind(0)
        keys.index_copy_(2, where, new_keys)
        values.index_copy_(2, where, new_values)
        seen = functional.scaled_dot_product_attention(queries.transpose(0, 1)[None], keys, values, visible[None, None])
        hidden = self.head.finish(entered, seen[0].transpose(0, 1))
        return self.head.logits(hidden, self).float(), hidden
