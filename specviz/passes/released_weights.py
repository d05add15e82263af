"""Weights that only our kernels read, in their own order: a model lets go of its copy until something needs it again.

What the kernels keep of a weight is all of it, so it comes back to the bit, from memory and without its file.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

#: In a layer's attributes, what its weight is unpacked from (`FewRowsLinear`). Not one of its modules: a model's
#: parameters and buffers stay those it was loaded with.
_PACKED = "packed"


def is_linear(part: nn.Module) -> bool:
    """Whether `part` is a layer whose products the kernels can make."""
    return type(part) is nn.Linear or isinstance(part, Conv1D)


def packed_of(part: nn.Module) -> nn.Module | None:
    """What the weight of `part` can be unpacked from, if it was let go of before."""
    return part.__dict__.get(_PACKED)


@torch.inference_mode(False)
@torch.no_grad()
def weight_of(part: nn.Module) -> Tensor:
    """The weight [outputs, inputs] of a linear layer, whether it is there or has to be unpacked."""
    weight, packed = part.weight, packed_of(part)
    if weight.is_meta and packed is not None:
        return packed.unpacked().to(weight.dtype)
    return weight.T if isinstance(part, Conv1D) else weight


def let_go(part: nn.Module, packed: nn.Module) -> None:
    """Leaves a linear layer with the shape and dtype of its weight, which `packed` can give again.

    Whatever runs the layer has the weight back before; what reads it directly asks `weight_of`.
    """
    if packed_of(part) is None:
        part.register_forward_pre_hook(_take_back_before)
    part.__dict__[_PACKED] = packed
    part.weight = nn.Parameter(torch.empty_like(part.weight, device="meta"), part.weight.requires_grad)


def let_go_again(model: nn.Module) -> None:
    """Lets go of every weight that came back since."""
    for part in model.modules():
        if (packed := packed_of(part)) is not None and not part.weight.is_meta:
            let_go(part, packed)


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
    """Returns freed memory to the system: Linux's usual C library keeps it, and only there is this function."""
    if sys.platform == "linux" and (trimmed := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trimmed(0)
