"""What the recipes of all parts that draft from the frozen target's hidden states have in common."""

from __future__ import annotations

import pathlib
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specviz.passes.trained_heads import fingerprint, load, save
from specviz.training.frozen import FrozenTarget
from specviz.training.loop import Recipe


class HeadRecipe(Recipe):
    """A head on the frozen target.

    sample: [rows, n] int64, some text from which to set a new head's scale. start: a head in float32 to train on.
    """

    head_class: ClassVar[type[nn.Module]]
    config_class: ClassVar[Any]

    def __init__(self, target: PreTrainedModel, sample: Tensor, seed: int = 0, start: nn.Module | None = None):
        torch.manual_seed(seed)
        self.device, self.dtype = target.device, target.dtype
        student = self.head_class(self.config_class.of(target)) if start is None else start
        self.student = student.to(self.device)
        self.target = FrozenTarget(target, self.student.feature_layers)
        if start is None:
            with torch.no_grad():
                self.student.scale.fill_(self.target.last_scale(sample.to(self.device)))

    @classmethod
    def head_in(cls, folder: pathlib.Path, target: PreTrainedModel) -> nn.Module:
        """The head in `folder`, in float32, to train on. Raises SpecvizError as loading it to draft does."""
        return load(cls.head_class, cls.config_class, folder, target).float().requires_grad_(True)

    def save(self, folder: pathlib.Path) -> None:
        save(self.student, folder, fingerprint(self.target.model))
