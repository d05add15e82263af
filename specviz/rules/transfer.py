"""Between host and device: from the host without waiting for the device's earlier work; back in one transfer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def on_cpu(tensor: Tensor) -> bool:
    """True if the tensor is on the CPU, where NumPy can read it without waiting for a device."""
    return tensor.device.type == "cpu"


def to_device(values: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    """The values on `device`; whole numbers as int64.

    CUDA copies from ordinary memory only once the stream has come that far: a target pass would not even be launched
    before the draft is done. From page-locked memory the copy takes its turn in the stream.
    """
    host = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, dtype=np.int64))
    if device.type == "cpu":
        return host
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def to_host(parts: Mapping[str, Tensor]) -> dict[str, Any]:
    """All parts as by `Tensor.tolist`. From another device they come in one copy; on a CPU each is read in place."""
    if not all(map(on_cpu, parts.values())):
        return Layout.of(parts).read(packed(parts).cpu())
    return {name: part.tolist() for name, part in parts.items()}


def packed(parts: Mapping[str, Tensor]) -> Tensor:
    """All parts in one row of float64, which holds every id and float32 exactly; `Layout` finds them again.

    One operation for all parts of a dtype, since many small ones would take longer than a round's decisions.
    """
    return torch.cat([torch.cat(flat).double() for flat in _flat(parts).values()])


def _flat(parts: Mapping[str, Tensor]) -> dict[torch.dtype, list[Tensor]]:
    """The parts by dtype, each flattened."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for part in parts.values():
        by_dtype.setdefault(part.dtype, []).append(part.reshape(-1))
    return by_dtype


class Layout:
    """Where each part lies in a packed row, and what form it had.

    forms: shape and dtype by name, in the order of `packed`: the parts of a dtype beside each other.
    """

    def __init__(self, forms: Mapping[str, tuple[torch.Size, torch.dtype]]):
        self.forms = forms
        self.sizes = [math.prod(shape) for shape, _ in forms.values()]

    @classmethod
    def of(cls, parts: Mapping[str, Tensor]) -> Layout:
        forms = {name: (part.shape, part.dtype) for name, part in parts.items()}
        order = list(_flat(parts))
        return cls(dict(sorted(forms.items(), key=lambda form: order.index(form[1][1]))))

    def read(self, row: Tensor, *names: str) -> dict[str, Any]:
        """The parts of a row on the host, as by `Tensor.tolist`: those of these names, or all."""
        cells = zip(self.forms.items(), row.split(self.sizes))
        return {
            name: cell.view(shape).to(dtype).tolist()
            for (name, (shape, dtype)), cell in cells
            if not names or name in names
        }
