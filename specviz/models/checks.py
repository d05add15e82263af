"""Checks whether a model can run here: first its configuration alone, then, once it is loaded, a few tokens."""

import contextlib
import copy
import inspect
import re
from collections.abc import Iterator

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.quantizers import AutoHfQuantizer

from specviz.models.pair import logit_width
from specviz.models.refusals import quantisation_name, quantisation_of
from specviz.models.sources import ModelSource, quietly
from specviz.passes.positions import position_limit
from specviz.passes.reading_checks import reads_ahead, reads_on, reads_trees, why_no_exit, width_of_logits
from specviz.passes.states import can_go_back, keeps_state
from specviz.records.errors import first_line

#: Architectures that take a cache and yet keep their states elsewhere.
_STATE_ELSEWHERE = {"recurrent_gemma", "xlstm"}

#: In a shorter context a text would end before it has begun.
_LEAST_POSITIONS = 16


def check_architecture(source: ModelSource) -> None:
    """Raises SpecvizError for an architecture that speculation cannot run."""
    if source.config.is_encoder_decoder:
        raise source.complaint("{name} is an encoder-decoder ({kind}); specviz runs decoder-only language models.")
    model_class = source.auto_class._model_mapping.get(type(source.config), None)
    heads = source.config.architectures if isinstance(source.config.architectures, list) else []
    # A checkpoint's head may predict something other than the next token: an encoder's, a classifier's.
    other_head = re.compile(r"For(?!CausalLM|ConditionalGeneration)[A-Z]")
    if model_class is None or (
        model_class.__name__ not in heads
        and (any(map(other_head.search, heads)) or getattr(source.config, "is_decoder", None) is False)
    ):
        raise source.complaint(
            "{name} ({kind}) is not a language model that writes a text token by token.",
            kind=", ".join(heads) or source.config.model_type,
        )
    cached = "cache" in inspect.signature(model_class.forward).parameters
    if model_class._is_stateful and (not cached or source.config.model_type in _STATE_ELSEWHERE):
        raise source.complaint(
            "{name} ({kind}) keeps a running state outside the caches of transformers, where it cannot be "
            "restored after rejected draft tokens."
        )
    if cached and (layer := _stuck_layer(source, model_class)) is not None:
        raise source.complaint(
            "The cache of {name} ({kind}) cannot be rewound: layers of the kind {state} cannot take rejected "
            "draft tokens back.",
            state=layer,
        )
    if not cached:
        raise source.complaint(
            "{name} ({kind}) runs without a cache of keys and values in transformers, so a pass over a few draft "
            "tokens would have to read the whole text again."
        )


def _stuck_layer(source: ModelSource, model_class: type[PreTrainedModel]) -> str | None:
    """The kind of the first layer whose cache can neither be cropped nor put back; None if there is no such layer."""
    with source.explaining("configuration"):
        kinds = getattr(source.config.get_text_config(decoder=True), "layer_types", None)
        try:
            layers = DynamicCache(config=source.config).layers
        except KeyError as error:  # a kind of layer for which there is no such cache
            return str(error.args[0])
        stateful = model_class._is_stateful
        stuck = (at for at, layer in enumerate(layers) if not can_go_back(layer, stateful))
        return next((kinds[at] if kinds else type(layers[at]).__name__ for at in stuck), None)


def check_quantisation(source: ModelSource, device: torch.device) -> None:
    """Raises SpecvizError for a quantised model that cannot run here, usually because a package is missing; notes
    whether its weights will be unpacked. Reads no weights."""
    settings, method = quantisation_of(source.config), quantisation_name(source.config)
    if settings is None:
        return
    if method == "MLX":
        raise source.complaint(
            "{name} is quantised by MLX, Apple's library, in a format that transformers does not read: name the "
            "original model or a GGUF file of it."
        )
    if not method:
        raise source.complaint(
            "{name} is quantised, but the quantization_config in its config.json does not name the method "
            "(quant_method), so its weights cannot be read."
        )
    with quietly(), source.explaining("weights"):
        # The library's own check, on a copy because it fills in what it finds.
        quantiser = AutoHfQuantizer.from_config(copy.deepcopy(settings), pre_quantized=True)
        quantiser.validate_environment(device_map={"": device}, weights_only=True)
        # transformers unpacks compressed-tensors wherever it runs them, in the first pass.
        unpacks = method == "compressed-tensors" or getattr(quantiser.quantization_config, "dequantize", False)
        source.unpacks = bool(unpacks)


def try_model(model: PreTrainedModel, source: ModelSource) -> None:
    """Raises SpecvizError for a model that cannot run, or does not write from left to right; learns whether it reads
    trees, and whether it runs when it is left early."""
    positions = position_limit(model)
    if positions is not None and positions < _LEAST_POSITIONS:
        raise source.complaint(
            "According to its config.json, {name} has a context of {positions} tokens: too few for a text.",
            positions=positions,
        )
    with reading(source):
        ahead, on, width = reads_ahead(model), reads_on(model), width_of_logits(model)
    if ahead:
        raise source.complaint(
            "In {name} ({kind}) tokens see the tokens that come after them, as in encoders and embedding models: "
            "it cannot write a text token by token."
        )
    if width != logit_width(model):
        raise source.complaint(
            "{name} ({kind}) gives {given} logits for a token, but its output layer should give {said}: its "
            "config.json does not describe its vocabulary.",
            given=width,
            said=logit_width(model),
        )
    if not on and keeps_state(model):
        raise source.complaint(
            "From its running state, transformers continues {name} ({kind}) only one token at a time, so no pass "
            "can check several draft tokens."
        )
    if not on:
        raise source.complaint(
            "{name} ({kind}) reads a short text differently in several passes than in one, so there is no single "
            "text to compare with. Often its config.json has a setting that this architecture does not know, "
            "such as sliding_window: remove it."
        )
    reads_trees(model)
    why_no_exit(model)


@contextlib.contextmanager
def reading(source: ModelSource) -> Iterator[None]:
    """Within it, any error of the model is a refusal: an architecture may raise anything over a text alone."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise source.complaint("{name} ({kind}) cannot read a text: {reason}.", reason=first_line(error)) from error
