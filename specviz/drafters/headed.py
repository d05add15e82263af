"""What drafters with a trained part share: where the part comes from and what it reads."""

from __future__ import annotations

from torch import Tensor

from specviz.drafters.base import Setting
from specviz.drafters.stepwise import Stepwise
from specviz.models.pair import ModelPair, Part
from specviz.records.settings import DraftParams


class Headed(Stepwise):
    """Drafts from the target's hidden states with the pair's trained part of the same name."""

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self.head: Part = setting.pair.parts[self.name]
        self.target = setting.pair.target
        self.stopwatch = setting.target.stopwatch
        self.feature_layers = self.head.feature_layers
        self.features: Tensor | None = None  # the target's, for tokens the part has not read yet

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        if cls.name not in pair.parts:
            raise pair.missing_part(cls.name)
