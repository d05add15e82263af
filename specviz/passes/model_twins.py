"""Twins of a model, on the same weights; and letting go of weights that our kernels keep.

A twin is left early, or has a narrow head, shared attention. The original is never changed, since other runs may use it
meanwhile; only weights that the kernels keep are let go of, and come back to the bit.
"""

import copy
import ctypes
import sys
from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specviz.records.errors import SpecvizError

#: In a layer's attributes, what its weight is unpacked from (`FewRowsLinear`). Not one of its modules: a model's
#: parameters and buffers stay those it was loaded with.
_PACKED = "packed"

#: Bytes to which torch aligns memory on a CPU.
_ALIGNMENT = 64

#: After copying this many bytes of weights, freed memory is returned to the system.
_TRIM_BYTES = 2**25


def is_linear(part: nn.Module) -> bool:
    """True for layers whose products the kernels can make."""
    return type(part) is nn.Linear or isinstance(part, Conv1D)


def packed_of(part: nn.Module) -> nn.Module | None:
    """The module from which the weight of `part` can be unpacked, if it was let go of before."""
    return part.__dict__.get(_PACKED)


@torch.inference_mode(False)
@torch.no_grad()
def weight_of(part: nn.Module) -> Tensor:
    """The weight [outputs, inputs] of a linear layer, whether it is there or has to be unpacked."""
    weight, packed = part.weight, packed_of(part)
    if weight.is_meta and packed is not None:
        return packed.unpacked().to(weight.dtype)
    return weight.T if isinstance(part, Conv1D) else weight


def drop_weight(part: nn.Module, packed: nn.Module) -> None:
    """Leaves a linear layer with the shape and dtype of its weight, which `packed` can give again.

    Running the layer brings the weight back first; code that reads it directly asks `weight_of`.
    """
    if packed_of(part) is None:
        part.register_forward_pre_hook(_take_back_before)
    part.__dict__[_PACKED] = packed
    part.weight = nn.Parameter(torch.empty_like(part.weight, device="meta"), part.weight.requires_grad)


def drop_weights_again(model: nn.Module) -> None:
    """Drops every weight that came back since."""
    for part in model.modules():
        if (packed := packed_of(part)) is not None and not part.weight.is_meta:
            drop_weight(part, packed)


@torch.inference_mode(False)
@torch.no_grad()
def take_back(model: nn.Module, for_good: bool = False) -> None:
    """Gives a model, or a single layer, all weights back that it let go of. for_good: the kernels will not run it."""
    for part in model.modules():
        if packed_of(part) is not None and part.weight.is_meta:
            weight = weight_of(part)
            weight = weight.T.contiguous() if isinstance(part, Conv1D) else weight
            part.weight = nn.Parameter(weight, part.weight.requires_grad)
        if for_good:
            part.__dict__.pop(_PACKED, None)


def _take_back_before(part: nn.Module, inputs: tuple[object, ...]) -> None:
    take_back(part)


def shared_weights(model: PreTrainedModel) -> set[int]:
    """The `id` of each parameter that several modules have, as a head and the embeddings it is tied to."""
    owners = Counter(id(weight) for part in model.modules() for weight in part._parameters.values())
    return {weight for weight, count in owners.items() if count > 1}


def trim() -> None:
    """Returns freed memory to the system, which Linux's usual C library keeps; does nothing elsewhere."""
    if sys.platform == "linux" and (trimmed := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trimmed(0)


#: The name of `grouped_attention` among transformers' attention functions.
GROUPED = "specviz_grouped"

#: The name of `few_queries_attention` there.
FEW_QUERIES = "specviz_few_queries"

#: What some layers give their attention beside the mask: `few_queries_attention` knows none of it.
_UNUSUAL = ("softcap", "position_bias", "s_aux")

_SDPA = AttentionInterface()["sdpa"]

#: In the configuration of a model with a narrow head, how many rows that has: programs are compiled for their number.
_HEAD_ROWS = "head_rows"


def align(module: nn.Module) -> None:
    """Aligns weights on a CPU as torch's own memory is: the order of sums may depend on it, and one seed gives one
    record."""
    copied = 0
    for weight in module.parameters():
        if weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()
            copied += weight.nbytes
            if copied >= _TRIM_BYTES:
                # They were read by other threads, whose freed memory the C library keeps for those.
                trim()
                copied = 0
    trim()


def sharing_twin(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of `model`, configurations included, because other runs read those of the original."""
    further = (part for module in model.modules() for part in vars(module).values() if isinstance(part, nn.Module))
    shared = {id(part): part for part in (*model.parameters(), *model.buffers(), *further)}
    return copy.deepcopy(model, shared)


def without_weights(layer: nn.Module) -> nn.Module:
    """A copy of the layer on the device ``meta``."""
    empty: dict[int, Tensor] = {}
    for weight in layer.parameters():
        empty[id(weight)] = nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)
    for buffer in layer.buffers():
        empty[id(buffer)] = torch.empty_like(buffer, device="meta")
    template = copy.deepcopy(layer, empty)
    for part in template.modules():
        # Those with which transformers takes down hidden states cannot be pickled, and see no layer from inside.
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
    return template.requires_grad_(False)


def attending_by(twin: PreTrainedModel, name: str) -> PreTrainedModel:
    """The same twin, all layers of which attend by transformers' attention function of this name from now on."""
    for module in twin.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = name
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
    if len(kinds := getattr(config, "layer_types", None) or ()) > layers:  # where they do not follow from the number
        config.layer_types = kinds[:layers]
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
            "The output head of {name} cannot be narrowed: it is not a linear layer.",
            "draft_vocabulary",
            name=model.name_or_path or type(model).__name__,
        )
    narrow = nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
    for name, rows in head.named_parameters():
        setattr(narrow, name, nn.Parameter(rows.detach()[ids.to(rows.device)], requires_grad=False))
    model.set_output_embeddings(narrow)
    setattr(model.config, _HEAD_ROWS, len(ids))


def narrow_like(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Narrows a new model's head if this configuration is of a model with a narrow one; its weights say which rows."""
    if rows := getattr(config, _HEAD_ROWS, None):
        narrow_head(model, torch.arange(rows))


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Attention of many query heads over few heads of keys and values, without a copy of those for each query head.

    As transformers' own function over SDPA, which repeats keys and values over all of the room, in every layer of every
    pass, as soon as there is a mask: [batch, heads, n, head size] -> [batch, n, heads, head size]. The n queries of all
    heads of a group become rows of one head. attention_mask: [batch, 1, n, room], the same for all heads; anything else
    is left to transformers.
    """
    shared, group = key.shape[1], query.shape[1] // key.shape[1]
    unusual = group == 1 or options.get("position_bias") is not None
    if attention_mask is None or attention_mask.shape[1] != 1 or unusual:
        return _SDPA(module, query, key, value, attention_mask, scaling=scaling, **options)
    rows = query.unflatten(1, (shared, group)).flatten(2, 3)
    mask = attention_mask.repeat(1, 1, group, 1)
    seen = functional.scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    # Back to [batch, shared, group, n, head size], then [batch, n, shared, group, head size].
    return seen.unflatten(2, (group, query.shape[2])).permute(0, 3, 1, 2, 4).contiguous().flatten(2, 3), None


def few_queries_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """The same as two products and a softmax in float32, for programs on a GPU: there it takes a few queries less time
    than SDPA with its mask. Anything unusual is left to `grouped_attention`."""
    unusual = options.get("dropout") or any(options.get(name) is not None for name in _UNUSUAL)
    if attention_mask is None or attention_mask.shape[:2] != (1, 1) or scaling is None or unusual:
        return grouped_attention(module, query, key, value, attention_mask, scaling=scaling, **options)
    shared, count = key.shape[1], query.shape[2]
    group = query.shape[1] // shared
    # A group's queries as rows of one head, [shared, group · n, head size], and scores [shared, group, n, room].
    rows = query[0].unflatten(0, (shared, group)).flatten(1, 2)
    scores = torch.bmm(rows, key[0].transpose(1, 2)).unflatten(1, (group, count)).float() * scaling
    weights = (scores + attention_mask[0, 0]).softmax(-1).to(value.dtype).flatten(1, 2)
    seen = torch.bmm(weights, value[0]).unflatten(1, (group, count))
    return seen.permute(2, 0, 1, 3).flatten(1, 2)[None], None


for _name, _function in ((GROUPED, grouped_attention), (FEW_QUERIES, few_queries_attention)):
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, AttentionMaskInterface()["sdpa"])


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
