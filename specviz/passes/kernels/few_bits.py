"""Weights in few bits: codes of 8 or 4, with scales, as our kernels read them (few_bits.h); and models of such weights.

Weights out of a file in few bits are codes already, and keep their values (`grids`); others are rounded. In 4 bits an
error counts by the inputs that it meets. Weighing it so costs nothing at run time, and is what keeps a copy close to
its model: activation-aware quantisation (Lin et al., arXiv 2306.00978), with the weights in a least-squares fit rather
than in scales of their own.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specviz.passes.model_twins import is_linear, sharing_twin, weight_of

#: Bits -> how many columns of a row share a scale; 0: all of them. Four bits are too coarse for a whole row, in which
#: a single large weight would leave the others three or four values.
GROUPS = {8: 0, 4: 32}

#: How often scale and offset of a group in 4 bits are fitted to its codes, by least squares, and the codes to them.
_FITTINGS = 3

#: Inputs that the kernels round by one step (few_bits.h), and the least step that is one.
INPUT_GROUP, _LEAST_STEP = 32, 1e-30

#: Divides what may be zero.
_TINY = torch.finfo(torch.float32).tiny

#: Rows that are rounded at a time: more would only hold more copies of a large matrix at once.
_ROUNDED_ROWS = 1024


class Codes(NamedTuple):
    """Weights in few bits, each code · scale + offset."""

    codes: Tensor  # uint8, or int8 on a grid without offsets: [outputs, groups, group], the last group filled up
    scales: Tensor  # float32, or float16 on a grid: [outputs, groups]
    offsets: Tensor  # the same

    def weights(self) -> Tensor:
        """[outputs, groups · group] float32."""
        scales, offsets = (part.float().unsqueeze(-1) for part in (self.scales, self.offsets))
        return (self.codes * scales + offsets).flatten(1)


def quantised(weight: Tensor, bits: int, squares: Tensor | None = None) -> Codes:
    """`weight` [outputs, inputs], of any float dtype, in 8 or 4 bits.

    In 8 bits zero is code 128, and the scale of a row its largest weight over 127. In 4 bits scale and offset of a
    group are those of the least squared error that was found, rounded to bfloat16 before the codes are chosen.
    squares: see `input_squares`; an error counts as much as the input that it is multiplied by, squared. None: all
    inputs count the same.
    """
    parts = [_quantised(part, bits, squares) for part in weight.detach().split(_ROUNDED_ROWS)]
    return Codes(*map(torch.cat, zip(*parts, strict=True)))


def _quantised(weight: Tensor, bits: int, squares: Tensor | None) -> Codes:
    padded = functional.pad(weight.float(), (0, -weight.shape[1] % (GROUPS[bits] or 1)))
    groups = padded.unflatten(1, (-1, GROUPS[bits] or padded.shape[1]))
    if bits == 8:
        scales = groups.abs().amax(-1) / 127
        return _coded(groups, scales, -128 * scales, bits)
    counts = padded.new_ones(weight.shape[1]) if squares is None else squares.to(weight.device)
    counts = functional.pad(counts, (0, padded.shape[1] - len(counts))).unflatten(0, (-1, GROUPS[bits]))
    low, high = groups.amin(-1), groups.amax(-1)
    best = fitted = _coded(groups, *_in_half((high - low) / 15, low), bits)
    for _ in range(_FITTINGS):
        fitted = _coded(groups, *_in_half(*_least_squares(fitted, groups, counts)), bits)
        better = _squared_error(fitted, groups, counts) < _squared_error(best, groups, counts)
        chosen = (better.unsqueeze(-1), better, better)
        best = Codes(*(torch.where(*parts) for parts in zip(chosen, fitted, best, strict=True)))
    return best


def _in_half(scales: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    return scales.bfloat16().float(), offsets.bfloat16().float()


def _coded(groups: Tensor, scales: Tensor, offsets: Tensor, bits: int) -> Codes:
    """The codes nearest to the weights. A group of equal weights has no scale, and needs none."""
    steps = scales.clamp_min(_TINY).unsqueeze(-1)
    codes = ((groups - offsets.unsqueeze(-1)) / steps).round().clamp(0, 2**bits - 1)
    return Codes(codes.to(torch.uint8), scales, offsets)


def _squared_error(coded: Codes, groups: Tensor, counts: Tensor) -> Tensor:
    return ((coded.weights().view_as(groups) - groups).square() * counts).sum(-1)


def _least_squares(coded: Codes, groups: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and offsets [outputs, groups] of the line through each group's codes and weights. counts: [groups, group],
    how much each weight counts."""
    shares = counts / counts.sum(-1, keepdim=True).clamp_min(_TINY)
    codes = coded.codes.float()
    code, weight = ((part * shares).sum(-1, keepdim=True) for part in (codes, groups))
    spread = ((codes - code).square() * shares).sum(-1)
    scales = ((codes - code) * (groups - weight) * shares).sum(-1) / spread.clamp_min(_TINY)
    return scales, (weight - scales.unsqueeze(-1) * code).squeeze(-1)


def rounded(weight: Tensor, bits: int, squares: Tensor | None = None) -> Tensor:
    """`weight` [outputs, inputs] rounded to this many bits, in its own dtype. squares: see `quantised`."""
    parts = [_quantised(part, bits, squares).weights() for part in weight.detach().split(_ROUNDED_ROWS)]
    return torch.cat([part[:, : weight.shape[1]].to(weight.dtype) for part in parts])


def words(codes: Tensor, bits: int) -> Tensor:
    """Codes uint8 [..., 32 / bits] of inputs that follow each other, side by side: uint8 [..., 4]; or int32 [...],
    whose bytes have the first four in their lower halves."""
    if bits == 8:
        return codes.contiguous()
    return (codes[..., :4] | codes[..., 4:] << 4).view(torch.int32).squeeze(-1)


def codes_of(rows: Tensor, bits: int) -> Tensor:
    """The codes uint8 [n, 32 / bits · m] of which `words` made rows of 32 bits, [n, m] int32."""
    joined = rows.view(torch.uint8)
    if bits == 8:
        return joined
    joined = joined.unflatten(1, (-1, 4))
    return torch.cat([joined & 15, joined >> 4], -1).flatten(1)


def rounded_inputs(x: Tensor) -> Tensor:
    """`x` [..., inputs] in float32, as the kernels read it beside weights in few bits: in whole steps, of which the
    largest of a group has 127."""
    groups = functional.pad(x, (0, -x.shape[-1] % INPUT_GROUP)).unflatten(-1, (-1, INPUT_GROUP))
    steps = groups.abs().amax(-1, keepdim=True) / 127
    counts = torch.where(steps > _LEAST_STEP, groups * (1 / steps), 0).round()
    return (counts * steps).flatten(-2)[..., : x.shape[-1]]


@torch.no_grad()
def input_squares(model: PreTrainedModel, names: Sequence[str], token_ids: Sequence[int]) -> dict[str, Tensor]:
    """How large the inputs of these linear layers are, by name: [inputs] float32, summed squares over a text.

    A few dozen tokens of any kind tell it. Layers that none of them reaches, as some experts, are left out.
    """
    sums: dict[str, Tensor] = {}

    def add(name: str, part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows = inputs[0].detach().flatten(0, -2).float()
        sums[name] = sums.get(name, 0) + rows.square().sum(0)

    hooks = [model.get_submodule(name).register_forward_pre_hook(functools.partial(add, name)) for name in names]
    try:
        model(input_ids=torch.tensor([token_ids], device=model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return sums


def rounded_twin(model: PreTrainedModel, bits: int, squares: Mapping[str, Tensor]) -> PreTrainedModel:
    """`model` with the weights of its linear layers `rounded`, output head included, everything else shared with it.

    It takes as much memory as these weights once more, and reads as many bytes in each pass. squares: of
    `input_squares`.
    """
    twin = sharing_twin(model)
    for name, part in twin.named_modules():
        if not is_linear(part):
            continue
        weight = rounded(weight_of(part), bits, squares.get(name))
        part.weight = nn.Parameter(weight.T if isinstance(part, Conv1D) else weight, requires_grad=False)
    return twin
