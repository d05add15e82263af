"""Assistants of Gemma 4 and multi-token-prediction modules as they are published: configurations and random weights by
the published names, for small targets 48 wide."""

import pathlib
from typing import Any

import torch
from published_heads import write
from tiny import save_model, tiny_model
from torch import Tensor

#: The two kinds of layers of a Gemma 4.
SLIDING, FULL = "sliding_attention", "full_attention"

_NORMS = ("input", "post_attention", "pre_feedforward", "post_feedforward")

#: What the names of a module's weights begin with.
AT = "mtp_layers.0"


def drawn(shapes: dict[str, tuple[int, ...]], std: float = 2.5) -> dict[str, Tensor]:
    """Random weights by their names; norms between a half and three halves."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(shape, generator=generator) + 0.5
        if len(shape) == 1
        else std * torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        for name, shape in shapes.items()
    }


def saved(
    folder: pathlib.Path, config: dict[str, Any], weights: dict[str, Tensor], pickled: bool = False
) -> pathlib.Path:
    """Writes a part. Returns its folder."""
    write(folder, config, weights, "pytorch_model.bin" if pickled else "model.safetensors")
    return folder


def assistant_config(
    family: str = "gemma4", vocab: int = 16, kinds: tuple[str, ...] = (SLIDING, FULL, FULL), ordered: bool = True
) -> dict[str, Any]:
    """Of an assistant whose tokens lie in groups of two, three of which it looks at (`ordered`), or all of them."""
    text = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2}
    text |= {"model_type": f"{family}_text", "vocab_size": vocab, "max_position_embeddings": 256}
    text |= {"head_dim": 12, "global_head_dim": 16, "sliding_window": 8, "layer_types": list(kinds)}
    text |= {"num_hidden_layers": len(kinds), "num_kv_shared_layers": len(kinds)}
    text |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    groups = {"use_ordered_embeddings": ordered, "num_centroids": vocab // 2, "centroid_intermediate_top_k": 3}
    name = "Gemma4" if family == "gemma4" else "Gemma4Unified"
    labels = {"architectures": [f"{name}AssistantForCausalLM"], "model_type": f"{family}_assistant"}
    return labels | {"backbone_hidden_size": 48, "text_config": text, "tie_word_embeddings": True} | groups


def assistant_weights(config: dict[str, Any]) -> dict[str, Tensor]:
    vocab, groups = config["text_config"]["vocab_size"], config["num_centroids"]
    shapes = {"model.embed_tokens.weight": (vocab, 32), "model.norm.weight": (32,)}
    shapes |= {"pre_projection.weight": (32, 96), "post_projection.weight": (48, 32)}
    for index, kind in enumerate(config["text_config"]["layer_types"]):
        size, layer = 12 if kind == SLIDING else 16, f"model.layers.{index}"
        shapes |= {f"{layer}.self_attn.q_proj.weight": (4 * size, 32), f"{layer}.self_attn.q_norm.weight": (size,)}
        shapes |= {f"{layer}.self_attn.o_proj.weight": (32, 4 * size), f"{layer}.layer_scalar": (1,)}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (40, 32) for name in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj.weight": (32, 40)}
        shapes |= {f"{layer}.{name}_layernorm.weight": (32,) for name in _NORMS}
    if not config["use_ordered_embeddings"]:
        return drawn(shapes)
    ordering = torch.randperm(vocab, generator=torch.Generator().manual_seed(1))
    weights = drawn(shapes | {"masked_embedding.centroids.weight": (groups, 32)})
    return weights | {"masked_embedding.token_ordering": ordering}


def module_config(family: str = "qwen3", vocab: int = 16) -> dict[str, Any]:
    """Of a module with a layer of this family."""
    layer = {"model_type": family, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3}
    layer |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": vocab}
    layer |= {"rms_norm_eps": 1e-6, "rope_theta": 5e3}
    labels = {"architectures": ["MTPDraftModel"], "speculators_model_type": "mtp", "num_nextn_predict_layers": 1}
    return labels | {"transformer_layer_config": layer}


def module_weights(family: str = "qwen3") -> dict[str, Tensor]:
    shapes = {f"{AT}.input_proj.weight": (48, 96), f"{AT}.mlp.down_proj.weight": (48, 64)}
    names = ("token_layernorm", "hidden_layernorm", "input_layernorm", "post_attention_layernorm", "final_layernorm")
    shapes |= {f"{AT}.{name}.weight": (48,) for name in names}
    shapes |= {f"{AT}.mlp.{name}_proj.weight": (64, 48) for name in ("gate", "up")}
    for name, rows in {"q": 32, "k": 16, "v": 16}.items():
        shapes[f"{AT}.self_attn.{name}_proj.weight"] = (rows, 48)
        if family == "qwen2":
            shapes[f"{AT}.self_attn.{name}_proj.bias"] = (rows,)
    shapes[f"{AT}.self_attn.o_proj.weight"] = (48, 32)
    if family == "qwen3":
        shapes |= {f"{AT}.self_attn.{name}_norm.weight": (8,) for name in "qk"}
    return drawn(shapes)


def gemma_folders(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Folders of targets, the last layers of one of which share the keys and values of earlier ones, and of
    assistants."""
    kinds = [SLIDING, FULL] * 2
    targets = {
        "shared": {"num_kv_shared_layers": 2},
        "whole": {"hidden_size_per_layer_input": 0},
        "full": {"layer_types": [FULL] * 4},
    }
    settings = {"layers": 4, "layer_types": kinds, "vocab": 16, "eos_token_id": None}
    folders = {
        name: save_model(folder / name, tiny_model("gemma4", **settings | changes)) for name, changes in targets.items()
    }
    configs = {
        "ordered": assistant_config(),
        "unified": assistant_config("gemma4_unified", ordered=False),
        "all full": assistant_config(kinds=(FULL, FULL)),
    }
    return folders | {
        name: saved(folder / name, config, assistant_weights(config), pickled=name == "unified")
        for name, config in configs.items()
    }


def module_folders(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """The folders of a target, and of a module of each family for it."""
    model = tiny_model("qwen3", layers=3, vocab=16, eos_token_id=None)
    with torch.no_grad():
        model.model.norm.weight.uniform_(0.5, 2)
    folders = {"target": save_model(folder / "target", model)}
    for family in ("llama", "qwen2", "qwen3"):
        weights = module_weights(family)
        if family == "qwen2":  # as early files
            weights |= {"embed_tokens.weight": torch.zeros(16, 48), "lm_head.weight": torch.zeros(16, 48)}
        folders[family] = saved(folder / family, module_config(family), weights, pickled=family == "llama")
    return folders
