"""A model's twin that runs on our own kernels for few tokens (few_rows.cpp): weights packed once, sums in float32.

Over several tokens its pass costs little more than over one, and a token's logits are the same, bit by bit, whatever
else is in the pass.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.few_bits import (
    INPUT_GROUP,
    Codes,
    Grid,
    codes_of,
    on_grids,
    quantised,
    rounded_inputs,
    words,
)
from specviz.passes.model_twins import (
    attending_by,
    drop_weight,
    is_linear,
    packed_of,
    shared_weights,
    sharing_twin,
    trim,
    weight_of,
)
from specviz.records.errors import SpecvizError

_SDPA = AttentionInterface()["sdpa"]

#: The kernels' among transformers' attention functions.
ATTENTION = "specviz_few_rows"

#: Outputs whose weights are unpacked, converted or compared at a time: all of a large head's would take as much memory
#: as the head once more.
_SOME = 256

#: After packing this many bytes of weights, counted in float32, freed memory is returned to the system.
_TRIMMED_BYTES = 16 << 20


class FewRowsLinear(nn.Module):
    """x Wᵀ + b for few rows x in float32, with W in float32, bfloat16, on a grid, or in 8 or 4 bits; sums in float32.

    panels: W in the order in which it is read, [outputs / panel, inputs / word, panel, word], filled up with zeros. A
    word of 32 bits holds one weight in float32, those of two inputs in bfloat16, or the codes of four or eight inputs
    (`few_bits.words`); its dtype says which: float32, bfloat16, uint8, int32. Of weights that were in bfloat16 x is
    rounded to it too where the processor multiplies that; int16 are weights in bfloat16 for x as it is. A program is
    compiled without knowing the dtype, so it serves them all.
    Weights on a grid (`few_bits.GRIDS`) lie in codes, which stand for them to the bit: 4 bits in words, 8 bits input by
    input, [outputs / panel, inputs, panel].
    scales: of codes, [outputs / panel, groups, panel]; in 4 bits int32 with the bfloat16s of a scale, above, and an
    offset; of a grid in float32, with offsets [outputs / panel, groups · 2, panel]. Other weights have them too, all 1
    and never read, so that one program serves all of them.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, few_rows: FewRows, squares: Tensor | None = None):
        """weight: [outputs, inputs]. squares: of its inputs, by which codes are chosen (`few_bits.quantised`)."""
        super().__init__()
        self.outputs, self.inputs = weight.shape
        self.few_rows = few_rows
        self.half = few_rows.half or weight.dtype == torch.bfloat16
        self.pairs = weight.dtype == torch.bfloat16 and few_rows.multiplied_in(weight.dtype) == torch.bfloat16
        on_grid = None if self.half or few_rows.bits is not None or weight.is_meta else on_grids(weight)
        self.grid = None if on_grid is None else on_grid[0]
        if on_grid is None:
            packed = [self._packed(rows, squares) for rows in weight.detach().split(_SOME)]
        else:
            packed = [self._packed_grids(part, on_grid[0]) for part in on_grid[1]]
        for name, parts in zip(("panels", "scales"), zip(*packed, strict=True), strict=True):
            self.register_buffer(name, torch.cat(parts))
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    def _packed(self, rows: Tensor, squares: Tensor | None) -> tuple[Tensor, Tensor]:
        """Panels and scales of some rows of the weight."""
        if self.few_rows.bits is not None:
            return self._packed_codes(quantised(rows, self.few_rows.bits, squares), self.few_rows.bits)
        weights = rows.to(torch.bfloat16 if self.half else torch.float32)
        inputs = 2 if self.half else 1  # of a word
        weights = functional.pad(weights, (0, -weights.shape[1] % inputs)).unflatten(1, (-1, inputs))
        panels = _in_panels(weights, self.few_rows.panel)
        if self.half and not self.pairs:
            panels = panels.view(torch.int16)
        return panels, _in_panels(torch.ones(len(rows), 1, dtype=torch.float32), self.few_rows.panel)

    def _packed_codes(self, coded: Codes, bits: int) -> tuple[Tensor, Tensor]:
        """The same of codes."""
        codes = coded.codes.flatten(1)
        codes = functional.pad(codes, (0, -codes.shape[1] % INPUT_GROUP)).unflatten(1, (-1, 32 // bits))
        scales = coded.scales
        if bits == 4:
            scales = torch.stack([coded.offsets, coded.scales], -1).bfloat16().view(torch.int32).squeeze(-1)
        return words(_in_panels(codes, self.few_rows.panel), bits), _in_panels(scales, self.few_rows.panel)

    def _packed_grids(self, coded: Codes, grid: Grid) -> tuple[Tensor, Tensor]:
        """The same of weights on a grid."""
        codes, scales = coded.codes.flatten(1), coded.scales
        if grid.offsets:
            scales = torch.stack([scales, coded.offsets], -1).flatten(1)
        if grid.bits == 4:
            panels = words(_in_panels(codes.unflatten(1, (-1, 8)), self.few_rows.panel), 4)
        else:
            panels = _in_panels(codes, self.few_rows.panel)
        return panels.view(grid.mark), _in_panels(scales, self.few_rows.panel)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        rows = x.reshape(-1, self.inputs).contiguous()
        out = kernel_library.linear(rows, self.panels, self.scales, self.bias, self.outputs)
        return out.view(*x.shape[:-1], self.outputs)

    @property
    def coded_bits(self) -> int | None:
        """Bits of the codes in which weights lie, on a grid or rounded; None if they lie there themselves."""
        return self.few_rows.bits or (None if self.grid is None else self.grid.bits)

    @property
    def read(self) -> list[Tensor]:
        """The tensors that a pass reads."""
        scales = None if self.coded_bits is None else self.scales
        return [part for part in (self.panels, scales, self.bias) if part is not None]

    def unpacked(self) -> Tensor:
        """[outputs, inputs]: the weights to the bit, or what codes stand for in float32."""
        weight = torch.empty(self.outputs, self.inputs, dtype=self._unpacked_dtype, device=self.panels.device)
        for part, rows in zip(weight.split(_SOME), self.unpacked_parts(), strict=True):
            part.copy_(rows)
        return weight

    def unpacked_parts(self) -> Iterator[Tensor]:
        """The rows of `unpacked`, at most `_SOME` at a time."""
        bits, panel = self.coded_bits, self.few_rows.panel
        by_inputs = self.grid is not None and self.grid.bits == 8
        panels = self.panels.view(torch.uint8 if by_inputs else torch.int32).view(len(self.panels), -1, panel)
        for first in range(0, self.outputs, _SOME):
            panel_range = slice(first // panel, -(-min(first + _SOME, self.outputs) // panel))
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
        elif self.few_rows.bits == 4:
            offsets, scales = scales.contiguous().unsqueeze(-1).view(torch.bfloat16).float().unbind(-1)
        else:
            offsets = -128 * scales
        return Codes(codes.unflatten(1, (scales.shape[1], -1)), scales, offsets)

    @property
    def _unpacked_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.half and self.few_rows.bits is None else torch.float32


def _in_panels(rows: Tensor, panel: int) -> Tensor:
    """[outputs, n, ...] -> [outputs / panel, n, panel, ...], filled up with zeros."""
    padded = functional.pad(rows, (*[0, 0] * (rows.dim() - 1), 0, -len(rows) % panel))
    return padded.unflatten(0, (-1, panel)).transpose(1, 2).contiguous()


class WideLinear(nn.Module):
    """A linear layer in any dtype, computed in float32, on inputs rounded to `inputs`.

    Weights are converted or unpacked some at a time, in every pass, so that they take no further memory.
    """

    def __init__(self, part: nn.Module, inputs: torch.dtype = torch.float32):
        """part: the layer, or its twin on the kernels."""
        super().__init__()
        # Not as a module, by the dtype of whose parameters a model knows its own.
        self.__dict__["part"] = part
        self.inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        x = rounded_inputs(x.float()) if self.inputs == torch.int8 else x.to(self.inputs).float()
        bias = self.part.bias
        products = [functional.linear(x, rows.float()) for rows in _weight_parts(self.part)]
        return torch.cat(products, -1) + (0 if bias is None else bias.float())


def _weight_parts(part: nn.Module) -> Iterator[Tensor]:
    """The weight [outputs, inputs] of a layer or its twin on the kernels, at most `_SOME` rows at a time."""
    packed = part if isinstance(part, FewRowsLinear) else packed_of(part)
    yield from weight_of(part).split(_SOME) if packed is None else packed.unpacked_parts()


class WideEmbedding(nn.Module):
    """A table of embeddings in any dtype, read in float32."""

    def __init__(self, table: nn.Embedding):
        super().__init__()
        self.table = copy.copy(table)
        # Not as a parameter, by whose dtype a model knows its own.
        self.table._parameters, self.table._buffers = {}, dict(table._buffers)
        self.table.register_buffer("weight", table.weight)

    @property
    def weight(self) -> Tensor:
        return self.table.weight

    def forward(self, *arguments: object, **named: object) -> Tensor:
        return self.table(*arguments, **named).float()


@dataclass(frozen=True)
class FewRows:
    """How twins are made. A program depends on what is printed of it."""

    panel: int  # outputs in a panel of weights, see `kernel_library.load`
    half: bool = field(default=False, repr=False)  # whether weights in float32 are kept in bfloat16
    bits: int | None = field(default=None, repr=False)  # in which they are kept instead: 8 or 4, see `quantised`

    @classmethod
    def ready(cls) -> FewRows:
        """With the kernels loaded. Raises SpecvizError (field ``passes``) if they cannot be built here."""
        return cls(kernel_library.load())

    def fitting(self, module: nn.Module) -> FewRows:
        """The same for the weights of `module`: kept in bfloat16 if that changes none of them.

        So a checkpoint in bfloat16 is read with half the bytes in float32 too.
        """
        packed = (packed_of(part) for part in module.modules())
        if twin_layer := next(filter(None, packed), None):
            return replace(self, half=twin_layer.few_rows.half)  # its weights may have been let go of since
        matrices = (weight.split(_SOME) for weight in module.parameters() if weight.dim() > 1)
        parts = itertools.chain.from_iterable(matrices)
        return replace(self, half=all(torch.equal(part.bfloat16().to(part.dtype), part) for part in parts))

    def multiplied_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype to which inputs are rounded before weights of this dtype multiply them: beside weights in few bits
        int8, as `few_bits.rounded_inputs` does it."""
        if self.bits is not None:
            return torch.int8
        rounds = dtype == torch.bfloat16 and kernel_library.multiplies_bfloat16()
        return torch.bfloat16 if rounds else torch.float32

    def linear(self, weight: Tensor, bias: Tensor | None = None, squares: Tensor | None = None) -> FewRowsLinear:
        return FewRowsLinear(weight, bias, self, squares)

    def twin(
        self, model: PreTrainedModel, releasing: bool = False, squares: Mapping[str, Tensor] = MappingProxyType({})
    ) -> PreTrainedModel:
        """`model` with its linear layers and its attention by the kernels, everything else in float32.

        Tables of embeddings are shared with it. releasing: whether the model lets go of each weight as soon as it is
        packed (`model_twins.drop_weight`), but for those that it reads otherwise too; else nothing of it is changed.
        squares: of `few_bits.input_squares`, for weights in few bits.
        """
        twin, shared = sharing_twin(model), shared_weights(model)
        unreturned: list[int] = []
        counted = {part: squares.get(name) for name, part in model.named_modules()}

        def linear(part: nn.Module) -> FewRowsLinear:
            packed = packed_of(part)
            if packed is None or packed.few_rows != self:
                packed = self.linear(weight_of(part), part.bias, counted[part])
                if self.bits is None and not part.weight.is_meta:  # whose weights are only described
                    _refuse_changed(packed, weight_of(part))
            # What is smaller than a panel takes more room in one.
            if releasing and id(part.weight) not in shared and packed.outputs >= self.panel:
                drop_weight(part, packed)
            unreturned.append(4 * packed.outputs * packed.inputs)
            if sum(unreturned) >= _TRIMMED_BYTES:
                trim()
                unreturned.clear()
            return packed

        _widen(twin, model, linear)
        if model.config.get_text_config()._attn_implementation != "sdpa" or not model._supports_attention_backend:
            return twin
        return attending_by(twin, ATTENTION)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """[1, heads, n, size] -> [1, n, heads, size]; see `kernel_library`, which is loaded."""
    # Keys and values that a model makes anew of what it caches (DeepSeek-V3) are parts of one tensor.
    return kernel_library.attention(query, key.contiguous(), value.contiguous(), mask, scale)


def _refuse_changed(packed: FewRowsLinear, weight: Tensor) -> None:
    """Raises SpecvizError (field ``passes``) unless these are the weights that were packed: a model may let go of its
    own, and what compares passes with the model reads them from here."""
    parts = zip(packed.unpacked_parts(), weight.split(_SOME), strict=True)
    if not all(torch.equal(rows.to(original.dtype), original) for rows, original in parts):
        raise SpecvizError("Our kernels did not preserve all weights exactly, so they are not used.", "passes")


def in_float32(
    model: PreTrainedModel, packed: PreTrainedModel | None = None, inputs: torch.dtype = torch.float32
) -> PreTrainedModel:
    """A twin of `model` that computes in float32 on the same weights, to compare others with.

    packed: the twin on the kernels whose weights it reads instead. inputs: the dtype to which linear layers' inputs are
    rounded.
    """
    twin = sharing_twin(model)
    _widen(twin, model if packed is None else packed, functools.partial(WideLinear, inputs=inputs))
    return twin


def _widen(twin: nn.Module, source: nn.Module, linear: Callable[[nn.Module], nn.Module]) -> None:
    """Makes all of the twin compute in float32. linear: makes what replaces a layer, of the one there in `source`."""
    _replace(twin, source, linear)
    for module in twin.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            module._parameters[name] = nn.Parameter(weight.detach().float(), requires_grad=False)
    # A model takes its own dtype to be that of its first parameter, and some have none left.
    twin.register_parameter("float32", nn.Parameter(torch.empty(0, dtype=torch.float32), requires_grad=False))


def _replace(twin: nn.Module, source: nn.Module, linear: Callable[[nn.Module], nn.Module]) -> None:
    # Going down by hand: a list of all modules would hold on to what was replaced.
    for name, part in list(twin.named_children()):
        source_part = getattr(source, name)
        if is_linear(part):
            setattr(twin, name, linear(source_part))
        elif isinstance(part, nn.Embedding):
            setattr(twin, name, WideEmbedding(part))
        elif not isinstance(part, (FewRowsLinear, WideLinear, WideEmbedding)):
            _replace(part, source_part, linear)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """As transformers' own function over SDPA, which serves whatever the kernel does not know."""
    one_mask = attention_mask is not None and attention_mask.shape[:2] == (1, 1)
    if not one_mask or options.get("position_bias") is not None or value.shape[-1] != query.shape[-1]:
        return _SDPA(module, query, key, value, attention_mask, scaling=scaling, **options)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, key, value, attention_mask, scale), None


# As soon as this module is there: a head that is sent to another process, to be compiled, names the function alone.
AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, AttentionMaskInterface()["sdpa"])
