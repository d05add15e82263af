"""Drafts on the Hub, played by a folder: what is fetched to see what they are, and how a refusal is said."""

import json
import pathlib
import shutil
from types import SimpleNamespace

import httpx
import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub import errors as hub
from huggingface_hub.utils import filter_repo_objects
from refusal import refused
from safetensors.torch import save_file

from specviz.models import trained_parts
from specviz.models.trained_parts import sort_drafts

COMMIT = "0" * 40

#: What tells an EAGLE-3 head.
HEAD = {"midlayer.self_attn.q_proj.weight": torch.zeros(4, 8), "midlayer.self_attn.o_proj.weight": torch.zeros(4, 4)}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4}


class Hub:
    """A repository ``org/name`` in one folder and the cache in another. answer: raised instead of an answer."""

    def __init__(self, folder: pathlib.Path):
        self.repository = folder / "there"
        self.cache = folder / "models--org--name" / "snapshots" / COMMIT
        self.answer: Exception | None = None
        self.cache.mkdir(parents=True)

    @property
    def fetched(self) -> set[str]:
        return {str(file.relative_to(self.cache)) for file in self.cache.rglob("*") if file.is_file()}

    def publish(self, settings: dict, *files: str) -> None:
        """config.json and these files, whose tensors are a head's."""
        self.repository.mkdir()
        (self.repository / "config.json").write_text(json.dumps(settings))
        for name in files:
            file = self.repository / name
            file.parent.mkdir(exist_ok=True)
            save_file(HEAD, file) if file.suffix == ".safetensors" else torch.save(HEAD, file)

    def model_info(self, *asked: object, **settings: object) -> SimpleNamespace:
        if isinstance(self.answer, hub.OfflineModeIsEnabled):
            raise self.answer
        return SimpleNamespace(sha=COMMIT)

    def snapshot_download(self, name: str, *, allow_patterns, ignore_patterns, revision, token, **options) -> str:
        if self.answer is not None and not options:
            raise self.answer
        names = [str(file.relative_to(self.repository)) for file in self.repository.rglob("*") if file.is_file()]
        for name in filter_repo_objects(names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            if not options:
                (self.cache / name).parent.mkdir(exist_ok=True)
                shutil.copy(self.repository / name, self.cache / name)
        return str(self.cache)


@pytest.fixture
def hub_of(tmp_path, monkeypatch) -> Hub:
    found = Hub(tmp_path)
    monkeypatch.setattr(HfApi, "model_info", found.model_info)
    monkeypatch.setattr(trained_parts, "snapshot_download", found.snapshot_download)
    return found


#: A model's configuration, in which the number of layers has various names.
MODELS = [
    LLAMA | {"num_hidden_layers": 16},
    {"model_type": "gpt2", "n_layer": 12},
    {"model_type": "gemma3", "text_config": {"num_hidden_layers": 26}},
    {"model_type": "qwen3", "num_hidden_layers": 28, "spd_type": "pard"},
]


@pytest.mark.parametrize("settings", MODELS)
def test_of_a_draft_model_nothing_but_its_configuration_is_fetched_to_see_that_it_is_one(hub_of, settings):
    hub_of.publish(settings, "model.safetensors", "pytorch_model.bin")
    assert sort_drafts(["org/name"], None, None) == ("org/name", {})
    assert hub_of.fetched == {"config.json"}


#: A part's configuration, the files beside it, and those that are fetched.
PARTS = [
    (LLAMA | {"draft_vocab_size": 3}, ["model.safetensors", "pytorch_model.bin"], {"model.safetensors"}),
    (LLAMA | {"draft_vocab_size": 3}, ["pytorch_model.bin", "optimizer.bin"], {"pytorch_model.bin"}),
    (LLAMA | {"num_hidden_layers": 1}, ["pytorch_model.bin", "runs/model.safetensors"], {"pytorch_model.bin"}),
    ({"medusa_num_heads": 2}, ["medusa_lm_head.pt", "optimizer.pt", "model.gguf"], {"medusa_lm_head.pt"}),
]


@pytest.mark.parametrize("named", ["org/name", "https://huggingface.co/org/name"])
@pytest.mark.parametrize(("settings", "files", "wanted"), PARTS)
def test_of_a_part_the_weights_are_fetched_in_one_format(hub_of, settings, files, wanted, named):
    hub_of.publish(settings, *files)
    model, folders = sort_drafts([named], None, None)
    assert model is None and list(folders.values()) == [hub_of.cache]
    assert hub_of.fetched == {"config.json"} | wanted
    # And once it is there, the repository's folder in the cache names it too.
    (hub_of.cache.parents[1] / "refs").mkdir()
    (hub_of.cache.parents[1] / "refs" / "main").write_text(COMMIT)
    assert sort_drafts([hub_of.cache.parents[1]], None, None)[1] == folders


def refusal() -> str:
    with refused("draft") as caught:
        sort_drafts(["org/name"], None, None)
    return str(caught.value)


def test_what_does_not_run_is_refused_before_its_weights_are_fetched(hub_of):
    hub_of.publish({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"}, "model.safetensors")
    assert "org/name holds a trained part of the kind EAGLE-3 with latent attention" in refusal()
    assert hub_of.fetched == {"config.json"}


def test_a_gated_part_is_refused_with_what_to_do(hub_of):
    hub_of.publish({"medusa_num_heads": 2})
    request = httpx.Request("GET", "https://huggingface.co/org/name")
    hub_of.answer = hub.GatedRepoError("gated", response=httpx.Response(403, request=request))
    assert "org/name is gated: accept its licence at https://huggingface.co/org/name" in refusal()


def test_without_the_hub_what_is_in_the_cache_is_used(hub_of):
    hub_of.publish(LLAMA | {"draft_vocab_size": 3}, "model.safetensors")
    hub_of.answer = hub.OfflineModeIsEnabled("offline")
    shutil.copy(hub_of.repository / "config.json", hub_of.cache)
    assert "org/name is not on this machine, and the Hub cannot be reached" in refusal()
    shutil.copy(hub_of.repository / "model.safetensors", hub_of.cache)
    assert sort_drafts(["org/name"], None, None)[1].keys() == {"eagle"}


def test_a_repository_without_a_configuration_is_no_part_and_none_of_it_is_fetched(hub_of):
    hub_of.publish({}, "unet/model.safetensors", "model.safetensors")
    (hub_of.repository / "config.json").unlink()
    assert sort_drafts(["org/name"], None, None) == ("org/name", {})
    assert not hub_of.fetched
