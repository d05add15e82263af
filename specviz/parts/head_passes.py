"""A head as a causal model, which the readers and static passes of models serve as they are."""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specviz.parts.part_files import PartFiles
from specviz.parts.published import PublishedPart
from specviz.parts.reading import RunReading
from specviz.passes.cached_model import CachedModel
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.chains import READ_DTYPES, FusedBy, Fusion
from specviz.passes.kernels.few_rows import FewRows, in_float32
from specviz.passes.model_twins import with_grouped_attention
from specviz.passes.readers import new_cached_model
from specviz.passes.roles import Role
from specviz.passes.static_passes import StaticPass, additive_mask, few_numbers
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
    hidden_states: tuple[Tensor, ...]


class Head(PublishedPart, PreTrainedModel):
    """A part that is read as a causal model (`HeadModel`), with transformers' layers."""

    _supports_sdpa = _supports_attention_backend = True
    norm: nn.Module  # before the output head
    embed_tokens: Any  # its own modules; None for the target's
    lm_head: Any
    place: int = 1  # among those of its part, which draft in turn

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.embed_tokens = self.lm_head = None

    def turns(self, position_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Cosine and sine of rotary positions, position_ids [rows or 1, n] int64: [2, rows or 1, n, head size]."""
        return torch.stack(self.rotary_emb(torch.empty(0, dtype=dtype, device=position_ids.device), position_ids))

    @property
    def fused_by(self) -> FusedBy | None:
        """All that `fuse` does, on our own kernels; None if it does anything else."""
        return None

    def read(self, embeddings: Tensor, features: Tensor, **attending: Any) -> Tensor:
        """Hidden states [1, n, d] before the output head's norm; keys and values are added to the cache.

        features: [1, n, width], fused, or the states that `fed_back` gave. attending: for transformers' layers.
        """
        raise NotImplementedError

    def fed_back(self, hidden: Tensor) -> Tensor:
        """What takes the place of the target's features for a token that it has not read yet."""
        return hidden

    @property
    def role(self) -> Role:
        """Of its passes."""
        return Role(self.kind, self.place if self.place > 1 else 0)

    def statics(self) -> dict[Role, Callable[..., StaticPass]]:
        return {self.role: functools.partial(StaticHead, self)}

    def reader_for(self, target: CachedModel, passes: Mapping[Role, FastPasses]) -> CachedModel:
        """What reads with it in one run; arguments as of `for_run`."""
        states = (-1,) * self.states_are_read
        return new_cached_model(HeadModel(self, target.model), target.stopwatch, passes.get(self.role), states)

    def for_run(self, target: CachedModel, passes: Mapping[Role, FastPasses]) -> RunReading:
        fast, head_reader = passes.get(self.role), self.reader_for(target, passes)
        reading = RunReading(self, [head_reader], self.fuse if fast is None else fast.static.fuse, recorded=head_reader)
        reading.drafts_fuse = fast is not None and fast.static.fusion is not None
        return reading


class PublishedHead(Head):
    """One from a file of its own."""

    def __init__(self, files: PartFiles):
        """files: with the part's names; layers are ``layers.0.`` and so on."""
        config = _layers_config(files)
        super().__init__(config)
        self.layers = nn.ModuleList([self.layer(index) for index in range(config.num_hidden_layers)])
        for layer in self.layers:
            if "layers.0.self_attn.o_proj.bias" not in files.shapes:
                layer.self_attn.o_proj.bias = None
        if "embed_tokens.weight" in files.shapes:
            self.embed_tokens = nn.Embedding(files.size("embed_tokens.weight", 0), config.hidden_size)
        if "lm_head.weight" in files.shapes:
            self.lm_head = nn.Linear(config.hidden_size, files.size("lm_head.weight", 0), bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(config)

    def layer(self, index: int) -> nn.Module:
        """A decoder layer as transformers has it."""
        return (Qwen3DecoderLayer if isinstance(self.config, Qwen3Config) else LlamaDecoderLayer)(self.config, index)


def _layers_config(files: PartFiles) -> LlamaConfig:
    """For transformers: of Qwen 3's layers if they norm queries and keys, else of Llama's."""
    if "sliding_attention" in (files.setting("layer_types") or ()):
        raise files.complaint("The head in {folder} has layers with sliding windows, which are not supported.")
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


def without_layers(width: int) -> LlamaConfig:
    """Of a head that caches nothing. width: of the features that it reads."""
    return LlamaConfig(hidden_size=width, num_hidden_layers=0, num_attention_heads=1)


class HeadModel(PreTrainedModel):
    """A head as a causal model: between embeddings and output head, its own or the target's.

    A pass reads one text: ids [1, n], each following its feature's token.
    """

    _supports_sdpa = _supports_attention_backend = True

    def __init__(self, head: Head, target: PreTrainedModel):
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
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        logits_to_keep: int = 0,
        **unused: object,
    ) -> HeadOutput:
        """Logits [1, n, vocab], and as the only one of the ``hidden_states`` what drafting continues on, [1, n, d].

        features: [1, n, d], see `Head.read`; zeros by default. The other defaults are those of a chain.
        """
        head, count, start = self.head, input_ids.shape[1], 0 if cache is None else cache.get_seq_length()
        if features is None:
            features = torch.zeros(1, count, self.input_width, dtype=self.dtype, device=input_ids.device)
        if position_ids is not None:
            turns = head.turns(position_ids, features.dtype)
        else:
            turns = self._turns_up_to(start + count, features)[..., start : start + count, :]
        if attention_mask is None and count > 1:
            attention_mask = additive_mask(self._seen(count, start, cache, input_ids.device), features.dtype)
        embeddings = self.embed(input_ids).to(input_ids.device)
        attending = {"position_embeddings": tuple(turns), "attention_mask": attention_mask, "cache": cache}
        hidden = head.read(embeddings, features, **attending)
        return HeadOutput(self.logits(hidden[:, -logits_to_keep:]), (head.fed_back(hidden),))

    def _seen(self, count: int, start: int, cache: Cache | None, device: torch.device) -> Tensor:
        """What each token of a chain attends to, [count, places] bool, of the places that the cache shows to it."""
        places, first = (count, 0) if cache is None else cache.get_mask_sizes(count, 0)
        place = torch.arange(start, start + count, device=device).unsqueeze(-1)
        cells = torch.arange(first, first + places, device=device)
        kinds = getattr(self.config, "layer_types", None) or ()
        seen = cells <= place
        return seen & (cells > place - self.config.sliding_window) if "sliding_attention" in kinds else seen

    def _turns_up_to(self, length: int, like: Tensor) -> Tensor:
        """`Head.turns` of all positions below `length`, and more: a table, as to compute them takes as long as
        a matrix product."""
        if self.table.shape[-2] < length:
            self.table = self.head.turns(torch.arange(2 * length, device=like.device)[None], like.dtype)
        return self.table

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., vocab] of hidden states [..., d]; −∞ for tokens that a smaller vocabulary lacks."""
        logits = self.unembed(self.head.norm(hidden)).to(hidden.device)
        return logits if self.head.columns is None else in_order(logits, self.head.columns)


class Ends(nn.Module):
    """Embeddings and output head of a target: all that heads have of it."""

    _supports_attention_backend = False  # there is nothing that attends

    def __init__(self, target: PreTrainedModel):
        super().__init__()
        self.config = target.config
        self.embed, self.unembed = target.get_input_embeddings(), target.get_output_embeddings()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.unembed


class WithoutPass(NamedTuple):
    """A target that has no static pass, in place of one."""

    original: PreTrainedModel
    model: nn.Module
    few_rows: FewRows | None

    @classmethod
    def of(cls, target: PreTrainedModel, few_rows: FewRows | None = None) -> WithoutPass:
        """few_rows: to have its ends on our own kernels, where their weights are once more."""
        few_rows = None if few_rows is None else few_rows.fitting(ends := Ends(target))
        return cls(target, target if few_rows is None else few_rows.twin(ends), few_rows)


class StaticHead(StaticPass):
    """One pass of a head over static buffers. Its further input is what the head reads with each token.

    Hidden states are returned where drafting reads them (`PublishedPart.states_are_read`).
    """

    model_class: ClassVar[type[HeadModel]] = HeadModel

    def __init__(self, head: Head, target: StaticPass | WithoutPass):
        """target: by the kernels, if the head is to be."""
        few_rows = None if target.few_rows is None else target.few_rows.fitting(head)
        twin = self.model_class(head if few_rows is None else few_rows.twin(head), target.model)
        states = (-1,) * head.states_are_read
        super().__init__(self.model_class(head, target.original), states, few_rows, with_grouped_attention(twin))
        self.__dict__["target"] = target.original  # not as one of its modules, see `StaticPass`
        self.name = f"{head.kind} head"
        self.input_widths = (self.model.input_width,)

    def __reduce__(self) -> tuple[Any, ...]:
        # With its weights, which are few. Not the models: in use they have hooks, which cannot be pickled.
        state = {name: value for name, value in self.__dict__.items() if name not in ("original", "target", "fusion")}
        return copyreg.__newobj__, (type(self),), state  # type: ignore[attr-defined]

    def described(self) -> str:
        head = self.original.head
        numbers = {name: tensor.tolist() for name, tensor in few_numbers(head).items()}
        sizes = (head.config.to_json_string(), head.facts(), head.shapes(), numbers)
        facts = (sizes, self.target.config.to_json_string(), self.dtype, self.few_rows)
        return f"{facts} {inspect.getsource(sys.modules[type(head).__module__])}"

    @property
    def vocab_size(self) -> int:
        columns = self.original.head.columns
        return super().vocab_size if columns is None else len(columns)

    def plain(self) -> StaticHead:
        return type(self)(self.original.head, WithoutPass.of(self.target))

    def reference(self) -> HeadModel:
        if self.inner_dtype == self.dtype:
            return self.original
        head = copy.deepcopy(self.original.head).to(self.inner_dtype)
        return self.model_class(head, in_float32(Ends(self.target), inputs=self.product_dtype))

    @functools.cached_property
    def fusion(self) -> Fusion | None:
        """`fuse` in one call, if the head is on our own kernels, and can."""
        if self.few_rows is None or self.dtype not in READ_DTYPES or (parts := self.model.head.fused_by) is None:
            return None
        return Fusion(parts, self.dtype)

    def fuse(self, features: Tensor) -> Tensor:
        """As `PublishedHead.fuse`, by our own kernels if the head is on them."""
        if self.few_rows is None:
            return self.model.head.fuse(features)
        if self.fusion is not None:
            return self.fusion(features)
        return self.model.head.fuse(features.float()).to(self.dtype)
