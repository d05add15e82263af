"""How near a pass comes to the memory's bandwidth: the bytes that count, what is said, and what measuring takes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny import save_pair, tiny_model, tiny_pair
from transformers import AutoModelForCausalLM, Gemma3Config

from specviz.models import memory_share
from specviz.models.loading import load_pair
from specviz.models.memory_share import measured_memory, share_of, stored_bytes, weights_read
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.kernels.huge_pages import HugePages
from specviz.passes.kernels.packed_linear import FewRowsLinear
from specviz.passes.roles import TARGET
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.words import words
from specviz.theory.roofline import Memory, MemoryShare

CPU = torch.device("cpu")

#: One gigabyte a second.
MEMORY = Memory(1e9, 2**27, threads=2)


# Bytes


def test_a_table_of_embeddings_counts_only_where_it_is_the_output_head_too():
    table = 4 * tiny_model("llama").get_input_embeddings().weight.numel()
    apart, tied = (tiny_model("llama", tie_word_embeddings=tied) for tied in (False, True))
    assert stored_bytes(weights_read(apart)) == 4 * apart.num_parameters() - table
    assert stored_bytes(weights_read(tied)) == 4 * tied.num_parameters()


def test_packed_weights_count_as_they_are_stored():
    pair = tiny_pair("llama")
    plain = share_of(pair, 1.0, MEMORY)
    static = StaticPass(pair.target, (), FewRows.ready()).quantised(4, {})
    pair.passes.fast = {TARGET: FastPasses(static, static, "kernels")}
    packed = share_of(pair, 1.0, MEMORY)
    linear = [part for part in static.model.modules() if isinstance(part, FewRowsLinear)]
    assert packed.weight_bytes < 0.3 * plain.weight_bytes
    assert packed.weight_bytes > sum(part.panels.nbytes + part.scales.nbytes for part in linear), "norms are read too"


def test_codes_that_a_library_keeps_in_buffers_or_beside_its_weights_count():
    model = tiny_model("llama")
    before = stored_bytes(weights_read(model))
    model.lm_head.register_buffer("qweight", torch.zeros(100, dtype=torch.int32))
    assert stored_bytes(weights_read(model)) == before
    model.config.quantization_config = {"quant_method": "gptq"}
    turning = stored_bytes(model.model.rotary_emb.buffers())
    assert stored_bytes(weights_read(model)) == before + 400 + turning
    model.lm_head.weight.quant_state = SimpleNamespace(absmax=torch.zeros(10))
    assert stored_bytes(weights_read(model)) == before + 440 + turning


def test_what_only_pictures_pass_through_does_not_count():
    text = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    text |= {"head_dim": 12, "intermediate_size": 96, "vocab_size": 128}
    seeing = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    seeing |= {"image_size": 28, "patch_size": 14}
    model = AutoModelForCausalLM.from_config(Gemma3Config(text_config=text, vision_config=seeing))
    language = sum(weight.numel() for weight in model.get_decoder().parameters())
    assert stored_bytes(weights_read(model)) == 4 * language < 4 * model.num_parameters()


@pytest.mark.parametrize("architecture", ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "llama4"])
def test_of_a_mixture_of_experts_the_share_is_not_known(architecture):
    pair = ModelPair.of(tiny_model(architecture), None, tiny_pair("llama").tokenizer)
    reason = share_of(pair, 1.0, MEMORY)
    assert isinstance(reason, SpecvizError) and "mixture of experts" in reason.message


def test_of_a_model_on_several_devices_the_share_is_not_known(monkeypatch):
    pair = tiny_pair("llama")
    pair.target._hf_hook = SimpleNamespace(execution_device="cpu")
    assert "several devices" in share_of(pair, 1.0, MEMORY).message


# Words


def test_the_share_is_bytes_over_seconds_over_bandwidth():
    share = MemoryShare(500_000_000, 1.0, MEMORY)
    assert share.share == pytest.approx(0.5) and not share.from_cache
    said = "500 MB of weights in 1000.0 ms: 500 MB/s, 50 % of the 1.0 GB/s that memory gives here"
    assert share.sentence == f"{said} (threads: 2)"
    assert "1.4 % of" in replace(share, weight_bytes=14_000_000).sentence
    on_gpu = replace(share, memory=replace(MEMORY, threads=None)).sentence
    assert on_gpu.startswith(f"{said} (others") and "megakernel 78 %" in on_gpu and "gpt-fast 82 %" in on_gpu
    assert "gpt-fast 82\u00a0%" in words("de").step(on_gpu) and "liefert (andere" in words("de").step(on_gpu)


def test_more_than_all_of_it_comes_from_the_cache_or_was_measured_wrongly():
    pair = tiny_pair("llama")
    small = share_of(pair, 1e-5, MEMORY)
    assert small.share > 1 and "(threads: 2), so weights come from the processor's cache" in small.sentence
    large = share_of(pair, 1e-5, replace(MEMORY, buffer_bytes=1000))
    assert isinstance(large, SpecvizError) and "more than the 1.0 GB a second that memory reached" in large.message
    slow = share_of(pair, 1.0, MEMORY)
    assert slow.share < 1 and "cache" not in slow.sentence


# Measuring


@pytest.mark.parametrize("free, taken", [(64 << 30, 2**27), (2**29, 2**26), (2**28, None), (0, None)])
def test_measuring_takes_an_eighth_of_the_memory_that_is_free_and_nothing_where_that_is_too_little(
    monkeypatch, free, taken
):
    made: list[int] = []

    class Counted(HugePages):
        def room(self, size: int) -> torch.Tensor:
            made.append(size)
            return super().room(4)

    monkeypatch.setattr(memory_share, "HugePages", Counted)
    monkeypatch.setattr(memory_share, "free_memory", lambda device: free)
    monkeypatch.setattr(memory_share.os, "cpu_count", lambda: 2)
    memory = measured_memory(CPU)
    assert made == ([] if taken is None else [taken])
    assert (memory is None) if taken is None else (memory.bandwidth > 0 and memory.buffer_bytes == taken)
    if memory is None:
        assert "too little free memory" in share_of(tiny_pair("llama"), 1.0, memory).message


def test_a_copy_counts_what_is_read_and_what_is_written(monkeypatch):
    """On a CPU, by the same lines as on a GPU."""
    times = iter(range(100))
    monkeypatch.setattr("specviz.passes.devices.time.perf_counter", lambda: float(next(times)))
    assert memory_share.copy_bandwidth(4000, CPU, repeats=3) == 8000.0


@pytest.mark.parametrize("free, copied", [(80 << 30, 2**29), (2**31, 2**28), (2**28, None)])
def test_on_a_gpu_memory_is_copied_and_what_that_took_is_forgotten(monkeypatch, free, copied):
    asked, forgotten = [], []
    monkeypatch.setattr(memory_share, "free_memory", lambda device: free)
    monkeypatch.setattr(memory_share, "copy_bandwidth", lambda size, *given: asked.append(size) or 3e12)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: forgotten.append("cache"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: forgotten.append("peak"))
    memory = measured_memory(torch.device("cuda"))
    if copied is None:
        assert memory is None and not asked
    else:
        assert memory == Memory(3e12, copied, threads=None) and asked == [copied]
        assert forgotten == ["cache", "peak"]


def test_a_pair_that_was_loaded_knows_its_memory(tmp_path):
    pair = load_pair(*save_pair(tmp_path), device="cpu")
    assert pair.passes.memory.bandwidth > 1e8
    share = memory_share.memory_share(pair)
    assert share.seconds == pair.passes.seconds_by_width[1]
    assert memory_share.memory_share(replace(pair, passes=PairPasses())) is None
