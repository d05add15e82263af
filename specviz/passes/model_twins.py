"""Twins of a model, on the same weights: left early, with rounded weights, a narrow head, or shared attention.

The original is never changed, since other runs may use it meanwhile.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specviz.passes.packed_weights import is_linear, packed_of, rounded, weight_of
from specviz.records.errors import SpecvizError

#: The name of `grouped_attention` among transformers' attention functions.
GROUPED = "specviz_grouped"

_SDPA = AttentionInterface()["sdpa"]

#: In the configuration of a model with a narrow head, how many rows that has: programs are compiled for their number.
_ROWS = "head_rows"


def sharing_twin(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of `model`, configurations included, because other runs read those of the original."""
    packed = filter(None, map(packed_of, model.modules()))
    shared = {id(kept): kept for kept in (*model.parameters(), *model.buffers(), *packed)}
    return copy.deepcopy(model, shared)


def attending_by(twin: PreTrainedModel, name: str) -> PreTrainedModel:
    """The same twin, all layers of which attend by transformers' attention function of this name from now on."""
    for module in twin.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = name
    return twin


def rounded_twin(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """`model` with the weights of its linear layers `rounded`, output head included, everything else shared with it.

    It takes as much memory as these weights once more, and reads as many bytes in each pass.
    """
    twin = sharing_twin(model)
    for part in filter(is_linear, twin.modules()):
        weight = rounded(weight_of(part), bits)
        part.weight = nn.Parameter(weight.T if isinstance(part, Conv1D) else weight, requires_grad=False)
    return twin


def layer_count(model: PreTrainedModel) -> int:
    """How many decoder layers the model has."""
    return model.config.get_text_config().num_hidden_layers


def default_exit(model: PreTrainedModel) -> int:
    """After how many layers to leave a model by default: about a quarter of them."""
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

    It has its own modules and configuration where they differ and shares everything else. Raises SpecvizError (field
    ``drafter``) for an architecture whose layers do not form one list.
    """
    base, stack = model.base_model, layer_stack(model)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    short_base = _with_children(base, {stack: nn.ModuleList(list(getattr(base, stack))[:layers])})
    short = _with_children(model, {model.base_model_prefix: short_base})
    short_base.config = short.config = config
    return short


def _with_children(module: nn.Module, replaced: dict[str, nn.Module]) -> nn.Module:
    """A shallow copy with some children replaced."""
    twin = copy.copy(module)
    twin._modules = {**module._modules, **replaced}
    # Spreading a model over devices wraps its forward pass in one tied to the original; its layers keep theirs.
    twin.__dict__.pop("forward", None)
    return twin


def narrow_head(model: PreTrainedModel, ids: Tensor) -> None:
    """Leaves the model's head only the rows of these tokens, [n] int64: its logits are [..., n] from now on.

    Embeddings that the head was tied to keep all of theirs. Raises SpecvizError (field ``draft_vocabulary``) for a head
    that is more than one linear layer.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise SpecvizError(
            "The output head of {name} cannot be narrowed: it is no linear layer.",
            "draft_vocabulary",
            name=model.name_or_path or type(model).__name__,
        )
    narrow = nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
    for name, rows in head.named_parameters():
        setattr(narrow, name, nn.Parameter(rows.detach()[ids.to(rows.device)], requires_grad=False))
    model.set_output_embeddings(narrow)
    setattr(model.config, _ROWS, len(ids))


def narrow_like(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Narrows a new model's head if this configuration is of a model with a narrow one; its weights say which rows."""
    if rows := getattr(config, _ROWS, None):
        narrow_head(model, torch.arange(rows))


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attention of many query heads over few heads of keys and values, without a copy of those for each query head.

    As transformers' own function over SDPA, which repeats keys and values over all of the room, in every layer of every
    pass, as soon as there is a mask: [batch, heads, n, head size] -> [batch, n, heads, head size]. The n queries of all
    heads of a group become rows of one head. attention_mask: [batch, 1, n, room], the same for all heads; anything else
    is left to transformers.
    """
    shared, group = key.shape[1], query.shape[1] // key.shape[1]
    one_mask = attention_mask is not None and attention_mask.shape[1] == 1
    if group == 1 or not one_mask or others.get("position_bias") is not None:
        return _SDPA(module, query, key, value, attention_mask, scaling=scaling, **others)
    rows = query.unflatten(1, (shared, group)).flatten(2, 3)
    mask = attention_mask.repeat(1, 1, group, 1)
    seen = functional.scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    # Back to [batch, shared, group, n, head size], then [batch, n, shared, group, head size].
    return seen.unflatten(2, (group, query.shape[2])).permute(0, 3, 1, 2, 4).contiguous().flatten(2, 3), None


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, AttentionMaskInterface()["sdpa"])


def with_grouped_attention(model: PreTrainedModel) -> PreTrainedModel:
    """A twin of `model` whose heads share keys and values without repeating them.

    The model itself, if they share none or if its attention is not transformers' function over SDPA.
    """
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    grouped = getattr(config, "num_key_value_heads", heads) != heads
    if not grouped or config._attn_implementation != "sdpa" or not model._supports_attention_backend:
        return model
    return attending_by(sharing_twin(model), GROUPED)
