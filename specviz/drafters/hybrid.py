"""Drafting by copying where the text repeats itself, and by a model where it does not."""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from specviz.drafters.base import DraftContext, Drafter
from specviz.drafters.copying import Suffix
from specviz.drafters.draft_model import DraftModel, TranslatedDraftModel
from specviz.drafters.heads import Eagle, Mtp
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft, Verdict


class Hybrid(Drafter):
    """Each round copies as `suffix` does if that promises most of a draft, and asks the pair's model otherwise.

    SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975, which falls back on EAGLE where the copies' score is low: so
    does this, or on what else the pair has. Who drafts depends on the committed text alone, so nothing is drawn twice,
    and q is its drafter's. The model learns of the rounds in between, and reads what it missed when asked.
    """

    name: ClassVar[str] = "hybrid"
    measured_as: ClassVar[frozenset[str]] = frozenset({"block"})
    parameters: ClassVar[frozenset[str]] = Suffix.parameters | DraftModel.parameters

    #: Measured on the embedded pair: above temperature 0 copies that follow a single token are
    #: worth less than the model's drafts. Other shares, and any greedily, make no difference that could be measured.
    LEAST_SHARE = 0.7
    LEAST_MATCH = 2

    def __init__(self, context: DraftContext):
        self.copier = Suffix(context)
        self.model = model_of(context.pair)(context)
        self.feature_layers = self.model.feature_layers
        self.has_copied = False  # whether the last draft is a copy

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        model_of(pair).check(pair, params)

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        model = model_of(pair)
        return Suffix.settings(pair, params) | model.settings(pair, params) | {"model": model.name}

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.copier.prefill(prompt)
        self.model.prefill(prompt, features)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        tree = self.copier.best_continuation(committed, budget)
        self.has_copied = tree.match >= self.LEAST_MATCH and tree.score >= self.LEAST_SHARE * budget
        self.reachable = None if self.has_copied else self.model.reachable  # a copy may be of any token
        return self.copier.draft_of(tree) if self.has_copied else self.model.propose(committed, budget, uniforms)

    def observe_draft(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        if self.has_copied:
            self.model.observe_plain_step(committed, verdict, features)
        else:
            self.model.observe_draft(committed, verdict, features)

    def observe_plain_step(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.model.observe_plain_step(committed, verdict, features)


def model_of(pair: ModelPair) -> type[Drafter]:
    """Who drafts where there is nothing to copy: the best guesser that the pair has.

    Raises SpecvizError (field ``drafter``) if it has none.
    """
    for kind in (Eagle, Mtp):
        if kind.name in pair.parts:
            return kind
    if pair.draft is None:
        raise SpecvizError(
            "This pair has no model to draft where the text does not repeat itself: name a draft model when "
            "loading, or draft with suffix.",
            "drafter",
        )
    return DraftModel if pair.translation is None else TranslatedDraftModel
