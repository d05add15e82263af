"""Weights in few bits: whole numbers, and a scale for each row or for each few columns of one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specviz.passes.released_weights import is_linear, weight_of
from specviz.passes.twins import sharing_twin

#: Bits -> how many columns of a row share a scale; 0: all of them. Four bits are too coarse for a whole row, in which a
#: single large weight would leave the others three or four values.
GROUPS = {8: 0, 4: 32}

#: Rows that are rounded at a time: more would only hold more copies of a large matrix at once.
_ROWS = 1024


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
    # A group of zeros has no scale, and no need of one.
    return (groups / scales.clamp_min(torch.finfo().tiny).unsqueeze(-1)).round().to(torch.int8), scales


def rounded(weight: Tensor, bits: int) -> Tensor:
    """What is left of `weight` [outputs, inputs] in so many bits, in its own dtype."""
    parts = []
    for part in weight.detach().split(_ROWS):
        codes, scales = _quantised(part, bits)
        parts.append((codes * scales.unsqueeze(-1)).flatten(1)[:, : weight.shape[1]].to(weight.dtype))
    return torch.cat(parts)


def rounded_twin(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """`model` with the weights of its linear layers `rounded`, output head included, everything else shared with it.

    It takes the place that these weights take once more, and reads as many bytes in each pass.
    """
    twin = sharing_twin(model)
    for part in filter(is_linear, twin.modules()):
        weight = rounded(weight_of(part), bits)
        part.weight = nn.Parameter(weight.T if isinstance(part, Conv1D) else weight, requires_grad=False)
    return twin


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
