"""Drafting with masks: a small model fills in all draft positions in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from specviz.drafters.at_once import AtOnce
from specviz.drafters.base import Setting, Verdict
from specviz.drafters.headed import Headed
from specviz.models.pair import ModelPair
from specviz.passes.parallel_head import ParallelReader
from specviz.passes.static_parallel import StaticParallelReader
from specviz.records.settings import DraftParams
from specviz.rules.transfer import to_device


class Parallel(AtOnce, Headed):
    """Masks after the text say what could stand in their places, from the target's hidden states of the text.

    PARD, An et al., arXiv 2504.18583; P-EAGLE, arXiv 2602.01469; DFlash, Chen et al., arXiv 2602.06036. The pass that
    drafts also reads what the last round has kept.
    """

    name: ClassVar[str] = "parallel"

    def __init__(self, setting: Setting):
        super().__init__(setting)
        fast = setting.passes.get(self.name)
        self.reader = ParallelReader(self.head, self.target) if fast is None else StaticParallelReader(fast)

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"depths": cls.most_depths(pair)}

    @classmethod
    def most_depths(cls, pair: ModelPair) -> int:
        return pair.parts[cls.name].config.depths

    def source(self, depth: int) -> str:
        return f"mask {depth}" if depth else "row"

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.features = features

    def all_rows(self, committed: Sequence[int], depths: int) -> Tensor | None:
        if self.features is None:
            return None
        with self.stopwatch.span():
            tokens = to_device(committed[self.reader.length + 1 :], self.features.device)
            return self.reader.read(self.features, tokens, depths)

    def observe(self, verdict: Verdict) -> None:
        self.features = verdict.features

    def watch(self, verdict: Verdict) -> None:
        # Those of the rounds before are still to be read.
        self.features = torch.cat([one for one in (self.features, verdict.features) if one is not None])
