"""The recipe of an MTP module for a target that was trained without one (FastMTP, arXiv 2509.18362)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specviz.parts.mtp_files import MtpFile, last_scale
from specviz.parts.published import hidden_size_of
from specviz.training.parts import ChainRecipe, Files, layer_settings, speculators_settings

#: How many tokens its configuration says that it drafts, as FastMTP's does.
_PROPOSED = 3


class MtpRecipe(ChainRecipe):
    """One module, run again on its own states for every further depth, learns at each of them.

    DeepSeek-V3 trains its modules with the target, on the text's tokens (arXiv 2412.19437, eq. 24 and 25); here the
    target is there already, and its distributions are the labels.
    """

    name: ClassVar[str] = "mtp"
    part: ClassVar[type[MtpFile]] = MtpFile

    def new(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> Files:
        """A layer that gives the state back, and so says what the target said; 4 MB where that is 384 wide.

        Whatever the target's family, it is a layer of Qwen 3: of those without experts or recurrence, the only one that
        speculators reads as a module.
        """
        config = target.config.get_text_config()
        sizes = layer_settings(target, config.num_hidden_layers, model_type="qwen3")
        d, size = hidden_size_of(target), sizes["head_dim"]
        inner = sizes["intermediate_size"] = -(-5 * d // (2 * 64)) * 64
        layer = {"input_proj": torch.eye(d, 2 * d).roll(d, 1), "final_layernorm": last_scale(target)}
        norms = ("token_layernorm", "hidden_layernorm", "input_layernorm", "post_attention_layernorm")
        layer |= {norm: torch.ones(d) for norm in norms}
        layer |= {f"self_attn.{part}_norm": torch.ones(size) for part in "qk"}
        layer |= {f"self_attn.{part}_proj": _spread(d, d) for part in "qkv"} | {"self_attn.o_proj": torch.zeros(d, d)}
        layer |= {f"mlp.{part}_proj": _spread(inner, d) for part in ("gate", "up")}
        layer |= {"mlp.down_proj": torch.zeros(d, inner)}
        settings = speculators_settings(target, "mtp", "MTPDraftModel", _PROPOSED, sizes)
        tensors = {f"mtp_layers.0.{name}.weight": tensor for name, tensor in layer.items()}
        return settings | {"num_nextn_predict_layers": 1}, tensors


def _spread(outputs: int, inputs: int) -> Tensor:
    """Normal weights [outputs, inputs] that keep the size of what they read."""
    return torch.randn(outputs, inputs) * inputs**-0.5
