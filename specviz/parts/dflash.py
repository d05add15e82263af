"""DFlash drafters (Chen et al., arXiv 2602.06036): a few Qwen3 layers whose keys and values of the text come from the
target's hidden states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from specviz.parts.block_files import block_settings
from specviz.parts.part_files import PartFiles
from specviz.parts.published import PublishedPart, Servers, read_as
from specviz.records.words import Sentence
from specviz.rules.sampling import in_order


class _Attention(Qwen3Attention):
    def forward(
        self, block: Tensor, text: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor | None, cache: DynamicCache
    ) -> Tensor:
        """Of the block's rows [1, n, d], which see each other and the text, whose new rows are [1, m, d]."""
        rows = torch.cat([text, block], 1)
        queries, keys, values = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project, x in ((self.q_proj, rows), (self.k_proj, rows), (self.v_proj, rows))
        )
        queries, keys = apply_rotary_pos_emb(self.q_norm(queries), self.k_norm(keys), *turns)
        keys, values = cache.update(keys, values, self.layer_idx)
        queries = queries[:, :, text.shape[1] :]
        gathered = functional.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)
        return self.o_proj(gathered.transpose(1, 2).flatten(2))


class _Layer(Qwen3DecoderLayer):
    def __init__(self, config: Qwen3Config, index: int):
        super().__init__(config, index)
        self.self_attn = _Attention(config, index)
        self.attention_conv = self.mlp_conv = None  # what lies around attention and around the MLP (DFlash2)

    def forward(self, block: Tensor, *others: Any) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self.self_attn(x, *others)

        block = block + self._around(self.attention_conv, attend, self.input_layernorm(block))
        return block + self._around(self.mlp_conv, self.mlp, self.post_attention_layernorm(block))

    def _around(self, outer: nn.Module | None, inner: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return inner(x) if outer is None else outer(x, inner)


class DFlashHead(PublishedPart):
    """A block of the text's last token and masks, which see each other and the text.

    The text is there as keys and values alone, in each layer those of norm(W [f_1; f_2; ...]), f being the target's
    hidden states of a token. Embeddings and output head are the target's unless the files have their own.
    """

    kind: ClassVar[str] = "parallel"
    method: ClassVar[str] = "DFlash"
    servers: ClassVar[Servers] = Servers("dflash", "DFLASH", "draft-dflash", "DFLASH_DRAFTER")

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        """files: with the part's names."""
        super().__init__()
        self.config, self.sizes = config, own = block_settings(files, target, self.method)
        self.feature_layers = own.feature_layers
        d = config.hidden_size
        self.layers = nn.ModuleList([_Layer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = Qwen3RMSNorm(d, config.rms_norm_eps)
        self.hidden_norm = Qwen3RMSNorm(d, config.rms_norm_eps)
        self.fc = nn.Linear(len(own.feature_layers) * own.target_width, d, bias=False)
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        self.embed_tokens = self.lm_head = None
        if "embed_tokens.weight" in files.shapes:
            self.embed_tokens = nn.Embedding(config.vocab_size, d)
        if "lm_head.weight" in files.shapes:
            self.lm_head = nn.Linear(d, files.size("lm_head.weight", 0), bias=False)

    def reading(self) -> dict[str, Any]:
        slots = "next" if self.sizes.predicts_next else "own"
        return super().reading() | {"block_size": self.sizes.block_size, "slots_predict": slots}

    def other_readings(self) -> dict[Sentence, PublishedPart]:
        other = read_as(self, sizes=replace(self.sizes, predicts_next=not self.sizes.predicts_next))
        if self.sizes.predicts_next:
            return super().other_readings() | {Sentence("each mask predicts the token in its place"): other}
        return super().other_readings() | {Sentence("each mask predicts the token after its place"): other}

    def forward(self, block: Tensor, features: Tensor, cache: DynamicCache, start: int) -> Tensor:
        """Hidden states [1, n, d] of a block's embeddings [1, n, d], for the output head.

        features: [1, m, layers · width] of the tokens before it that the cache does not hold; `start` is the first
        one's position.
        """
        text = self.hidden_norm(self.fc(features))
        held, slots = start + text.shape[1], block.shape[1]
        positions = torch.arange(start, held + slots, device=block.device)
        turns = self.rotary_emb(block, positions[None])
        masks = {sight: sight.mask(held, slots, block.device) for sight in set(self.sizes.sights)}
        for layer, sight in zip(self.layers, self.sizes.sights):
            block = layer(block, text, turns, masks[sight], cache)
        return self.norm(block)

    def for_target(self, logits: Tensor) -> Tensor:
        """Logits [n, rows] of its own vocabulary as those of the target's tokens, [n, vocab]."""
        return logits if self.columns is None else in_order(logits, self.columns)


class DFlashReader:
    """Such a drafter reading one text. length: tokens held, all those but the last."""

    def __init__(self, head: DFlashHead, target: PreTrainedModel):
        self.head = head
        self.embeddings = target.get_input_embeddings() if head.embed_tokens is None else head.embed_tokens
        # Muse Glimmer norms its embeddings where they are looked up; its drafters were trained without.
        self.scale = head.sizes.embedding_scale or (1.0 if hasattr(self.embeddings, "embed_norm") else None)
        self.unembed = target.get_output_embeddings() if head.lm_head is None else head.lm_head
        self.cache = DynamicCache()
        self.length = 0

    def read(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Reads the text's new rows and a block after them, which is forgotten again: hidden states [block size, d].

        features: [n, layers · width], the target's hidden states. tokens: [n] int64, each following its feature's
        token. The block is always as long as in training: with fewer masks the others would be filled in differently.
        """
        sizes = self.head.sizes
        ids = torch.cat([tokens[-1:], tokens.new_full((sizes.block_size - 1,), sizes.mask_id)])
        if self.scale is None:
            block = self.embeddings(ids)
        else:
            block = functional.embedding(ids, self.embeddings.weight) * self.scale
        hidden = self.head(block.to(features.device)[None], features[None], self.cache, self.length)[0]
        self.length += len(tokens)
        self.cache.crop(-len(ids))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, rows] of hidden states [n, d]."""
        logits, cap = self.unembed(hidden).to(hidden.device), self.head.sizes.softcap
        if self.head.sizes.logit_scale != 1:
            logits = logits * self.head.sizes.logit_scale
        return logits if cap is None else cap * torch.tanh(logits / cap)
