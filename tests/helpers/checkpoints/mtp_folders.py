"""Small checkpoints that bring their own multi-token-prediction modules along, as published ones do."""

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file
from tiny import edit_config, save_model, tiny_model

LAYERS = 2


def save_with_modules(folder: pathlib.Path, family: str, modules: int = 1, vocab: int = 16) -> pathlib.Path:
    """A target of two layers and its modules, in float32. Returns the folder.

    family: ``deepseek_v3`` and ``glm4_moe`` count the modules as further layers, with experts; ``mellum`` and
    ``mellum sliding``, here without experts, have one module below a name of its own, which in the second attends to
    a window, as a layer of the target does. ``qwen3_next`` and ``qwen3_5`` name theirs as Mellum does, and their
    configuration says nothing of it that transformers knows.
    """
    if family.startswith("qwen"):
        return _save_with_one(folder, family, vocab)
    mellum, every = family.startswith("mellum"), LAYERS + modules
    attention = ["sliding_attention" if family.endswith("sliding") else "full_attention", "full_attention"]
    dense = {"mlp_layer_types": ["dense"] * every, "layer_types": [*attention, attention[0]]} if mellum else {}
    # A module is a layer like the target's last one, and what leads into it and out of it.
    model = tiny_model(family.split()[0], layers=every, vocab=vocab, eos_token_id=None, **dense)
    save_model(folder, model)
    file, width = folder / "model.safetensors", model.config.hidden_size
    weights, generator = load_file(file), torch.Generator().manual_seed(0)
    for layer in range(LAYERS, every):
        at = f"model.layers.{layer}"
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            weights[f"{at}.{norm}.weight"] = 0.5 + torch.rand(width, generator=generator)
        weights[f"{at}.eh_proj.weight"] = torch.randn(width, 2 * width, generator=generator) / (2 * width) ** 0.5
    if mellum:
        weights = {_in_mellum(name): weight for name, weight in weights.items()}
    save_file(weights, file, metadata={"format": "pt"})
    changes = {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": modules}
    config = json.loads((folder / "config.json").read_text())
    changes |= {name: config[name][:LAYERS] for name in ("layer_types", "mlp_layer_types") if config.get(name)}
    if mellum:
        changes |= {"mtp_layer_types": attention[:1], "mtp_mlp_layer_types": ["dense"]}
    return edit_config(folder, **changes)


def _save_with_one(folder: pathlib.Path, family: str, vocab: int) -> pathlib.Path:
    kinds = ["linear_attention", "full_attention", "full_attention"]
    model = tiny_model(family, layers=LAYERS + 1, vocab=vocab, eos_token_id=None, layer_types=kinds)
    save_model(folder, model)
    file, width = folder / "model.safetensors", model.config.hidden_size
    weights, generator = load_file(file), torch.Generator().manual_seed(0)
    weights = {name.replace(f"model.layers.{LAYERS}.", "mtp.layers.0."): weight for name, weight in weights.items()}
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        weights[f"mtp.{norm}.weight"] = torch.rand(width, generator=generator) - 0.5  # they count from 1
    weights["mtp.fc.weight"] = torch.randn(width, 2 * width, generator=generator) / (2 * width) ** 0.5
    save_file(weights, file, metadata={"format": "pt"})
    return edit_config(folder, num_hidden_layers=LAYERS, layer_types=kinds[:LAYERS], mtp_num_hidden_layers=1)


def _in_mellum(name: str) -> str:
    """What a checkpoint of this family calls a weight."""
    start = f"model.layers.{LAYERS}."
    if not name.startswith(start):
        return name
    inner = name.removeprefix(start)
    named = {
        "enorm.weight": "pre_fc_norm_embedding.weight",
        "hnorm.weight": "pre_fc_norm_hidden.weight",
        "eh_proj.weight": "fc.weight",
        "shared_head.norm.weight": "norm.weight",
    }
    return "mtp." + named.get(inner, f"layers.0.{inner}")
