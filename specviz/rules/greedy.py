"""At temperature 0 every rule reduces to one comparison: is the draft token the target's own first choice?"""

from __future__ import annotations

from specviz.rules.base import Rule
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms
from specviz.rules.tree_shape import tree_shape


def verify_by_match(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Keeps draft tokens, in chains and trees, while each is the target's choice; of equal siblings only the first.

    No coin is flipped: p and q are point masses, p/q is 0 or 1, and the residual is p itself.
    """
    shape = tree_shape(draft.parents, draft.tokens.device)
    match = draft.tokens == shape.judging(rows.choices)
    kept = shape.path(match)
    row = shape.row_after(kept)
    p = match.float()
    # index_select: plain indexing would fetch the row to the host first.
    return Decision(kept, p, None, p, row, rows.choices.index_select(0, row)[0], None, None)


#: Not one of `RULES`: at temperature 0 they all become this.
MATCH = Rule("match", verify_by_match)
