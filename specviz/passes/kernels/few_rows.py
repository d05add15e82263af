"""A model's twin that runs on our own kernels for few tokens (few_rows.cpp): weights packed once, sums in float32.

Over several tokens its pass costs little more than over one, and a token's logits are the same, bit by bit, whatever
else is in the pass.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from specviz.passes.kernels import kernel_library, operations
from specviz.passes.kernels.few_bits import rounded_inputs
from specviz.passes.kernels.huge_pages import HugePages
from specviz.passes.kernels.packed_linear import SOME, FewRowsLinear, Packing
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

#: After packing this many bytes of weights, counted in float32, freed memory is returned to the system.
_TRIMMED_BYTES = 16 << 20


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
    """The weight [outputs, inputs] of a layer or its twin on the kernels, at most `SOME` rows at a time."""
    packed = part if isinstance(part, FewRowsLinear) else packed_of(part)
    yield from weight_of(part).split(SOME) if packed is None else packed.unpacked_parts()


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
class FewRows(Packing):
    """How twins are made."""

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
            return replace(self, half=twin_layer.packing.half)  # its weights may have been let go of since
        matrices = (weight.split(SOME) for weight in module.parameters() if weight.dim() > 1)
        parts = itertools.chain.from_iterable(matrices)
        return replace(self, half=all(torch.equal(part.bfloat16().to(part.dtype), part) for part in parts))

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        squares: Tensor | None = None,
        pages: HugePages | None = None,
    ) -> FewRowsLinear:
        return FewRowsLinear(weight, bias, self, squares, pages)

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
        pages = HugePages()
        counted = {part: squares.get(name) for name, part in model.named_modules()}

        def linear(part: nn.Module) -> FewRowsLinear:
            packed = packed_of(part)
            if packed is None or packed.packing != self:
                packed = self.linear(weight_of(part), part.bias, counted[part], pages)
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
    """[1, heads, n, size] -> [1, n, heads, size]; see `operations`; the kernels are loaded."""
    # Keys and values that a model makes anew of what it caches (DeepSeek-V3) are parts of one tensor.
    return operations.attention(query, key.contiguous(), value.contiguous(), mask, scale)


def _refuse_changed(packed: FewRowsLinear, weight: Tensor) -> None:
    """Raises SpecvizError (field ``passes``) unless these are the weights that were packed: a model may let go of its
    own, and what compares passes with the model reads them from here."""
    parts = zip(packed.unpacked_parts(), weight.split(SOME), strict=True)
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
    unusual = options.get("position_bias") is not None or value.shape[-1] != query.shape[-1] or len(query) > 1
    if attention_mask is None or attention_mask.shape[:2] != (1, 1) or unusual:
        return _SDPA(module, query, key, value, attention_mask, scaling=scaling, **options)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if attention_mask.dtype == torch.bool:  # transformers' own, where a twin reads without static buffers
        hidden = torch.zeros(attention_mask.shape, dtype=torch.float32)
        attention_mask = hidden.masked_fill(~attention_mask, torch.finfo(torch.float32).min)
    return attend(query, key, value, attention_mask, scale), None


# As soon as this module is there: a head that is sent to another process, to be compiled, names the function alone.
AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, AttentionMaskInterface()["sdpa"])
