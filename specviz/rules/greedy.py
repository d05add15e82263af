"""At temperature 0 every rule comes to one comparison: is the draft token the target's own first choice?"""

from __future__ import annotations

from specviz.rules.base import Rule
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms
from specviz.rules.tree_shape import tree_shape


def verify_by_match(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Keeps draft tokens while each is the target's own choice, in chains and trees; of equal siblings only the first.

    No coin is flipped: p and q are point masses, p/q is 0 or 1, and the residual is p itself.
    """
    shape = tree_shape(draft.parents, draft.tokens.device)
    match = draft.tokens == shape.judging(rows.choices)
    kept = shape.path(match)
    row = shape.row_after(kept)
    p = match.float()
    # index_select, because plain indexing would fetch the row to the host first.
    return Decision(kept, p, None, p, row, rows.choices.index_select(0, row)[0], None, None)


#: Not among the rules that users choose from: it is what all of them become.
MATCH = Rule("match", verify_by_match)
