"""Greedy text is what transformers' `generate` writes: every drafter, every architecture, every kind of passes."""

import pytest
from matrix import GREEDY, PROMPT, greedy_text, pair_of, pairwise, prepared_pair, refused_field
from refusal import refused
from tiny import ARCHITECTURES, InTurn, generated, tiny_pair

import specviz
from specviz.decoding import engine
from specviz.drafters import DRAFTERS
from specviz.passes.roles import TARGET
from specviz.records.settings import AUTO, DraftParams

#: A single token, which leaves a head nothing to look at; a few; more than a window, and nearly a block of buffers.
PROMPTS = {"one": PROMPT[:1], "short": PROMPT, "long": [5, 9, 3, 7, 7, 2, 11, 3] * 6}

CASES = pairwise(
    architecture=list(ARCHITECTURES),
    drafter=[None, *DRAFTERS],
    passes=["plain", "static", "kernels", "graphs"],
    branches=[None, 1, 3],
    gamma=[1, 3, 8, AUTO],
    prompt=list(PROMPTS),
    steps=["drafts", "drafts and plain steps"],
)


@pytest.mark.parametrize("architecture, drafter, passes, branches, gamma, prompt, steps", CASES)
def test_greedy_text_is_that_of_generate(architecture, drafter, passes, branches, gamma, prompt, steps, monkeypatch):
    pair, ids = prepared_pair(architecture, passes), PROMPTS[prompt]
    if steps != "drafts":
        monkeypatch.setattr(engine, "depth_policy", lambda request: InTurn())
    order = {"drafter": drafter, "num_draft_tokens": gamma, "drafting": DraftParams(branches=branches)}
    if field := refused_field(drafter, branches, pair):
        with refused(field):
            specviz.speculate(pair, ids, sampling=GREEDY, **order)
        return
    expected = greedy_text(architecture, tuple(ids))
    run = specviz.run(pair, ids, sampling=GREEDY, max_new_tokens=len(expected), **order)
    assert list(run.token_ids) == expected
    assert run.pair.passes == (pair.passes.fast[TARGET].kind if pair.passes.fast else "plain")


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_is_right_now_and_then_and_stops_where_the_text_does(drafter):
    """Or else the tests of what is kept would test nothing."""
    accepted = 0
    for name in ("qwen3", "gpt2"):
        run = specviz.run(pair_of(name), PROMPT, drafter=drafter, sampling=GREEDY, max_new_tokens=24)
        accepted += sum(one.accepted for one in run.rounds)
    assert accepted > 0


@pytest.mark.parametrize("architecture", ["mistral", "gemma3"])
def test_greedy_text_holds_far_beyond_a_sliding_window(architecture):
    pair, prompt = tiny_pair(architecture), [5, 17, 33, 8, 5, 17, 33, 8, 60, 61] * 4
    run = specviz.run(pair, prompt, num_draft_tokens=4, sampling=GREEDY, max_new_tokens=80)
    assert list(run.token_ids) == generated(pair, prompt, 80)[: len(run.token_ids)]
    assert 0 < sum(one.accepted for one in run.rounds) < sum(one.judged for one in run.rounds)


def test_greedy_text_of_the_embedded_pair_is_that_of_generate():
    pair = specviz.load_pair(dtype="float32")
    prompt = "Once upon a time there was a little girl who lived in a"
    expected = generated(pair, list(pair.encode(prompt).ids), 24)
    for drafter in (None, *(name for name in DRAFTERS if name not in {"mtp", "parallel"} - pair.parts.keys())):
        run = specviz.run(pair, prompt, drafter=drafter, sampling=GREEDY, max_new_tokens=24)
        assert list(run.token_ids) == expected, drafter
        assert run.text == pair.tokenizer.decode([*run.prompt.ids, *run.token_ids])[len(prompt) :]
