"""Greedy text is what transformers' `generate` writes: every drafter, architecture, kind of passes, of files, of parts.

What is theirs alone, such as what a head computes, has tests beside it, which look at its greedy text on the way.
"""

import dataclasses
from functools import lru_cache

import pytest
from matrix import GREEDY, PROMPT, greedy_text, pair_of, pairwise, prepared_pair, refused_field
from refusal import refused
from subjects import SUBJECTS
from tiny import ARCHITECTURES, WITH_STATES, InTurn, generated, greedy_run, tiny_pair

import specviz
from specviz.decoding import engine
from specviz.drafters import DRAFTERS
from specviz.passes.roles import TARGET
from specviz.records.settings import AUTO, DraftParams

#: A single token, which leaves a head nothing to look at; a few; more than a window, and nearly a block of buffers;
#: more than a state reads again.
PROMPTS = {"one": PROMPT[:1], "short": PROMPT, "long": [5, 9, 3, 7, 7, 2, 11, 3] * 6}
PROMPTS |= {"seven": [*PROMPT, 9], "longer": [5, 9, 3, 7, 7, 2, 11, 3] * 10}

CASES = pairwise(
    architecture=list(ARCHITECTURES),
    drafter=[None, *DRAFTERS],
    passes=["plain", "static", "kernels", "graphs"],
    branches=[None, 1, 3],
    gamma=[1, 3, 8, AUTO],
    prompt=["one", "short", "long"],
    steps=["drafts", "drafts and plain steps"],
    ends=["in full"],
)

#: With running states, what drafts with states of its own, with the target's weights or hidden states, and with
#: neither: each architecture meets these, and every drafter a state of each kind.
KINDS = [None, "draft_model", "quantised_self", "eagle", "prompt_lookup"]
CHAINS = [name for name in DRAFTERS if name not in ("lookahead", "early_exit")]
STATES = {"passes": ["plain"], "branches": [1], "gamma": [1, 4, 7], "prompt": ["one", "seven", "longer"]}
STATES |= {"steps": ["drafts"], "ends": ["in full", "within a draft"]}
WITH_STATES_CASES = pairwise(architecture=list(WITH_STATES), drafter=KINDS, **STATES)
WITH_STATES_CASES += pairwise(
    architecture=["qwen3_5", "lfm2", "mamba2"], drafter=[name for name in CHAINS if name not in KINDS], **STATES
)
# One in ten is tried at once; the rest is wide.
CASES += [
    pytest.param(*case.values, id=case.id, marks=pytest.mark.wide if place % 10 else [])
    for place, case in enumerate(WITH_STATES_CASES)
]


@pytest.mark.parametrize("architecture, drafter, passes, branches, gamma, prompt, steps, ends", CASES)
def test_greedy_text_is_that_of_generate(
    architecture, drafter, passes, branches, gamma, prompt, steps, ends, monkeypatch
):
    pair, ids = prepared_pair(architecture, passes), PROMPTS[prompt]
    if steps != "drafts":
        monkeypatch.setattr(engine, "depth_policy", lambda request: InTurn())
    order = {"drafter": drafter, "num_draft_tokens": gamma, "drafting": DraftParams(branches=branches)}
    if field := refused_field(drafter, branches, pair, gamma):
        with refused(field):
            specviz.speculate(pair, ids, sampling=GREEDY, **order)
        return
    expected = greedy_text(architecture, tuple(ids))
    if ends != "in full":
        end = expected[min(9, len(expected) - 1)]
        pair = dataclasses.replace(pair, eos_ids=frozenset({end}))
        expected = expected[: expected.index(end) + 1]
    run = specviz.run(pair, ids, sampling=GREEDY, max_new_tokens=len(expected), **order)
    assert list(run.token_ids) == expected
    assert run.pair.passes == (pair.passes.fast[TARGET].kind if pair.passes.fast else "plain")


@pytest.fixture(scope="module")
def pair_named(tmp_path_factory):
    return lru_cache(lambda name: SUBJECTS[name][0](tmp_path_factory.mktemp("subject")))


@pytest.mark.parametrize("name, way", [(name, way) for name, (_, ways) in SUBJECTS.items() for way in ways], ids=str)
def test_greedy_text_of_what_people_bring_is_that_of_generate_or_refused(pair_named, name, way):
    pair, (drafter, branches) = pair_named(name), way
    order = {"drafter": drafter, "drafting": DraftParams(branches=branches), "num_draft_tokens": 5}
    if field := SUBJECTS[name][1][way]:
        with refused(field):
            specviz.speculate(pair, PROMPT, sampling=GREEDY, **order)
        return
    greedy_run(pair, PROMPT[:1], 8, **order)
    run = greedy_run(pair, PROMPT, 16, **order)
    assert len(set(run.token_ids)) > 1, "a text in a rut shows little"


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
