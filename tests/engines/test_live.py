"""What real engines make of the embedded parts: they load those that specviz says they load, write the same greedy
texts as specviz, token by token, and are helped as much."""

import pathlib

import pytest

import specviz
from specviz.drafters.registry import servers_of
from specviz.models.pair import ModelPair
from specviz.records.assets import EMBEDDED
from tools.engines.measuring import PARTS, Greedy, texts_here, texts_there
from tools.engines.servers import LLAMA_CPP, VLLM, NotStarted, write_missing

#: How far apart tokens a pass may lie, relatively: an engine drafts in other places at the ends of a text.
NEAR = 0.1

#: With these and weights in float32 llama.cpp's log probabilities are those of specviz to 0.00001. As it usually runs,
#: it rounds by about 0.006, and the closest two tokens of the texts lie 0.007 apart: equal here, but not everywhere.
EXACT = ("-fa", "off", "-ctk", "f32", "-ctv", "f32")

#: Those that vLLM is said to load, but for DSpark heads: its runner on CPUs knows none.
TRIED_IN_VLLM = ("draft_model", "eagle", "medusa")


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    """The embedded pair in float32, as engines that round differently can be compared with nothing else."""
    return specviz.load_pair(device="cpu", dtype="float32", passes="plain")


@pytest.fixture(scope="module")
def plain(pair: ModelPair) -> list[list[int]]:
    return texts_here(pair, None).texts


@pytest.fixture(scope="module")
def exact_files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """GGUF files in float32, as `EXACT` needs them."""
    folder = tmp_path_factory.mktemp("exact")
    for drafter in ("draft_model", "eagle"):
        write_missing(folder, drafter, exact=True)
    return folder


def check(there: Greedy, here: Greedy, plain: list[list[int]]) -> None:
    assert there.texts == here.texts == plain
    assert there.tokens_per_pass == pytest.approx(here.tokens_per_pass, rel=NEAR)


def test_what_is_said_to_load_is_what_is_tried(pair):
    claims = servers_of(pair, PARTS)
    of_models = {part: names for part, names in claims.items() if (EMBEDDED / part.removesuffix("_model")).is_dir()}
    assert of_models.keys() == {*PARTS}
    in_llama_cpp = {part: names.llama_cpp for part, names in claims.items() if names.llama_cpp}
    assert in_llama_cpp == {part: LLAMA_CPP[part] for part in ("draft_model", "eagle")}
    in_vllm = {part: names.vllm for part, names in claims.items() if names.vllm}
    assert in_vllm == {part: VLLM[part] for part in (*TRIED_IN_VLLM, "parallel")}


@pytest.mark.parametrize("part", [None, "draft_model", "eagle"])
def test_llama_cpp_loads_what_is_said_and_writes_the_same_greedy_texts(part, llama_cpp, exact_files, pair, plain):
    with llama_cpp(part, files=exact_files, further=EXACT) as port:
        check(texts_there("llama.cpp", part, port), texts_here(pair, part), plain)


@pytest.mark.parametrize("part", [None, *TRIED_IN_VLLM])
def test_vllm_loads_what_is_said_and_writes_the_same_greedy_texts(part, vllm, pair, plain):
    with vllm(part) as port:
        check(texts_there("vLLM", part, port), texts_here(pair, part), plain)


@pytest.mark.parametrize("part", ["mtp", "parallel"])
def test_vllm_refuses_what_is_said_to_be_refused(part, vllm):
    with pytest.raises(NotStarted), vllm(part):
        pytest.fail("It loads by now: docs/training.md says that it does not.")
