"""An output head with rows for some of the tokens only."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from specviz.records.errors import SpecvizError

#: In the configuration of a model with such a head, how many rows it has: programs are compiled for their number.
_ROWS = "head_rows"


def narrow_head(model: PreTrainedModel, ids: Tensor) -> None:
    """Leaves the model's head only the rows of these tokens, [n] int64: its logits are [..., n] from now on.

    Embeddings that the head was tied to keep all of theirs. Raises SpecvizError (field ``draft_vocabulary``) for a head
    that is more than one linear layer.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise SpecvizError(
            "The output head of {name} cannot be narrowed: it is no linear layer.",
            "draft_vocabulary",
            name=model.name_or_path or type(model).__name__,
        )
    narrow = nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
    for name, rows in head.named_parameters():
        setattr(narrow, name, nn.Parameter(rows.detach()[ids.to(rows.device)], requires_grad=False))
    model.set_output_embeddings(narrow)
    setattr(model.config, _ROWS, len(ids))


def narrow_like(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Gives a new model of this configuration a head of as many rows as it tells of. Which, its weights will say."""
    if rows := getattr(config, _ROWS, None):
        narrow_head(model, torch.arange(rows))
