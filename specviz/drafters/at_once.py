"""Drafting all depths in one pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from specviz.drafters.base import DraftContext
from specviz.drafters.stepwise import Stepwise
from specviz.models.pair import ModelPair
from specviz.rules.draft import Draft, tree_shape


class AtOnce(Stepwise):
    """A drafter whose tokens do not see each other: one pass gives a row for each depth, which all branches share.

    A deeper draft takes hardly more time, but later tokens are kept less often: a row allows for everything that the
    tokens before its own could have been.
    """

    at_once: ClassVar[bool] = True

    def __init__(self, context: DraftContext):
        super().__init__(context)
        self.most = self.most_depths(context.pair)
        self.asked = 0  # depths of this round
        self.rows: Tensor | None = None  # of this round, one for each depth

    @classmethod
    @abstractmethod
    def most_depths(cls, pair: ModelPair) -> int:
        """How deep it drafts for this pair at most."""

    @abstractmethod
    def all_rows(self, committed: Sequence[int], depths: int) -> Tensor | None:
        """Logits [at least depths, any width] for what follows the text; None if there is nothing to go on yet."""

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        self.asked = min(budget, self.most)
        return super().propose(committed, self.asked, uniforms)

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        self.rows = self.all_rows(committed, self.asked)
        return None if self.rows is None else self.rows[:1]

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        # The last token's branch is as long as the number of rows used.
        spent = int(tree_shape(parents, torch.device("cpu")).ancestors[-1].sum())
        return self.rows[spent].expand(len(tokens), -1)
