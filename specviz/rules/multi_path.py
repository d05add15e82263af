"""Greedy multi-path block verification: of several drawn paths, the most promising one, judged as a whole."""

from __future__ import annotations

import torch
from torch import Tensor

from specviz.rules.base import Rule
from specviz.rules.block import verify_block
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms, chain
from specviz.rules.transfer import to_device
from specviz.rules.tree_shape import tree_shape


def verify_multi_path(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Picks one of K paths and judges it by block verification. The paths are drawn independently, without regard to
    each other, and stand in the draft level by level; equal beginnings stand there once for each path.

    The pick goes down from the root: of the m paths that share what is picked so far, those go on whose next token has
    the largest p/q. So the picked token is the largest of m draws in that order; with F(x) the drafter's mass of all
    tokens up to x in it, x is picked with probability q'(x) = F(x)^m − (F(x) − q(x))^m. Block verification is lossless
    for whatever distribution a path is drawn from, here q'; m is part of the path, and the same under target and
    drafter. Where K = 1, q' = q. Thomas & Pal 2026, arXiv 2602.16961 (GBV).

    The coin of position i is that of the picked path's i-th token; all other tokens are not judged.
    """
    paths = draft.parents.count(-1)
    if paths < 2:
        return verify_block(draft, rows, uniforms)
    column = draft.tokens.unsqueeze(-1)
    p = tree_shape(draft.parents, draft.tokens.device).judging_cells(rows.probs, column).squeeze(-1)
    q = draft.probs.gather(-1, column).squeeze(-1)
    picked, alive = _pick(draft.tokens, p / q, paths)
    places = to_device(picked, draft.tokens.device)
    before = torch.nn.functional.pad(places + 1, (1, 0))  # the rows of the picked path
    path_rows = rows.probs.index_select(0, before)
    drawn_from = _largest_of(draft.probs.index_select(0, places), path_rows[:-1], to_device(alive, places.device))
    path = Draft(draft.tokens.index_select(0, places), chain(len(picked)), drawn_from)
    coins = Uniforms(uniforms.draft, uniforms.accept.index_select(0, places), uniforms.next)
    judged = verify_block(path, TargetRows(rows.logits.index_select(0, before), path_rows, None), coins)
    return Decision(
        kept=torch.zeros_like(p, dtype=torch.bool).index_copy(0, places, judged.kept.bool()),
        p=p,
        q=q.index_copy(0, places, judged.q),
        accept_prob=torch.zeros_like(p).index_copy(0, places, judged.accept_prob),
        row=before.index_select(0, judged.row),
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
    counts, alive = [], list(range(paths))
    while alive[0] < len(ids):
        # Equal ratios are ranked by id, as in `_largest_of`.
        best = max(alive, key=lambda token: (promise[token], ids[token]))
        counts.append(len(alive))
        # The next token of a path stands one level, `paths` tokens, further on.
        alive = [token + paths for token in alive if ids[token] == ids[best]]
    # Of equal paths, the first.
    return list(range(alive[0] % paths, len(ids), paths)), counts


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


MULTI_PATH = Rule("multi_path", verify_multi_path, weighs_all=True, paths=True)
