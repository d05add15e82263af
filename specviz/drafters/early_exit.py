"""Drafting with the target's own first layers: no second model, and no second cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from specviz.drafters.base import Setting
from specviz.drafters.stepwise import Stepwise
from specviz.models.pair import ModelPair
from specviz.passes.early_exits import check_exit, default_exit, exit_after
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft


class EarlyExit(Stepwise):
    """Self-speculation: the first E layers of the target, then its own final norm and output head.

    LayerSkip (Elhoushi et al., arXiv 2404.16710); skipping layers of an unchanged model goes back to Draft & Verify
    (Zhang et al., arXiv 2309.08168). The committed text is read once: the first E layers' keys and values are the
    target's own. Draft tokens pass through these layers again in the target pass, which is free where a pass over
    several tokens takes as long as over one: the last draft token has to go through them anyway.
    """

    name: ClassVar[str] = "early_exit"
    reads: ClassVar[frozenset[str]] = Stepwise.reads | {"exit_layer"}

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self.target = setting.target
        self.exit_layer = setting.params.exit_layer or default_exit(setting.pair.target)
        shortened = exit_after(self.target.model, self.exit_layer)
        passes = setting.passes.get(f"exit {self.exit_layer}")
        self.model = self.target.sharing_first_layers(shortened, self.exit_layer, passes)

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"exit_layer": params.exit_layer or default_exit(pair.target)}

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        check_exit(pair.target, pair.target_name, params.exit_layer)

    def source(self, depth: int) -> str:
        return f"layer {self.exit_layer}"

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        try:
            return super().propose(committed, budget, uniforms)
        finally:
            # The target's other layers have not seen the draft, so its first ones must drop it again.
            self.model.rewind(self.target.length)

    def first_row(self, committed: Sequence[int]) -> Tensor:
        self.model.length = self.target.length
        return self.model.forward(self.model.unread(committed), keep=1)

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        return self.model.extend(tokens, parents)
