"""Drafters among each other: trees in one pass, drafts that end early or are judged twice, refusals, where runs end.

What holds for every drafter under every rule is in tests/promises.
"""

import dataclasses
import random

import pytest
import torch
from matrix import (
    FULL,
    GREEDY,
    HOT,
    MODELS,
    PROMPT,
    branch,
    pair_of,
    pairwise,
    path_of,
)
from refusal import refused
from tiny import POSITIONS, assert_same_rows, greedy_run, tiny_model, unprepared

import specviz
from specviz.decoding import engine
from specviz.decoding.engine import replay
from specviz.decoding.request import prepare
from specviz.drafters import DRAFTERS
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.passes.roles import DRAFT, TARGET
from specviz.records.metrics import draft_depths
from specviz.records.settings import DraftParams, RunSettings, SamplingParams

CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


# Trees in one pass


def a_tree(depth: int, seed: int) -> tuple[int, ...]:
    """Parents of a random tree of this depth with up to three tokens at each."""
    chance, parents, level = random.Random(seed), [], [-1]
    for _ in range(depth):
        start = len(parents)
        parents += [chance.choice(level) for _ in range(chance.randint(1, 3))]
        level = range(start, len(parents))
    # Any order will do in which parents stand before their children.
    order = sorted(range(len(parents)), key=lambda token: (min(path_to(parents, token)[: chance.randint(1, 2)]), token))
    place = {-1: -1} | {token: index for index, token in enumerate(order)}
    return tuple(place[parents[token]] for token in order)


def path_to(parents, token: int) -> list[int]:
    return [] if token < 0 else [*path_to(parents, parents[token]), token]


def path_by_path(model, text: list[int], tokens: torch.Tensor, parents: tuple[int, ...]) -> torch.Tensor:
    """Logits after every draft token, each branch read by itself."""
    texts = [[*text, *tokens[path_to(parents, token)].tolist()] for token in range(len(parents))]
    return torch.stack([model(torch.tensor([ids])).logits[0, -1] for ids in texts])


@pytest.mark.parametrize("architecture, depth", [(name, 2 + place) for place, name in enumerate(FULL)])
@torch.inference_mode()
def test_a_tree_in_one_pass_equals_its_branches_one_by_one(architecture, depth):
    model, parents = pair_of(architecture).target, a_tree(depth, seed=depth)
    tokens = torch.randint(16, (len(parents),), generator=torch.Generator().manual_seed(depth))
    cached = CachedModel(model, Stopwatch(CPU))
    # Depth by depth with one unread token and with two, as after a full acceptance.
    cached.prefill(PROMPT[: len(PROMPT) - depth % 2])
    logits = cached.verify(PROMPT, tokens, parents)
    torch.testing.assert_close(logits[1:], path_by_path(model, PROMPT, tokens, parents), **CLOSE)
    torch.testing.assert_close(logits[0], model(torch.tensor([PROMPT])).logits[0, -1], **CLOSE)
    kept = path_to(parents, len(parents) - 1)
    cached.rewind_to_path(len(PROMPT), kept)
    assert cached.length == len(PROMPT) + len(kept)
    assert_same_rows(cached, [*PROMPT, *tokens[kept].tolist()])


def test_a_tree_is_refused_before_it_starts_where_the_drafts_attention_slides():
    pair = dataclasses.replace(pair_of("llama"), draft=pair_of("mistral").draft)
    with refused("branches", "sliding-window"):
        specviz.speculate(pair, PROMPT, drafting=DraftParams(branches=2))
    assert specviz.run(pair, PROMPT, max_new_tokens=6).token_ids


# Drafting that ends early


#: A DSpark head foresees it, and drafts nothing.
SURE_AFTERWARDS = [name for name in MODELS if name != "parallel"]


@pytest.mark.parametrize(
    "drafter, branches, temperature", pairwise(drafter=SURE_AFTERWARDS, branches=[1, 3], temperature=[0, 1.3])
)
def test_a_drafter_that_is_never_sure_enough_stops_after_one_token_and_says_how_sure_it_was(
    drafter, branches, temperature
):
    sampling = SamplingParams(temperature=temperature)
    order = {"drafter": drafter, "num_draft_tokens": 3, "sampling": sampling, "max_new_tokens": 12}
    wary = specviz.run(pair_of(), PROMPT, drafting=DraftParams(branches, confidence=0.9999), **order)
    for one in wary.rounds[:-2]:
        assert {token.parent for token in one.drafted} == {-1}
        assert 0 < one.confidence < 0.9999
        if not sampling.greedy and branches == 1:
            assert one.confidence == one.drafted[0].q
    assert wary.settings["confidence"] == 0.9999
    bold = specviz.run(pair_of(), PROMPT, drafting=DraftParams(branches), **order)
    for one in bold.rounds[:-3]:
        assert one.confidence is None and max(len(branch(one, place)) for place in range(len(one.drafted))) == 3


# Two rules on the same draws


def test_a_block_keeps_no_fewer_tokens_than_token_by_token_on_the_same_draws():
    rounds, by_token, by_block = 0, 0, 0
    for seed in range(4):
        request = prepare(
            pair_of(noise=0.5),
            RunSettings(PROMPT, num_draft_tokens=4, rule="token", sampling=HOT, max_new_tokens=220, seed=seed),
        )
        for one, other in replay(request, "block"):
            assert one.index == other.index
            assert [token.id for token in one.drafted] == [token.id for token in other.drafted]
            assert all(mine.u in (None, theirs.u) for mine, theirs in zip(one.drafted, other.drafted))
            assert [*other.emitted] == [*(token.id for token in path_of(other)), other.next.id]
            rounds, by_token, by_block = rounds + 1, by_token + one.accepted, by_block + other.accepted
    assert rounds >= 300 and by_block >= by_token


def test_a_replayed_text_is_that_of_its_own_rule():
    request = prepare(pair_of(), RunSettings(PROMPT, rule="block", max_new_tokens=20, seed=5))
    both = list(replay(request, "token"))
    own = list(engine.rounds(request))
    assert [one.drafted for one, _ in both] == [one.drafted for one in own]
    assert [one.emitted for one, _ in both] == [one.emitted for one in own]


@pytest.mark.parametrize(
    "order, rule, field",
    [
        ({"drafter": None}, "block", "drafter"),
        ({}, "typical", "rule"),
        ({"rule": "typical"}, "token", "rule"),
        ({"drafting": DraftParams(branches=2)}, "block", "rule"),
        ({"drafting": DraftParams(branches=2)}, "token", "rule"),
        ({"drafting": DraftParams(branches=2)}, "multi_path", "rule"),
        ({"drafting": DraftParams(branches=2), "rule": "multi_path"}, "tree", "rule"),
        ({}, "by ear", "rule"),
    ],
)
def test_rules_that_cannot_judge_one_draft_are_not_replayed(order, rule, field):
    with refused(field):
        replay(prepare(pair_of(), RunSettings(PROMPT, **order)), rule)


# Bad input


@pytest.mark.parametrize("part", ["medusa", "eagle", "mtp", "parallel"])
def test_a_drafter_without_weights_says_how_to_train_them(part):
    pair = dataclasses.replace(pair_of(), parts={})
    with refused("drafter", f"python -m specviz.training {part} --target"):
        specviz.speculate(pair, PROMPT, drafter=part)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "order, field",
    [
        ({"num_draft_tokens": 64, "drafting": DraftParams(branches=8)}, "branches"),
        ({"drafter": "lookahead", "num_draft_tokens": 1}, "num_draft_tokens"),
        ({"rule": "by ear"}, "rule"),
        ({"rule": "by ear", "drafter": None}, "rule"),
        ({"rule": "token", "drafting": DraftParams(branches=2)}, "rule"),
        ({"rule": "block", "drafting": DraftParams(branches=2)}, "rule"),
        ({"rule": "block", "drafter": "medusa"}, "rule"),
    ],
)
def test_what_makes_no_sense_together_is_refused_by_name(order, field, temperature):
    with refused(field):
        specviz.speculate(pair_of(), PROMPT, sampling=SamplingParams(temperature), **order)


# Where runs end


@pytest.mark.parametrize("drafter", [None, *DRAFTERS])
def test_no_more_is_drafted_than_can_be_kept(drafter):
    for wanted, sampling in ((1, GREEDY), (2, SamplingParams()), (3, GREEDY), (6, SamplingParams())):
        run = specviz.run(pair_of(), PROMPT, drafter=drafter, max_new_tokens=wanted, sampling=sampling)
        assert len(run.token_ids) == wanted and run.stop_reason == "length"
        left = wanted
        for one in run.rounds:
            assert all(len(branch(one, place)) < left for place in range(len(one.drafted))) and one.dropped == 0
            left -= len(one.emitted)


@pytest.mark.parametrize("drafter", ["medusa", "eagle", "mtp", "parallel"])
def test_after_a_prompt_of_one_token_a_head_has_nothing_to_look_at(drafter):
    run = specviz.run(pair_of(), PROMPT[:1], drafter=drafter, sampling=GREEDY, max_new_tokens=10)
    assert not run.rounds[0].drafted and run.rounds[1].drafted


def test_an_end_token_inside_a_kept_branch_ends_the_text_there():
    pair = pair_of("llama", noise=0)
    order = {"sampling": GREEDY, "max_new_tokens": 20, "num_draft_tokens": 3, "drafting": DraftParams(branches=3)}
    first = path_of(specviz.run(pair, PROMPT, **order).rounds[0])
    assert len(first) == 3 and first[0].id != first[1].id
    ending = dataclasses.replace(pair, eos_ids=frozenset({first[1].id}))
    run = specviz.run(ending, PROMPT, **order)
    assert run.stop_reason == "eos" and list(run.token_ids) == [first[0].id, first[1].id]
    # Acceptance was decided before the cut, and the cut is recorded apart.
    assert run.rounds[0].accepted == 3 and run.rounds[0].dropped == 2


@pytest.mark.parametrize("drafter", [None, *DRAFTERS])
def test_a_full_context_ends_the_run(drafter):
    pair = dataclasses.replace(pair_of(), context_length=len(PROMPT) + 7)
    run = specviz.run(pair, PROMPT, drafter=drafter, max_new_tokens=100)
    assert run.stop_reason == "context" and len(run.token_ids) == 7


@pytest.mark.parametrize(
    "architecture, drafter, branches, prepared",
    [
        *(("llama", "draft_model", 1, True), ("gpt2", "draft_model", 3, False), ("llama", "hybrid", 1, False)),
        *(("llama", "parallel", 1, False), ("llama", "parallel", 1, True)),
    ],
)
def test_a_draft_model_with_a_shorter_context_goes_silent_and_the_text_goes_on(
    architecture, drafter, branches, prepared
):
    short = {"gpt2": "n_positions"}.get(architecture, "max_position_embeddings")
    target = tiny_model(architecture, eos_token_id=None)
    pair = ModelPair.of(target, tiny_model(architecture, **{short: 24}), pair_of().tokenizer)
    pair.eos_ids = frozenset()
    if drafter == "parallel":
        pair.draft.config.spd_type, pair.draft.config.pard_token = "pard", 1
    if prepared:
        pair.passes = PairPasses({TARGET: unprepared(pair.target), DRAFT: unprepared(pair.draft)})
    assert pair.context_length == POSITIONS
    for prompt in (PROMPT, PROMPT * 5):
        run = greedy_run(pair, prompt, 40, drafter=drafter, drafting=DraftParams(branches=branches))
        if drafter == "draft_model":
            read = len(prompt)
            for one in run.rounds[:-2]:
                assert max(draft_depths(one), default=-1) + 1 == min(4, max(0, 25 - read))
                read += len(one.emitted)
