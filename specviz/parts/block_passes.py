"""A block drafter as a causal model that reads a text and a block after it in one pass; and that pass, made fast."""

from __future__ import annotations

import inspect
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache, DynamicCache, PreTrainedModel

from specviz.parts import dflash
from specviz.parts.dflash import DFlashHead
from specviz.parts.head_passes import HeadModel, HeadOutput, StaticHead
from specviz.passes.cached_model import CachedModel
from specviz.passes.static_passes import WIDEST, StaticPass


class BlockModel(HeadModel):
    """A drafter between embeddings and output head, its own or the target's.

    The last tokens of a pass are a block; of those before it only the target's hidden states are read.
    """

    def __init__(self, head: DFlashHead, target: PreTrainedModel):
        super().__init__(head, target)
        # Muse Glimmer norms its embeddings where they are looked up; its drafters were trained without.
        self.scale = head.sizes.embedding_scale or (1.0 if hasattr(self.embed, "embed_norm") else None)

    @property
    def input_width(self) -> int:
        return len(self.head.feature_layers) * self.head.sizes.target_width

    def forward(
        self,
        input_ids: Tensor,
        features: Tensor | None = None,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **others: object,
    ) -> HeadOutput:
        """The block's logits [1, slots, rows] in the part's own vocabulary, and its hidden states [1, slots, d].

        input_ids: [1, n], whose last `block_size` are the block. features: [1, n, layers · width], the target's hidden
        states of the others, and for the block anything. attention_mask: says only how many places there are.
        """
        count, slots = input_ids.shape[1], self.head.sizes.block_size
        cache = DynamicCache() if cache is None else cache
        if position_ids is None:
            start = cache.get_seq_length()
            position_ids = torch.arange(start, start + count, device=input_ids.device)[None]
        room = count + cache.get_seq_length() if attention_mask is None else attention_mask.shape[-1]
        if features is None:
            features = torch.zeros(1, count, self.input_width, dtype=self.dtype, device=input_ids.device)
        block = self._embedded(input_ids[:, -slots:]).to(input_ids.device)
        hidden = self.head(block, features, position_ids, room, cache)
        return HeadOutput(self.logits(hidden), (hidden,))

    def _embedded(self, ids: Tensor) -> Tensor:
        if self.scale is None:
            return self.embed(ids)
        return functional.embedding(ids, self.embed.weight) * self.scale

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., rows] of hidden states [..., d]."""
        logits, cap = self.unembed(hidden).to(hidden.device), self.head.sizes.softcap
        if self.head.sizes.logit_scale != 1:
            logits = logits * self.head.sizes.logit_scale
        return logits if cap is None else cap * torch.tanh(logits / cap)


def read_block(reader: CachedModel, features: Tensor, tokens: Tensor) -> Tensor:
    """Has a `BlockModel` read the text's new rows and a block after them, which is forgotten again.

    features: [n, layers · width], the target's hidden states. tokens: [n] int64, each following its feature's token.
    Returns the block's logits [slots, rows]; its hidden states are the reader's `features`. It is always as long as in
    training: with fewer masks the others would be filled in differently.
    """
    sizes = reader.model.head.sizes
    most = max(1, WIDEST - sizes.block_size)  # a block has to be the end of its pass
    block = torch.cat([tokens[-1:], tokens.new_full((sizes.block_size - 1,), sizes.mask_id)])
    for some, read in zip(tokens.split(most), features.split(most)):
        inputs = functional.pad(read, (0, 0, 0, len(block)))
        logits = reader.forward(torch.cat([some, block]), len(block), inputs=inputs)
        reader.rewind(reader.length - len(block))
    return logits


class StaticBlock(StaticHead):
    """One pass of a block drafter over static buffers; it returns the block's hidden states, too."""

    model_class: ClassVar[type[HeadModel]] = BlockModel

    def __init__(self, head: DFlashHead, target: StaticPass):
        super().__init__(head, target)
        self.fewest = 1 + head.sizes.block_size

    def described(self) -> str:
        return f"{super().described()} {self.original.head.sizes} {inspect.getsource(dflash)}"

    @property
    def vocab_size(self) -> int:
        return self.original.get_output_embeddings().weight.shape[0]

    def examples(self, width: int, *room: int) -> tuple[Tensor, ...]:
        """Arguments of a pass over `width` tokens and a block."""
        return super().examples(width + self.fewest - 1, *room)
