"""Plain decoding as a drafter: it proposes nothing, so each round is one token from one target pass."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specviz.drafters.base import DraftContext, Drafter
from specviz.models.pair import ModelPair
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft


class Plain(Drafter):
    """The baseline. It has no name; users pass ``drafter=None``."""

    def __init__(self, context: DraftContext):
        """Keeps nothing of the context."""

    @classmethod
    def branches(cls, pair: ModelPair, params: DraftParams) -> int:
        return 1

    @classmethod
    def most_tokens(cls, num_draft_tokens: int, branches: int) -> int:
        return 0

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        return Draft.copied((), uniforms.device)
