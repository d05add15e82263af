"""Checkpoints as the field has them, drawn from a seed: an architecture, shrunk, and what may be odd about one.

Most architectures that transformers writes text with (`ARCHITECTURES`); settings that contradict each other or mean
nothing; weights that are damaged, quantised, missing or left over; and settings beside the model.
"""

from __future__ import annotations

import json
import pathlib
import random
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny import byte_tokenizer, spread
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig

#: Sizes under all the names that architectures have for them.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "hidden_dim", "dim"), 48),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "d_ff", "d_inner"), 64),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "moe_k"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 256),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "sliding_window"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
    **{"vocab_size": 128, "head_dim": 12, "qk_rope_head_dim": 4, "n_group": 1, "topk_group": 1},
}

#: Of the part that sees, in models that see too.
_SEEING = {"hidden_size": 32, "embed_dim": 32, "out_hidden_size": 48, "intermediate_size": 32, "num_heads": 4}
_SEEING |= {"num_attention_heads": 4, "num_hidden_layers": 1, "depth": 1, "fullatt_block_indexes": [0]}

#: Not shrunk by these sizes: inner parts of their own, sizes that must fit each other, packages that are not here.
_NOT_SHRUNK = {"bamba", "blip", "blt", "cohere_compass_text", "cpmant", "dbrx", "dots1", "dots3_note"}
_NOT_SHRUNK |= {"dots3_note_text", "falcon", "gemma3n", "gemma3n_text", "gemma4", "gemma4_assistant", "gemma4_text"}
_NOT_SHRUNK |= {"gemma4_unified", "gemma4_unified_assistant", "gemma4_unified_text", "git", "got_ocr2", "gpt_neo"}
_NOT_SHRUNK |= {"granitemoehybrid", "hunyuan_v1_dense", "hunyuan_v1_moe", "inkling2_loop_text", "inkling2_text"}
_NOT_SHRUNK |= {"kimi_linear", "lfm2_moe", "mamba2", "ministral", "moss_transcribe_diarize", "musicgen"}
_NOT_SHRUNK |= {"musicgen_melody", "nemotron", "phi4_multimodal", "prophetnet", "reformer", "roc_bert", "xlnet"}
_NOT_SHRUNK |= {"xlstm", "zamba", "zamba2", "zaya"}

#: All others, new ones among them.
ARCHITECTURES = sorted(
    kind
    for kind in CONFIG_MAPPING
    if kind not in _NOT_SHRUNK and CONFIG_MAPPING[kind] in AutoModelForCausalLM._model_mapping
)

_ROPES = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [4.0] * 6}
    | {"original_max_position_embeddings": 24},
    {"rope_type": "spiral"},
    {"type": "su", "short_factor": [1.0] * 6, "long_factor": [4.0] * 6},
    {"rope_type": "default", "rope_theta": 1.0},
    {"type": "linear", "factor": "2"},
    7,
]

#: Of a configuration: settings that change nothing of what the model means, here.
_HARMLESS: dict[str, list[Any]] = {
    "use_cache": [False],
    "is_causal": [True],
    "architectures": [None, ["SomethingForCausalLM"]],
    "_attn_implementation": ["flash_attention_2", "eager", "spiral"],
    "output_hidden_states": [True],
    "output_attentions": [True],
    "return_dict": [False],
    "attention_dropout": [0.5],
    "tokenizer_class": ["SpiralTokenizer"],
    "eos_token_id": [None, [0, 5], 999, -1],
}

_ODD: dict[str, list[Any]] = {
    "rope_scaling": _ROPES,
    "hidden_act": ["reglu", "relu", None],
    "pad_token_id": [127, 128, 999, -1, None],
    "vocab_size": [1, 2, 3, 4, 5, 127, 131],
    "num_attention_heads": [3, 5, 1, 0],
    "num_key_value_heads": [1, 3, 4, 0],
    "tie_word_embeddings": [True, False],
    "dtype": ["float128", "float64", "bfloat16", "float16", "auto", 7],
    "is_causal": [False],
    "use_bidirectional_attention": [True, "all", False],
    "is_decoder": [False, True],
    "sliding_window": [1, 0, None, -1, 4],
    "attention_chunk_size": [8],
    "layer_types": [["full_attention"], ["full_attention", "sliding_attention"], ["spiral", "full_attention"]],
    "num_hidden_layers": [1, 3, 0],
    "max_position_embeddings": [8, 0, 24, None, "256"],
    "quantization_config": [{"quant_method": "spiral"}, {}, {"quant_method": "gptq"}, {"group_size": 64, "bits": 4}],
    "head_dim": [7, 8, 0, 16],
    "architectures": [["LlamaForSequenceClassification"], "x"],
    "rms_norm_eps": [0, "1e-5"],
    "final_logit_softcapping": [5.0],
    "hidden_size": [47],
    "intermediate_size": [0, 63],
    "model_type": ["spiral", "mamba", "t5", None],
    "auto_map": [{"AutoModelForCausalLM": "modeling_x.X"}],
    "chunk_size_feed_forward": [2],
    "num_experts_per_tok": [9],
    "num_experts": [0],
}

_DAMAGES = ["nan", "drop", "rename", "float8", "int8", "further scale", "further layer", "truncate", "zero"]

_BESIDE: list[Any] = [
    {"repetition_penalty": 1.3},
    {"num_beams": 4, "num_return_sequences": 2},
    {"eos_token_id": [3]},
    {"do_sample": True, "temperature": 0.0},
    {"cache_implementation": "spiral", "max_new_tokens": 0},
    {"min_new_tokens": 50, "suppress_tokens": [1, 2, 3]},
    {"use_cache": False, "prefill_chunk_size": 3},
]


@dataclass(frozen=True)
class Odd:
    """What is odd about a checkpoint."""

    architecture: str
    settings: dict[str, Any]  # in its config.json
    harmless: bool  # whether the model means the same without them
    meant: bool  # whether it was made with them, where that can be; otherwise they were written there afterwards
    damage: str | None  # of its weights
    beside: dict[str, Any] | None  # generation_config.json

    @classmethod
    def drawn(cls, seed: int) -> Odd:
        draw = random.Random(seed)
        harmless = draw.random() < 0.3
        kinds = _HARMLESS if harmless else _ODD
        names = draw.sample(sorted(kinds), draw.choice([1, 1, 1, 2]))
        return cls(
            architecture=ARCHITECTURES[seed % len(ARCHITECTURES)],
            settings={name: draw.choice(kinds[name]) for name in names},
            harmless=harmless,
            meant=draw.random() < 0.6,
            damage=draw.choice(_DAMAGES) if draw.random() < 0.2 else None,
            beside=draw.choice(_BESIDE) if draw.random() < 0.5 else None,
        )


def shrunk(kind: str) -> PreTrainedConfig:
    """The configuration of a small model of this kind."""
    config = CONFIG_MAPPING[kind]()
    # Of a model that has an encoder too, that would be a copy, and the model as large as it comes.
    text = config if config.is_encoder_decoder else config.get_text_config(decoder=True)
    sizes = {name: size for name, size in _SIZES.items() if getattr(text, name, None) is not None}
    sizes |= {name: size for name, size in _SIZES.items() if name in text.attribute_map}
    kinds = text.layer_types if text.to_dict().get("layer_types") else []
    if kinds[:2] == ["linear_attention"] * 2 and "full_attention" in kinds:  # some of both, as what is published has
        kinds = sizes["layer_types"] = ["linear_attention", "full_attention"]
    if text is config:
        return CONFIG_MAPPING[kind](**sizes)
    _set(text, sizes)
    if kinds:
        text.layer_types = kinds[:2]
    if "mrope_section" in (getattr(text, "rope_parameters", None) or {}):
        text.rope_parameters["mrope_section"] = [2, 2, 2]
    if hasattr(config, "vision_config"):
        _set(config.vision_config, _SEEING)
    return config


def _set(config: PreTrainedConfig, sizes: dict[str, Any]) -> None:
    for name, size in sizes.items():
        if hasattr(config, name):
            setattr(config, name, size)


def write(odd: Odd, folder: pathlib.Path, seed: int) -> None:
    """Writes the checkpoint and a tokenizer to `folder`."""
    if not (odd.meant and _saved_with(odd, folder, seed)):
        _save(shrunk(odd.architecture), folder, seed)
        file = folder / "config.json"
        config = json.loads(file.read_text())
        config.get("text_config", config).update(odd.settings)
        file.write_text(json.dumps(config))
    byte_tokenizer().save_pretrained(folder)
    if odd.damage is not None:
        _damage(folder / "model.safetensors", odd.damage, random.Random(seed))
    beside = folder / "generation_config.json"
    beside.unlink(missing_ok=True)
    if odd.beside is not None:
        beside.write_text(json.dumps(odd.beside))


def _saved_with(odd: Odd, folder: pathlib.Path, seed: int) -> bool:
    """Whether a model with these settings could be made and saved: of many transformers makes none."""
    config = shrunk(odd.architecture)
    settings = config.to_dict()
    settings.get("text_config", settings).update(odd.settings)
    try:
        _save(type(config).from_dict(settings), folder, seed)
    except Exception:
        # An architecture may raise anything over settings that mean nothing.
        return False
    return True


def _save(config: PreTrainedConfig, folder: pathlib.Path, seed: int) -> None:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    spread(model)
    model.save_pretrained(folder)


def _damage(file: pathlib.Path, damage: str, draw: random.Random) -> None:
    tensors = load_file(file)
    one = draw.choice(sorted(name for name, tensor in tensors.items() if tensor.dim() > 1))
    if damage == "nan":
        tensors[one][0] = torch.nan
    elif damage == "drop":
        del tensors[one]
    elif damage == "rename":
        tensors[f"{one}x"] = tensors.pop(one)
    elif damage == "float8":
        tensors = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in tensors.items()}
    elif damage == "int8":
        tensors[one] = tensors[one].to(torch.int8)
    elif damage == "further scale":
        tensors[f"{one}_scale"] = torch.ones(1)
    elif damage == "further layer":
        tensors |= {name.replace(".1.", ".2."): tensor.clone() for name, tensor in tensors.items() if ".1." in name}
    elif damage == "zero":
        tensors[one].zero_()
    save_file(tensors, file, {"format": "pt"})
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[: draw.choice([7, 300, -40])])
