"""Drafting with the target's own first layers: no second model, and no second cache."""

from __future__ import annotations

from typing import Any, ClassVar

from specviz.drafters.base import DraftContext
from specviz.drafters.self_drafting import SelfDrafting
from specviz.models.pair import ModelPair
from specviz.passes.early_exits import default_exit, exit_after
from specviz.passes.tree_trial import check_exit
from specviz.records.settings import DraftParams


class EarlyExit(SelfDrafting):
    """Self-speculation: the first E layers of the target, then its own final norm and output head.

    LayerSkip (Elhoushi et al., arXiv 2404.16710); skipping layers of an unchanged model goes back to Draft & Verify
    (Zhang et al., arXiv 2309.08168). That draft tokens pass through these layers again in the target pass is free where
    a pass over several tokens takes as long as over one: the last draft token has to go through them anyway.
    """

    name: ClassVar[str] = "early_exit"
    reads: ClassVar[frozenset[str]] = SelfDrafting.reads | {"exit_layer"}

    def __init__(self, context: DraftContext):
        self.exit_layer = context.params.exit_layer or default_exit(context.pair.target)
        shortened = exit_after(context.target.model, self.exit_layer)
        super().__init__(context, shortened, self.exit_layer, context.passes.get(f"exit {self.exit_layer}"))

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"exit_layer": params.exit_layer or default_exit(pair.target)}

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        check_exit(pair.target, pair.target_name, params.exit_layer)

    def source(self, depth: int) -> str:
        return f"layer {self.exit_layer}"
