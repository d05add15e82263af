"""The acceptance rules: which draft tokens are kept, and what the target says where they end.

Pure functions on tensors; no rule knows who drafted. n draft tokens give n + 1 rows of target probabilities: row 0
follows the committed text, row i + 1 follows draft token i, so token i is judged by row parent + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.sampling import draw


@dataclass(frozen=True, slots=True)
class Decision:
    """What a rule decided about n draft tokens, still on the device.

    kept, judged: [n] bool. A token is judged if the one before it was kept (or it is the first).
    p, q, accept_prob: [n] float32, the token's probability under target and drafter, and the chance it had.
    row: [] int64, the target row the next token comes from. next_token: [] int64.
    next_probs: [vocab] float32, what it was drawn from: the residual, or the target's row itself.
    """

    kept: Tensor
    judged: Tensor
    p: Tensor
    q: Tensor
    accept_prob: Tensor
    row: Tensor
    next_token: Tensor
    next_probs: Tensor


def ancestors(parents: Sequence[int]) -> Tensor:
    """[n, n] bool: entry (i, j) says that draft token j is i itself or stands before it on its branch."""
    matrix = torch.eye(len(parents), dtype=torch.bool)
    for token, parent in enumerate(parents):
        if parent >= 0:
            matrix[token] |= matrix[parent]
    return matrix


def _last_row(kept: Tensor) -> Tensor:
    """[] int64: the row after the last kept token. Tokens stand after their parents, so that is the highest index."""
    ends = torch.arange(1, kept.shape[0] + 1, device=kept.device) * kept
    return torch.nn.functional.pad(ends, (1, 0)).max()


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """norm(max(0, p − q)), both [vocab] float32: what is left of the target after the drafter had its say.

    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1 (p'); Chen et al. 2023, arXiv 2302.01318, (·)+.
    It sums to 0 only when p = q up to rounding; then p itself is the right distribution.
    """
    left = (target_probs - draft_probs).clamp_min(0)
    total = left.sum()
    return torch.where(total > 0, left / total, target_probs)


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
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(-1, column).squeeze(-1)
    accept_prob = (p / q).clamp_max(1)
    kept = (coins < accept_prob).long().cumprod(0).bool()
    judged = torch.nn.functional.pad(kept, (1, 0), value=True)[:n]
    row = kept.sum()

    # Nothing was drafted after the last row: q = 0 there, and the same expression draws the bonus token from p.
    q_rows = torch.zeros_like(target_probs)
    if draft_probs is None:
        q_rows[:n].scatter_(-1, column, 1.0)
    else:
        q_rows[:n] = draft_probs
    next_probs = residual(target_probs[row], q_rows[row])
    return Decision(kept, judged, p, q, accept_prob, row, draw(next_probs, next_u), next_probs)


def verify_by_match(draft_tokens: Tensor, parents: Sequence[int], target_probs: Tensor) -> Decision:
    """Greedy, for chains and trees: keep draft tokens while each is the target's own first choice.

    draft_tokens: [n] int64, siblings distinct. parents: of each, −1 for the committed text.
    target_probs: [n + 1, vocab] point masses. No coin is flipped: this is the rule above at temperature 0, where p
    and q are point masses, p/q is 0 or 1, and the residual is p itself.
    """
    rows = torch.tensor(parents, dtype=torch.long, device=draft_tokens.device) + 1
    p = target_probs[rows, draft_tokens]
    branch = ancestors(parents).to(draft_tokens.device)
    kept = ((p == 1) | ~branch).all(-1)
    judged = torch.nn.functional.pad(kept, (1, 0), value=True)[rows]
    row = _last_row(kept)
    next_probs = target_probs[row]
    return Decision(kept, judged, p, torch.ones_like(p), p, row, next_probs.argmax(), next_probs)
