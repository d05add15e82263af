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
    """After how many layers to leave a model if nobody says: about a quarter of them."""
    return max(1, round(layer_count(model) / 4))


def layer_stack(model: PreTrainedModel) -> str:
    """The name of the list that holds the layers. Raises SpecvizError (field ``drafter``) if there is no such list."""
    count = layer_count(model)
    children = model.base_model.named_children()
    stacks = [name for name, part in children if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(stacks) != 1:
        raise SpecvizError(
            "Early exit needs a model whose layers form one list; {kind} is built differently.",
            "drafter",
            kind=type(model).__name__,
        )
    return stacks[0]


def exit_after(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """`model` with only its first `layers` layers, then its final norm and output head.

    A twin: it has its own modules and configuration where they differ and shares everything else, above all the
    weights, so the original is never touched. Raises SpecvizError (field ``drafter``) for an architecture whose layers
    do not form one list.
    """
    base, stack = model.base_model, layer_stack(model)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    short_base = _twin(base, {stack: nn.ModuleList(list(getattr(base, stack))[:layers])})
    short = _twin(model, {model.base_model_prefix: short_base})
    short_base.config = short.config = config
    return short


def _twin(module: nn.Module, replaced: dict[str, nn.Module]) -> nn.Module:
    """A shallow copy with some children replaced."""
    twin = copy.copy(module)
    twin._modules = {**module._modules, **replaced}
    # Spreading a model over devices wraps its forward pass in one tied to the original; its layers keep theirs.
    twin.__dict__.pop("forward", None)
    return twin
