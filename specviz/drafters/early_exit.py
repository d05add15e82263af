"""Drafting with the target's own first layers: no second model, and no second cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from specviz.drafters.base import Draft, Setting
from specviz.drafters.stepwise import Chooser, Stepwise
from specviz.models.pair import ModelPair
from specviz.passes.cached_model import CachedModel
from specviz.passes.early_exits import check_exit, default_exit, exit_after
from specviz.passes.static_passes import FastPasses
from specviz.records.runs import DraftParams


class EarlyExit(Stepwise):
    """Self-speculation: the first E layers of the target, then its own final norm and output head.

    LayerSkip (Elhoushi et al., arXiv 2404.16710); leaving out layers of an unchanged model goes back to Draft & Verify
    (Zhang et al., arXiv 2309.08168). The committed text is read once: the first E layers' keys and values are the
    target's own. Draft tokens pass through these layers again in the target pass, which costs nothing where a pass
    over several tokens takes as long as over one: the last draft token has to go through them in any case.
    """

    name: ClassVar[str] = "early_exit"

    def __init__(
        self,
        target: CachedModel,
        exit_layer: int,
        chooser: Chooser,
        vocab_size: int,
        branches: int = 1,
        params: DraftParams = DraftParams(),  # noqa: B008, it is frozen
        passes: FastPasses | None = None,
    ):
        super().__init__(chooser, vocab_size, branches, params)
        self.exit_layer = exit_layer
        self.model = target.sharing_first_layers(exit_after(target.model, exit_layer), exit_layer, passes)
        self.target = target
        self.settings |= {"exit_layer": exit_layer}

    @classmethod
    def build(cls, setting: Setting) -> EarlyExit:
        pair = setting.pair
        layer = setting.params.exit_layer or default_exit(pair.target)
        passes = setting.passes.get(f"exit {layer}")
        return cls(setting.target, layer, setting.chooser, pair.vocab_size, setting.branches, setting.params, passes)

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        check_exit(pair.target, pair.target_name, params.exit_layer)

    def source(self, depth: int) -> str:
        return f"layer {self.exit_layer}"

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        try:
            return super().propose(committed, budget, uniforms)
        finally:
            # The target's other layers have not seen the draft: its first ones must forget it again.
            self.model.rewind(self.target.length)

    def first_row(self, committed: Sequence[int]) -> Tensor:
        self.model.length = self.target.length
        return self.model.forward(self.model.unread(committed), keep=1)

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        return self.model.extend(tokens, parents)
