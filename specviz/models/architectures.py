"""Whether a model can run here, by its configuration alone: what it is, how it is quantised, how it can be shared."""

from __future__ import annotations

import copy
import inspect
import math
import re

import torch
from transformers import DynamicCache, PreTrainedConfig
from transformers.quantizers import AutoHfQuantizer

from specviz.models.refusals import quantisation_name, quantisation_of
from specviz.models.sources import ModelSource, quietly
from specviz.records.errors import SpecvizError


def check_architecture(source: ModelSource) -> None:
    """Refuses what speculation cannot run."""
    config, known = source.config, {"name": source.name, "kind": source.config.model_type}
    if config.is_encoder_decoder:
        raise SpecvizError(
            "{name} is an encoder-decoder ({kind}); specviz runs decoder-only language models.", source.field, **known
        )
    model_class = source.auto_class._model_mapping.get(type(config), None)
    if model_class is None or _is_tuned_for_other_work(config, model_class):
        heads = config.architectures if isinstance(config.architectures, list) else []
        raise SpecvizError(
            "{name} ({kind}) is not a language model that writes a text token by token.",
            source.field,
            name=source.name,
            kind=", ".join(heads) or config.model_type,
        )
    cached = "cache" in inspect.signature(model_class.forward).parameters
    state = _running_state(source, model_class) if cached or model_class._is_stateful else None
    if state is not None:
        raise SpecvizError(
            "The cache of {name} ({kind}) cannot be rewound: it keeps a running state ({state}), from which rejected "
            "draft tokens could not be taken back.",
            source.field,
            **known,
            state=state,
        )
    if not cached:
        raise SpecvizError(
            "{name} ({kind}) runs without a cache of keys and values in transformers, so a pass over a few draft "
            "tokens would have to read the whole text again.",
            source.field,
            **known,
        )


def _is_tuned_for_other_work(config: PreTrainedConfig, model_class: type) -> bool:
    """Whether the checkpoint's head predicts something other than the next token: an encoder, a classifier."""
    heads = config.architectures if isinstance(config.architectures, list) else []
    if model_class.__name__ in heads:
        return False
    other_head = re.compile(r"For(?!CausalLM|ConditionalGeneration)[A-Z]")
    return any(map(other_head.search, heads)) or getattr(config, "is_decoder", None) is False


#: Kinds of layer that keep keys and values only, or nothing.
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention", "moe", "mlp"}


def _running_state(source: ModelSource, model_class: type) -> str | None:
    """The kind of the first layer that keeps more than keys and values; None if there is no such layer.

    A class says it of all its models, though some of them have attention layers only.
    """
    with source.explaining("configuration"):
        kinds = getattr(source.config.get_text_config(decoder=True), "layer_types", None)
        if model_class._is_stateful:
            return next((kind for kind in kinds or [source.config.model_type] if kind not in _ATTENTION), None)
        try:
            layers = DynamicCache(config=source.config).layers
        except KeyError as error:  # a kind of layer for which there is no such cache
            return str(error.args[0])
        return next((kinds[at] for at, layer in enumerate(layers) if not layer.is_croppable), None)


def check_quantisation(source: ModelSource, device: torch.device) -> None:
    """Refuses a quantised model that cannot run here, usually because a package is missing, and notes whether its
    weights will be unpacked; reads none of them."""
    settings = quantisation_of(source.config)
    if settings is None:
        return
    method = quantisation_name(source.config)
    if method == "MLX":
        raise SpecvizError(
            "{name} is quantised by MLX, Apple's library, in a format that transformers does not read: name the "
            "original model or a GGUF file of it.",
            source.field,
            name=source.name,
        )
    if not method:
        raise SpecvizError(
            "{name} is quantised, and the quantization_config in its config.json does not name the method "
            "(quant_method), without which its weights cannot be read.",
            source.field,
            name=source.name,
        )
    with quietly(), source.explaining("weights"):
        # The library's own check, on a copy because it fills in what it finds.
        quantiser = AutoHfQuantizer.from_config(copy.deepcopy(settings), pre_quantized=True)
        quantiser.validate_environment(device_map={"": device}, weights_only=True)
        source.unpacks = getattr(quantiser.quantization_config, "dequantize", False)


def check_sharding(source: ModelSource, processes: int) -> None:
    """Refuses a target that this many processes cannot share."""
    config, known = source.config.get_text_config(), {"name": source.name, "kind": source.config.model_type}
    if source.quantised or source.stored:
        raise SpecvizError(
            "{name} is quantised ({method}), and quantised weights are not sharded here: run without torchrun and "
            "use the device spread.",
            "device",
            name=source.name,
            method=source.stored or quantisation_name(source.config),
        )
    if not config.base_model_tp_plan:
        raise SpecvizError(
            "transformers has no plan for sharing {name} ({kind}) between processes: run without torchrun and use "
            "the device spread.",
            "device",
            **known,
        )
    heads = config.num_attention_heads
    of_keys = getattr(config, "num_key_value_heads", None) or heads
    if heads % processes or of_keys % processes:
        raise SpecvizError(
            "{processes} processes cannot share the attention of {name}, which has {heads} heads and {of_keys} key "
            "heads: start a number that divides {divisor}.",
            "device",
            processes=processes,
            name=source.name,
            heads=heads,
            of_keys=of_keys,
            divisor=math.gcd(heads, of_keys),
        )
