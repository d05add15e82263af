"""Rules that are wrong on purpose: only the lab knows them, and it must catch them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specviz.drafters.choosers import Children, Draws, TopChoices
from specviz.records.names import LIKELIEST
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms, tree_shape
from specviz.rules.sampling import draw_with_sums


def accept_everything(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """WRONG: keeps every draft token (in a tree, the first branch). The output follows the drafter."""
    return _keep(torch.ones_like(draft.tokens, dtype=torch.bool), draft, rows, uniforms)


def accept_likeliest(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """WRONG: keeps tokens among the target's `LIKELIEST` likeliest, without a coin; otherwise draws from the target.

    Tokens that are easy to guess come too often: once as the drafter's, once more as the target's.
    """
    judging = rows.raw[tree_shape(draft.parents, draft.tokens.device).rows]
    least = judging.topk(LIKELIEST).values[:, -1:]
    return _keep((judging.gather(-1, draft.tokens.unsqueeze(-1)) >= least).squeeze(-1), draft, rows, uniforms)


def _keep(passed: Tensor, draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Keeps tokens while they pass, then continues from the target's own row: no residual, no coin."""
    shape = tree_shape(draft.parents, draft.tokens.device)
    kept = shape.path(passed)
    row = shape.row_after(kept)
    p = rows.raw[shape.rows, draft.tokens]
    if rows.choices is not None:
        next_token, next_probs, next_sums = rows.choices.index_select(0, row)[0], None, None
    else:
        next_probs = rows.probs.index_select(0, row)[0]
        next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return Decision(kept, p, torch.ones_like(p), passed.float(), row, next_token, next_probs, next_sums)


class Mislabelled(Draws):
    """WRONG: takes the likeliest tokens, whose q is 1, but reports the softmax as if they were drawn from it."""

    def one(self, row: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return row.argmax(-1), self.warper.probabilities(row)

    def children(self, rows: Tensor, weights: Sequence[float], branches: int, uniforms: Tensor) -> Children:
        chosen = TopChoices().children(rows, weights, branches, uniforms)
        return replace(chosen, probs=self.warper.probabilities(rows)[chosen.places])
