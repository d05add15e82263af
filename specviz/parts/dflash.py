"""DFlash drafters (Chen et al., arXiv 2602.06036): a few Qwen3 layers whose keys and values of the text come from the
target's hidden states; as a causal model that reads a text and a block after it in one pass, and that pass, made fast.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, DynamicCache, PreTrainedModel, Qwen3Config
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    rotate_half,
)

from specviz.parts.block_files import block_name, block_settings
from specviz.parts.head_passes import HeadModel, HeadOutput, StaticHead, WithoutPass
from specviz.parts.part_files import PartFiles
from specviz.parts.published import PublishedPart, filled, smaller_vocabulary
from specviz.parts.reading import Reading, Rows, RunReading, SomeLevel, TrainedPart, variant
from specviz.parts.servers import Servers
from specviz.passes.cached_model import CachedModel
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.chains import OnePass
from specviz.passes.readers import new_cached_model
from specviz.passes.roles import Role
from specviz.passes.static_passes import StaticPass, additive_mask
from specviz.records.words import Sentence
from specviz.rules.sampling import in_order


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """[rows, heads, n, head size] by rotary positions [1, n, head size]."""
    return x * cosine.unsqueeze(1) + rotate_half(x) * sine.unsqueeze(1)


class _Attention(Qwen3Attention):
    def forward(self, block: Tensor, text: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor, cache: Cache) -> Tensor:
        """Of the block's rows [rows, n, d], which see each other and the text, whose new rows are [rows, m + n, d]; the
        block takes the place of the last."""
        slots = block.shape[1]
        rows = torch.slice_scatter(text, block, 1, text.shape[1] - slots)
        queries, keys, values = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project, x in ((self.q_proj, block), (self.k_proj, rows), (self.v_proj, rows))
        )
        queries = _rotated(self.q_norm(queries), *(turn[:, -slots:] for turn in turns))
        keys = _rotated(self.k_norm(keys), *turns)
        keys, values = cache.update(keys, values, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        gathered, _ = attend(self, queries, keys, values, mask, scaling=self.scaling)
        return self.o_proj(gathered.flatten(2))


class _Layer(Qwen3DecoderLayer):
    def __init__(self, config: Qwen3Config, index: int):
        super().__init__(config, index)
        self.self_attn = _Attention(config, index)
        self.attention_conv = self.mlp_conv = None  # what lies around attention and around the MLP (DFlash2)

    def forward(self, block: Tensor, *attending: Any) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self.self_attn(x, *attending)

        block = block + self._around(self.attention_conv, attend, self.input_layernorm(block))
        return block + self._around(self.mlp_conv, self.mlp, self.post_attention_layernorm(block))

    def _around(self, outer: nn.Module | None, inner: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return inner(x) if outer is None else outer(x, inner)


class DFlashHead(PublishedPart, PreTrainedModel):
    """A block of the text's last token and masks, which see each other and the text.

    The text is there as keys and values alone, in each layer those of norm(W [f_1; f_2; ...]), f being the target's
    hidden states of a token. Embeddings and output head are the target's unless the files have their own.
    """

    kind: ClassVar[str] = "parallel"
    method: ClassVar[str] = "DFlash"
    servers: ClassVar[Servers] = Servers("dflash", "DFLASH", "draft-dflash", "DFLASH_DRAFTER")
    at_once: ClassVar[bool] = True
    _supports_sdpa = _supports_attention_backend = True

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        """files: with the part's names."""
        config, sizes = block_settings(files, target, self.method)
        super().__init__(config)
        self.sizes = sizes
        self.feature_layers, self.masks, self.most_depths = sizes.feature_layers, sizes.block_size, sizes.depths
        d = config.hidden_size
        self.layers = nn.ModuleList([_Layer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = Qwen3RMSNorm(d, config.rms_norm_eps)
        self.hidden_norm = Qwen3RMSNorm(d, config.rms_norm_eps)
        self.fc = nn.Linear(len(sizes.feature_layers) * sizes.target_width, d, bias=False)
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        self.embed_tokens = self.lm_head = None
        if "embed_tokens.weight" in files.shapes:
            self.embed_tokens = nn.Embedding(config.vocab_size, d)
        if "lm_head.weight" in files.shapes:
            self.lm_head = nn.Linear(d, files.size("lm_head.weight", 0), bias=False)

    @classmethod
    def load(cls, files: PartFiles, target: PreTrainedModel) -> Self:
        files = files.named(block_name)
        return filled(lambda: cls(files, target), files, target, smaller_vocabulary(files, target))

    def facts(self) -> dict[str, Any]:
        slots = "next" if self.sizes.predicts_next else "own"
        return super().facts() | {"block_size": self.masks, "slots_predict": slots, "depths": self.most_depths}

    def served_as(self) -> Servers:
        """llama.cpp takes a hidden state to be as wide as the part, and SGLang gives it the target's output head."""
        if self.config.hidden_size == self.sizes.target_width:
            return self.servers
        return replace(self.servers, llama_cpp=None, sglang=None)

    def variants(self) -> dict[Sentence, TrainedPart]:
        sizes = replace(self.sizes, predicts_next=not self.sizes.predicts_next)
        other_slots = variant(self, sizes=sizes, most_depths=sizes.depths)
        if self.sizes.predicts_next:
            return super().variants() | {Sentence("each mask predicts the token at its position"): other_slots}
        return super().variants() | {Sentence("each mask predicts the token after its position"): other_slots}

    def fuse(self, features: Tensor) -> Tensor:
        """What each layer makes keys and values of: [..., d]."""
        return self.hidden_norm(self.fc(features))

    def forward(self, block: Tensor, features: Tensor, positions: Tensor, room: int, cache: Cache) -> Tensor:
        """Hidden states [1, n, d] of a block's embeddings [1, n, d], for the output head.

        features: [1, m + n, layers · width] of the tokens before it that the cache does not hold, and for the block
        anything. positions: [1, m + n] int64, which are their places among the cache's `room` too.
        """
        text, turns = self.fuse(features), self.rotary_emb(block, positions)
        slots = positions[0, -block.shape[1] :]
        masks = {sight: additive_mask(sight.seen(slots, room), block.dtype) for sight in set(self.sizes.sights)}
        for layer, sight in zip(self.layers, self.sizes.sights):
            block = layer(block, text, turns, masks[sight], cache)
        return self.norm(block)

    def statics(self) -> dict[Role, Callable[..., StaticPass]]:
        return {Role(self.kind): functools.partial(StaticBlock, self)}

    def source(self, depth: int) -> str:
        mask = depth + (not self.sizes.predicts_next)
        return f"mask {mask}" if mask else "row"

    def for_run(self, target: CachedModel, passes: Mapping[Role, FastPasses]) -> RunReading:
        fast, model = passes.get(Role(self.kind)), BlockModel(self, target.model)
        block_reader = new_cached_model(model, target.stopwatch, fast, (-1,))
        part = self if fast is None else fast.static.model.head  # the same, perhaps on the kernels
        # The hidden states go in as they are: a pass fuses them itself.
        return RunReading(part, [block_reader], lambda features: features, recorded=block_reader)

    @property
    def one_pass(self) -> OnePass | None:
        masks = [self.sizes.mask_id] * (self.sizes.block_size - 1)
        return OnePass(masks, self.skipped) if self.columns is None else None

    @property
    def skipped(self) -> int:
        """Of a block's slots those before the first that drafts."""
        return 0 if self.sizes.predicts_next else 1

    def block(self, reading: Reading[SomeLevel]) -> Tensor:
        """Reads the text and a block: its logits [slots, rows] in the part's own vocabulary, and in `reading.states`
        its hidden states. It is always as long as in training: with fewer masks the others would be filled in
        differently."""
        last = reading.last
        masks = last.new_full((self.sizes.block_size - 1,), self.sizes.mask_id)
        return reading.text(torch.cat([last, masks]))

    def rows_by_level(self, reading: Reading[SomeLevel], depth: int) -> Rows[SomeLevel]:
        rows = self.block(reading)
        yield self.for_target(rows[self.skipped :][:depth])

    def for_target(self, logits: Tensor) -> Tensor:
        """Logits [n, rows] of its own vocabulary as those of the target's tokens, [n, vocab]."""
        return logits if self.columns is None else in_order(logits, self.columns)


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
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **unused: object,
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


class StaticBlock(StaticHead):
    """One pass of a block drafter over static buffers; it returns the block's hidden states, too."""

    model_class: ClassVar[type[HeadModel]] = BlockModel

    def __init__(self, head: DFlashHead, target: StaticPass | WithoutPass):
        super().__init__(head, target)
        self.fewest = 1 + head.sizes.block_size

    def described(self) -> str:
        return (
            f"{super().described()} {self.original.head.sizes} {inspect.getsource(sys.modules[DFlashHead.__module__])}"
        )

    @property
    def vocab_size(self) -> int:
        return self.original.get_output_embeddings().weight.shape[0]

    def examples(self, width: int, *room: int) -> tuple[Tensor, ...]:
        """Arguments of a pass over `width` tokens and a block."""
        return super().examples(width + self.fewest - 1, *room)
