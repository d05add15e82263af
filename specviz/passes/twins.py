"""Copies of a model on the same weights, in which something else may be changed."""

from __future__ import annotations

import copy

from transformers import PreTrainedModel

from specviz.passes.released_weights import packed_of


def sharing_twin(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of `model`, configurations included, because other runs read those of the original."""
    packed = filter(None, map(packed_of, model.modules()))
    shared = {id(kept): kept for kept in (*model.parameters(), *model.buffers(), *packed)}
    return copy.deepcopy(model, shared)


def attending_by(twin: PreTrainedModel, name: str) -> PreTrainedModel:
    """The same twin, all layers of which attend by transformers' attention function of this name from now on."""
    for module in twin.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = name
    return twin
