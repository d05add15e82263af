"""Trained parts in GGUF files, as llama.cpp's converter writes them, read as the published files they were made from.

A table gives each tensor and each setting the name that it has there; from then on they are read like any other part
of that format. Sources: conversion/llama.py, qwen.py and gemma.py of llama.cpp (build b11434) write them,
src/models/eagle3.cpp, dflash.cpp and gemma4-assistant.cpp read them.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch import Tensor

from specviz.parts.gguf_file import GgufFile

#: Names of tensors, less ``.weight`` or ``.bias``: of all parts, of each layer, and what an architecture has besides.
_WHOLE = {"token_embd": "embed_tokens", "output": "lm_head", "output_norm": "norm", "fc": "fc"}
LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj"}
LAYER |= {f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"}
LAYER |= {f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
_ONLY_IN = {
    "eagle3": {"enc.output_norm": "input_norm", "attn_norm_2": "hidden_norm"},
    "dflash": {
        "enc.output_norm": "hidden_norm",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "markov_w1": "markov_head.markov_w1",
        "markov_w2": "markov_head.markov_w2",
        "conf_proj": "confidence_head.proj",
        "attn_conv_base": "attention_conv.base_kernel",
        "attn_conv_proj": "attention_conv.kernel_projection",
        "ffn_conv_base": "mlp_conv.base_kernel",
        "ffn_conv_proj": "mlp_conv.kernel_projection",
        "selector_predecessor": "candidate_selector.predecessor_codebook",
        "selector_successor": "candidate_selector.successor_codebook",
        "selector_hidden": "candidate_selector.hidden_projection",
    },
    "gemma4-assistant": {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "attn_q_norm": "self_attn.q_norm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "layer_output_scale": "layer_scalar",
        "nextn.pre_projection": "pre_projection",
        "nextn.post_projection": "post_projection",
    },
}

#: What is no layer's weight in a published file has no ``.weight`` there.
_BARE = ("base_kernel", "_codebook", "layer_scalar")

#: In a Gemma 4 assistant's file, what is a setting in the published one, and what llama.cpp does not draft with: the
#: groups of tokens, which its converter leaves out.
_NO_WEIGHTS = ("rope_freqs.weight", "masked_embd_centroids.weight", "masked_embd_ordering")

#: Settings of the layers, by what a header calls them after its architecture.
_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_FURTHER = {
    "eagle3": {
        "target_layers": "eagle_aux_hidden_state_layer_ids",
        "target_hidden_size": "target_hidden_size",
        "norm_before_residual": "norm_before_residual",
    },
    "dflash": {
        "block_size": "block_size",
        "sample_from_anchor": "sample_from_anchor",
        "embedding_scale": "input_embedding_scale",
        "logit_scale": "output_multiplier",
        "final_logit_softcapping": "final_logit_softcapping",
        **{name: name for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")},
    },
    "gemma4-assistant": {"attention.sliding_window": "sliding_window"},
}


class GgufPart:
    """A trained part in a GGUF file. Raises whatever its readers do for a damaged one."""

    def __init__(self, file: GgufFile):
        self.file, self.kind, self._setting = file, file.kind, file.setting

    @staticmethod
    def is_in(file: GgufFile) -> bool:
        """False for a model."""
        return file.kind in _ONLY_IN

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """As in the config.json that it was made from."""
        settings = {name: self._setting(key) for key, name in (_SIZES | _FURTHER[self.kind]).items()}
        if self.kind == "gemma4-assistant":
            return self._assistant_settings(settings)
        settings |= {"architectures": [self._class()], "vocab_size": self._vocab_size(), "attention_bias": False}
        settings["rope_parameters"] = {"rope_type": "default", "rope_theta": settings.pop("rope_theta")}
        if self.kind == "eagle3":
            # Hidden states are numbered as speculators does.
            return settings | {"speculators_model_type": "eagle3", "draft_vocab_size": self._rows("output")}
        return settings | self._block_settings()

    def _class(self) -> str:
        """What a part like this calls itself as a published file."""
        if self.kind == "eagle3":
            return "LlamaForCausalLMEagle3"
        if self._setting("selector_rank"):
            return "DFlash2DraftModel"
        return "DFlashDraftModel" if self._setting("sample_from_anchor") is None else "Qwen3DSparkModel"

    @property
    def stretches(self) -> bool:
        """Whether positions are scaled, or not all of a head turns with them: such files say that in their own way."""
        turned, size = self._setting("rope.dimension_count"), self._setting("attention.key_length")
        scaled = self._setting("rope.scaling.type") not in (None, "none") or any(
            "rope_f" in name for name in self.tensors
        )
        if self.kind == "gemma4-assistant":
            sliding = (self._setting(f"{name}_swa") for name in ("rope.dimension_count", "attention.key_length"))
            scaled = scaled or len(set(sliding)) > 1 or self._turning_share is None
        return scaled or (turned or size) != size

    def _block_settings(self) -> dict[str, Any]:
        """Of a block drafter, what is not called otherwise alone."""
        layers = self._setting("target_layers") or []
        settings: dict[str, Any] = {"target_layer_ids": [layer - 1 for layer in layers]}
        settings["mask_token_id"] = self.file.header.get("tokenizer.ggml.mask_token_id")
        settings["is_causal"] = bool(self._setting("attention.causal"))
        if window := self._setting("attention.sliding_window"):
            slides = self._setting("attention.sliding_window_pattern")
            settings["sliding_window"] = window
            settings["layer_types"] = _kinds(slides)
        return settings

    def _assistant_settings(self, text: dict[str, Any]) -> dict[str, Any]:
        """Of a Gemma 4 assistant, from those of its layers."""
        slides, every = self._setting("attention.sliding_window_pattern"), range(text["num_hidden_layers"])
        kv_heads = text.pop("num_key_value_heads")
        of_layer = kv_heads if isinstance(kv_heads, list) else [kv_heads for _ in every]
        # Layers with full attention have wider heads, of which a share turns with the positions.
        wide, sliding_theta = text["head_dim"], self._setting("rope.freq_base_swa")
        text["per_layer_config"] = {
            layer: {"num_key_value_heads": of_layer[layer]} | ({} if slides[layer] else {"head_dim": wide})
            for layer in every
        }
        text["head_dim"] = self._setting("attention.key_length_swa")
        text["rope_parameters"] = {
            "sliding_attention": {"rope_type": "default", "rope_theta": sliding_theta},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": text.pop("rope_theta"),
                "partial_rotary_factor": self._turning_share,
            },
        }
        text |= {"model_type": "gemma4_text", "layer_types": _kinds(slides), "vocab_size": self._vocab_size()}
        text |= dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"), 0)
        labels = {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant"}
        return labels | {"backbone_hidden_size": self._setting("embedding_length_out"), "text_config": text}

    @property
    def _turning_share(self) -> float | None:
        """How many pairs of rows of a wide head turn with the positions, as a share: those whose frequency is divided
        by 1, and not by so much that nothing is left of it. None if there are others."""
        if _NO_WEIGHTS[0] not in self.file.tensors:
            return None
        factors = self.file.tensor(_NO_WEIGHTS[0])
        turning = int((factors == 1).sum())
        return turning / len(factors) if (factors[turning:] >= 1e30).all() else None

    @functools.cached_property
    def tensors(self) -> dict[str, str]:
        """What is stored, by its published name."""
        ignored = _NO_WEIGHTS if self.kind == "gemma4-assistant" else ()
        return {self._name_of(name): name for name in self.file.tensors if name not in ignored}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors, by their published names."""
        shapes = {name: self.file.shape(stored) for name, stored in self.tensors.items()}
        if len(row := shapes.get("confidence_head.proj.weight", ())) == 1:
            shapes["confidence_head.proj.weight"] = (1, *row)  # llama.cpp's programs write a single row as a vector
        return shapes

    def tensor(self, name: str) -> Tensor:
        """One of the tensors by its published name, unpacked, in float32 or int64."""
        tensor = self.file.tensor(self.tensors[name]).reshape(self.shapes[name])
        if name == "d2t":  # of the target's ids here, of distances to them there
            return tensor - torch.arange(len(tensor))
        if self.kind == "eagle3" and re.search(r"self_attn\.[qk]_proj", name):
            return self._in_halves(name, tensor)
        return tensor

    def _in_halves(self, name: str, tensor: Tensor) -> Tensor:
        """Queries and keys turn in pairs of neighbouring rows for llama.cpp, and in two halves for transformers."""
        heads = self._setting("attention.head_count" if "q_proj" in name else "attention.head_count_kv")
        return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(tensor.shape)

    def _name_of(self, stored: str) -> str:
        """blk.3.attn_q.weight → layers.3.self_attn.q_proj.weight; what is unknown keeps its name, and is refused."""
        parts = re.fullmatch(r"(blk\.(\d+)\.)?(.+?)(\.weight|\.bias)?", stored)
        assert parts is not None, "whatever it is called"
        _, layer, own, kind = parts.groups(default="")
        name = (_WHOLE | LAYER | _ONLY_IN[self.kind]).get(own)
        if name is None:
            return stored
        layers = "model.layers" if self.kind == "gemma4-assistant" else "layers"
        return f"{f'{layers}.{layer}.' if layer else ''}{name}{'' if name.endswith(_BARE) else kind}"

    def _rows(self, name: str) -> int | None:
        return self.file.shape(f"{name}.weight")[0] if f"{name}.weight" in self.file.tensors else None

    def _vocab_size(self) -> int | None:
        """The target's: of the embeddings, or of the tokens that the file lists."""
        return self._rows("token_embd") or self._setting("vocab_size") or self.file.header.get("tokenizer.ggml.tokens")


def _kinds(slides: list[bool]) -> list[str]:
    """Of layers that attend to a window, or to everything."""
    return [f"{'sliding' if slide else 'full'}_attention" for slide in slides]
