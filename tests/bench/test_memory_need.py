"""What a pair will need is what it then holds, byte for byte, whatever kind of cache its models have."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub.utils import SafetensorsFileMetadata, SafetensorsRepoMetadata, TensorInfo
from published_heads import write_eagle
from refusal import refused
from tiny import ARCHITECTURES, save_model, tiny_model
from tiny_gguf import SIZES, write_gguf

from specviz.bench import memory_need as reckoning
from specviz.bench.memory_need import ROWS, memory_need
from specviz.models import trained_parts
from specviz.models.loading import load_pair
from specviz.models.pair import logit_width
from specviz.passes.devices import Stopwatch
from specviz.passes.fast_passes import KeyValueBuffers
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.kernels.packed_linear import FewRowsLinear
from specviz.passes.readers import new_cached_model
from specviz.passes.static_passes import StaticPass
from specviz.records.words import LANGUAGES, words
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairStore
from specviz.ui.runner import Runner
from specviz.ui.tabs.models import needed

#: Windows of several sizes, experts, compressed keys, and running states.
MORE = ("gemma4", "gpt_oss", "qwen3_moe", "deepseek_v3", "qwen3_next", "falcon_h1")

TOKENS = 100


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    monkeypatch.setattr(reckoning, "CONTEXT", TOKENS)


def held(model) -> int:
    """Bytes of its cache with so many tokens."""
    reader = new_cached_model(model, Stopwatch(model.device))
    reader.prefill([index % 100 + 3 for index in range(TOKENS + 1)])
    return sum(part.nbytes for part in (*reader.kv(), *reader.states()) if part is not None)


def bytes_of(model) -> int:
    return sum(weight.nbytes for weight in model.parameters())


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE])
def test_a_pair_needs_what_it_then_holds(architecture, tmp_path):
    target = save_model(tmp_path / "target", tiny_model(architecture))
    draft = save_model(tmp_path / "draft", tiny_model("llama", layers=1))
    for dtype in ("float32", "bfloat16"):
        need, pair = memory_need(target, [draft], dtype=dtype), load_pair(target, draft, dtype=dtype, passes="plain")
        # DeepSeek's routers keep their bias in float32.
        kept = 0.004 if architecture == "deepseek_v3" and dtype == "bfloat16" else 0
        assert need.weights["target"] == pytest.approx(bytes_of(pair.target), rel=kept, abs=0)
        assert need.weights["draft"] == bytes_of(pair.draft)
        assert (need.tokens, need.caches) == (TOKENS, held(pair.target) + held(pair.draft))
        assert need.logits == torch.zeros(ROWS, logit_width(pair.target), dtype=torch.float32).nbytes
        assert need.total == sum(need.weights.values()) + need.caches + need.logits + need.kernels
        assert need.dtype == dtype


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_our_kernels_a_pair_holds_caches_in_float32_and_a_tied_head_twice(dtype, tied, tmp_path):
    target = save_model(tmp_path / "target", tiny_model("llama", tie_word_embeddings=tied))
    need, pair = memory_need(target, dtype=dtype), load_pair(target, dtype=dtype, passes="plain")
    caches, head = held(pair.target) * 4 // pair.dtype.itemsize - need.caches, pair.target.get_output_embeddings()
    assert need.kernels == caches + (head.weight.nbytes if tied else 0)
    static = StaticPass(pair.target, few_rows=FewRows.ready())
    assert all(part.dtype == torch.float32 for part in KeyValueBuffers(static).tensors)
    (kept,) = [
        part for part in static.modules() if isinstance(part, FewRowsLinear) and part.outputs == head.out_features
    ]
    assert kept.panels.nbytes == pytest.approx(head.weight.nbytes, rel=0.2)
    assert need.kernels == memory_need(target, dtype=dtype, device="cpu").kernels
    assert memory_need(save_model(tmp_path / "states", tiny_model("falcon_h1"))).kernels == 0, "these have no kernels"


def test_a_gguf_file_needs_what_its_weights_take_unpacked(tmp_path):
    file = write_gguf(tmp_path / "tiny.Q8_0.gguf", tiny_model("llama", **SIZES))
    assert memory_need(file).weights == {"target": bytes_of(load_pair(file, passes="plain").target)}


def test_a_part_needs_what_its_file_holds_and_a_short_context_is_all_that_is_reckoned_with(tmp_path):
    model = tiny_model("llama", max_position_embeddings=64)
    target, head = save_model(tmp_path / "target", model), tmp_path / "head"
    write_eagle(head, model)
    need = memory_need(target, [head], dtype="float32")
    part = load_pair(target, head, dtype="float32", passes="plain").parts["eagle"]
    assert need.weights["eagle"] == bytes_of(part) and need.tokens == 64


def test_the_page_says_what_is_needed_and_of_what_or_why_that_is_not_known(tmp_path, monkeypatch):
    target = str(save_model(tmp_path / "target", tiny_model("llama")))
    deployment = replace(Deployment.from_environment(), device="cpu")
    runner = Runner(PairStore(deployment), deployment)
    form = {"target": target, "draft": "", "revision": "", "dtype": "float32"}
    for language in LANGUAGES:
        line = needed(form, runner, words(language))
        assert "float32" in line and f"{TOKENS} " in line and "MB" in line and "{" not in line
    with monkeypatch.context() as little:
        little.setattr(reckoning, "free_memory", lambda device: 0)
        assert "more than is free" in needed(form, runner, words())
    with refused("target", "no folder or file"):
        needed(form | {"target": "./nowhere"}, runner, words())


def test_a_gguf_file_on_the_hub_is_not_fetched_to_be_reckoned():
    with refused("target", "once it has been downloaded"):
        memory_need("org/model/file.Q4_K_M.gguf")


@pytest.fixture
def hub_of(tmp_path, monkeypatch):
    """Puts a configuration where the Hub's cache would have it; of weights there are the heads alone."""

    def publish(settings: dict, *sizes: int) -> None:
        folder = tmp_path / "models--org--name" / "snapshots" / ("0" * 40)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(settings))

        def fetched(name: str, *, allow_patterns, **options: object) -> str:
            assert allow_patterns == ("config.json",)
            return str(folder)

        places = [(sum(sizes[:place]), sum(sizes[: place + 1])) for place in range(len(sizes))]
        tensors = {str(place): TensorInfo("I8", [size], ends) for place, (size, ends) in enumerate(zip(sizes, places))}
        heads = SafetensorsRepoMetadata(None, False, {}, {"model.safetensors": SafetensorsFileMetadata({}, tensors)})
        monkeypatch.setattr(HfApi, "model_info", lambda *asked, **more: SimpleNamespace(sha="0" * 40))
        monkeypatch.setattr(HfApi, "get_safetensors_metadata", lambda api, name, revision=None: heads)
        monkeypatch.setattr(trained_parts, "snapshot_download", fetched)

    return publish


def test_of_a_part_on_the_hub_only_the_heads_of_its_files_are_read(tmp_path, hub_of):
    target = save_model(tmp_path / "target", tiny_model("llama"))
    hub_of({"medusa_num_heads": 2}, 100, 30)
    assert memory_need(target, ["org/name"], dtype="bfloat16").weights["medusa"] == 2 * 130


def test_of_a_part_that_only_its_tensors_tell_nothing_is_guessed(tmp_path, hub_of):
    target = save_model(tmp_path / "target", tiny_model("llama"))
    hub_of({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1})
    with refused("draft", "once it has been downloaded"):
        memory_need(target, ["org/name"])
