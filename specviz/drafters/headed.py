"""What drafters with a trained part share: where the part comes from and what it reads."""

from __future__ import annotations

import torch
from torch import Tensor

from specviz.drafters.base import DraftContext
from specviz.drafters.stepwise import Stepwise
from specviz.models.pair import ModelPair, Part
from specviz.records.settings import DraftParams
from specviz.rules.draft import Verdict


class Headed(Stepwise):
    """Drafts from the target's hidden states with the pair's trained part of the same name."""

    def __init__(self, context: DraftContext):
        super().__init__(context)
        self.head: Part = context.pair.parts[self.name]
        self.target = context.pair.target
        self.stopwatch = context.target.stopwatch
        self.feature_layers = self.head.feature_layers
        self._features: list[Tensor] = []

    @property
    def features(self) -> Tensor | None:
        """The target's, [n, width], for the n tokens that the part has not read yet."""
        if len(self._features) > 1:
            # Only now: to join them after every plain step would copy all of them each time.
            self._features = [torch.cat(self._features)]
        return self._features[0] if self._features else None

    @features.setter
    def features(self, features: Tensor | None) -> None:
        self._features = [] if features is None else [features]

    def watch(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self._features.append(features)

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        if cls.name not in pair.parts:
            raise pair.missing_part(cls.name)
