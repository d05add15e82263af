"""A model's twin that runs on our own kernels for few tokens (few_rows.cpp): weights packed once, sums in float32.

Over several tokens its pass costs little more than over one, and a token's logits are the same, bit by bit, whatever
else is in the pass.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specviz.passes import kernel_library
from specviz.passes.twins import attending_by, sharing_twin
from specviz.records.errors import SpecvizError

#: Arguments of attention functions that change more than the mask says.
_FURTHER = ("position_bias", "s_aux", "softcap")

_SDPA = AttentionInterface()["sdpa"]


class FewRowsLinear(nn.Module):
    """x Wᵀ + b for few rows x in float32, with W in bfloat16 or float32.

    panels: W in the order in which it is read, [outputs / panel, inputs, panel], its last panel filled up with zeros.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, panel: int, threads: int):
        """weight: [outputs, inputs]. panel: outputs in a panel, see `kernel_library.load`."""
        super().__init__()
        self.outputs, self.inputs = weight.shape
        self.threads = threads
        kept = weight.detach() if weight.dtype == torch.bfloat16 else weight.detach().float()
        whole = nn.functional.pad(kept, (0, 0, 0, -self.outputs % panel))
        self.register_buffer("panels", whole.unflatten(0, (-1, panel)).transpose(1, 2).contiguous())
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        rows = x.reshape(-1, self.inputs).contiguous()
        out = torch.ops.specviz.few_rows_linear(rows, self.panels, self.bias, self.outputs, self.threads)
        return out.view(*x.shape[:-1], self.outputs)


class WideEmbedding(nn.Module):
    """A table of embeddings in any dtype, read in float32."""

    def __init__(self, table: nn.Embedding):
        super().__init__()
        self.table = table

    @property
    def weight(self) -> Tensor:
        return self.table.weight

    def forward(self, *given: object, **others: object) -> Tensor:
        return self.table(*given, **others).float()


@dataclass(frozen=True)
class FewRows:
    """How twins are made. panel: of the weights, see `kernel_library.load`. threads: on which they will run."""

    panel: int
    threads: int

    @classmethod
    def ready(cls, threads: int) -> FewRows:
        """With the kernels loaded. Raises SpecvizError (field ``passes``) if they cannot be built here."""
        return cls(kernel_library.load(), threads)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> FewRowsLinear:
        return FewRowsLinear(weight, bias, self.panel, self.threads)

    def twin(self, model: PreTrainedModel) -> PreTrainedModel:
        """`model` with its linear layers and its attention by the kernels, everything else in float32.

        Nothing of the model itself is changed; tables of embeddings are shared with it. Raises SpecvizError (field
        ``passes``) if most of its weights are in other layers: they would take twice the memory.
        """
        twin = sharing_twin(model)
        self._replace_layers(twin)
        packed = sum(part.panels.numel() for part in twin.modules() if isinstance(part, FewRowsLinear))
        if _widen(twin) > packed:
            raise SpecvizError(
                "Most weights of {name} are not in linear layers, so it has no compiled passes.",
                "passes",
                name=model.name_or_path or type(model).__name__,
            )
        if model.config.get_text_config()._attn_implementation != "sdpa" or not model._supports_attention_backend:
            return twin
        return attending_by(twin, self._attention_name())

    def _replace_layers(self, whole: nn.Module) -> None:
        for parent in list(whole.modules()):
            for name, part in list(parent.named_children()):
                if type(part) is nn.Linear:
                    setattr(parent, name, self.linear(part.weight, part.bias))
                elif isinstance(part, Conv1D):
                    setattr(parent, name, self.linear(part.weight.T, part.bias))
                elif isinstance(part, nn.Embedding):
                    setattr(parent, name, WideEmbedding(part))

    def _attention_name(self) -> str:
        """Among transformers' attention functions, for this number of threads."""
        name = f"specviz_few_rows_{self.threads}"
        AttentionInterface.register(name, functools.partial(_attention, self))
        AttentionMaskInterface.register(name, AttentionMaskInterface()["sdpa"])
        return name

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
        """[1, heads, n, size] -> [1, n, heads, size]; see `kernel_library`."""
        return torch.ops.specviz.few_rows_attention(query, key, value, mask, scale, self.threads)


def _widen(twin: nn.Module) -> int:
    """Turns all parameters but tables of embeddings into float32; returns how many numbers those were."""
    tables = {id(part.weight) for part in twin.modules() if isinstance(part, nn.Embedding)}
    count = 0
    for module in twin.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if id(weight) not in tables:
                module._parameters[name] = nn.Parameter(weight.detach().float(), requires_grad=False)
                count += weight.numel()
    return count


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
    further = any(others.get(name) is not None for name in _FURTHER)
    if not one_mask or further or value.shape[-1] != query.shape[-1]:
        return _SDPA(module, query, key, value, attention_mask, scaling=scaling, **others)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return few_rows.attend(query, key, value, attention_mask, scale), None
