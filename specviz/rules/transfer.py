"""From the host to a device, without waiting for what the device has been given to do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(values: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    """The values on `device`; whole numbers as int64.

    CUDA copies from ordinary memory only once the stream has come that far: a target pass would not even be launched
    before the draft is done. From page-locked memory the copy takes its turn in the stream.
    """
    host = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.long)
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
