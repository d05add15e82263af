"""Speculative (rejection) sampling of a chain, token by token: the rule of the original papers."""

from __future__ import annotations

import torch
from torch import Tensor

from specviz.rules.base import Rule, points_at, residual
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms
from specviz.rules.sampling import at_hand, draw_with_sums


def verify_token_by_token(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Keeps token x with probability min(1, p(x)/q(x)); a draw from the residual replaces the first refused one.

    P(x) = q·min(1, p/q) + P(rejected)·residual(x) = p(x): the output follows the target's distribution.
    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1 and App. A.1; Chen et al. 2023, arXiv 2302.01318. The test is strict
    (u < p/q): a coin can be exactly 0, and a token that the target gives no mass must not pass.
    """
    n, column = len(draft.parents), draft.tokens.unsqueeze(-1)
    p = rows.probs[:n].gather(-1, column).squeeze(-1)
    q = torch.ones_like(p) if draft.probs is None else draft.probs.gather(-1, column).squeeze(-1)
    accept_prob = (p / q).clamp_max_(1)
    kept = (uniforms.accept[:n] < accept_prob).cumprod(0)
    row = kept.sum(0, keepdim=True)
    # Nothing was drafted after the last row, so q = 0 there and the residual is p: the bonus token's distribution.
    if draft.probs is None:
        refused = points_at(row, draft.tokens, torch.arange(n, device=row.device), rows.probs)
    else:
        refused = _draft_row(row, draft.probs)
    next_probs = residual(rows.probs.index_select(0, row)[0], refused)
    next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return Decision(kept, p, q, accept_prob, row, next_token, next_probs, next_sums)


def _draft_row(row: Tensor, draft_probs: Tensor) -> Tensor:
    """q [vocab] at a row [1] of a chain with draft_probs [n, vocab]; 0 at the last row, where nothing was drafted."""
    n = draft_probs.shape[0]
    if at_hand(row):
        # Saves four operations.
        index = row.item()
        return draft_probs[index] if index < n else torch.zeros_like(draft_probs[0])
    return (draft_probs.index_select(0, row.clamp_max(n - 1)) * (row < n))[0]


TOKEN = Rule("token", verify_token_by_token, trees=False)
