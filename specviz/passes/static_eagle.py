"""An EAGLE head reading one text, eagerly or over static buffers; and its pass as a function of tensors, for these."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.passes.static_passes import WIDEST, FastPasses, Static
from specviz.passes.trained_heads import EagleCache, EagleHead, rotation


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
