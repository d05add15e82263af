"""A model's twin that runs on our own kernels for few tokens (few_rows.cpp): weights packed once, sums in float32.

Over several tokens its pass costs little more than over one, and a token's logits are the same, bit by bit, whatever
else is in the pass.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specviz.passes import kernel_library
from specviz.passes.quantisation import quantised, rounded, words
from specviz.passes.twins import attending_by, sharing_twin

_SDPA = AttentionInterface()["sdpa"]


#: Inputs whose codes are summed at a time (few_rows.cpp).
GROUPED = 32


class FewRowsLinear(nn.Module):
    """x Wᵀ + b for few rows x in float32, with W in float32, bfloat16, 8 or 4 bits; sums in float32.

    panels: W in the order in which it is read, [outputs / panel, inputs / word, panel, word], filled up with zeros. A
    word of 32 bits holds one weight in float32, those of two inputs in bfloat16, or the codes of four or eight inputs
    (`quantisation.words`); its dtype says which: float32, bfloat16, uint8, int32. Of weights that were in bfloat16 x is
    rounded to it too where the processor multiplies that; int16 are weights in bfloat16 for x as it is. A program is
    compiled without knowing the dtype, so it serves them all.
    scales: of codes, [outputs / panel, groups, panel], times 2^bits; other weights have them too, all 1 and never read,
    so that one program serves all of them.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, few_rows: FewRows):
        """weight: [outputs, inputs]."""
        super().__init__()
        self.outputs, self.inputs = weight.shape
        self.threads = few_rows.threads
        half = few_rows.half or weight.dtype == torch.bfloat16
        bits = few_rows.bits or (16 if half else 32)
        if few_rows.bits is None:
            kept, scales = weight.detach().to(torch.bfloat16 if half else torch.float32), torch.ones(len(weight), 1)
        else:
            codes, scales = quantised(weight, bits)
            kept, scales = codes.flatten(1), scales * 2**bits
        whole = functional.pad(kept, (0, -kept.shape[1] % (32 // bits if few_rows.bits is None else GROUPED)))
        panels = _in_panels(whole.unflatten(1, (-1, 32 // bits)), few_rows.panel)
        if few_rows.bits is not None:
            panels = words(panels, bits)
        elif half and few_rows.multiplied_in(weight.dtype) != torch.bfloat16:
            panels = panels.view(torch.int16)
        self.register_buffer("panels", panels)
        self.register_buffer("scales", _in_panels(scales, few_rows.panel))
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        rows = x.reshape(-1, self.inputs).contiguous()
        out = torch.ops.specviz.few_rows_linear(rows, self.panels, self.scales, self.bias, self.outputs, self.threads)
        return out.view(*x.shape[:-1], self.outputs)


def _in_panels(rows: Tensor, panel: int) -> Tensor:
    """[outputs, n, ...] -> [outputs / panel, n, panel, ...], filled up with zeros."""
    whole = functional.pad(rows, (*[0, 0] * (rows.dim() - 1), 0, -len(rows) % panel))
    return whole.unflatten(0, (-1, panel)).transpose(1, 2).contiguous()


class WideLinear(nn.Module):
    """A linear layer in any dtype, computed in float32, on inputs rounded to `inputs`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, inputs: torch.dtype = torch.float32):
        super().__init__()
        self.inputs = inputs
        # Not as parameters, by whose dtype a model knows its own.
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.inputs).float()
        return functional.linear(x, self.weight.float(), None if self.bias is None else self.bias.float())


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

    def forward(self, *given: object, **others: object) -> Tensor:
        return self.table(*given, **others).float()


@dataclass(frozen=True)
class FewRows:
    """How twins are made. A program depends on what is printed of it."""

    panel: int  # outputs in a panel of weights, see `kernel_library.load`
    threads: int  # on which they will run
    half: bool = field(default=False, repr=False)  # whether weights in float32 are kept in bfloat16
    bits: int | None = field(default=None, repr=False)  # in which they are kept instead: 8 or 4, see `quantised`

    @classmethod
    def ready(cls, threads: int) -> FewRows:
        """With the kernels loaded. Raises SpecvizError (field ``passes``) if they cannot be built here."""
        return cls(kernel_library.load(), threads)

    def fitting(self, module: nn.Module) -> FewRows:
        """The same for the weights of `module`: kept in bfloat16 if that changes none of them.

        So a checkpoint in bfloat16 is read with half the bytes in float32 too.
        """
        matrices = (weight for weight in module.parameters() if weight.dim() > 1)
        return replace(self, half=all(torch.equal(weight.bfloat16().to(weight.dtype), weight) for weight in matrices))

    def multiplied_in(self, dtype: torch.dtype) -> torch.dtype:
        """What weights in this dtype, and inputs, are multiplied in."""
        rounds = dtype == torch.bfloat16 and self.bits is None and kernel_library.multiplies_bfloat16()
        return torch.bfloat16 if rounds else torch.float32

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> FewRowsLinear:
        return FewRowsLinear(weight, bias, self)

    def twin(self, model: PreTrainedModel) -> PreTrainedModel:
        """`model` with its linear layers and its attention by the kernels, everything else in float32.

        Nothing of the model itself is changed; tables of embeddings are shared with it.
        """
        twin = sharing_twin(model)
        _widen(twin, self.linear)
        if model.config.get_text_config()._attn_implementation != "sdpa" or not model._supports_attention_backend:
            return twin
        return attending_by(twin, self._attention_name())

    def _attention_name(self) -> str:
        """Among transformers' attention functions, for this number of threads."""
        name = f"specviz_few_rows_{self.threads}"
        AttentionInterface.register(name, functools.partial(_attention, self))
        AttentionMaskInterface.register(name, AttentionMaskInterface()["sdpa"])
        return name

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
        """[1, heads, n, size] -> [1, n, heads, size]; see `kernel_library`."""
        return torch.ops.specviz.few_rows_attention(query, key, value, mask, scale, self.threads)


def in_float32(model: PreTrainedModel, bits: int | None = None, inputs: torch.dtype = torch.float32) -> PreTrainedModel:
    """A twin of `model` that computes in float32 on the same weights: what other ways to do so are compared with.

    bits: in which the linear layers' weights are kept. inputs: what their inputs are rounded to.
    """

    def linear(weight: Tensor, bias: Tensor | None) -> WideLinear:
        return WideLinear(weight if bits is None else rounded(weight.float(), bits), bias, inputs)

    twin = sharing_twin(model)
    _widen(twin, linear)
    return twin


def _widen(twin: nn.Module, linear: Callable[[Tensor, Tensor | None], nn.Module]) -> None:
    """Makes all of the twin compute in float32. linear: a linear layer of weight [outputs, inputs] and bias."""
    for parent in list(twin.modules()):
        for name, part in list(parent.named_children()):
            if type(part) is nn.Linear:
                setattr(parent, name, linear(part.weight, part.bias))
            elif isinstance(part, Conv1D):
                setattr(parent, name, linear(part.weight.T, part.bias))
            elif isinstance(part, nn.Embedding):
                setattr(parent, name, WideEmbedding(part))
    for module in twin.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            module._parameters[name] = nn.Parameter(weight.detach().float(), requires_grad=False)
    # A model takes its own dtype to be that of its first parameter, and some have none left.
    twin.register_parameter("float32", nn.Parameter(torch.empty(0), requires_grad=False))


def _attention(
    few_rows: FewRows,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """As transformers' own function over SDPA, which serves whatever the kernel does not know."""
    one_mask = attention_mask is not None and attention_mask.shape[:2] == (1, 1)
    if not one_mask or others.get("position_bias") is not None or value.shape[-1] != query.shape[-1]:
        return _SDPA(module, query, key, value, attention_mask, scaling=scaling, **others)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return few_rows.attend(query, key, value, attention_mask, scale), None
