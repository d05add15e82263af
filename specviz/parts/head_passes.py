"""A head as a causal model, which the readers and static passes of models serve as they are."""

from __future__ import annotations

import copy
import copyreg
import inspect
import re
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specviz.parts.part_files import PartFiles
from specviz.parts.published import PublishedPart
from specviz.passes.cached_model import CachedModel
from specviz.passes.few_rows import in_float32
from specviz.passes.model_twins import with_grouped_attention
from specviz.passes.static_passes import StaticPass
from specviz.rules.sampling import in_order

#: Settings that shape a layer, as the files and transformers both call them.
_SHAPES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "hidden_act",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "max_position_embeddings",
)


class HeadOutput(NamedTuple):
    """As transformers' models return it, whose class takes as long to make as a matrix product of a head."""

    logits: Tensor
    hidden_states: tuple[Tensor]


class PublishedHead(PublishedPart, PreTrainedModel):
    """A published part that is read as a causal model (`HeadModel`), with transformers' layers."""

    _supports_sdpa = _supports_attention_backend = True
    norm: nn.Module  # before the output head

    def __init__(self, files: PartFiles):
        """files: with the part's names; layers are ``layers.0.`` and so on."""
        config = _layers_config(files)
        super().__init__(config)
        self.layers = nn.ModuleList([self.layer(index) for index in range(config.num_hidden_layers)])
        for layer in self.layers:
            if "layers.0.self_attn.o_proj.bias" not in files.shapes:
                layer.self_attn.o_proj.bias = None
        # Its own; None for the target's.
        self.embed_tokens = self.lm_head = None
        if "embed_tokens.weight" in files.shapes:
            self.embed_tokens = nn.Embedding(files.size("embed_tokens.weight", 0), config.hidden_size)
        if "lm_head.weight" in files.shapes:
            self.lm_head = nn.Linear(config.hidden_size, files.size("lm_head.weight", 0), bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(config)

    def layer(self, index: int) -> nn.Module:
        """A decoder layer as transformers has it."""
        return (Qwen3DecoderLayer if isinstance(self.config, Qwen3Config) else LlamaDecoderLayer)(self.config, index)

    def turns(self, position_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Cosine and sine of rotary positions, position_ids [rows or 1, n] int64: [2, rows or 1, n, head size]."""
        return torch.stack(self.rotary_emb(torch.empty(0, dtype=dtype, device=position_ids.device), position_ids))

    def read(self, embeddings: Tensor, features: Tensor, **attending: Any) -> Tensor:
        """Hidden states [1, n, d] before the output head's norm; keys and values are added to the cache.

        features: [1, n, width], fused, or the states that `fed_back` gave. attending: for transformers' layers.
        """
        raise NotImplementedError

    def fed_back(self, hidden: Tensor) -> Tensor:
        """What takes the place of the target's features for a token that it has not read yet."""
        return hidden


def _layers_config(files: PartFiles) -> LlamaConfig:
    """For transformers: of Qwen 3's layers if they norm queries and keys, else of Llama's."""
    if "sliding_attention" in (files.setting("layer_types") or ()):
        raise files.complaint("The head in {folder} has layers with sliding windows, which are not run here.")
    layers = len(set(re.findall(r"(?m)^layers\.\d+\.", "\n".join(files.shapes))))
    kind = Qwen3Config if "layers.0.self_attn.q_norm.weight" in files.shapes else LlamaConfig
    config = kind(
        **{name: value for name in _SHAPES if (value := files.setting(name)) is not None},
        num_hidden_layers=layers,
        attention_bias="layers.0.self_attn.q_proj.bias" in files.shapes,
        mlp_bias="layers.0.mlp.up_proj.bias" in files.shapes,
    )
    config.layer_types = ["full_attention"] * layers
    return config


class HeadModel(PreTrainedModel):
    """A head as a causal model: between embeddings and output head, its own or the target's.

    A pass reads one text: ids [1, n], each following its feature's token.
    """

    _supports_sdpa = _supports_attention_backend = True

    def __init__(self, head: PublishedHead, target: PreTrainedModel):
        super().__init__(head.config)
        self.head = head
        self.embed = head.embed_tokens or target.get_input_embeddings()
        self.unembed = head.lm_head or target.get_output_embeddings()
        self.table = torch.empty(0, 0)  # of chains, [2, 1, ..., room, head size]

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.unembed

    @property
    def input_width(self) -> int:
        """Of the features that a pass reads."""
        return self.head.config.hidden_size

    def forward(
        self,
        input_ids: Tensor,
        features: Tensor | None = None,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        logits_to_keep: int = 0,
        **others: object,
    ) -> HeadOutput:
        """Logits [1, n, vocab], and as the only one of the ``hidden_states`` what drafting continues on, [1, n, d].

        features: [1, n, d], see `PublishedHead.read`; zeros by default. The other defaults are those of a chain.
        """
        head, count, start = self.head, input_ids.shape[1], 0 if cache is None else cache.get_seq_length()
        if features is None:
            features = torch.zeros(1, count, self.input_width, dtype=self.dtype, device=input_ids.device)
        if position_ids is not None:
            turns = head.turns(position_ids, features.dtype)
        else:
            turns = self._turns_up_to(start + count, features)[..., start : start + count, :]
        if attention_mask is None and count > 1:
            seen = torch.ones(count, start + count, dtype=torch.bool, device=input_ids.device)
            attention_mask = seen.tril(start)[None, None]
        embeddings = self.embed(input_ids).to(input_ids.device)
        attending = {"position_embeddings": tuple(turns), "attention_mask": attention_mask, "cache": cache}
        hidden = head.read(embeddings, features, **attending)
        return HeadOutput(self.logits(hidden[:, -logits_to_keep:]), (head.fed_back(hidden),))

    def _turns_up_to(self, length: int, like: Tensor) -> Tensor:
        """`PublishedHead.turns` of all positions below `length`, and more: a table, as to compute them takes as long as
        a matrix product."""
        if self.table.shape[-2] < length:
            self.table = self.head.turns(torch.arange(2 * length, device=like.device)[None], like.dtype)
        return self.table

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., vocab] of hidden states [..., d]; −∞ for tokens that a smaller vocabulary lacks."""
        logits = self.unembed(self.head.norm(hidden)).to(hidden.device)
        return logits if self.head.columns is None else in_order(logits, self.head.columns)


def read_and_forget(reader: CachedModel, tokens: Tensor, masks: Tensor, inputs: Tensor) -> Tensor:
    """Reads tokens [n] and masks [m] after them, which are forgotten again: the last m + 1 rows of logits.

    inputs: [n + m, width], what is read with each.
    """
    logits = reader.forward(torch.cat([tokens, masks]), 1 + len(masks), inputs=inputs)
    reader.rewind(reader.length - len(masks))
    return logits


class StaticHead(StaticPass):
    """One pass of a head over static buffers. Its further input is what the head reads with each token.

    Hidden states are returned where drafting reads them (`PublishedPart.states_are_read`).
    """

    model_class: ClassVar[type[HeadModel]] = HeadModel

    def __init__(self, head: PublishedPart, target: StaticPass):
        """target: by the kernels, if the head is to be."""
        few_rows = None if target.few_rows is None else target.few_rows.fitting(head)
        twin = self.model_class(head if few_rows is None else few_rows.twin(head), target.model)
        states = (-1,) * head.states_are_read
        super().__init__(self.model_class(head, target.original), states, few_rows, with_grouped_attention(twin))
        self.__dict__["target"] = target.original  # not as one of its modules, see `StaticPass`
        self.name = f"{head.kind} head"
        self.input_widths = (self.model.input_width,)

    def __reduce__(self) -> tuple[object, ...]:
        # With its weights, which are few. Not the models: in use they have hooks, which cannot be pickled.
        state = {name: value for name, value in self.__dict__.items() if name not in ("original", "target")}
        return copyreg.__newobj__, (type(self),), state

    def described(self) -> str:
        head = self.original.head
        sizes = (head.config.to_json_string(), head.reading(), head.shapes())
        facts = (sizes, self.target.config.to_json_string(), self.dtype, self.few_rows)
        return f"{facts} {inspect.getsource(inspect.getmodule(type(head)))}"

    @property
    def vocab_size(self) -> int:
        columns = self.original.head.columns
        return super().vocab_size if columns is None else len(columns)

    def plain(self) -> StaticHead:
        return type(self)(self.original.head, StaticPass(self.target))

    def reference(self) -> HeadModel:
        if self.inner_dtype == self.dtype:
            return self.original
        head = copy.deepcopy(self.original.head).to(self.inner_dtype)
        return self.model_class(head, in_float32(self.target, inputs=self.product_dtype))

    def fuse(self, features: Tensor) -> Tensor:
        """As `PublishedHead.fuse`, by our own kernels if the head is on them."""
        if self.few_rows is None:
            return self.model.head.fuse(features)
        return self.model.head.fuse(features.float()).to(self.dtype)
