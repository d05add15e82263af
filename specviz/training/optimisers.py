"""Muon for matrices, AdamW for everything else, and the learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

#: The quintic of Jordan et al.: five steps bring every singular value near 1.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by Newton-Schulz steps (Jordan et al. 2024; scale of Liu et al., arXiv 2502.16982).

    dtype: of the steps' products; bfloat16 suffices, and pays where the processor has instructions for it.

    Unlike `torch.optim.Muon` it takes stacks of matrices [..., rows, columns], each orthogonalised by itself, as fused
    projections need, and products in float32: torch's insists on bfloat16, six times slower where it is emulated.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, dtype: torch.dtype, momentum: float = 0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                mean = state.setdefault("momentum", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalised(parameter.grad.lerp(mean, group["momentum"]).to(self.dtype))
                # Updates of AdamW's usual size, whatever the shape, so that one learning rate suits both.
                scale = 0.2 * math.sqrt(max(parameter.shape[-2:]))
                parameter.add_(update, alpha=-group["lr"] * scale)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Roughly the nearest (semi-)orthogonal matrix to each of [..., rows, columns], by Newton-Schulz iteration."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def make_optimisers(module: nn.Module, lr: float, dtype: torch.dtype) -> list[torch.optim.Optimizer]:
    """Muon, products in this dtype, for matrices; AdamW for vectors and for embeddings, which are tables of them."""
    tables = {id(weight) for part in module.modules() if isinstance(part, nn.Embedding) for weight in part.parameters()}
    matrices, others = [], []
    for parameter in module.parameters():
        if parameter.requires_grad:
            (matrices if parameter.dim() > 1 and id(parameter) not in tables else others).append(parameter)
    optimisers: list[torch.optim.Optimizer] = [Muon(matrices, lr, dtype)] if matrices else []
    if others:
        optimisers.append(torch.optim.AdamW(others, lr=lr / 2, betas=(0.9, 0.95), weight_decay=0.0))
    return optimisers


def learning_rate_factor(step: int, steps: int) -> float:
    """1 after a short warm-up, falling linearly to 0 over the second half of the run."""
    warm_up = max(1, min(50, steps // 20))
    return min((step + 1) / warm_up, 2 * (1 - step / steps), 1.0)
