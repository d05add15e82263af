"""What drafters share that are the target itself, made cheaper: they continue in the target's own keys and values."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel

from specviz.drafters.base import DraftContext
from specviz.drafters.stepwise import Stepwise
from specviz.passes.static_passes import WIDEST, FastPasses
from specviz.rules.draft import Draft


class SelfDrafting(Stepwise):
    """Drafts by `model`, whose keys and values are those of the target's first `layers` layers.

    The committed text is read once, by the target. Draft tokens pass through the target again when it judges them, and
    what the draft left in its cache is dropped before. passes: the model's, used only if the target has such passes.
    """

    def __init__(self, context: DraftContext, model: PreTrainedModel, layers: int, passes: FastPasses | None):
        super().__init__(context)
        self.target = context.target
        self.model = self.target.sharing_first_layers(model, layers, passes)
        self.in_one_call = self.chains_in_one_call(self.model)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        try:
            self.model.length = self.target.length
            unread = self.model.unread(committed)
            if self.in_one_call and unread.shape[0] <= WIDEST:
                return self.as_draft(self.model.draft(unread, budget, self.chooser.temperature, uniforms), uniforms)
            return super().propose(committed, budget, uniforms)
        finally:
            self.model.rewind(self.target.length)

    def first_row(self, committed: Sequence[int]) -> Tensor:
        return self.model.forward(self.model.unread(committed), keep=1)

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        return self.model.extend(tokens, parents)
