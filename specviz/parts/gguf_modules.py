"""Multi-token-prediction modules in GGUF files, as layers after their target's own or alone in a file (``mtp-….gguf``),
by the names and with the weights that they have in transformers' `MtpModel`.

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

#: The architectures of targets whose modules are read, and what the converter adds to the weights of norms: Qwen's
#: count from 0, and llama.cpp's from 1.
_ADDED_TO_NORMS = {"qwen35": 1, "qwen35moe": 1, "qwen3next": 1, "glm4moe": 0}

#: How a configuration calls itself that stands for such a file's.
LABEL = "gguf_mtp_modules"

#: Names of tensors, less ``.weight``: of a module, and of the layer in it. An expert's gate and up are one tensor.
_MODULE = {f"nextn.{name}": name for name in ("eh_proj", "enorm", "hnorm")} | {"nextn.shared_head_norm": "post_norm"}
_LAYER = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}
_LAYER |= {"attn_output": "self_attn.o_proj"} | {f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"}
_LAYER |= {f"attn_{name}_norm": f"self_attn.{name}_norm" for name in "qk"}
_LAYER |= {f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
_LAYER |= {"ffn_gate_inp": "mlp.gate", "ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
_EXPERTS = {"ffn_gate_exps": "gate_up_proj", "ffn_up_exps": "gate_up_proj", "ffn_down_exps": "down_proj"}

#: What a file may have of the target's own, which a module shares with it.
_SHARED = ("nextn.embed_tokens", "nextn.shared_head_head")


class GgufModules:
    """The modules in a GGUF file; none in most. Raises whatever its readers do for a damaged one."""

    stretches = False  # their positions turn as the target's do

    def __init__(self, file: GgufFile):
        self.file = file
        self.count: int = file.setting("nextn_predict_layers") or 0
        self.first: int = (file.setting("block_count") or 0) - self.count  # the number of the first one's layer

    @property
    def alone(self) -> bool:
        """Whether there is nothing of a model but them, and what they share with it."""
        layers = filter(None, (re.match(r"blk\.(\d+)\.", name) for name in self.file.tensors))
        return self.count > 0 and all(int(layer[1]) >= self.first for layer in layers)

    @property
    def settings(self) -> dict[str, Any]:
        """What they say of themselves and of their target."""
        known = self.file.kind in _ADDED_TO_NORMS
        sizes = {"num_hidden_layers": self.first, "hidden_size": self.file.setting("embedding_length")}
        return {"model_type": LABEL if known else "nextn", "num_nextn_predict_layers": self.count} | sizes

    @functools.cached_property
    def tensors(self) -> dict[str, list[str]]:
        """What is stored of them, by its name in `MtpModel`."""
        tensors: dict[str, list[str]] = {}
        for stored in sorted(self.file.tensors):  # gates before ups
            if (name := self._name_of(stored)) is not None:
                tensors.setdefault(name, []).append(stored)
        return tensors

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors, by those names."""
        shapes = {}
        for name, stored in self.tensors.items():
            empty = [torch.empty(self.file.shape(one), device="meta") for one in stored]
            shapes[name] = tuple(_joined(name, empty).shape)
        return shapes

    def tensor(self, name: str) -> Tensor:
        """One of the tensors, unpacked, in float32."""
        tensor = _joined(name, [self.file.tensor(stored) for stored in self.tensors[name]])
        return tensor - _ADDED_TO_NORMS[self.file.kind] if name.endswith("norm.weight") else tensor

    def _name_of(self, stored: str) -> str | None:
        """blk.24.attn_q.weight → layers.0.mtp_block.self_attn.q_proj.weight; None: the target's, and what is unknown
        keeps its name, and is refused."""
        parts = re.fullmatch(r"blk\.(\d+)\.(.+?)\.(weight|bias)", stored)
        if parts is None or (place := int(parts[1]) - self.first) < 0 or parts[2] in _SHARED:
            return None
        own, block = parts[2], f"layers.{place}.mtp_block"
        if own in _MODULE:
            return f"layers.{place}.{_MODULE[own]}.{parts[3]}"
        if own in _EXPERTS:
            return f"{block}.mlp.experts.{_EXPERTS[own]}"
        if own == "exp_probs_b":
            return f"{block}.mlp.gate.e_score_correction_bias"
        if shared := re.fullmatch(r"ffn_(gate|up|down)_shexp", own):
            experts = "shared_experts" if self.file.kind == "glm4moe" else "shared_expert"
            return f"{block}.mlp.{experts}.{shared[1]}_proj.{parts[3]}"
        return f"{block}.{_LAYER[own]}.{parts[3]}" if own in _LAYER else stored


def _joined(name: str, tensors: list[Tensor]) -> Tensor:
    """One tensor of what is stored as one or two. llama.cpp's programs write a single row as a vector."""
    tensor = tensors[0] if len(tensors) == 1 else torch.cat(tensors, 1)
    return tensor.reshape(1, -1) if name.endswith("shared_expert_gate.weight") else tensor
