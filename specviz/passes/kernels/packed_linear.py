"""Linear layers on our own kernels for few tokens (few_rows.cpp): how their weights are packed, and unpacked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from specviz.passes.kernels import kernel_library, operations
from specviz.passes.kernels.few_bits import INPUT_GROUP, Codes, codes_of, quantised, words
from specviz.passes.kernels.grids import Grid, on_grids
from specviz.passes.kernels.huge_pages import HugePages

#: Outputs whose weights are unpacked, converted or compared at a time: all of a large head's would take as much memory
#: as the head once more.
SOME = 256


@dataclass(frozen=True)
class Packing:
    """How weights are packed. A program depends on what is printed of it."""

    panel: int  # outputs in a panel of weights, see `kernel_library.load`
    half: bool = field(default=False, repr=False)  # whether weights in float32 are kept in bfloat16
    bits: int | None = field(default=None, repr=False)  # in which they are kept instead: 8 or 4, see `quantised`

    def multiplied_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype to which inputs are rounded before weights of this dtype multiply them: beside weights in few bits
        int8, as `few_bits.rounded_inputs` does it."""
        if self.bits is not None:
            return torch.int8
        rounds = dtype == torch.bfloat16 and kernel_library.multiplies_bfloat16()
        return torch.bfloat16 if rounds else torch.float32


class FewRowsLinear(nn.Module):
    """x Wᵀ + b for few rows x in float32, with W in float32, bfloat16, on a grid, or in 8 or 4 bits; sums in float32.

    panels: W in the order in which it is read, [outputs / panel, inputs / word, panel, word], filled up with zeros. A
    word of 32 bits holds one weight in float32, those of two inputs in bfloat16, or the codes of four or eight inputs
    (`few_bits.words`); its dtype says which: float32, bfloat16, uint8, int32. Of weights that were in bfloat16 x is
    rounded to it too where the processor multiplies that; int16 are weights in bfloat16 for x as it is. A program is
    compiled without knowing the dtype, so it serves them all.
    Weights on a grid (`grids.GRIDS`) lie in codes, which stand for them to the bit: 4 bits in words, 8 bits input by
    input, [outputs / panel, inputs, panel].
    scales: of codes, [outputs / panel, groups, panel]; in 4 bits int32 with the bfloat16s of a scale, above, and an
    offset; of a grid in float16 where all of them are in it, or else in float32, with offsets [outputs / panel,
    groups · 2, panel]. Other weights have them too, all 1 and never read, so that one program serves all of them.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        packing: Packing,
        squares: Tensor | None = None,
        pages: HugePages | None = None,
    ):
        """weight: [outputs, inputs]. squares: of its inputs, by which codes are chosen (`few_bits.quantised`).
        pages: where panels and scales are laid, beside those of other layers."""
        super().__init__()
        self.outputs, self.inputs = weight.shape
        self.packing = packing
        self.half = packing.half or weight.dtype == torch.bfloat16
        self.pairs = weight.dtype == torch.bfloat16 and packing.multiplied_in(weight.dtype) == torch.bfloat16
        on_grid = None if self.half or packing.bits is not None or weight.is_meta else on_grids(weight)
        self.grid = None if on_grid is None else on_grid[0]
        if on_grid is None:
            packed = [self._packed(rows, squares) for rows in weight.detach().split(SOME)]
        else:
            packed = [self._packed_grids(part, on_grid[0]) for part in on_grid[1]]
        joined = torch.cat if pages is None or weight.is_meta else pages.joined
        for name, parts in zip(("panels", "scales"), zip(*packed, strict=True), strict=True):
            self.register_buffer(name, joined(parts))
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    def _packed(self, rows: Tensor, squares: Tensor | None) -> tuple[Tensor, Tensor]:
        """Panels and scales of some rows of the weight."""
        if self.packing.bits is not None:
            return self._packed_codes(quantised(rows, self.packing.bits, squares), self.packing.bits)
        weights = rows.to(torch.bfloat16 if self.half else torch.float32)
        inputs = 2 if self.half else 1  # of a word
        weights = functional.pad(weights, (0, -weights.shape[1] % inputs)).unflatten(1, (-1, inputs))
        panels = _in_panels(weights, self.packing.panel)
        if self.half and not self.pairs:
            panels = panels.view(torch.int16)
        return panels, _in_panels(torch.ones(len(rows), 1, dtype=torch.float32), self.packing.panel)

    def _packed_codes(self, coded: Codes, bits: int) -> tuple[Tensor, Tensor]:
        """The same of codes."""
        codes = coded.codes.flatten(1)
        codes = functional.pad(codes, (0, -codes.shape[1] % INPUT_GROUP)).unflatten(1, (-1, 32 // bits))
        scales = coded.scales
        if bits == 4:
            scales = torch.stack([coded.offsets, coded.scales], -1).bfloat16().view(torch.int32).squeeze(-1)
        return words(_in_panels(codes, self.packing.panel), bits), _in_panels(scales, self.packing.panel)

    def _packed_grids(self, coded: Codes, grid: Grid) -> tuple[Tensor, Tensor]:
        """The same of weights on a grid."""
        codes, scales = coded.codes.flatten(1), coded.scales
        if grid.offsets:
            scales = torch.stack([scales, coded.offsets], -1).flatten(1)
        if grid.bits == 4:
            panels = words(_in_panels(codes.unflatten(1, (-1, 8)), self.packing.panel), 4)
        else:
            panels = _in_panels(codes, self.packing.panel)
        mark = grid.short if grid.short and scales.dtype == torch.float16 else grid.mark
        return panels.view(mark), _in_panels(scales, self.packing.panel)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        rows = x.reshape(-1, self.inputs).contiguous()
        out = operations.linear(rows, self.panels, self.scales, self.bias, self.outputs)
        return out.view(*x.shape[:-1], self.outputs)

    @property
    def coded_bits(self) -> int | None:
        """Bits of the codes in which weights lie, on a grid or rounded; None if they lie there themselves."""
        return self.packing.bits or (None if self.grid is None else self.grid.bits)

    @property
    def read(self) -> list[Tensor]:
        """The tensors that a pass reads."""
        scales = None if self.coded_bits is None else self.scales
        return [part for part in (self.panels, scales, self.bias) if part is not None]

    def unpacked(self) -> Tensor:
        """[outputs, inputs]: the weights to the bit, or what codes stand for in float32."""
        weight = torch.empty(self.outputs, self.inputs, dtype=self._unpacked_dtype, device=self.panels.device)
        for part, rows in zip(weight.split(SOME), self.unpacked_parts(), strict=True):
            part.copy_(rows)
        return weight

    def unpacked_parts(self) -> Iterator[Tensor]:
        """The rows of `unpacked`, at most `SOME` at a time."""
        bits, panel = self.coded_bits, self.packing.panel
        by_inputs = self.grid is not None and self.grid.bits == 8
        panels = self.panels.view(torch.uint8 if by_inputs else torch.int32).view(len(self.panels), -1, panel)
        for first in range(0, self.outputs, SOME):
            panel_range = slice(first // panel, -(-min(first + SOME, self.outputs) // panel))
            rows = panels[panel_range].transpose(1, 2).flatten(0, 1).contiguous()
            if bits is None:
                rows = rows.view(self._unpacked_dtype)
            else:
                rows = self._coded(rows if by_inputs else codes_of(rows, bits), panel_range).weights()
            yield rows[: self.outputs - first, : self.inputs]

    def _coded(self, codes: Tensor, panel_range: slice) -> Codes:
        """What codes [n, inputs] uint8 of these panels stand for."""
        scales = self.scales[panel_range].transpose(1, 2).flatten(0, 1)
        if self.grid is not None:
            if self.grid.offsets:
                scales, offsets = scales.unflatten(1, (-1, 2)).unbind(-1)
            else:
                codes, offsets = codes.view(torch.int8), torch.zeros_like(scales)
        elif self.packing.bits == 4:
            offsets, scales = scales.contiguous().unsqueeze(-1).view(torch.bfloat16).float().unbind(-1)
        else:
            offsets = -128 * scales
        return Codes(codes.unflatten(1, (scales.shape[1], -1)), scales, offsets)

    @property
    def _unpacked_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.half and self.packing.bits is None else torch.float32


def _in_panels(rows: Tensor, panel: int) -> Tensor:
    """[outputs, n, ...] -> [outputs / panel, n, panel, ...], filled up with zeros."""
    padded = functional.pad(rows, (*[0, 0] * (rows.dim() - 1), 0, -len(rows) % panel))
    return padded.unflatten(0, (-1, panel)).transpose(1, 2).contiguous()
