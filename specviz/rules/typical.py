"""Typical acceptance, LOSSY: accepts tokens that the target finds likely enough, without flipping a coin."""

import torch

from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms, registered, require_shapes
from specviz.rules.sampling import draw_with_sums

#: ε and δ = √ε from Medusa's own code (`posterior_threshold`, `posterior_alpha`).
EPSILON, DELTA = 0.09, 0.3


def verify_typical(
    draft: Draft, rows: TargetRows, uniforms: Uniforms, epsilon: float = EPSILON, delta: float = DELTA
) -> Decision:
    """Accepts the longest path of likely enough tokens; of equally long ones, the one drafted first.

    Expects chosen tokens, not drawn ones (a drafter's likeliest). Token x is acceptable if p(x) > min(ε, δ·exp(−H(p))),
    H being its row's entropy in nats; the next token is drawn from the target's own row where the path ends. Medusa,
    Cai et al. 2024, arXiv 2401.10774, section 2.3.1.

    accept_prob is 1 or 0. distance: acceptance is deterministic, so if a first token x is accepted, the round's first
    token is always x, and the total variation to the target's row is 1 − p(x); otherwise it is 0.
    """
    _, target_probs = require_shapes(draft, rows, uniforms)
    shape = draft.shape
    p = shape.judging_cells(target_probs, draft.tokens.unsqueeze(-1)).squeeze(-1)
    entropy = torch.special.entr(target_probs).sum(-1)
    threshold = (delta * torch.exp(-entropy)).clamp_max_(epsilon)
    acceptable = p > shape.judging(threshold)
    reached = (acceptable | ~shape.ancestors).all(-1)
    longest = (reached * shape.ancestors.sum(-1)).argmax(0, keepdim=True)
    accepted = shape.ancestors.index_select(0, longest)[0] & reached.index_select(0, longest)
    row = shape.row_after(accepted)
    next_probs = target_probs.index_select(0, row)[0]
    distance = ((1 - p) * (accepted & (shape.rows == 0))).sum()
    next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    ones = torch.ones_like(p)
    return Decision(accepted, p, ones, acceptable.float(), row, next_token, next_probs, next_sums, distance=distance)


TYPICAL = registered("typical", verify_typical, verify_typical)
