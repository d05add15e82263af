"""Weights in the kernels' own order, in all their bits or in few, and models that let go of their own copy of them.

The kernels keep all of a weight, so it comes back to the bit, from memory and without its file.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

#: In a layer's attributes, what its weight is unpacked from (`FewRowsLinear`). Not one of its modules: a model's
#: parameters and buffers stay those it was loaded with.
_PACKED = "packed"

#: Bits -> how many columns of a row share a scale; 0: all of them. Four bits are too coarse for a whole row, in which a
#: single large weight would leave the others three or four values.
GROUPS = {8: 0, 4: 32}

#: Rows that are rounded at a time: more would only hold more copies of a large matrix at once.
_ROWS = 1024


def is_linear(part: nn.Module) -> bool:
    """True for layers whose products the kernels can make."""
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

    Running the layer brings the weight back first; code that reads it directly asks `weight_of`.
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
    """Returns freed memory to the system, which Linux's usual C library keeps; does nothing elsewhere."""
    if sys.platform == "linux" and (trimmed := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trimmed(0)


def quantised(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The whole numbers nearest to weight / scale, symmetric around 0, and the scales.

    weight: [outputs, inputs], any float dtype. Returns int8 [outputs, groups, group], the last group filled up with
    zeros, and float32 [outputs, groups]: each the largest weight of its group over 2^(bits − 1) − 1, so that no weight
    is off by more than half of it.
    """
    parts = [_quantised(part, bits) for part in weight.detach().split(_ROWS)]
    codes, scales = (torch.cat(made) for made in zip(*parts))
    return codes, scales


def _quantised(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    whole = functional.pad(weight.float(), (0, -weight.shape[1] % (GROUPS[bits] or 1)))
    groups = whole.unflatten(1, (-1, GROUPS[bits] or whole.shape[1]))
    scales = groups.abs().amax(-1) / (2 ** (bits - 1) - 1)
    # A group of zeros has no scale, and needs none.
    return (groups / scales.clamp_min(torch.finfo().tiny).unsqueeze(-1)).round().to(torch.int8), scales


def rounded(weight: Tensor, bits: int) -> Tensor:
    """`weight` [outputs, inputs] rounded to so many bits, in its own dtype."""
    parts = []
    for part in weight.detach().split(_ROWS):
        codes, scales = _quantised(part, bits)
        parts.append((codes * scales.unsqueeze(-1)).flatten(1)[:, : weight.shape[1]].to(weight.dtype))
    return torch.cat(parts)


def words(codes: Tensor, bits: int) -> Tensor:
    """The codes [..., 32 / bits] of inputs that follow each other, raised by 2^(bits − 1), so that none is negative.

    Returns uint8 [..., 4]; or int32 [...], each of eight codes of 4 bits side by side, the first lowest.
    """
    raised = (codes + (-128 if bits == 8 else 8)).view(torch.uint8)  # −128 is 128 in the eight bits there are
    if bits == 8:
        return raised
    joined = torch.zeros(raised.shape[:-1], dtype=torch.int32)
    for place in range(32 // bits):
        joined |= raised[..., place].int() << place * bits
    return joined


def codes_of(rows: Tensor, bits: int) -> Tensor:
    """The codes [n, 32 / bits · m] in float32 of which `words` made rows of 32 bits, [n, m] int32."""
    raised = rows.view(torch.uint8)
    if bits == 4:
        raised = torch.stack([raised & 15, raised >> 4], -1).flatten(1)
    return raised.float() - 2 ** (bits - 1)
