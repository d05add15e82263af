"""Multi-token-prediction modules in GGUF files, as layers after their target's own or alone (``mtp-….gguf``), by their
names and with their weights in transformers' `MtpModel`.

Sources: conversion/qwen.py and glm.py of llama.cpp (build b11434) write them, src/models/qwen35.cpp, qwen3next.cpp and
glm4-moe.cpp read them.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch import Tensor

from specviz.parts.gguf_file import GgufFile
from specviz.parts.gguf_parts import LAYER

#: The architectures of targets whose modules are read, and what the converter adds to the weights of norms: Qwen's
#: count from 0, and llama.cpp's from 1.
_ADDED_TO_NORMS = {"qwen35": 1, "qwen35moe": 1, "qwen3next": 1, "glm4moe": 0}

#: Names of tensors in a module and in its layer, less ``.weight`` or ``.bias``. An expert's gate and up are one tensor.
_LAYER = LAYER | {"post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate"}
_LAYER |= {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
_LAYER |= {f"attn_{name}_norm": f"self_attn.{name}_norm" for name in "qk"}
_LAYER |= {f"ffn_{name}_shexp": f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")}
_NAMES = {f"{own}.{kind}": f"mtp_block.{name}.{kind}" for own, name in _LAYER.items() for kind in ("weight", "bias")}
_NAMES |= {f"ffn_{name}_exps.weight": "mtp_block.mlp.experts.gate_up_proj" for name in ("gate", "up")}
_NAMES |= {"ffn_down_exps.weight": "mtp_block.mlp.experts.down_proj"}
_NAMES |= {"exp_probs_b.bias": "mtp_block.mlp.gate.e_score_correction_bias"}
_NAMES |= {f"nextn.{name}.weight": f"{name}.weight" for name in ("eh_proj", "enorm", "hnorm")}
_NAMES |= {"nextn.shared_head_norm.weight": "post_norm.weight"}

#: What a module shares with its target, whatever a file has of it.
_SHARED = ("nextn.embed_tokens.weight", "nextn.shared_head_head.weight")


class GgufModules:
    """The modules in a GGUF file; none in most."""

    stretches = False  # their positions turn as the target's do

    def __init__(self, file: GgufFile):
        self.file = file
        self.count: int = file.setting("nextn_predict_layers") or 0
        self.first: int = (file.setting("block_count") or 0) - self.count  # the number of the first one's layer

    @property
    def alone(self) -> bool:
        """Whether the file holds no layers but theirs."""
        layers = re.findall(r"\bblk\.(\d+)", " ".join(self.file.tensors))
        return self.count > 0 and all(int(layer) >= self.first for layer in layers)

    @property
    def settings(self) -> dict[str, Any]:
        """What they say of themselves and of their target."""
        label = "gguf_mtp" if self.file.kind in _ADDED_TO_NORMS else "nextn"
        sizes = {"num_hidden_layers": self.first, "hidden_size": self.file.setting("embedding_length")}
        return {"model_type": label, "num_nextn_predict_layers": self.count} | sizes

    @functools.cached_property
    def tensors(self) -> dict[str, list[str]]:
        """What is stored of them, by its name in `MtpModel`; what is unknown keeps its name, and is refused."""
        tensors: dict[str, list[str]] = {}
        for stored in sorted(self.file.tensors):  # gates before ups
            layer = re.match(r"blk\.(\d+)\.(.+)", stored)
            if layer is not None and (place := int(layer[1]) - self.first) >= 0 and layer[2] not in _SHARED:
                name = f"layers.{place}.{_NAMES[layer[2]]}" if layer[2] in _NAMES else stored
                if self.file.kind == "glm4moe":
                    name = name.replace("shared_expert.", "shared_experts.")
                tensors.setdefault(name, []).append(stored)
        return tensors

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors, by those names."""
        empty = {stored: torch.empty(shape, device="meta") for stored, (shape, *_) in self.file.tensors.items()}
        whole = {name: _whole(name, [empty[one] for one in stored]) for name, stored in self.tensors.items()}
        return {name: tuple(tensor.shape) for name, tensor in whole.items()}

    def tensor(self, name: str) -> Tensor:
        """One of the tensors, unpacked, in float32."""
        tensor = _whole(name, [self.file.tensor(stored) for stored in self.tensors[name]])
        return tensor - _ADDED_TO_NORMS[self.file.kind] if name.endswith("norm.weight") else tensor


def _whole(name: str, tensors: list[Tensor]) -> Tensor:
    """What is stored as one tensor or two. llama.cpp's programs write a single row as a vector."""
    tensor = tensors[0] if len(tensors) == 1 else torch.cat(tensors, 1)
    return tensor.reshape(1, -1) if name.endswith("shared_expert_gate.weight") else tensor
