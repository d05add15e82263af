"""Block verification: judges a chain as a whole."""

from __future__ import annotations

import torch

from specviz.rules.base import Rule
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms
from specviz.rules.sampling import draw_with_sums


def verify_block(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Judges the draft as a whole and keeps it up to the last position that passes. accept_prob is h.

    Sun et al. 2024, arXiv 2403.10444, Alg. 2, with M_b the target and M_s the drafter: p_0 = 1,
    p_i = min(p_{i−1}·M_b(x_i)/M_s(x_i), 1), Z_i = Σ_x max(p_i·M_b(x) − M_s(x), 0) over the row after x_i,
    h_i = Z_i/(Z_i + 1 − p_i) and h_n = p_n. Keep up to the *largest* i whose coin is below h_i, 0 if none is. The next
    token's distribution is ∝ max(p_i·M_b − M_s, 0) there, or the target's last row. The output follows the target's
    distribution, and the expected number of kept tokens is at least that of judging token by token.

    Where p_i = 1, h_i is 1: the formula gives it for every Z_i > 0, and Z_i = 0 means that both models agree on the
    next token, which then passes too. Where p_i < 1, the denominator is positive. A token that the target gives no
    mass makes p_i, Z_i and h_i zero from there on, and no coin is below 0.
    """
    n, column = len(draft.parents), draft.tokens.unsqueeze(-1)
    p = rows.probs[:n].gather(-1, column).squeeze(-1)
    q = torch.ones_like(p) if draft.probs is None else draft.probs.gather(-1, column).squeeze(-1)
    # The recursion unrolled: p_i is the block's likelihood ratio over its running maximum (at least 1). The ratio's
    # mean over drafts is at most 1, so float64 cannot overflow.
    ratio = (p.double() / q).cumprod(0)
    share = (ratio / ratio.cummax(0).values.clamp_min_(1)).float()
    scale = torch.nn.functional.pad(share[:-1], (1, 1), value=1.0)
    left = rows.probs * scale.unsqueeze(-1)
    if draft.probs is None:
        left.scatter_(-1, column, 0.0)  # p·M_b − 1 is never positive
    else:
        left[:n] -= draft.probs
    total = left.clamp_min_(0).sum(-1)
    inner, z = share[:-1], total[1:n]
    accept_prob = torch.cat([torch.where(inner < 1, z / (z + (1 - inner)), 1.0), share[-1:]])

    positions = torch.arange(1, n + 1, device=draft.tokens.device)
    row = ((uniforms.accept[:n] < accept_prob) * positions).amax(0, keepdim=True)
    left, total = left.index_select(0, row)[0], total.index_select(0, row)
    # Nothing is left only where p_i = 1 and both models agree: then the target's row is right, as in `residual`.
    next_probs = torch.where(total > 0, left / total, rows.probs.index_select(0, row)[0])
    next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return Decision(positions <= row, p, q, accept_prob, row, next_token, next_probs, next_sums)


BLOCK = Rule("block", verify_block, weighs_all=True, trees=False)
