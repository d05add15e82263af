"""What lies in a folder, told by names and shapes as publishers write them, then by labels; no weights are read."""

import json
import os
import pathlib
import pickle

import pytest
import torch
from refusal import refused
from safetensors.torch import save_file
from torch import nn

from specviz.parts.formats import recognise
from specviz.parts.part_files import PartFiles

#: Widths of a target, its vocabulary and a part's, and the hidden states that it reads.
H, V, ROWS, STATES = 16, 40, 24, 3

Shapes = dict[str, tuple[int, ...]]

#: A head of one layer calls itself what it likes, most of the time this.
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1, "hidden_size": H}
QWEN = {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": H, "block_size": 4, "num_target_layers": 4}
BLOCK = {"mask_token_id": 3, "target_layer_ids": [1, 2]}


def layer(prefix: str, read: int = H, norms: tuple[str, ...] = ("input_layernorm",)) -> Shapes:
    """A layer whose attention reads rows of this width."""
    shapes = {f"{prefix}self_attn.{name}_proj.weight": (H, read) for name in "qkv"}
    shapes |= {f"{prefix}self_attn.o_proj.weight": (H, H), f"{prefix}mlp.down_proj.weight": (H, 2 * H)}
    shapes |= {f"{prefix}mlp.{name}_proj.weight": (2 * H, H) for name in ("gate", "up")}
    return shapes | {f"{prefix}{name}.weight": (H,) for name in (*norms, "post_attention_layernorm")}


def eagle3(prefix: str, base: str = "", states: int = STATES) -> Shapes:
    shapes = layer(f"{base}{prefix}", 2 * H, ("input_layernorm", "hidden_norm"))
    return shapes | {f"{base}fc.weight": (H, states * H), f"{base}norm.weight": (H,), "lm_head.weight": (ROWS, H)}


def block(count: int = 2) -> Shapes:
    """A DFlash drafter."""
    layers = [layer(f"layers.{i}.") for i in range(count)]
    shapes = {"fc.weight": (H, 2 * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    return shapes | {name: shape for one in layers for name, shape in one.items()}


MAPS: Shapes = {"d2t": (ROWS,), "t2d": (V,)}
MARKOV: Shapes = {"markov_w1.weight": (V, 8), "markov_w2.weight": (V, 8)}
EAGLE = layer("layers.0.", norms=()) | {"fc.weight": (H, 2 * H)}
MEDUSA = {"0.0.linear.weight": (H, H), "0.0.linear.bias": (H,), "0.1.weight": (V, H)}
LATENT = {"layers.0.self_attn.q_a_proj.weight": (8, 2 * H), "layers.0.self_attn.kv_a_proj_with_mqa.weight": (8, 2 * H)}
ORDINARY = layer("model.layers.0.") | {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,)}

#: The format, the configuration, and the tensors.
PARTS: dict[str, tuple[str, dict, Shapes]] = {
    "yuhuili": ("EAGLE-3", LLAMA | {"draft_vocab_size": ROWS}, eagle3("midlayer.") | MAPS),
    "SpecForge": ("EAGLE-3", LLAMA | {"architectures": ["LlamaForCausalLMEagle3"]}, eagle3("midlayer.") | MAPS),
    "AngelSlim": ("EAGLE-3", LLAMA | {"architectures": ["Eagle3LlamaForCausalLM"]}, eagle3("midlayer.")),
    "DeepSpec": ("EAGLE-3", QWEN | {"architectures": ["Qwen3Eagle3Model"]}, eagle3("layers.0.", states=5)),
    "ModelOpt": (
        "EAGLE-3",
        LLAMA | {"eagle_config": {"parallel_draft_step": 1}},
        eagle3("layers.0.") | {"d2t": (ROWS,)},
    ),
    "NeMo": ("EAGLE-3", LLAMA, eagle3("layers.0.", "model.")),
    "two states": ("EAGLE-3", LLAMA, eagle3("midlayer.", states=2)),
    "speculators": (
        "EAGLE-3",
        {"speculators_model_type": "eagle3", "transformer_layer_config": {"hidden_size": H}},
        eagle3("layers.0.") | MAPS,
    ),
    "EAGLE": ("EAGLE", LLAMA | {"bias": False}, EAGLE),
    "EAGLE, converted": ("EAGLE", LLAMA, EAGLE | {"fc.bias": (H,), "embed_layernorm.weight": (H,)}),
    "EAGLE, vLLM": ("EAGLE", {"architectures": ["EAGLEModel"], "model_type": "eagle"}, {}),
    "P-EAGLE": (
        "P-EAGLE",
        {"speculators_model_type": "peagle", "mask_token_id": 3},
        eagle3("layers.0.") | layer("layers.1.") | {"mask_hidden": (1, 1, STATES * H)},
    ),
    "P-EAGLE under another label": (
        "P-EAGLE",
        LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 2},
        eagle3("layers.0.") | layer("layers.1.") | {"mask_hidden": (1, 1, STATES * H)},
    ),
    "Medusa": ("Medusa", {"medusa_num_heads": 2, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}, MEDUSA),
    "Medusa without a label": ("Medusa", {}, {f"medusa_head.{name}": shape for name, shape in MEDUSA.items()}),
    "Medusa, vLLM": ("Medusa", {}, {"blocks.0.layers.0.weight": (H, H), "lm_heads.0.weight": (V, H)}),
    "Hydra": ("Hydra", {"hydra_num_heads": 4, "hydra_head_arch": "mlp"}, {"hydra_lm_head.0.weight": (V, H)}),
    "IBM": (
        "MLP speculator",
        {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "n_predict": 3},
        {"speculator.emb.0.weight": (V, H), "speculator.proj.0.weight": (H, H), "speculator.head.0.weight": (V, H)},
    ),
    "PARD-2, as trained": (
        "PARD-2 in training",
        QWEN | {"spd_type": "pard2"},
        {f"base_model.{name}": shape for name, shape in ORDINARY.items()} | {"target_proj.weight": (H, 4 * H)},
    ),
    "Gemma": (
        "Gemma 4 assistant",
        {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant"},
        {},
    ),
    "Gemma 12B": ("Gemma 4 assistant", {"model_type": "gemma4_unified_assistant"}, {}),
    "z-lab": ("DFlash", QWEN | {"architectures": ["DFlashDraftModel"], "dflash_config": BLOCK}, block()),
    "DFlash, AngelSlim": (
        "DFlash",
        QWEN | {"architectures": ["QwenDFlashDraftModel"], "dflash_config": BLOCK},
        block(),
    ),
    "DFlash without a label": ("DFlash", {}, block()),
    "DFlash, speculators": ("DFlash", {"speculators_model_type": "dflash", "block_size": 8}, block() | MAPS),
    "DFlash, transformers": ("DFlash", {"model_type": "muse_glimmer_assistant"}, {"encoder.fc.weight": (H, 2 * H)}),
    "DSpark, DeepSpec": (
        "DSpark",
        QWEN | BLOCK | {"architectures": ["Qwen3DSparkModel"]},
        block() | {f"markov_head.{name}": shape for name, shape in MARKOV.items()},
    ),
    "DSpark without a correction": ("DSpark", QWEN | BLOCK | {"architectures": ["Qwen3DSparkModel"]}, block()),
    "DSpark, speculators": ("DSpark", {"speculators_model_type": "dspark"}, block()),
    "DSpark, early": (
        "DSpark",
        QWEN | {"architectures": ["DFlashDraftModel"], "dflash_config": BLOCK},
        block() | {f"logit_head.markov_head.{name}": shape for name, shape in MARKOV.items()},
    ),
    "DSpark, ModelOpt": (
        "DSpark",
        QWEN | {"architectures": ["DFlashDraftModel"], "dflash_config": BLOCK | {"projector_type": "dspark"}},
        block() | MARKOV,
    ),
    "Domino": ("Domino", QWEN | {"dflash_config": BLOCK | {"projector_type": "domino"}}, block()),
    "DFlash2": ("DFlash2", QWEN | {"architectures": ["DFlash2DraftModel"], "dflash_config": BLOCK}, block()),
    "LiLiCorr": ("LiLiCorr", QWEN | {"architectures": ["LiLiCorrDraftModel"], "dflash_config": BLOCK}, block()),
    "DFlare": (
        "DFlare",
        QWEN | {"architectures": ["QwenDFlareDraftModel"], "dflash_config": BLOCK},
        layer("layers.0.") | {"layer_fusion_weights": (2, 2), "hidden_norm.weight": (H,)},
    ),
    "Kimi": (
        "EAGLE-3 with latent attention",
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"},
        LATENT | {"fc.weight": (H, STATES * H)},
    ),
    "Kimi without a label": ("EAGLE-3 with latent attention", {}, LATENT | {"fc.weight": (H, STATES * H)}),
    "ModelOpt, parallel": (
        "EAGLE-3 with parallel heads",
        LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"parallel_draft_step": 2}},
        eagle3("layers.0.") | {"parallel_draft_heads.0.medusa_layers.0.linear.weight": (H, H)},
    ),
    "EAGLE-3 of Gemma": (
        "EAGLE-3 on Gemma's layers",
        {"architectures": ["Gemma4Eagle3Model"], "model_type": "gemma4_text", "num_hidden_layers": 1},
        eagle3("layers.0.", states=5) | {"layers.0.pre_feedforward_layernorm.weight": (H,)},
    ),
    "MTP, speculators": ("MTP", {"speculators_model_type": "mtp"}, {"mtp_layers.0.input_proj.weight": (H, 2 * H)}),
    "MTP, cut out": ("MTP modules alone", QWEN, layer("mtp.layers.0.") | {"mtp.fc.weight": (H, 2 * H)}),
    "NextN": ("MTP modules alone", {"architectures": ["DeepseekV3ForCausalLMNextN"], "model_type": "deepseek_v3"}, {}),
}

MODELS: dict[str, tuple[dict, Shapes]] = {
    "one layer": (LLAMA, ORDINARY | {"lm_head.weight": (V, H)}),
    "latent attention": ({"model_type": "deepseek_v3", "num_hidden_layers": 1}, LATENT),
    "modules in it": (QWEN, ORDINARY | layer("mtp.layers.0.") | {"mtp.fc.weight": (H, 2 * H)}),
    "GPT-2": ({"model_type": "gpt2"}, {"transformer.h.0.mlp.c_fc.weight": (H, 2 * H), "wte.weight": (V, H)}),
    "names that end alike": (
        {"model_type": "odd"},
        {"h.10.0.linear.weight": (H, H), "all.hydra_lm_head.0.weights": (H,)},
    ),
    "PARD": (QWEN | {"spd_type": "pard", "pard_token": 3}, ORDINARY),
    "PARD-2": (QWEN | {"spd_type": "pard2", "pard2_target_layers": [-1, -8], "pard_token": 3}, ORDINARY),
    "nothing": ({}, {}),
}


@pytest.mark.parametrize("case", PARTS)
def test_a_part_is_told_by_its_tensors_and_its_configuration(case):
    name, settings, shapes = PARTS[case]
    assert recognise(PartFiles(pathlib.Path("part"), settings, shapes)).name == name


@pytest.mark.parametrize("case", [case for case, (_, settings, shapes) in PARTS.items() if settings and shapes])
def test_a_configuration_alone_never_tells_another_format(case):
    # Before weights are fetched. What heads leave out of it their tensors say; some call themselves models.
    name, settings, _ = PARTS[case]
    found = recognise(PartFiles(pathlib.Path("part"), settings))
    assert found is None or found.name == name or found.name in name or found.name in ("EAGLE-3", "DFlash")


@pytest.mark.parametrize("case", MODELS)
def test_a_model_is_no_part(case):
    settings, shapes = MODELS[case]
    assert recognise(PartFiles(pathlib.Path("model"), settings, shapes)) is None


class Code:
    """What runs when a pickle that holds it is read as pickles are."""

    def __init__(self, trace: pathlib.Path):
        self.trace = trace

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.trace),)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def cut(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def pickled(**held: object):
    return lambda file: torch.save(held, file)


#: The file, how it is written, and what is said of it.
BAD_FILES = {
    "cut": ("model.safetensors", lambda file: (save_file({"fc.weight": torch.ones(99)}, file), cut(file)), "cut short"),
    "cut pickle": ("pytorch_model.bin", lambda file: (pickled(fc=torch.ones(999))(file), cut(file)), "cut short"),
    "empty": ("model.safetensors", lambda file: file.touch(), "cut short"),
    "text": ("medusa_lm_head.pt", lambda file: file.write_text("hello world, this is text"), "cut short"),
    "pointer": ("model.safetensors", lambda file: file.write_bytes(POINTER), "only a pointer of Git LFS"),
    "pickled pointer": ("pytorch_model.bin", lambda file: file.write_bytes(POINTER), "only a pointer of Git LFS"),
    "code": (
        "pytorch_model.bin",
        lambda file: pickled(fc=Code(file.parent / "ran"))(file),
        "holds code and not weights alone (posix.mkdir)",
    ),
    "bare code": ("model.bin", lambda file: file.write_bytes(pickle.dumps(Code(file.parent / "ran"), 2)), "holds code"),
    "a module": ("pytorch_model.bin", lambda file: torch.save(nn.Linear(2, 2), file), "not weights alone (torch.nn"),
    "not a number": ("model.bin", pickled(**{"fc.weight": torch.tensor([torch.nan])}), "not all numbers (fc.weight)"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_named_with_what_is_wrong_with_it(case, tmp_path):
    file, write, said = BAD_FILES[case]
    write(tmp_path / file)
    with refused("draft") as caught:
        PartFiles.at(tmp_path).tensors()
    assert said in str(caught.value) and str(tmp_path) in str(caught.value)
    assert "not all numbers" in said or file in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_what_a_trainer_leaves_beside_the_weights_is_not_read(tmp_path):
    for name in ("optimizer.pt", "optimizer.bin", "scheduler.pt", "training_args.bin", "rng_state.pth"):
        torch.save(nn.Linear(2, 2), tmp_path / name)
    torch.save({"state_dict": {"fc.weight": torch.ones(2, 4)}}, tmp_path / "pytorch_model.bin")
    assert PartFiles.at(tmp_path).shapes == {"fc.weight": (2, 4)}
    assert PartFiles.at(tmp_path).tensors().keys() == {"fc.weight"}


@pytest.mark.parametrize(
    "text", ["", "[1]", "[" * 5000, '"text"', '{"hidden_size": ', '{"architectures": 3, "eagle_config": 4}']
)
def test_a_configuration_of_any_kind_is_looked_through(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert recognise(PartFiles.at(tmp_path)) is None


@pytest.mark.parametrize(
    "name, value",
    [
        ("block_size", 0),
        ("block_size", 2.0),
        ("num_depths", [4]),
        ("mask_token_id", True),
        ("num_hidden_layers", 10**9),
        ("target_layer_ids", [1, 2.5]),
        ("target_layer_ids", []),
        ("output_multiplier", "2"),
        ("output_multiplier", float("nan")),
    ],
)
def test_a_setting_that_cannot_be_is_named(name, value, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"dflash_config": {name: value}}))
    with refused("draft", f"for {name}, which cannot be"):
        PartFiles.at(tmp_path).setting(name)


def test_what_lies_among_the_tensors_does_not_matter(tmp_path):
    torch.save({"fc.weight": torch.ones(2, 4), 3: torch.ones(2), "epoch": 4}, tmp_path / "model.bin")
    (tmp_path / "model.safetensors").mkdir()
    torch.save({"midlayer.self_attn.q_proj.weight": torch.tensor(1.0)}, tmp_path / "model-2.bin")
    files = PartFiles.at(tmp_path)
    assert files.shapes.keys() == {"fc.weight", "midlayer.self_attn.q_proj.weight"}
    assert recognise(files).name == "EAGLE"
