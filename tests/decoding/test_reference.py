"""The loop to read first writes what the engine writes: the same tokens from the same coins."""

import pytest
from tiny import tiny_pair

import specviz
from specviz.decoding import reference
from specviz.records.settings import SamplingParams

PROMPT = [5, 17, 33, 8, 5, 17, 33, 8, 60, 61]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("gamma", [2, 5])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_reference_loop_writes_what_the_engine_writes(architecture, gamma, temperature):
    pair, accepted = tiny_pair(architecture, noise=0.05), set()
    for seed in range(3):
        sampling = SamplingParams(temperature=temperature)
        run = specviz.run(pair, PROMPT, num_draft_tokens=gamma, sampling=sampling, max_new_tokens=40, seed=seed)
        written = reference.speculate(pair.target, pair.draft, PROMPT, 40, gamma, temperature, seed, pair.eos_ids)
        assert written == list(run.token_ids)
        accepted |= {one.accepted for one in run.rounds}
    assert len(accepted) > 1, "the test needs both rejections and full acceptances"
