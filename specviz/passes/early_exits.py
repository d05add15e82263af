"""A model that ends early: the same weights, fewer layers, nothing changed in the original."""

from __future__ import annotations

import copy

from torch import nn
from transformers import PreTrainedModel

from specviz.records.errors import SpecvizError


def layer_count(model: PreTrainedModel) -> int:
    """How many decoder layers the model has."""
    return model.config.get_text_config().num_hidden_layers


def default_exit(model: PreTrainedModel) -> int:
    """The layer to leave a model after where none was asked for: about a quarter of its layers."""
    return max(1, round(layer_count(model) / 4))


def check_exit(model: PreTrainedModel, name: str, layer: int | None = None) -> None:
    """Raises SpecvizError for a model, of this name, that has no earlier layer to leave it after (field ``drafter``),
    or none at `layer` (field ``exit_layer``)."""
    layers = layer_count(model)
    if layers < 2:
        raise SpecvizError("{name} has a single layer, and no earlier one to leave it after.", "drafter", name=name)
    if layer is not None and layer >= layers:
        raise SpecvizError(
            "{name} has {layers} layers: an early exit lies after layer 1 to {last}, not {asked}.",
            "exit_layer",
            name=name,
            layers=layers,
            last=layers - 1,
            asked=layer,
        )


def exit_after(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """`model` as it would be with its first `layers` layers only, then its final norm and output head.

    A twin: it has modules and configuration of its own where they differ and shares everything else, weights above
    all, so that a model in use by others is never touched. Raises SpecvizError (field ``drafter``) for an architecture
    whose layers do not stand in one list.
    """
    base = model.base_model
    count = layer_count(model)
    stacks = [name for name, part in base.named_children() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(stacks) != 1:
        raise SpecvizError(
            "Early exit needs a model whose layers stand in one list; {kind} is built otherwise.",
            "drafter",
            kind=type(model).__name__,
        )
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    short_base = _twin(base, {stacks[0]: nn.ModuleList(list(getattr(base, stacks[0]))[:layers])})
    short = _twin(model, {model.base_model_prefix: short_base})
    short_base.config = short.config = config
    return short


def _twin(module: nn.Module, replaced: dict[str, nn.Module]) -> nn.Module:
    """A shallow copy with some children replaced."""
    twin = copy.copy(module)
    twin._modules = {**module._modules, **replaced}
    # Spreading a model over devices wraps its forward pass in one that is tied to the original; layers keep theirs.
    twin.__dict__.pop("forward", None)
    return twin
