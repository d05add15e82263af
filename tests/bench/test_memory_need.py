"""What a pair will need is what it then holds, byte for byte, whatever kind of cache its models have."""

import pytest
import torch
from published_heads import write_eagle
from refusal import refused
from tiny import ARCHITECTURES, save_model, tiny_model
from tiny_gguf import SIZES, write_gguf

from specviz.bench import memory_need as reckoning
from specviz.bench.memory_need import ROWS, memory_need
from specviz.models.loading import load_pair
from specviz.models.pair import logit_width
from specviz.passes.cached_model import new_cached_model
from specviz.passes.devices import Stopwatch
from specviz.records.words import LANGUAGES, words
from specviz.ui.tabs.models import needs

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
        assert need.total == sum(need.weights.values()) + need.caches + need.logits and need.dtype == dtype


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
    form = {"target": target, "draft": "", "revision": "", "dtype": "float32"}
    for language in LANGUAGES:
        line = needs(form, "cpu", words(language))
        assert "float32" in line and f"{TOKENS} " in line and "MB" in line and "{" not in line
    with monkeypatch.context() as little:
        little.setattr(reckoning, "free_memory", lambda device: 0)
        assert "more than is free" in needs(form, "cpu", words())
    assert "no folder or file" in needs(form | {"target": "./nowhere"}, "cpu", words())


def test_a_gguf_file_on_the_hub_is_not_fetched_to_be_reckoned():
    with refused("target", "once it has been downloaded"):
        memory_need("org/model/file.Q4_K_M.gguf")
