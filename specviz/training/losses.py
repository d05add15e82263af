"""How far a student's distribution q is from the target's p, row by row: to train it, and to measure it."""

import torch
from torch import Tensor
from torch.nn import functional


def distillation(student_logits: Tensor, target_logits: Tensor) -> Tensor:
    """0.5 · KL(p ‖ q) + TV(p, q), mean over rows; logits [..., vocab] each.

    A draft token is accepted with probability 1 − TV(p, q) (arXiv 2211.17192, Thm 3.5), so TV is what counts, but its
    gradient is flat where the two are far apart; there KL leads.
    """
    p = target_logits.float().softmax(-1)
    log_q = student_logits.float().log_softmax(-1)
    return 0.5 * _kl(p, log_q).mean() + 0.5 * (log_q.exp() - p).abs().sum(-1).mean()


def _kl(p: Tensor, log_q: Tensor) -> Tensor:
    return torch.special.xlogy(p, p).sum(-1) - (p * log_q).sum(-1)


@torch.no_grad()
def overlap(student_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Σ min(p, q), the probability that a sampled draft token is accepted, of each row; logits [..., vocab] each."""
    return torch.minimum(target_logits.float().softmax(-1), student_logits.float().softmax(-1)).sum(-1)


@torch.no_grad()
def agreement(student_logits: Tensor, target_logits: Tensor) -> Tensor:
    """[3] float32, means over rows: KL(p ‖ q), Σ min(p, q) at temperature 1, and how often the top choices agree.

    The latter two are the probability that a draft token is accepted, sampled and greedy.
    """
    p, log_q = target_logits.float().softmax(-1), student_logits.float().log_softmax(-1)
    overlap = torch.minimum(p, log_q.exp()).sum(-1)
    same = (p.argmax(-1) == log_q.argmax(-1)).float()
    return torch.stack([_kl(p, log_q).mean(), overlap.mean(), same.mean()])


def of_one_width(student_logits: Tensor, target_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Both, cut to the ids they share: checkpoints with one tokenizer may be padded to different widths."""
    width = min(student_logits.shape[-1], target_logits.shape[-1])
    return student_logits[..., :width], target_logits[..., :width]


def next_token(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean cross-entropy of each next token in nats: logits [rows, n, vocab] against ids [rows, n]."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
