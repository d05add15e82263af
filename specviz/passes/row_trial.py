"""Tries whether what a pass gives for a token depends on what else is in the pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.passes.static_passes import BLOCK, FastPasses

#: Tokens that are read: in one pass, and in passes over so many of them.
_TOKENS, _WIDTHS = 9, (1, 2, 4)

#: How many of them a tree continues; its first branch holds other tokens, its second one those that follow.
_STEM, _BRANCH = 4, 3


@torch.inference_mode()
def rows_are_alike(passes: FastPasses) -> bool:
    """Whether logits and hidden states are the same, bit by bit, however many tokens share a pass, trees included."""
    static, generator = passes.static, torch.Generator().manual_seed(0)
    known = static.get_input_embeddings().weight.shape[0]
    ids = torch.randint(known, (_TOKENS + _BRANCH,), generator=generator)
    inputs = [torch.randn(len(ids), width, generator=generator).to(static.dtype) for width in static.input_widths]
    text = torch.arange(_TOKENS)
    chain = text.unsqueeze(-1) >= torch.arange(BLOCK)
    whole = _Reading(passes, ids, inputs).read(text, text, text, chain)
    for width in _WIDTHS:
        reading = _Reading(passes, ids, inputs)
        parts = [reading.read(some, some, some, chain[some]) for some in text.split(width)]
        if not _same([torch.cat(rows) for rows in zip(*parts, strict=True)], whole):
            return False
    if static.reads_chains_only:
        return True
    stem, branch = text[:_STEM], text[_STEM : _STEM + _BRANCH]
    reading = _Reading(passes, ids, inputs)
    reading.read(stem, stem, stem, chain[stem])
    visible = torch.zeros(2 * _BRANCH, BLOCK, dtype=torch.bool)
    visible[:, :_STEM] = True
    own = torch.ones(_BRANCH, _BRANCH, dtype=torch.bool).tril()
    visible[:, _STEM : _STEM + 2 * _BRANCH] = torch.block_diag(own, own).bool()
    places = torch.arange(_STEM, _STEM + 2 * _BRANCH)
    tree = reading.read(torch.cat([text[-1:] + 1 + torch.arange(_BRANCH), branch]), branch.repeat(2), places, visible)
    return _same([rows[_BRANCH:] for rows in tree], [rows[branch] for rows in whole])


class _Reading:
    """One text being read."""

    def __init__(self, passes: FastPasses, ids: Tensor, inputs: Sequence[Tensor]):
        self.run, self.ids, self.inputs = passes.run, ids, inputs
        shapes = [(1, heads, BLOCK, size) for heads, size in passes.static.row_shapes]
        self.rows = [torch.zeros(shape, dtype=passes.static.inner_dtype) for shape in shapes]

    def read(self, which: Tensor, positions: Tensor, places: Tensor, visible: Tensor) -> Sequence[Tensor]:
        """Logits and hidden states of a pass over the tokens at these indices; the rest as in `StaticPass.forward`."""
        given = (rows[which] for rows in self.inputs)
        return self.run(self.ids[which], positions.clone(), places.clone(), visible, *given, *self.rows)


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))
