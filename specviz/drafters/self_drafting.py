"""Drafting with the target itself, made cheaper: by its first layers, or by all of it with weights in few bits."""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from specviz.drafters.ahead import DraftAhead
from specviz.drafters.base import DraftContext
from specviz.drafters.stepwise import Stepwise
from specviz.models.pair import ModelPair
from specviz.models.quantised_targets import check_quantisable, quantised_target
from specviz.parts.reading import HostLevel, Rows
from specviz.parts.servers import Servers
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.rounds import SelfReliant
from specviz.passes.model_twins import default_exit, exit_after, layer_count
from specviz.passes.readers import StaticModel
from specviz.passes.reading_checks import check_exit
from specviz.passes.roles import TARGET, Role
from specviz.passes.static_passes import WIDEST
from specviz.records.settings import BITS, DraftParams
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
        self.in_one_call = self.drafts_in_one_call(self.model)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        try:
            self.model.length = self.target.length
            unread = self.model.unread(committed)
            choice = self.choice if self.in_one_call else None
            if choice is not None and unread.shape[0] <= WIDEST:
                return self.as_draft(self.model.draft(unread, budget, choice, uniforms), uniforms)
            return super().propose(committed, budget, uniforms)
        finally:
            self.model.rewind(self.target.length)

    def self_reliant(self) -> SelfReliant | None:
        model = self.model
        return SelfReliant(model, shares=True) if self.in_one_call and isinstance(model, StaticModel) else None

    def rows_by_level(self, committed: Sequence[int], depth: int) -> Rows[HostLevel]:
        rows = self.model.forward(self.model.unread(committed), rows_wanted=1)
        while True:
            level = yield rows
            rows = self.model.extend(level.tokens, level.parents)

    def ahead(self, deepest: int) -> DraftAhead | None:
        if not self.grows_on(self.model):
            return None
        return DraftAhead(**self._ahead_arguments(self.model, deepest), unread=1, shares=True)


class EarlyExit(SelfDrafting):
    """Self-speculation: the first E layers of the target, then its own final norm and output head.

    LayerSkip (Elhoushi et al., arXiv 2404.16710); skipping layers of an unchanged model goes back to Draft & Verify
    (Zhang et al., arXiv 2309.08168). That draft tokens pass through these layers again in the target pass is free where
    a pass over several tokens takes as long as over one: the last draft token has to go through them anyway.
    """

    name: ClassVar[str] = "early_exit"
    parameters: ClassVar[frozenset[str]] = SelfDrafting.parameters | {"exit_layer"}

    def __init__(self, context: DraftContext):
        self.exit_layer = context.params.exit_layer or default_exit(context.pair.target)
        shortened = exit_after(context.target.model, self.exit_layer)
        super().__init__(context, shortened, self.exit_layer, context.passes.get(Role.exit(self.exit_layer)))

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"exit_layer": params.exit_layer or default_exit(pair.target)}

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        check_exit(pair.target, pair.target_name, params.exit_layer)

    def source(self, depth: int) -> str:
        return f"layer {self.exit_layer}"


class QuantisedSelf(SelfDrafting):
    """Self-speculation: all of the target's layers, their weights rounded to 4 or 8 bits.

    A quantised copy as the draft: ML-SpecQD (Georganas et al., arXiv 2503.13565). In the target's own keys and values,
    which are better than the copy's own and are there already: QSpec (Zhao et al., arXiv 2410.11305). So the prompt is
    read once, nothing is held twice but the weights, and every draft's first step reads one token.

    It pays where reading fewer bytes takes less time: by the kernels for few rows, not by torch's operations, for which
    rounded weights are ordinary ones.
    """

    name: ClassVar[str] = "quantised_self"
    measured_as: ClassVar[frozenset[str]] = frozenset({"bits"})
    servers: ClassVar[Servers] = Servers("draft_model", "STANDALONE", "draft-simple", "TARGET_IN_FEW_BITS", note="copy")
    step_share: ClassVar[float | None] = 1  # as deep as the target
    preparing_seconds: ClassVar[float] = 5  # for rounding the weights
    parameters: ClassVar[frozenset[str]] = SelfDrafting.parameters | {"bits"}

    def __init__(self, context: DraftContext):
        self.bits = context.params.bits or BITS[0]
        quantised = quantised_target(context.pair, self.bits, context.passes.get(TARGET))
        super().__init__(context, quantised.model, layer_count(quantised.model), quantised.passes)

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"bits": params.bits or BITS[0]}

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        check_quantisable(pair, params.bits or BITS[0])

    def source(self, depth: int) -> str:
        return f"{self.bits} bits"
