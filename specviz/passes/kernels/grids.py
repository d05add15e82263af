"""Weights on grids: codes of 8 or 4 bits that stand for them to the bit, as our kernels read them (grids.h)."""

from typing import NamedTuple

import torch
from torch import Tensor

from specviz.passes.kernels.few_bits import Codes

#: Rows that are searched for grids in float64 at a time: more would only hold more copies of a large matrix at once.
_ROWS = 64


class Grid(NamedTuple):
    """How weights can lie in codes that change none of them."""

    bits: int  # of a code
    group: int  # how many columns of a row share a scale
    offsets: bool  # whether they share an offset too, to which codes are added; codes without offsets have a sign
    mark: torch.dtype  # by which the kernels know such codes
    short: torch.dtype | None = None  # the same beside scales and offsets in float16, which some grids may have

    @property
    def codes(self) -> tuple[int, int]:
        """The least and the greatest."""
        return (0, 2**self.bits - 1) if self.offsets else (-128, 127)


#: Those that the kernels read, shortest first. GGUF files have groups of 32 columns, or in some kinds of 16.
GRIDS = (
    Grid(4, 32, offsets=True, mark=torch.int64, short=torch.uint64),
    Grid(8, 32, offsets=False, mark=torch.int8, short=torch.float16),
    Grid(8, 16, offsets=False, mark=torch.uint16),
    Grid(8, 16, offsets=True, mark=torch.uint32),
)


def on_grids(weight: Tensor) -> tuple[Grid, list[Codes]] | None:
    """`weight` [outputs, inputs], of any float dtype, in codes that change none of its numbers: the shortest kind that
    there is, and the codes of a few rows at a time. None if there is none.

    Weights out of GGUF files of the usual kinds (Q2_K to Q8_0) have such codes: they are products of whole numbers with
    numbers in float16, and sums of two such, so all are multiples of 2^-24. Here they are whole numbers, the step of a
    group is what divides them, or all differences in it, and nothing is rounded or guessed. A sum above 1 that float32
    has rounded already may be off its grid.
    """
    for grid in GRIDS:
        parts = []
        for rows in weight.detach().split(_ROWS):
            if (part := _on_grid(rows, grid)) is None:
                break
            parts.append(part)
        else:
            return grid, _shortened(parts, grid)
    return None


def _shortened(parts: list[Codes], grid: Grid) -> list[Codes]:
    """The same with scales and offsets in float16, if those of all groups can be."""
    shortened = []
    for part in parts if grid.short else ():
        if (short := _in_float16(part, grid)) is None:
            return parts
        shortened.append(short)
    return shortened or parts


def _on_grid(rows: Tensor, grid: Grid) -> Codes | None:
    integers = rows.double() * 2**24
    if not integers.round().equal(integers) or integers.abs().max() >= 2**53:  # beyond it float64 skips integers
        return None
    # The last group is filled up with its last number, which changes no grid.
    short = -rows.shape[1] % grid.group
    groups = torch.cat([integers, integers[:, -1:].expand(-1, short)], 1).view(-1, grid.group)
    least = groups.amin(-1, keepdim=True) if grid.offsets else groups.new_zeros(len(groups), 1)
    steps = groups - least
    if not steps.float().double().equal(steps):  # code · scale would be rounded
        return None
    step = _common_divisors(steps.abs())
    codes = steps / step
    low, high = grid.codes
    if codes.min() < low or codes.max() > high:
        return None
    held = codes.to(torch.uint8 if grid.offsets else torch.int8).view(len(rows), -1, grid.group)
    scales, offsets = ((part / 2**24).float().view(len(rows), -1) for part in (step, least))
    return Codes(held, scales, offsets)


def _common_divisors(numbers: Tensor) -> Tensor:
    """The greatest of each row [n, m] of whole numbers from 0 on, as [n, 1]; 1 of zeros."""
    divisors, rest = numbers.amax(-1, keepdim=True).clamp_min(1), torch.arange(len(numbers), device=numbers.device)
    while len(rest):
        unfinished, candidates = numbers[rest], divisors[rest]
        left = (unfinished - (unfinished / candidates).round() * candidates).abs().amax(-1, keepdim=True)
        divisors[rest] = torch.gcd(candidates.long(), left.long()).double()
        rest = rest[left.squeeze(-1) > 0]
    return divisors


def _in_float16(coded: Codes, grid: Grid) -> Codes | None:
    """The same weights with scales and offsets in float16, or None.

    Such numbers are a file's own (Q4_0, Q4_1, Q8_0), and mostly those that were found. But a step that was found is a
    multiple of the file's scale where all codes are, and the least weight lies some codes above the file's offset, or
    below it if the file's scale is negative: then others that stand for the same weights are in float16.
    """
    steps, least = (part.reshape(-1, 1).double() for part in (coded.scales, coded.offsets))
    if _is_float16(steps).all() and _is_float16(least).all():
        return coded._replace(scales=coded.scales.half(), offsets=coded.offsets.half())
    codes, most = coded.codes.flatten(0, 1).int(), grid.codes[1]
    # Steps 1, 2, … times as fine, of which there are as many as codes allow.
    finer = torch.arange(1, most + 1)
    fits = _is_float16(steps / finer) & (codes.abs().amax(-1, keepdim=True) * finer <= most)
    if not fits.any(-1).all():
        return None
    chosen = fits.int().argmax(-1, keepdim=True) + 1
    codes, steps = codes * chosen, steps / chosen
    if grid.offsets:
        # From an offset so many steps below the least weight upwards, or above the greatest downwards.
        farther, span = torch.arange(most + 1), codes.amax(-1, keepdim=True)
        starts = torch.cat([least - farther * steps, least + (span + farther) * steps], -1)
        fits = _is_float16(starts) & (span + farther <= most).repeat(1, 2)
        if not fits.any(-1).all():
            return None
        chosen = fits.int().argmax(-1, keepdim=True)
        far, down = chosen % len(farther), chosen >= len(farther)
        codes = far + torch.where(down, span - codes, codes)
        steps, least = torch.where(down, -steps, steps), starts.gather(-1, chosen)
    scales, offsets = (part.half().view_as(coded.scales) for part in (steps, least))
    return Codes(codes.to(coded.codes.dtype).view_as(coded.codes), scales, offsets)


def _is_float16(numbers: Tensor) -> Tensor:
    return numbers.half().double() == numbers
