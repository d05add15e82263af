"""What lies in a folder, told by names and shapes as publishers write them, then by labels; no weights are read."""

import json
import os
import pathlib
import pickle
from typing import Any

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


def labelled(label: str, base: dict[str, Any] = QWEN, **more: Any) -> dict[str, Any]:
    return base | {"architectures": [label]} | more


def dflash(label: str, **more: Any) -> dict[str, Any]:
    return labelled(label, dflash_config=BLOCK | more)


HIDDEN = {"mask_hidden": (1, 1, STATES * H)}
CORRECTED = {f"markov_head.{name}": shape for name, shape in MARKOV.items()}
IN_TRAINING = {f"base_model.{name}": shape for name, shape in ORDINARY.items()} | {"target_proj.weight": (H, 4 * H)}
SPECULATOR = {f"speculator.{one}.0.weight": (V, H) for one in ("emb", "head")} | {"speculator.proj.0.weight": (H, H)}
FUSED = {"layer_fusion_weights": (2, 2), "hidden_norm.weight": (H,)}
IN_HEADS = {"parallel_draft_heads.0.medusa_layers.0.linear.weight": (H, H)}
LATENT_HEAD = LATENT | {"fc.weight": (H, STATES * H)}
TWO_LAYERS = eagle3("layers.0.") | layer("layers.1.") | HIDDEN

#: The format, then the configuration and the tensors of parts in it.
PARTS: dict[str, list[tuple[dict[str, Any], Shapes]]] = {
    "EAGLE-3": [
        (LLAMA | {"draft_vocab_size": ROWS}, eagle3("midlayer.") | MAPS),  # SafeAILab's
        (labelled("LlamaForCausalLMEagle3", LLAMA), eagle3("midlayer.") | MAPS),  # SpecForge's
        (labelled("Eagle3LlamaForCausalLM", LLAMA), eagle3("midlayer.")),  # AngelSlim's
        (labelled("Qwen3Eagle3Model"), eagle3("layers.0.", states=5)),  # DeepSpec's
        (LLAMA | {"eagle_config": {"parallel_draft_step": 1}}, eagle3("layers.0.") | {"d2t": (ROWS,)}),  # ModelOpt's
        (LLAMA, eagle3("layers.0.", "model.")),  # NeMo's
        (LLAMA, eagle3("midlayer.", states=2)),
        ({"speculators_model_type": "eagle3", "transformer_layer_config": LLAMA}, eagle3("layers.0.") | MAPS),
    ],
    "EAGLE": [
        (LLAMA | {"bias": False}, EAGLE),
        (LLAMA, EAGLE | {"fc.bias": (H,), "embed_layernorm.weight": (H,)}),
        (labelled("EAGLEModel", {"model_type": "eagle"}), {}),
    ],
    "P-EAGLE": [
        ({"speculators_model_type": "peagle", "mask_token_id": 3}, TWO_LAYERS),
        (labelled("LlamaForCausalLMEagle3", LLAMA, num_hidden_layers=2), TWO_LAYERS),
    ],
    "Medusa": [
        ({"medusa_num_heads": 2, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}, MEDUSA),
        ({}, {f"medusa_head.{name}": shape for name, shape in MEDUSA.items()}),
        ({}, {"blocks.0.layers.0.weight": (H, H), "lm_heads.0.weight": (V, H)}),
    ],
    "Hydra": [({"hydra_num_heads": 4, "hydra_head_arch": "mlp"}, {"hydra_lm_head.0.weight": (V, H)})],
    "MLP speculator": [(labelled("MLPSpeculatorPreTrainedModel", {"model_type": "mlp_speculator"}), SPECULATOR)],
    "PARD-2 in training": [(QWEN | {"spd_type": "pard2"}, IN_TRAINING)],
    "Gemma 4 assistant": [
        (labelled("Gemma4AssistantForCausalLM", {"model_type": "gemma4_assistant"}), {}),
        ({"model_type": "gemma4_unified_assistant"}, {}),
    ],
    "DFlash": [
        (dflash("DFlashDraftModel"), block()),
        (dflash("QwenDFlashDraftModel"), block()),
        ({}, block()),
        ({"speculators_model_type": "dflash", "block_size": 8}, block() | MAPS),
        ({"model_type": "muse_glimmer_assistant"}, {"encoder.fc.weight": (H, 2 * H)}),
    ],
    "DSpark": [
        (labelled("Qwen3DSparkModel", **BLOCK), block() | CORRECTED),
        (labelled("Qwen3DSparkModel", **BLOCK), block()),
        ({"speculators_model_type": "dspark"}, block()),
        (dflash("DFlashDraftModel"), block() | {f"logit_head.{name}": shape for name, shape in CORRECTED.items()}),
        (dflash("DFlashDraftModel", projector_type="dspark"), block() | MARKOV),
    ],
    "Domino": [(QWEN | {"dflash_config": BLOCK | {"projector_type": "domino"}}, block())],
    "DFlash2": [(dflash("DFlash2DraftModel"), block())],
    "LiLiCorr": [(dflash("LiLiCorrDraftModel"), block())],
    "DFlare": [(dflash("QwenDFlareDraftModel"), layer("layers.0.") | FUSED)],
    "EAGLE-3 with latent attention": [
        (labelled("Eagle3DeepseekV2ForCausalLM", {"model_type": "kimi_k2"}), LATENT_HEAD),
        ({}, LATENT_HEAD),
    ],
    "EAGLE-3 with parallel heads": [
        (
            labelled("LlamaForCausalLMEagle3", LLAMA, eagle_config={"parallel_draft_step": 2}),
            eagle3("layers.0.") | IN_HEADS,
        )
    ],
    "EAGLE-3 on Gemma's layers": [
        (
            labelled("Gemma4Eagle3Model", {"model_type": "gemma4_text", "num_hidden_layers": 1}),
            eagle3("layers.0.", states=5) | {"layers.0.pre_feedforward_layernorm.weight": (H,)},
        )
    ],
    "MTP": [({"speculators_model_type": "mtp"}, {"mtp_layers.0.input_proj.weight": (H, 2 * H)})],
    "MTP modules alone": [
        (QWEN, layer("mtp.layers.0.") | {"mtp.fc.weight": (H, 2 * H)}),
        (labelled("DeepseekV3ForCausalLMNextN", {"model_type": "deepseek_v3"}), {}),
    ],
}
CASES = [(name, *one) for name, ones in PARTS.items() for one in ones]

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


@pytest.mark.parametrize("name, settings, shapes", CASES)
def test_a_part_is_told_by_its_tensors_and_its_configuration_and_never_by_this_alone_as_another(name, settings, shapes):
    assert recognise(PartFiles(pathlib.Path("part"), settings, shapes)).name == name
    if settings and shapes:
        # Before weights are fetched. What heads leave out of it their tensors say; some call themselves models.
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
    "pointer": ("model.safetensors", lambda file: file.write_bytes(POINTER), "only a pointer of Git LFS"),
    "code": ("model.bin", lambda file: pickled(fc=Code(file.parent / "ran"))(file), "as well as weights (posix.mkdir)"),
    "bare code": ("model.bin", lambda file: file.write_bytes(pickle.dumps(Code(file.parent / "ran"), 2)), "code as"),
    "a module": ("pytorch_model.bin", lambda file: torch.save(nn.Linear(2, 2), file), "as well as weights (torch.nn"),
    "not a number": ("model.bin", pickled(**{"fc.weight": torch.tensor([torch.nan])}), "NaN or infinite values (fc."),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_named_with_what_is_wrong_with_it(case, tmp_path):
    file, write, said = BAD_FILES[case]
    write(tmp_path / file)
    with refused("draft") as caught:
        PartFiles.at(tmp_path).tensors()
    assert said in str(caught.value) and str(tmp_path) in str(caught.value)
    assert "NaN" in said or file in str(caught.value)
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


IMPOSSIBLE = [("block_size", 0), ("block_size", 2.0), ("num_depths", [4]), ("mask_token_id", True)]
IMPOSSIBLE += [("num_hidden_layers", 10**9), ("target_layer_ids", [1, 2.5]), ("target_layer_ids", [])]
IMPOSSIBLE += [("output_multiplier", "2"), ("output_multiplier", float("nan"))]


@pytest.mark.parametrize("name, value", IMPOSSIBLE)
def test_a_setting_that_cannot_be_is_named(name, value, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"dflash_config": {name: value}}))
    with refused("draft", f"Invalid {name} "):
        PartFiles.at(tmp_path).setting(name)


def test_what_lies_among_the_tensors_does_not_matter(tmp_path):
    torch.save({"fc.weight": torch.ones(2, 4), 3: torch.ones(2), "epoch": 4}, tmp_path / "model.bin")
    (tmp_path / "model.safetensors").mkdir()
    torch.save({"midlayer.self_attn.q_proj.weight": torch.tensor(1.0)}, tmp_path / "model-2.bin")
    files = PartFiles.at(tmp_path)
    assert files.shapes.keys() == {"fc.weight", "midlayer.self_attn.q_proj.weight"}
    assert recognise(files).name == "EAGLE"
