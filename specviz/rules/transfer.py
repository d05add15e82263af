"""Between host and device: from the host without waiting for the device's earlier work; back in one transfer."""

from collections.abc import Mapping, Sequence

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


def to_host(parts: Mapping[str, Tensor]) -> dict[str, list]:
    """All parts as by `Tensor.tolist`. From another device they come in one copy, as float64, which holds every id and
    float32 exactly; on a CPU each is read in place."""
    if not all(map(on_cpu, parts.values())):
        flat = torch.cat([part.reshape(-1) for part in parts.values()]).cpu()
        cells = flat.split([part.numel() for part in parts.values()])
        parts = {name: cell.view(part.shape).to(part.dtype) for cell, (name, part) in zip(cells, parts.items())}
    return {name: part.tolist() for name, part in parts.items()}
