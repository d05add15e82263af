"""The lossless rules: whatever the drafter, the output follows the target's distribution.

Token by token and as a block for chains; sibling by sibling and by several paths for trees; and the one comparison that
they all become at temperature 0.
"""

import torch
from torch import Tensor

from specviz.records.trees import children_of
from specviz.rules.draft import (
    Decision,
    Draft,
    Rule,
    TargetRows,
    TreeShape,
    Uniforms,
    chain,
    registered,
    require_shapes,
)
from specviz.rules.sampling import draw_with_sums
from specviz.rules.transfer import on_cpu, to_device


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """norm(max(0, p − q)) of float32 distributions [..., vocab]: the target's mass that the drafter left uncovered.

    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1 (p'); Chen et al. 2023, arXiv 2302.01318, (·)+.
    The difference sums to 0 only when p = q up to rounding; then p itself is the right distribution.
    """
    uncovered = (target_probs - draft_probs).clamp_min_(0)
    total = uncovered.sum(-1, keepdim=True)
    if on_cpu(total) and total.min().item() > 0:
        # `where` would take as long as everything else here.
        return uncovered.div_(total)
    return torch.where(total > 0, uncovered / total, target_probs)


def points_at(row: Tensor, tokens: Tensor, rows: Tensor, like: Tensor) -> Tensor:
    """[vocab]: 1 at each of the `tokens` [n] whose judging row, of `rows` [n], is `row` [1]; 0 elsewhere."""
    return torch.zeros_like(like[0]).index_add_(0, tokens, (rows == row).to(like.dtype))


def verify_token_by_token(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Accepts token x with probability min(1, p(x)/q(x)); a draw from the residual replaces the first rejected one.

    P(x) = q·min(1, p/q) + P(rejected)·residual(x) = p(x): the output follows the target's distribution.
    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1 and App. A.1; Chen et al. 2023, arXiv 2302.01318. The test is strict
    (u < p/q): a coin can be exactly 0, and a token that the target gives no mass must not pass.
    """
    n, target_probs = require_shapes(draft, rows, uniforms)
    column = draft.tokens.unsqueeze(-1)
    p = target_probs[:n].gather(-1, column).squeeze(-1)
    q = torch.ones_like(p) if draft.probs is None else draft.probs.gather(-1, column).squeeze(-1)
    accept_prob = (p / q).clamp_max_(1)
    accepted = (uniforms.accept[:n] < accept_prob).cumprod(0)
    row = accepted.sum(0, keepdim=True)
    # Nothing was drafted after the last row, so q = 0 there and the residual is p: the bonus token's distribution.
    if draft.probs is None:
        q_row = points_at(row, draft.tokens, torch.arange(n, device=row.device), target_probs)
    else:
        q_row = _draft_row(row, draft.probs)
    next_probs = residual(target_probs.index_select(0, row)[0], q_row)
    next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return Decision(accepted, p, q, accept_prob, row, next_token, next_probs, next_sums)


def _draft_row(row: Tensor, draft_probs: Tensor) -> Tensor:
    """q [vocab] at a row [1] of a chain with draft_probs [n, vocab]; 0 at the last row, where nothing was drafted."""
    n = draft_probs.shape[0]
    if on_cpu(row):
        # Saves four operations.
        index = row.item()
        return draft_probs[index] if index < n else torch.zeros_like(draft_probs[0])
    return (draft_probs.index_select(0, row.clamp_max(n - 1)) * (row < n))[0]


TOKEN = registered("token", verify_token_by_token, verify_token_by_token)


def verify_block(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Judges the draft as a whole and accepts it up to the last position that passes. accept_prob is h.

    Sun et al. 2024, arXiv 2403.10444, Alg. 2, with M_b the target and M_s the drafter: p_0 = 1,
    p_i = min(p_{i−1}·M_b(x_i)/M_s(x_i), 1), Z_i = Σ_x max(p_i·M_b(x) − M_s(x), 0) over the row after x_i,
    h_i = Z_i/(Z_i + 1 − p_i) and h_n = p_n. Accept up to the *largest* i whose coin is below h_i, 0 if none. The next
    token's distribution is ∝ max(p_i·M_b − M_s, 0) there, or the target's last row. The output follows the target's
    distribution, and the expected number of accepted tokens is at least that of judging token by token.

    Where p_i = 1, h_i is 1: the formula gives it for every Z_i > 0, and Z_i = 0 means that both models agree on the
    next token, which then passes too. Where p_i < 1, the denominator is positive. A token that the target gives no
    mass makes p_i, Z_i and h_i zero from there on, and no coin is below 0.
    """
    n, target_probs = require_shapes(draft, rows, uniforms)
    column = draft.tokens.unsqueeze(-1)
    p = target_probs[:n].gather(-1, column).squeeze(-1)
    q = torch.ones_like(p) if draft.probs is None else draft.probs.gather(-1, column).squeeze(-1)
    # The recursion unrolled: p_i is the block's likelihood ratio over its running maximum (at least 1). The ratio's
    # mean over drafts is at most 1, so float64 cannot overflow.
    ratio = (p.double() / q).cumprod(0)
    share = (ratio / ratio.cummax(0).values.clamp_min_(1)).float()
    scale = torch.nn.functional.pad(share[:-1], (1, 1), value=1.0)
    uncovered = target_probs * scale.unsqueeze(-1)
    if draft.probs is None:
        uncovered.scatter_(-1, column, 0.0)  # p·M_b − 1 is never positive
    else:
        uncovered[:n] -= draft.probs
    total = uncovered.clamp_min_(0).sum(-1)
    inner, z = share[:-1], total[1:n]
    accept_prob = torch.cat([torch.where(inner < 1, z / (z + (1 - inner)), 1.0), share[-1:]])

    positions = torch.arange(1, n + 1, device=draft.tokens.device)
    row = ((uniforms.accept[:n] < accept_prob) * positions).amax(0, keepdim=True)
    uncovered, total = uncovered.index_select(0, row)[0], total.index_select(0, row)
    # Nothing is left only where p_i = 1 and both models agree: then the target's row is right, as in `residual`.
    next_probs = torch.where(total > 0, uncovered / total, target_probs.index_select(0, row)[0])
    next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return Decision(positions <= row, p, q, accept_prob, row, next_token, next_probs, next_sums)


BLOCK = registered("block", verify_block, verify_block)


def verify_siblings(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Walks down from the root, taking at each node the first child that passes.

    At a node, p_left starts as the target's row. Child x passes if its coin is below p_left(x)/q_x(x), and the walk
    continues from x; a rejection turns p_left into norm(max(0, p_left − q_x)). If no child passes, the next token is
    drawn from p_left. Each rejection is a step of `verify_token_by_token` with p_left for p, so the output follows the
    target's distribution for any number of siblings fixed before they were drawn. On a chain it *is* that rule.
    SpecInfer, Miao et al. 2023, arXiv 2305.09781, Alg. 2; siblings without replacement: Jeon et al. 2024, arXiv
    2402.14160, Alg. 1 (recursive rejection sampling).

    For point masses the `p_left` of a sibling never tried is its p after all its elders were rejected; for
    drawn tokens, its p.
    """
    n, target_probs = require_shapes(draft, rows, uniforms)
    shape, coins = draft.shape, uniforms.accept[:n]
    p = shape.judging_cells(target_probs, draft.tokens.unsqueeze(-1)).squeeze(-1)
    if draft.probs is None:
        q, p_left = torch.ones_like(p), _left_of_points(p, shape)
        accepted = shape.path(coins < p_left)
        row = shape.row_after(accepted)
        # A point mass takes only its own token, so all rejected ones are subtracted at once.
        q_row = points_at(row, draft.tokens, shape.rows, target_probs)
        next_probs = residual(target_probs.index_select(0, row)[0], q_row)
    else:
        q = draft.probs.gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
        p_left, path, next_probs = _walk(draft, draft.probs, target_probs, p, q, coins)
        accepted = to_device(torch.tensor([token in path for token in range(n)]), p.device)
        row = to_device([path[-1] + 1], p.device)
    accept_prob = (p_left / q).clamp_max_(1)
    next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return Decision(accepted, p, q, accept_prob, row, next_token, next_probs, next_sums, p_left)


def _left_of_points(p: Tensor, shape: TreeShape) -> Tensor:
    """p_left [n] of distinct point masses: a rejection takes its token's whole probability and nothing else."""
    rest = 1 - (shape.elders * p).sum(-1)
    # The rest includes the token itself; keep rounding from denying that, and from dividing 0 by 0.
    return p / torch.maximum(rest, p).clamp_min_(torch.finfo(p.dtype).tiny)


def _walk(
    draft: Draft, draft_probs: Tensor, target_probs: Tensor, p: Tensor, q: Tensor, coins: Tensor
) -> tuple[Tensor, list[int], Tensor]:
    """Walks until no child passes: returns p_left [n], the accepted tokens after −1 (the root), and the row left there.

    On the host, token by token: this computes a residual over the vocabulary only for rejections on the path. Computing
    all siblings' at once, without waiting for the device, costs several times more.
    """
    children = children_of(draft.parents)
    ids, coin, ratio = torch.stack([draft.tokens.double(), coins.double(), (p / q).double()]).tolist()
    p_left, path = p.clone(), [-1]
    remaining, untried = target_probs[0], children[0]
    while untried:
        token, *untried = untried
        if coin[token] < ratio[token]:
            path.append(token)
            remaining, untried = target_probs[token + 1], children[token + 1]
            continue
        remaining = residual(remaining, draft_probs[token])
        if untried:
            sibling = untried[0]
            p_left[sibling] = remaining[int(ids[sibling])]
            ratio[sibling] = (p_left[sibling] / q[sibling]).item()
    at_a_leaf = not children[path[-1] + 1]
    return p_left, path, remaining / remaining.sum() if at_a_leaf else remaining


def verify_siblings_on_device(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """`verify_siblings` as a function of tensors alone, which can be recorded.

    It takes every step that a walk may need, level by level and sibling by sibling, and lets those without a token to
    try change nothing. A token with q = 0 stands for one that could not be drawn, and never passes.
    """
    if draft.probs is None:
        return verify_siblings(draft, rows, uniforms)
    n, target_probs = require_shapes(draft, rows, uniforms)
    shape, coins, column = draft.shape, uniforms.accept[:n], draft.tokens.unsqueeze(-1)
    p = shape.judging_cells(target_probs, column).squeeze(-1)
    q = draft.probs.gather(-1, column).squeeze(-1)
    children, p_left, accepted = shape.children(), p.clone(), torch.zeros_like(p, dtype=torch.bool)
    # The row that the walk has come to, and the one whose tokens it tries: none, once all of a row's were rejected.
    row = node = shape.rows.new_zeros(1)
    remaining, none = target_probs[0], node.new_full((1,), n)
    for width in shape.widths:
        advanced = torch.zeros_like(row, dtype=torch.bool)
        for turn in range(width):
            token = children.index_select(0, node)[:, turn]
            tried, token = (token >= 0) & ~advanced, token.clamp_min(0)
            token_p, token_q = remaining.index_select(0, draft.tokens.index_select(0, token)), q.index_select(0, token)
            p_left.index_copy_(0, token, token_p.where(tried, p_left.index_select(0, token)))
            passed = tried & (token_q > 0) & (coins.index_select(0, token) < (token_p / token_q).double())
            accepted.index_copy_(0, token, accepted.index_select(0, token) | passed)
            rest = residual(remaining, draft.probs.index_select(0, token)[0])
            next_row = target_probs.index_select(0, token + 1)[0]
            remaining = torch.where(passed, next_row, torch.where(tried, rest, remaining))
            row, advanced = torch.where(passed, token + 1, row), advanced | passed
        node = row.where(advanced, none)
    next_probs = remaining / remaining.sum()
    accept_prob = torch.where(q > 0, p_left / q, 0.0).clamp_max_(1)
    next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return Decision(accepted, p, q, accept_prob, row, next_token, next_probs, next_sums, p_left)


TREE = registered("tree", verify_siblings, verify_siblings_on_device)


def verify_multi_path(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Picks one of K paths and judges it by block verification. The paths are drawn independently, without regard to
    each other, and stand in the draft level by level; equal beginnings stand there once for each path.

    The pick goes down from the root: of the m paths that share what is picked so far, those continue whose next token
    has the largest p/q. So the picked token is the largest of m draws in that order; with F(x) the drafter's mass of
    all tokens up to x in it, x is picked with probability q'(x) = F(x)^m − (F(x) − q(x))^m. Block verification is
    lossless for whatever distribution a path is drawn from, here q'; m is part of the path, and the same under target
    and drafter. Where K = 1, q' = q. Thomas & Pal 2026, arXiv 2602.16961 (GBV).

    The coin of position i is that of the picked path's i-th token; all other tokens are not judged.
    """
    paths = draft.parents.count(-1)
    if paths < 2:
        return verify_block(draft, rows, uniforms)
    _, target_probs = require_shapes(draft, rows, uniforms)
    assert draft.probs is not None, "paths are drawn"
    column = draft.tokens.unsqueeze(-1)
    p = draft.shape.judging_cells(target_probs, column).squeeze(-1)
    q = draft.probs.gather(-1, column).squeeze(-1)
    picked, draws = _pick(draft.tokens, p / q, paths)
    places = to_device(picked, draft.tokens.device)
    judging_rows = torch.nn.functional.pad(places + 1, (1, 0))  # the rows of the picked path
    path_rows = target_probs.index_select(0, judging_rows)
    drawn_from = _largest_of(draft.probs.index_select(0, places), path_rows[:-1], to_device(draws, places.device))
    path = Draft(draft.tokens.index_select(0, places), chain(len(picked)), drawn_from)
    coins = Uniforms(uniforms.draft, uniforms.accept.index_select(0, places), uniforms.next)
    judged = verify_block(path, TargetRows(rows.logits.index_select(0, judging_rows), path_rows, None), coins)
    assert judged.q is not None, "a block's tokens are drawn"
    return Decision(
        accepted=torch.zeros_like(p, dtype=torch.bool).index_copy(0, places, judged.accepted.bool()),
        p=p,
        q=q.index_copy(0, places, judged.q),
        accept_prob=torch.zeros_like(p).index_copy(0, places, judged.accept_prob),
        row=judging_rows.index_select(0, judged.row),
        next_token=judged.next_token,
        next_probs=judged.next_probs,
        next_sums=judged.next_sums,
        weighed=torch.zeros_like(p, dtype=torch.bool).index_fill(0, places, True),
        drawn_from=draft.probs.index_copy(0, places, drawn_from),
    )


def _pick(tokens: Tensor, ratio: Tensor, paths: int) -> tuple[list[int], list[int]]:
    """The picked path's tokens as indices into the draft, and for each the number of paths it was picked from. ratio:
    p/q of each token, [n] like `tokens`."""
    ids, promise = torch.stack([tokens.double(), ratio.double()]).tolist()
    counts, candidates = [], list(range(paths))
    while candidates[0] < len(ids):
        # Equal ratios are ranked by id, as in `_largest_of`.
        best = max(candidates, key=lambda token: (promise[token], ids[token]))
        counts.append(len(candidates))
        # The next token of a path stands one level, `paths` tokens, further on.
        candidates = [token + paths for token in candidates if ids[token] == ids[best]]
    # Of equal paths, the first.
    return list(range(candidates[0] % paths, len(ids), paths)), counts


def _largest_of(draft_probs: Tensor, target_probs: Tensor, draws: Tensor) -> Tensor:
    """[n, vocab] float32: for each row, the distribution of the last of `draws` [n] draws from q in order of p/q."""
    ratio = torch.where(draft_probs > 0, target_probs / draft_probs, 0.0)
    order = ratio.sort(dim=-1, stable=True).indices
    mass = draft_probs.double().gather(-1, order)
    up_to = mass.cumsum(-1)
    up_to = up_to / up_to[:, -1:]
    power = draws.double().unsqueeze(-1)
    share = up_to**power - torch.nn.functional.pad(up_to[:, :-1], (1, 0)) ** power
    return torch.zeros_like(draft_probs).scatter_(-1, order, share.float())


MULTI_PATH = registered("multi_path", verify_multi_path)


def verify_match(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Accepts draft tokens, in chains and trees, while each is the target's choice; of equal siblings only the first.

    No coin is flipped: p and q are point masses, p/q is 0 or 1, and the residual is p itself.
    """
    shape, choices = draft.shape, rows.choices
    assert choices is not None and choices.shape == (len(draft.parents) + 1,), "n + 1 choices judge n tokens"
    match = draft.tokens == shape.judging(choices)
    accepted = shape.path(match)
    row = shape.row_after(accepted)
    p = match.float()
    # index_select: plain indexing would fetch the row to the host first.
    return Decision(accepted, p, None, p, row, choices.index_select(0, row)[0], None, None)


#: Not one of `RULES`: at temperature 0 they all become this.
MATCH = Rule("match", verify_match, on_device=verify_match)
