"""A forward pass over static buffers, which stay in place: the form in which it can be compiled or recorded as a graph.

It is transformers' own modelling code, fed with nothing but tensors: no growing cache, no Python number that changes
from pass to pass. So one compiled program serves every pass of every text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from specviz.passes.kernels.few_bits import rounded_twin
from specviz.passes.kernels.few_rows import FewRows, in_float32
from specviz.passes.model_twins import exit_after, narrow_like, with_grouped_attention
from specviz.records.errors import SpecvizError

#: Buffers grow by this many positions. A pass attends to all of the room, so little of it should be empty.
ROOM_STEP = 64

#: Tensors of at most this many numbers are written into programs (Inductor does so with eight).
FEW_NUMBERS = 8

#: The most tokens that a pass reads at once; longer prompts are read in parts.
WIDEST = 512


class StaticPass(nn.Module):
    """One pass of `model` as a function of tensors: ``forward(token_ids, positions, where, visible, *inputs, *kv)``.

    kv: keys and values of each layer in turn. feature_layers: the hidden states that it returns with the
    logits, as indices into transformers' ``hidden_states``. few_rows: to run on our own kernels. twin: the model
    to run in its place, if it exists already.
    Raises SpecvizError (field ``passes``) for a model that caches anything but keys and values.
    """

    fewest = 1  # tokens of a pass
    logit_rows = 1  # of each token
    shares_kv = False  # whether it works on some of the target's keys and values
    drafts_in_place = False  # whether all of a draft is read at the place after the text, and sees the text alone

    def __init__(
        self,
        model: PreTrainedModel,
        feature_layers: Sequence[int] = (),
        few_rows: FewRows | None = None,
        twin: PreTrainedModel | None = None,
    ):
        super().__init__()
        self.few_rows = few_rows  # if it runs on our own kernels
        self.model = twin or (with_grouped_attention(model) if few_rows is None else few_rows.twin(model))
        # Not as one of its modules: they are on the same weights.
        self.__dict__["original"] = model
        self.name = type(model).__name__  # for people
        self.device, self.dtype = model.device, model.dtype  # the dtype of what goes in and out, except for logits
        self.inner_dtype = model.dtype if few_rows is None else torch.float32  # of the rest, products excepted
        self.feature_layers = tuple(feature_layers)
        self.input_widths: tuple[int, ...] = ()  # of further inputs [n, width] with the token ids
        # By its twin on the kernels only if it has let go of weights: where programs are made there are no kernels.
        has_weights = not any(weight.is_meta for weight in model.parameters())
        self._lay_out(model if has_weights else self.model)
        self.reads_chains_only = any(self.slides)  # each token's position is its place, as sliding windows need it

    def _lay_out(self, model: PreTrainedModel) -> None:
        """Notes what keys and values this model's passes read and write."""
        layers = _cache_after_one_token(model).layers
        # Some layers cache nothing, as they read the keys and values of earlier ones (Gemma 4).
        self.caching = [not isinstance(layer, DummyLayer) for layer in layers]
        layers = list(itertools.compress(layers, self.caching))
        if (reason := _why_not_static(self.original, layers)) is not None:
            raise reason
        # (heads, head size) of each tensor of keys or values
        self.kv_shapes = [tuple(part.shape[1::2]) for layer in layers for part in (layer.keys, layer.values)]
        self.slides = [layer.is_sliding for layer in layers]
        self.window = next((layer.sliding_window for layer in layers if layer.is_sliding), None)

    def __reduce__(self) -> tuple[Callable[..., StaticPass], tuple[object, ...]]:
        # Its parts, not the model: transformers puts hooks on models in use, which cannot be pickled.
        model = self.original
        numbers = few_numbers(model) | few_numbers(self.model)
        parts = (type(model), model.config, model.config._attn_implementation, self.dtype, numbers)
        return _static_without_weights, (*parts, self.feature_layers, self.few_rows)

    @property
    def product_dtype(self) -> torch.dtype:
        """The dtype in which linear layers multiply weights and inputs."""
        return self.inner_dtype if self.few_rows is None else self.few_rows.multiplied_in(self.dtype)

    @property
    def vocab_size(self) -> int:
        """The width of its logits."""
        return self.original.get_output_embeddings().weight.shape[0]

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def described(self) -> str:
        """All that it is apart from its weights: passes of equal weights and description are equal."""
        return self.description(self.original, self.feature_layers, self.few_rows)

    @staticmethod
    def description(model: PreTrainedModel, feature_layers: Sequence[int], few_rows: FewRows | None) -> str:
        """`described` of a pass that is yet to be made."""
        numbers = {name: tensor.tolist() for name, tensor in few_numbers(model).items()}
        return f"{model.config.to_json_string()} {model.dtype} {numbers} {tuple(feature_layers)} {few_rows}"

    def plain(self) -> StaticPass:
        """The same pass by torch's own operations."""
        return StaticPass(self.original, self.feature_layers)

    def on_twin(self, twin: PreTrainedModel) -> StaticPass:
        """The same pass by another twin of the model."""
        static = object.__new__(type(self))
        # Not `copy.copy`, which would take what is pickled: that has no weights.
        static.__dict__.update(self.__dict__, _modules={"model": twin})
        return static

    def first_layers(self, layers: int) -> StaticPass:
        """The pass that leaves the model after its first `layers` layers, on the same weights."""
        first = StaticPass(exit_after(self.original, layers), (), self.few_rows, exit_after(self.model, layers))
        first.shares_kv = True
        return first

    def kv_in_use(self, kv: Sequence[Tensor]) -> Sequence[Tensor]:
        """The tensors that its passes work on: of another model's keys and values, those of the first layers."""
        return kv[: len(self.kv_shapes)]

    def quantised(self, bits: int, squares: Mapping[str, Tensor]) -> StaticPass:
        """The pass with the weights of the model's linear layers in this many bits; by the kernels, if this one is.

        squares: of `few_bits.input_squares`.
        """
        if self.few_rows is None:
            return StaticPass(rounded_twin(self.original, bits, squares))
        few_rows = replace(self.few_rows, bits=bits)
        return StaticPass(self.original, self.feature_layers, few_rows, few_rows.twin(self.original, squares=squares))

    def reference(self) -> PreTrainedModel:
        """A model that computes the same, in the same dtypes, by torch's own operations."""
        if self.few_rows is None:
            return self.original
        return in_float32(self.original, self.model, self.product_dtype)

    def forward(
        self, token_ids: Tensor, positions: Tensor, where: Tensor, visible: Tensor, *inputs_and_kv: Tensor
    ) -> tuple[Tensor, ...]:
        """Reads n tokens and writes their keys and values into the buffers.

        token_ids, positions: [n] int64. where: [n] int64, the places in the room that the tokens take.
        visible: [n, room] bool, the places each token attends to, its own included.
        inputs_and_kv: the further inputs; then keys and values of each layer, [1, heads, room, head size] each.
        Returns logits [n, vocab] in float32 and the hidden states [n, d] of `feature_layers` in the model's dtype.
        """
        count = len(self.input_widths)
        inputs, kv = inputs_and_kv[:count], inputs_and_kv[count:]
        caching = iter([StaticLayer(keys, values, where) for keys, values in zip(kv[::2], kv[1::2], strict=True)])
        layers = [next(caching) if caches else DummyLayer() for caches in self.caching]
        features = {"features": inputs[0][None].to(self.inner_dtype)} if inputs else {}
        output = self.model(
            input_ids=token_ids[None],
            position_ids=positions[None],
            attention_mask=self._masks(visible, positions, where),
            cache=Cache(layers=layers),
            use_cache=True,
            output_hidden_states=bool(self.feature_layers),
            **features,
        )
        # In float32, as all later steps need them: here the conversion fuses into a kernel.
        states = (output.hidden_states[layer][0].to(self.dtype) for layer in self.feature_layers)
        return output.logits[0].float(), *states

    def _masks(self, visible: Tensor, positions: Tensor, where: Tensor) -> Tensor | dict[str, Tensor]:
        """The mask added to each layer's scores; one by kind of layer where a model has two kinds."""
        if self.window is None:
            return additive_mask(visible, self.inner_dtype)
        # Here a token's position is its place: trees, where it is not, are refused for these models.
        places = torch.arange(visible.shape[-1], device=visible.device)
        near = additive_mask(visible & (places > positions.unsqueeze(-1) - self.window), self.inner_dtype)
        if all(self.slides):
            return near
        return {"sliding_attention": near, "full_attention": additive_mask(visible, self.inner_dtype)}

    def examples(self, width: int, room: int = 2 * ROOM_STEP) -> tuple[Tensor, ...]:
        """Arguments of a pass over `width` tokens after a few others."""
        where = torch.arange(3, 3 + width)
        inputs = [torch.ones(width, size, dtype=self.dtype) for size in self.input_widths]
        kv = [torch.zeros(1, heads, room, size, dtype=self.inner_dtype) for heads, size in self.kv_shapes]
        visible = where.unsqueeze(-1) >= torch.arange(room)
        # A copy: tracing takes two arguments for one if they are the same tensor.
        return (torch.ones(width, dtype=torch.long), where.clone(), where, visible, *inputs, *kv)


def _why_not_static(model: PreTrainedModel, layers: Sequence[CacheLayerMixin]) -> SpecvizError | None:
    """Why a model with these cache layers has no static passes; None if it has."""
    facts = {"name": model.name_or_path or type(model).__name__}
    for layer in layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            return SpecvizError(
                "{name} caches more than keys and values ({kind}), so it has no fast passes.",
                "passes",
                kind=type(layer).__name__,
                **facts,
            )
    if hides_far_places(model) or counts_its_cache(model):
        return SpecvizError(
            "{name} counts the positions in its cache itself, so it has no fast passes.", "passes", **facts
        )
    return None


def hides_far_places(model: PreTrainedModel) -> bool:
    """True if attention has a window that the cache does not know, and counts its places, as in GPT-Neo."""
    return "local" in getattr(model.config, "attention_layers", ())


def counts_its_cache(model: PreTrainedModel) -> bool:
    """True if attention depends on more than the mask and positions that it is given: on how full its cache is, as
    where it sharpens with the length, or on whole chunks of places, as in Llama 4."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ()
    return bool(getattr(config, "attn_temperature_tuning", False)) or "chunked_attention" in kinds


def _static_without_weights(
    kind: type[PreTrainedModel],
    config: PreTrainedConfig,
    attention: str,
    dtype: torch.dtype,
    numbers: dict[str, Tensor],
    feature_layers: tuple[int, ...],
    few_rows: FewRows | None,
) -> StaticPass:
    """The same pass with arbitrary weights: programs do not depend on them, see `few_numbers`.

    Nothing is written to most of their memory, so that it takes none.
    """
    with torch.device("meta"):
        model = kind._from_config(config, dtype=dtype, attn_implementation=attention).eval()
        narrow_like(model, config)
    twin = None if few_rows is None else few_rows.twin(model)
    for module in filter(None, (model, twin)):
        module.to_empty(device="cpu")
        for name, tensor in few_numbers(module).items():
            tensor.data.copy_(numbers[name])
    return StaticPass(model, feature_layers, few_rows, twin)


def few_numbers(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers of so few numbers that a compiler writes them into the program."""
    every = itertools.chain(model.named_parameters(), model.named_buffers())
    return {name: tensor for name, tensor in every if tensor.numel() <= FEW_NUMBERS}


def _cache_after_one_token(model: PreTrainedModel) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=torch.ones(1, 1, dtype=torch.long, device=model.device), cache=cache, use_cache=True)
    return cache


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """[1, 1, n, room] of `visible` [n, room] bool: 0 where visible, the dtype's least number elsewhere.

    The one form that all kinds of attention understand: those that add the mask would take a bool one for 1 and 0.
    """
    hidden = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return hidden.masked_fill(~visible, torch.finfo(dtype).min)[None, None]


class StaticLayer(CacheLayerMixin):
    """One layer's keys and values in buffers of full size, as transformers' cache layer during one pass."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, where: Tensor):
        super().__init__()
        self.keys, self.values, self.where = keys, values, where
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffers exist."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Writes new keys and values [1, heads, n, head size] to their places; returns all, empty places included."""
        self.keys.index_copy_(2, self.where, key_states)
        self.values.index_copy_(2, self.where, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """0: every pass is given its positions, so nothing is counted here."""
        return 0

    def get_max_length(self) -> int:
        return self.keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0
