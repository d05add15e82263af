"""Drafting with the target itself, its weights in few bits: no second model and no training."""

from __future__ import annotations

from typing import Any, ClassVar

from specviz.drafters.base import DraftContext
from specviz.drafters.self_drafting import SelfDrafting
from specviz.models.pair import ModelPair
from specviz.models.quantised_target import check_quantisable, quantised_target
from specviz.passes.early_exits import layer_count
from specviz.records.settings import DraftParams

#: Where nobody says: nearly the target's own distribution, for half the bytes of bfloat16.
DEFAULT_BITS = 8


class QuantisedSelf(SelfDrafting):
    """Self-speculation: all of the target's layers, their weights rounded to 8 or 4 bits.

    A quantised copy as the draft: ML-SpecQD (Georganas et al., arXiv 2503.13565). In the target's own keys and values,
    which are better than the copy's own and are there already: QSpec (Zhao et al., arXiv 2410.11305). So the prompt is
    read once, nothing is held twice but the weights, and every draft's first step reads one token.

    It pays where reading fewer bytes takes less time: by the kernels for few rows, not by torch's operations, for which
    rounded weights are ordinary ones.
    """

    name: ClassVar[str] = "quantised_self"
    reads: ClassVar[frozenset[str]] = SelfDrafting.reads | {"bits"}

    def __init__(self, context: DraftContext):
        self.bits = context.params.bits or DEFAULT_BITS
        made = quantised_target(context.pair, self.bits, context.passes.get("target"))
        super().__init__(context, made.model, layer_count(made.model), made.passes)

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"bits": params.bits or DEFAULT_BITS}

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        check_quantisable(pair, params.bits or DEFAULT_BITS)

    def source(self, depth: int) -> str:
        return f"{self.bits} bits"
