"""The acceptance rules: which draft tokens are kept, and what the target says where they end.

Pure functions on tensors; no rule knows who drafted. n draft tokens give n + 1 target rows: row 0 follows the
committed text, row i + 1 follows draft token i, so token i is judged by row parent + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specviz.sampling import draw


@dataclass(frozen=True, slots=True)
class Decision:
    """What a rule decided about n draft tokens, still on the device.

    kept: [n] bool or 0/1. p, q, accept_prob: [n] float32, each token's probability under target and drafter, and the
    chance it had to be kept. row: [1] int64, the target row the next token comes from. next_token: [] int64.
    next_probs: [vocab] float32, what it was drawn from (the residual, or the target's row itself); None if greedy.
    """

    kept: Tensor
    p: Tensor
    q: Tensor
    accept_prob: Tensor
    row: Tensor
    next_token: Tensor
    next_probs: Tensor | None


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a draft, as tensors on a device.

    rows: [n] int64, the target row that judges each token. ancestors: [n, n] bool, (i, j) says that token j is i itself
    or stands before it on its branch. steps: [n] int64, i − parent, so that a branch's steps add up to the row after
    its last token.
    """

    rows: Tensor
    ancestors: Tensor
    steps: Tensor


@lru_cache(maxsize=256)
def shape_of(parents: tuple[int, ...], device: torch.device) -> Shape:
    """Drafts come in few shapes; each is laid out once."""
    branch = torch.eye(len(parents), dtype=torch.bool)
    for token, parent in enumerate(parents):
        if parent >= 0:
            branch[token] |= branch[parent]
    rows = torch.tensor(parents, dtype=torch.long) + 1
    steps = torch.arange(1, len(parents) + 1) - rows
    return Shape(rows.to(device), branch.to(device), steps.to(device))


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """norm(max(0, p − q)), each one distribution of float32: what is left of the target after the drafter had its say.

    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1 (p'); Chen et al. 2023, arXiv 2302.01318, (·)+.
    It sums to 0 only when p = q up to rounding; then p itself is the right distribution.
    """
    left = (target_probs - draft_probs).clamp_min_(0)
    total = left.sum()
    return torch.where(total > 0, left / total, target_probs)


def follow_target(target_choices: Tensor | None, target_probs: Tensor | None, next_u: Tensor) -> Decision:
    """Nothing was drafted: the next token is the target's own, its choice if greedy, else a draw from its one row.

    target_choices: [1] int64, or None; then target_probs: [1, vocab]. What the rules below come to for n = 0.
    """
    nothing = next_u.new_empty(0)
    if target_choices is not None:
        next_token, next_probs = target_choices[0], None
    else:
        next_probs = target_probs[0]
        next_token = draw(next_probs, next_u)
    return Decision(nothing, nothing, nothing, nothing, next_u.new_zeros(1), next_token, next_probs)


def verify_by_rejection(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, coins: Tensor, next_u: Tensor
) -> Decision:
    """Speculative (rejection) sampling of a chain: keep x with probability min(1, p(x)/q(x)), else use the residual.

    draft_tokens: [n] int64. draft_probs: [n, vocab], the distributions the tokens were *really* drawn from, or None
    for point masses (a copied token: q = 1). target_probs: [n + 1, vocab]. coins: [n] uniforms. next_u: [] uniform.

    The law of what is emitted is the target's: P(x) = q·min(1, p/q) + P(rejected)·residual(x) = p(x).
    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1 and App. A.1. The test is strict (u < p/q): a coin can be
    exactly 0, and a token to which the target gives nothing must not pass.
    """
    n = draft_tokens.shape[0]
    column = draft_tokens.unsqueeze(-1)
    p = target_probs[:n].gather(-1, column).squeeze(-1)
    # Nothing was drafted after the last row: q = 0 there, and the same residual draws the bonus token from p.
    if draft_probs is None:
        q = torch.ones_like(p)
        q_rows = torch.zeros_like(target_probs).scatter_(-1, torch.nn.functional.pad(column, (0, 0, 0, 1)), 1.0)
        q_rows[n] = 0
    else:
        q = draft_probs.gather(-1, column).squeeze(-1)
        q_rows = torch.nn.functional.pad(draft_probs, (0, 0, 0, 1))
    accept_prob = (p / q).clamp_max_(1)
    kept = (coins < accept_prob).cumprod(0)
    row = kept.sum(0, keepdim=True)
    next_probs = residual(target_probs.index_select(0, row), q_rows.index_select(0, row))[0]
    return Decision(kept, p, q, accept_prob, row, draw(next_probs, next_u), next_probs)


def verify_by_match(draft_tokens: Tensor, parents: tuple[int, ...], target_choices: Tensor) -> Decision:
    """Greedy, for chains and trees: keep draft tokens while each is the target's own first choice.

    draft_tokens: [n] int64, siblings distinct. parents: of each, −1 for the committed text.
    target_choices: [n + 1] int64, the likeliest token of each target row. No coin is flipped: this is the rule above
    at temperature 0, where p and q are point masses, p/q is 0 or 1, and the residual is p itself.
    """
    shape = shape_of(parents, draft_tokens.device)
    match = draft_tokens == target_choices[shape.rows]
    kept = (match | ~shape.ancestors).all(-1)
    row = (kept * shape.steps).sum(0, keepdim=True)
    p = match.float()
    # index_select, because plain indexing would fetch the row to the host first.
    return Decision(kept, p, torch.ones_like(p), p, row, target_choices.index_select(0, row)[0], None)
