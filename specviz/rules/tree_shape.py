"""The shape of a draft: which token continues which, and what follows from it."""

from __future__ import annotations

from functools import cached_property, lru_cache

import torch
from torch import Tensor

from specviz.rules.draft import chain
from specviz.rules.transfer import to_device


class TreeShape:
    """Which token of a draft continues which, as tensors on a device, each built on first use.

    Two branches with a shared beginning, as `Draft.parents` writes them:

        committed text ─┬─ 0 "the" ─┬─ 2 "old"          parents = (−1, −1, 0, 0, 1)
                        │           └─ 3 "king"         rows    = ( 0,  0, 1, 1, 2): which target row judges each
                        └─ 1 "a" ───── 4 "king"         families = (0, 0, 1, 1, 2): siblings share a number

    Token 3 sees the text, 0 and itself (`ancestors[3]` = 1 0 0 1 0), and is tried after its elder sibling 2
    (`elders[3]` = 0 0 1 0 0). If 0 and 3 are kept, the next token comes from row 4 (`row_after`).
    Chains take shortcuts.
    """

    def __init__(self, parents: tuple[int, ...], device: torch.device):
        self.parents = parents
        self.device = device
        self.is_chain = parents == chain(len(parents))

    @cached_property
    def rows(self) -> Tensor:
        """[n] int64, the target row that judges each token."""
        return to_device(self.parents, self.device) + 1

    @cached_property
    def ancestors(self) -> Tensor:
        """[n, n] bool, (i, j): token j is i itself or precedes it on its branch."""
        n = len(self.parents)
        # Bytes, because a single tensor operation costs more than a whole row here.
        cells = bytearray(n * n)
        for token, parent in enumerate(self.parents):
            if parent >= 0:
                cells[token * n : token * n + n] = cells[parent * n : parent * n + n]
            cells[token * n + token] = True
        branch = torch.frombuffer(cells, dtype=torch.bool).view(n, n) if n else torch.empty(0, 0, dtype=torch.bool)
        return to_device(branch, self.device)

    @cached_property
    def elders(self) -> Tensor:
        """[n, n] bool, (i, j): token j is a sibling of i, tried before it."""
        return (self.rows.unsqueeze(-1) == self.rows).tril(-1)

    @cached_property
    def steps(self) -> Tensor:
        """[n] int64, i − parent, so that a branch's steps add up to the row after its last token."""
        return torch.arange(1, len(self.parents) + 1, device=self.device) - self.rows

    @cached_property
    def families(self) -> Tensor:
        """[n] int64, a number shared by siblings, counted from 0 by first appearance."""
        numbers: dict[int, int] = {}
        numbered = [numbers.setdefault(parent, len(numbers)) for parent in self.parents]
        return to_device(numbered, self.device)

    def judging(self, table: Tensor) -> Tensor:
        """From target rows [n + 1, ...], the one that judges each token: [n, ...]."""
        return table[:-1] if self.is_chain else table.index_select(0, self.rows)

    def judging_cells(self, table: Tensor, ids: Tensor) -> Tensor:
        """[n, k]: from target rows [n + 1, vocab], the cells of `ids` [n, k] in each token's judging row."""
        if self.is_chain:
            return table[:-1].gather(-1, ids)
        # Unlike `judging`, copies no rows.
        return table[self.rows.unsqueeze(-1), ids]

    def path(self, passed: Tensor) -> Tensor:
        """kept [n]: from the root on, the first sibling that passes. `passed` [n]: which tokens would."""
        if self.is_chain:
            return passed.cumprod(0)
        chosen = passed & ~(passed & self.elders).any(-1)
        return (chosen | ~self.ancestors).all(-1)

    def row_after(self, kept: Tensor) -> Tensor:
        """[1] int64, the target row after the last kept token."""
        return (kept if self.is_chain else kept * self.steps).sum(0, keepdim=True)


@lru_cache(maxsize=256)
def tree_shape(parents: tuple[int, ...], device: torch.device) -> TreeShape:
    """Cached: chains come in few shapes; trees that grow with the draft keep bringing new ones."""
    return TreeShape(parents, device)
