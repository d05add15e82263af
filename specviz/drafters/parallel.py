"""Drafting with masks: a small model fills in all draft positions in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from specviz.drafters.at_once import AtOnce
from specviz.drafters.base import DraftContext
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.headed import Headed
from specviz.models.pair import ModelPair
from specviz.passes.dflash import DFlashHead, DFlashReader
from specviz.passes.parallel_head import ParallelReader
from specviz.passes.static_parallel import StaticParallelReader
from specviz.records.settings import DraftParams
from specviz.rules.draft import Verdict
from specviz.rules.transfer import to_device

#: The most masks for which published PARD models are run, less one: nothing in their folders says how many.
_PARD_DEPTHS = 32


class Masked(AtOnce):
    """Masks after the text say what could stand in their places. The pass that drafts also reads what the last round
    has kept."""

    name: ClassVar[str] = "parallel"
    masks_alone: bool = False  # whether masks make the first token too, and not the text's last row

    def source(self, depth: int) -> str:
        mask = depth + self.masks_alone
        return f"mask {mask}" if mask else "row"


class Parallel(Masked, Headed):
    """Drafts from the target's hidden states of the text.

    P-EAGLE, arXiv 2602.01469; DFlash, Chen et al., arXiv 2602.06036.
    """

    def __init__(self, context: DraftContext):
        super().__init__(context)
        fast = context.passes.get(self.name)
        self.masks_alone = isinstance(self.head, DFlashHead)
        eager = DFlashReader if self.masks_alone else ParallelReader
        self.reader = eager(self.head, self.target) if fast is None else StaticParallelReader(fast)

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"depths": cls.most_depths(pair)}

    @classmethod
    def most_depths(cls, pair: ModelPair) -> int:
        return pair.parts[cls.name].config.depths

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.features = features

    def all_rows(self, committed: Sequence[int], depths: int) -> Tensor | None:
        if self.features is None:
            return None
        with self.stopwatch.span():
            tokens = to_device(committed[self.reader.length + 1 :], self.features.device)
            return self.reader.read(self.features, tokens, depths)

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.features = features


class ParallelDraftModel(Masked, DraftModel):
    """Drafts with a draft model that was adapted to masks: the same token again and again (PARD, arXiv 2504.18583)."""

    @classmethod
    def suits(cls, pair: ModelPair) -> bool:
        """Whether the pair's draft model is such a one, in the target's own tokens."""
        if pair.draft is None or pair.translation is not None:
            return False
        settings = pair.draft.config
        return getattr(settings, "spd_type", None) == "pard" and hasattr(settings, "pard_token")

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        """It reads chains only, so any draft model will do."""

    @classmethod
    def most_depths(cls, pair: ModelPair) -> int:
        return _PARD_DEPTHS

    def all_rows(self, committed: Sequence[int], depths: int) -> Tensor:
        unread = self.unread(committed)
        masks = unread.new_full((depths - 1,), self.model.model.config.pard_token)
        return self.model.forward(torch.cat([unread, masks]), keep=depths)

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.model.rewind(committed)
