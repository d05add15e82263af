"""One name for what drafts: its files tell whether it is a draft model or a part, and what is neither is refused."""

import json
import pathlib
import shutil
from dataclasses import asdict

import pytest
import torch
from refusal import refused
from safetensors.torch import save_file
from tiny import RECIPES, save_pair

from specviz.models.loading import load_pair
from specviz.parts.eagle import Eagle3Head
from specviz.records.assets import EMBEDDED
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName

KINDS = {recipe.name: recipe for recipe in RECIPES}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, pathlib.Path]:
    """A target, its draft model, and parts trained on it under names that say nothing of their kind."""
    base = tmp_path_factory.mktemp("parts")
    named = dict(zip(("target", "draft"), save_pair(base)))
    target = load_pair(named["target"], dtype="float32").target
    for number, (kind, recipe) in enumerate(KINDS.items()):
        named[kind] = base / f"part {number}"
        recipe(target).save(named[kind])
    return named


def refusal(*named, field: str = "draft", **settings) -> str:
    with refused(field) as caught:
        load_pair(*named, dtype="float32", **settings)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_told_by_its_files(folders, kind):
    pair = load_pair(folders["target"], str(folders[kind]), dtype="float32")
    assert pair.draft is None and isinstance(pair.parts[kind], KINDS[kind].part) and len(pair.parts) == 1


def test_the_command_that_trains_a_part_names_a_folder_as_from_here(folders, monkeypatch):
    pair = load_pair(folders["target"], dtype="float32")
    monkeypatch.chdir(folders["target"].parent)
    assert f"--target {folders['target'].name} --text" in str(pair.missing_part("mtp"))
    monkeypatch.chdir(folders["draft"])
    assert f"--target {folders['target']} --text" in str(pair.missing_part("mtp"))


def test_several_draft_together_in_any_order(folders):
    named = [folders[kind] for kind in ("mtp", "draft", "eagle")]
    pair = load_pair(folders["target"], named, dtype="float32")
    assert pair.draft_name == "draft" and pair.parts.keys() == {"mtp", "eagle"}


def test_the_embedded_target_takes_another_part_and_keeps_its_draft_model():
    pair = load_pair(draft=EMBEDDED / "eagle", dtype="float32")
    assert pair.draft is not None and "eagle" in pair.parts
    assert "Name a target too" in refusal(None, EMBEDDED / "draft", field="target")


def test_two_that_draft_in_the_same_way_are_one_too_many(folders):
    for kind in ("draft", "eagle"):
        assert "draft in the same way" in refusal(folders["target"], [folders[kind]] * 2)


#: Formats that are not run: what the sentence says, a configuration, and a tensor.
REFUSED = [
    ("of the kind Hydra", {"hydra_num_heads": 4}, None),
    (
        "EAGLE-3 with latent attention",
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"},
        None,
    ),
    ("further heads for parallel drafting", {}, "parallel_draft_heads.0.medusa_layers.0.linear.weight"),
    ("PARD-2 draft model in its training form", {"spd_type": "pard2"}, "target_proj.weight"),
    ("of the kind LiLiCorr", {"dflash_config": {"lilicorr_enabled": True}}, None),
    ("of the kind DFlare", {"model_type": "qwen3", "num_target_layers": 3}, "layer_fusion_weights"),
    ("DSpark on Gemma's layers", {"architectures": ["Gemma4DSparkModel"]}, None),
    ("DSpark in its target", {"model_type": "deepseek_v4", "dspark_target_layer_ids": [1]}, None),
    ("taken out of a checkpoint", {"model_type": "qwen3_next"}, "mtp.fc.weight"),
    ("is quantised in a way that is not unpacked", {"dflash_config": {}}, "layers.0.self_attn.q_proj.qweight"),
    ("that an earlier version trained", {"kind": "eagle"}, None),
]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("said", "settings", "tensor"), REFUSED)
def test_what_does_not_run_is_refused_by_its_name(folders, said, settings, tensor, named, tmp_path):
    own = pathlib.Path(shutil.copytree(folders["target"], tmp_path / "own"))
    folder = tmp_path / "part" if named else own / "eagle"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    if tensor is not None:
        save_file({tensor: torch.zeros(4, 8)}, folder / "model.safetensors")
    sentence = refusal(folders["target"], folder) if named else str(load_pair(own, dtype="float32").flaws["eagle"])
    assert said in sentence and str(folder) in sentence


HEAD = {"midlayer.self_attn.q_proj.weight": torch.zeros(4, 8), "midlayer.self_attn.o_proj.weight": torch.zeros(4, 4)}

#: Bad files, by the texts of config.json and of the weights; None: there are none.
INCOMPLETE = [
    ('{"draft_vocab_size": 24}', None, "The EAGLE-3 part in {folder} is incomplete"),
    ("[1]", HEAD, "The EAGLE-3 part in {folder} is incomplete"),
    ('{"draft_vocab_size": 24}', b"cut", "model.safetensors in {folder} is damaged or cut short"),
    (
        '{"model_type": "mlp_speculator", "n_predict": "x"}',
        HEAD,
        "Invalid n_predict in the configuration in {folder}: 'x'.",
    ),
    ("[1]", None, "transformers cannot use the config.json"),
    (None, None, "it has no config.json"),
]


@pytest.mark.parametrize(("config", "weights", "said"), INCOMPLETE)
def test_what_is_wrong_with_a_folder_is_said(folders, config, weights, said, tmp_path):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    if isinstance(weights, bytes):
        (tmp_path / "model.safetensors").write_bytes(weights)
    elif weights is not None:
        save_file(weights, tmp_path / "model.safetensors")
    assert said.format(folder=tmp_path) in refusal(folders["target"], tmp_path)


def test_a_part_that_does_not_fit_into_memory_says_so(folders, tmp_path, monkeypatch):
    def fail(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Eagle3Head, "load", fail)
    (tmp_path / "config.json").write_text('{"draft_vocab_size": 24}')
    save_file(HEAD, tmp_path / "model.safetensors")
    assert "does not fit into the memory that the target leaves" in refusal(folders["target"], tmp_path)


def test_a_pairs_name_survives_its_way_through_the_browser(folders):
    name = PairName("target", ("draft", "eagle"), draft_vocabulary=64)
    back = PairName(**json.loads(json.dumps(asdict(name))))
    assert back == name and hash(back) == hash(name)


def test_a_deployment_names_several(monkeypatch):
    monkeypatch.setenv("SPECVIZ_DRAFT", " org/draft, /parts/eagle ,")
    assert Deployment.from_environment().draft == ("org/draft", "/parts/eagle")
    monkeypatch.delenv("SPECVIZ_DRAFT")
    assert Deployment.from_environment().draft == ()
