"""Recursive rejection over a token tree: tries siblings in turn, each against what the earlier ones left."""

from __future__ import annotations

import torch
from torch import Tensor

from specviz.rules.base import Rule, points_at, residual
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms
from specviz.rules.sampling import draw_with_sums
from specviz.rules.transfer import to_device
from specviz.rules.tree_shape import TreeShape, tree_shape


def verify_siblings(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Walks down from the root, taking at each node the first child that passes.

    At a node, p_left starts as the target's row. Child x passes if its coin is below p_left(x)/q_x(x), and the walk
    continues from x; a refusal turns p_left into norm(max(0, p_left − q_x)). If no child passes, the next token is
    drawn from p_left. Each refusal is a step of `verify_token_by_token` with p_left for p, so the output follows the
    target's distribution for any number of siblings fixed before they were drawn. On a chain it *is* that rule.
    SpecInfer, Miao et al. 2023, arXiv 2305.09781, Alg. 2; siblings without replacement: Jeon et al. 2024, arXiv
    2402.14160, Alg. 1 (recursive rejection sampling).

    The `p_left` of a sibling never tried is, for point masses, what it would have been with its elders refused; for
    drawn tokens, its p.
    """
    shape = tree_shape(draft.parents, draft.tokens.device)
    coins = uniforms.accept[: len(draft.parents)]
    p = shape.judging_cells(rows.probs, draft.tokens.unsqueeze(-1)).squeeze(-1)
    if draft.probs is None:
        q, p_left = torch.ones_like(p), _left_of_points(p, shape)
        kept = shape.path(coins < p_left)
        row = shape.row_after(kept)
        # A point mass takes only its own token, so all refused ones are subtracted at once.
        refused = points_at(row, draft.tokens, shape.rows, rows.probs)
        next_probs = residual(rows.probs.index_select(0, row)[0], refused)
    else:
        q = draft.probs.gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
        p_left, path, next_probs = _walk(draft, rows.probs, p, q, coins)
        kept = to_device(torch.tensor([token in path for token in range(len(draft.parents))]), p.device)
        row = to_device([path[-1] + 1], p.device)
    accept_prob = (p_left / q).clamp_max_(1)
    next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return Decision(kept, p, q, accept_prob, row, next_token, next_probs, next_sums, p_left)


def _left_of_points(p: Tensor, shape: TreeShape) -> Tensor:
    """p_left [n] of distinct point masses: a refusal takes its token's whole probability and nothing else."""
    rest = 1 - (shape.elders * p).sum(-1)
    # The rest includes the token itself; keep rounding from denying that, and from dividing 0 by 0.
    return p / torch.maximum(rest, p).clamp_min_(torch.finfo(p.dtype).tiny)


def _walk(draft: Draft, target_probs: Tensor, p: Tensor, q: Tensor, coins: Tensor) -> tuple[Tensor, list[int], Tensor]:
    """Walks until no child passes: returns p_left [n], the kept tokens after −1 (the root), and what is left there.

    On the host, token by token: this computes a residual over the vocabulary only for refusals on the path. Computing
    all siblings' at once, without waiting for the device, costs several times more.
    """
    children: list[list[int]] = [[] for _ in range(len(draft.parents) + 1)]
    for token, parent in enumerate(draft.parents):
        children[parent + 1].append(token)
    ids, coin, ratio = torch.stack([draft.tokens.double(), coins.double(), (p / q).double()]).tolist()
    p_left, path = p.clone(), [-1]
    left, untried = target_probs[0], children[0]
    while untried:
        token, *untried = untried
        if coin[token] < ratio[token]:
            path.append(token)
            left, untried = target_probs[token + 1], children[token + 1]
            continue
        left = residual(left, draft.probs[token])
        if untried:
            sibling = untried[0]
            p_left[sibling] = left[int(ids[sibling])]
            ratio[sibling] = (p_left[sibling] / q[sibling]).item()
    at_a_leaf = not children[path[-1] + 1]
    return p_left, path, left / left.sum() if at_a_leaf else left


TREE = Rule("tree", verify_siblings)
