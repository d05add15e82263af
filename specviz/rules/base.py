"""What an acceptance rule is, and what several rules share. No rule knows who drafted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms
from specviz.rules.sampling import at_hand, draw_with_sums


@dataclass(frozen=True, slots=True)
class Rule:
    """An acceptance rule: which draft tokens are kept, and what the next token is drawn from."""

    name: str  # what users type
    verify: Callable[[Draft, TargetRows, Uniforms], Decision]  # the rule itself, for n ≥ 1 draft tokens
    lossless: bool = True  # the output follows the target's distribution, whatever the drafter
    weighs_all: bool = False  # reads every draft token's coin, even after the first refusal
    trees: bool = True  # can judge siblings; otherwise chains only
    paths: bool = False  # siblings must be whole paths, each drawn without regard to the others

    def decide(self, draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
        """`verify`; for n = 0, under every rule, the next token is the target's own."""
        return self.verify(draft, rows, uniforms) if draft.parents else follow_target(rows, uniforms)


def follow_target(rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Decides a round without drafts: the target's choice if greedy, else a draw from its only row."""
    nothing, row = uniforms.next.new_empty(0), uniforms.next.new_zeros(1)
    if rows.choices is not None:
        return Decision(nothing, nothing, nothing, nothing, row, rows.choices[0], None, None)
    next_token, next_sums = draw_with_sums(rows.probs[0], uniforms.next)
    return Decision(nothing, nothing, nothing, nothing, row, next_token, rows.probs[0], next_sums)


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """norm(max(0, p − q)) of float32 distributions [..., vocab]: the target's mass that the drafter left uncovered.

    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1 (p'); Chen et al. 2023, arXiv 2302.01318, (·)+.
    The difference sums to 0 only when p = q up to rounding; then p itself is the right distribution.
    """
    left = (target_probs - draft_probs).clamp_min_(0)
    total = left.sum(-1, keepdim=True)
    if at_hand(total) and total.min().item() > 0:
        # `where` takes as long as everything else here.
        return left.div_(total)
    return torch.where(total > 0, left / total, target_probs)


def points_at(row: Tensor, tokens: Tensor, rows: Tensor, like: Tensor) -> Tensor:
    """[vocab]: 1 at each of the `tokens` [n] whose judging row, of `rows` [n], is `row` [1]; 0 elsewhere."""
    return torch.zeros_like(like[0]).index_add_(0, tokens, (rows == row).to(like.dtype))
