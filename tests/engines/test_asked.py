"""What real engines said, read: what runs, an answer, its rounds, and their own counters."""

import pytest

from specviz.servers.answers import Ask
from specviz.servers.server import Server

PROMPT = "Once upon a time there was a little girl who lived in a"


def watched(url: str, **ask):
    watch = Server(url).watch(Ask(PROMPT, **ask))
    return list(watch), watch


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("llama_cpp_b10434_eagle", ("llama.cpp", "b1-7e4c0a9", "speculative", 1, 1024)),
        ("llama_cpp_b10434_plain", ("llama.cpp", "b1-7e4c0a9", "none", 1, 1024)),
        ("vllm_0_32_eagle", ("vLLM", "0.32.0", "speculative", None, 512)),
        ("vllm_0_32_plain", ("vLLM", "0.32.0", "none", None, 512)),
    ],
)
def test_it_is_known_what_runs(replay, name, about):
    found = Server(replay(name).url).about()
    assert (found.engine, found.version, found.drafter, found.slots, found.context) == about
    assert found.sampling.get("top_k") == (40 if found.engine == "llama.cpp" else None), "defaults that change the law"


def test_llama_cpp_counts_and_so_its_rounds_are_exact(replay):
    rounds, watch = watched(replay("llama_cpp_b10434_eagle").url, max_new_tokens=32)
    drafted = sum(len(round_.drafted) for round_ in rounds)
    assert (drafted, sum(round_.accepted for round_ in rounds)) == (watch.answer.drafted, watch.answer.accepted)
    assert drafted > 0 and watch.drafter == "draft-eagle3" and not watch.together.inferred
    assert sum(len(round_.emitted) for round_ in rounds) == 32 == len(watch.run().token_ids)
    assert watch.run().text == watch.answer.text


def test_vllm_sends_a_pass_s_tokens_together(replay):
    rounds, watch = watched(replay("vllm_0_32_eagle").url, max_new_tokens=32)
    assert watch.together.inferred and watch.together.lengths_known and watch.about.depth == 4
    assert {len(round_.drafted) for round_ in rounds[1:-1]} == {4}
    assert watch.run().text == watch.answer.text and len(watch.answer.ids) == 32


@pytest.mark.parametrize("name", ["llama_cpp_b10434_plain", "vllm_0_32_plain"])
def test_plain_decoding_has_no_drafts(replay, name):
    rounds, watch = watched(replay(name).url, max_new_tokens=32)
    assert [(len(round_.drafted), len(round_.emitted)) for round_ in rounds] == [(0, 1)] * 32
    assert not watch.together.inferred


def test_all_engines_make_the_same_greedy_text(replay):
    names = ["llama_cpp_b10434_eagle", "llama_cpp_b10434_plain", "vllm_0_32_eagle", "vllm_0_32_plain"]
    assert len({watched(replay(name).url, max_new_tokens=32)[1].answer.ids for name in names}) == 1
