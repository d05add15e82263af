"""How far a student's distribution q is from the target's p, row by row: to train it, and to measure it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

#: Logits that are compared at a time. On a CPU 16 MB of them: what is computed in between is then memory that the
#: process has; tensors over all rows of a large vocabulary would be taken from the system anew each time, and given
#: back. A GPU is given 256 MB: thousands of small pieces would leave it waiting for the host.
_PIECES = {"cpu": 2**22, "cuda": 2**26}


#: The temperature of every third step: nearer to greedy drafts, of which only the likeliest token counts.
_LOW = 0.35


def temperature_of(step: int) -> float:
    """At which a step of training compares distributions."""
    return _LOW if step % 3 == 2 else 1.0


def distillation(student_logits: Tensor, target_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """t · (0.5 · KL(p ‖ q) + TV(p, q)) at temperature t, mean over rows; logits [..., n, vocab] each. Differentiable in
    the student's; the factor t keeps gradients as large at every temperature.

    A draft token is accepted with probability 1 − TV(p, q) (arXiv 2211.17192, Thm 3.5), so TV is what counts, but its
    gradient is flat where the two are far apart; there KL leads.
    """
    return _Distillation.apply(student_logits, target_logits, temperature)


class _Distillation(torch.autograd.Function):
    """Loss and gradient at once, piece by piece, so that only the gradient is kept: of a row's logits half of
    q − p + q · (s − Σ s q), where s = sign(q − p)."""

    @staticmethod
    def forward(ctx: Any, student_logits: Tensor, target_logits: Tensor, temperature: float) -> Tensor:
        gradient = torch.empty_like(student_logits)
        rows = student_logits.shape[:-1].numel()
        total = torch.zeros((), device=student_logits.device)
        distributions = _distributions(student_logits, target_logits, temperature)
        for (p, log_q), piece in zip(distributions, _pieces(gradient)):
            q = log_q.exp()
            excess = q - p
            total += 0.5 * (_kl(p, log_q) + excess.abs().sum(-1)).sum(-1).sum()
            signs = excess.sign()
            piece.copy_((signs - (signs * q).sum(-1, keepdim=True)).mul_(q).add_(excess).mul_(0.5 / rows))
        ctx.save_for_backward(gradient)
        return temperature * total / rows

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(outer), None, None  # in its place: torch refuses a second pass by itself


def _distributions(
    student_logits: Tensor, target_logits: Tensor, temperature: float = 1.0
) -> Iterator[tuple[Tensor, Tensor]]:
    """p and log q of a few rows at a time, [..., vocab] float32 each; logits [..., n, vocab] each."""
    for student, target in zip(_pieces(student_logits), _pieces(target_logits)):
        yield (target.float() / temperature).softmax(-1), (student.float() / temperature).log_softmax(-1)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """A few rows at a time of [..., n, vocab], as views."""
    held = _PIECES.get(tensor.device.type, _PIECES["cpu"]) // tensor[0].numel()
    if held or tensor.dim() == 2:
        yield from tensor.split(max(1, held))
    else:
        for inner in tensor:
            yield from _pieces(inner)


def _kl(p: Tensor, log_q: Tensor) -> Tensor:
    return torch.special.xlogy(p, p).sum(-1) - (p * log_q).sum(-1)


@torch.no_grad()
def overlap(student_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Σ min(p, q), the probability that a sampled draft token is accepted, of each row; logits [n, vocab] each."""
    distributions = _distributions(student_logits, target_logits)
    return torch.cat([torch.minimum(p, log_q.exp()).sum(-1) for p, log_q in distributions])


@torch.no_grad()
def agreement(student_logits: Tensor, target_logits: Tensor) -> Tensor:
    """[3] float32, means over rows: KL(p ‖ q), Σ min(p, q) at temperature 1, and how often the top choices agree;
    logits [..., n, vocab] each.

    The latter two are the probability that a draft token is accepted, sampled and greedy.
    """
    rows = []
    for p, log_q in _distributions(student_logits, target_logits):
        same = (p.argmax(-1) == log_q.argmax(-1)).float()
        rows.append(torch.stack([_kl(p, log_q), torch.minimum(p, log_q.exp()).sum(-1), same]).flatten(1))
    return torch.cat(rows, -1).mean(-1)


def of_one_width(student_logits: Tensor, target_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Both, cut to the ids they share: checkpoints with one tokenizer may be padded to different widths."""
    width = min(student_logits.shape[-1], target_logits.shape[-1])
    return student_logits[..., :width], target_logits[..., :width]


def next_token(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean cross-entropy of each next token in nats: logits [rows, n, vocab] against ids [rows, n]."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
