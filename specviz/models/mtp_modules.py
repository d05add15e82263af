"""Finds the multi-token-prediction modules that lie in a target's own checkpoint, and reads them."""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from specviz.models.refusals import quantisation_of
from specviz.models.sources import quietly
from specviz.passes.devices import home_of, is_sharded, is_spread
from specviz.passes.head_files import StoredWeights
from specviz.passes.published_heads import MtpModules
from specviz.records.errors import SpecvizError, first_line


def load_mtp_modules(target: PreTrainedModel) -> MtpModules | None:
    """The modules in this target's checkpoint, in evaluation mode, on its device and in its dtype; None if it has none,
    or if transformers does not know those of its family.

    Raises SpecvizError (field ``drafter``) if there are some that cannot be read here.
    """
    config = target.config.get_text_config()
    first, count = config.num_hidden_layers, getattr(config, "num_mtp_layers", None)
    stored = StoredWeights(target) if count else None
    if stored is None or stored.folder is None:
        return None
    # A twin that says where the files are, and what their weights are called: of families that count the modules as
    # further layers, transformers knows the numbers of the published sizes alone.
    source = copy.copy(target)
    source.config = copy.deepcopy(target.config)
    source.config.name_or_path = str(stored.folder)
    further = [rf"(^|\.)layers\.{layer}\." for layer in range(first, first + count)]
    source._keys_to_ignore_on_load_unexpected = [*(target._keys_to_ignore_on_load_unexpected or ()), *further]
    if not any(map(MtpModel.get_mtp_weights_regex(source).search, stored.names)):
        return None
    if quantisation_of(target.config) is not None or is_spread(target) or is_sharded(target):
        raise SpecvizError(
            "The MTP modules of a target that is quantised or lies on several devices are not read: choose another "
            "drafter.",
            "drafter",
        )
    try:
        with quietly():
            # To the CPU: transformers reads weights in threads of its own, where a lent GPU is not there.
            model = MtpModel.from_pretrained(source, device_map={"": torch.device("cpu")})
    except (RuntimeError, ValueError, KeyError, AttributeError) as error:
        raise SpecvizError(
            "The MTP modules in {folder} cannot be read: {reason}.",
            "drafter",
            folder=stored.folder,
            reason=first_line(error),
        ) from error
    return MtpModules(model.eval().requires_grad_(False).to(home_of(target)), target)
