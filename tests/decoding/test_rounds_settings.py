"""γ = auto and coins set by hand: what is chosen for each round is in the record, and the text stays the target's."""

import dataclasses
import itertools
from functools import lru_cache

import pytest
from refusal import refused
from tiny import tiny_pair, with_heads

import specviz
from specviz.decoding import round_times
from specviz.decoding.request import prepare
from specviz.models.pair import ModelPair, PairPasses
from specviz.records import links
from specviz.records.links import settings_of_run
from specviz.records.metrics import draft_depths
from specviz.records.runs import Run
from specviz.records.settings import AUTO, LONGEST_AUTO, DraftParams, RunSettings, SamplingParams, SetCoin, read_coins

PROMPT = [3, 5, 7, 11, 3, 5]
GREEDY = SamplingParams(temperature=0)


@lru_cache
def pair_of(architecture: str, noise: float = 0.15) -> ModelPair:
    """No token ends its texts. noise: how far its draft model is from the target."""
    pair = with_heads(tiny_pair(architecture, noise=noise, vocab=16))
    return dataclasses.replace(pair, eos_ids=frozenset())


def auto(pair: ModelPair, **settings) -> Run:
    return specviz.run(pair, PROMPT, **{"num_draft_tokens": AUTO, "max_new_tokens": 40} | settings)


@pytest.fixture
def known_costs(monkeypatch):
    """Every level of a draft is taken to cost a quarter of a plain step."""
    seconds = tuple(1 + 0.25 * depth for depth in range(LONGEST_AUTO + 1))
    monkeypatch.setattr(round_times, "round_seconds", lambda request: seconds[: request.num_draft_tokens + 1])


def test_rounds_are_timed_once_for_each_way_to_draft(monkeypatch):
    pair = dataclasses.replace(pair_of("llama"), passes=PairPasses())
    timed, turn = [], round_times._turn
    monkeypatch.setattr(round_times, "_turn", lambda request: timed.append(request) or turn(request))
    request = prepare(pair, RunSettings(PROMPT, num_draft_tokens=AUTO))
    assert round_times.must_be_timed(request)
    first = auto(pair, seed=3)
    turns = len(timed)
    assert not round_times.must_be_timed(request)
    assert 2 <= turns <= round_times.REPEATS
    assert auto(pair, seed=3).token_ids == first.token_ids and len(timed) == turns
    auto(pair, drafting=DraftParams(branches=3))
    assert len(timed) > turns and len(pair.passes.round_seconds) == 2


@pytest.mark.parametrize("left, deepest", [(10, 4), (1, 2)])
def test_only_what_there_is_room_for_is_timed(left, deepest):
    pair = dataclasses.replace(pair_of("llama"), passes=PairPasses(), context_length=len(PROMPT) + left)
    assert auto(pair).stop_reason == "context"
    (seconds,) = pair.passes.round_seconds.values()
    assert 1 <= len(seconds) <= deepest + 1


@pytest.mark.parametrize("drafter, branches", [("draft_model", 1), ("eagle", 3), ("prompt_lookup", None)])
def test_the_record_says_what_was_chosen_and_why(known_costs, drafter, branches):
    run = auto(pair_of("llama"), drafter=drafter, drafting=DraftParams(branches=branches), seed=1)
    assert run.num_draft_tokens == settings_of_run(run)["num_draft_tokens"] == AUTO
    for one in run.rounds:
        assert max(draft_depths(one), default=-1) < one.choice.depth
        assert one.choice.speed >= 1 and one.choice.cost == pytest.approx(0.25) and 0 < one.choice.kept < 1
    assert len({one.choice.depth for one in run.rounds}) > 1
    assert Run.from_dict(run.to_dict()) == run


def test_no_draft_is_longer_than_what_the_request_allows(known_costs):
    request = prepare(pair_of("llama"), RunSettings(PROMPT, num_draft_tokens=AUTO, sampling=GREEDY))
    request = dataclasses.replace(request, longest=2)
    assert request.num_draft_tokens == 2
    assert max(len(one.drafted) for one in specviz.decoding.engine.rounds(request)) == 2


def test_depths_are_timed_against_plain_rounds_of_the_same_moment_and_those_between_them_interpolated():
    # The second turn fell into a slow moment; in the third a round of two was held up.
    turns = [{0: 1.0, 2: 2.0, 4: 4.0}, {0: 3.0, 2: 6.0}, {0: 1.1, 2: 9.0, 4: 4.4}]
    assert round_times._typical(turns) == pytest.approx((1.1, 1.65, 2.2, 3.3, 4.4))
    assert list(itertools.pairwise(round_times.DEPTHS))[-1] == (8, LONGEST_AUTO)


REPEATING = [5, 17, 33, 8, 5, 17, 33, 8, 60, 61]


@lru_cache
def run_with(coins: str, rule: str = "auto", branches: int = 1) -> Run:
    return specviz.run(
        tiny_pair("llama", noise=0.15),
        REPEATING,
        num_draft_tokens=3,
        max_new_tokens=30,
        seed=4,
        rule=rule,
        drafting=DraftParams(branches=branches),
        coins=coins,
    )


@pytest.mark.parametrize("rule, branches", [("token", 1), ("block", 1), ("tree", 2), ("multi_path", 2)])
def test_a_draft_token_is_refused_by_a_coin_set_by_hand_and_all_before_stays(rule, branches):
    first = run_with("", rule, branches)
    place = next(
        (one.index, index)
        for one in first.rounds[2:]
        for index, token in enumerate(one.drafted)
        if token.outcome == "accepted" and token.accept_prob < 0.99
    )
    index, token = place
    branch = run_with(f"{index + 1}.{token + 1}=0.995", rule, branches)
    assert [one.drafted for one in branch.rounds[:index]] == [one.drafted for one in first.rounds[:index]]
    here, there = branch.rounds[index].drafted[token], first.rounds[index].drafted[token]
    assert (here.id, here.p, here.q, here.accept_prob) == (there.id, there.p, there.q, there.accept_prob)
    assert here.u == pytest.approx(0.995) and here.u != there.u
    assert branch.coins == f"{index + 1}.{token + 1}=0.995" and first.coins == ""
    if rule in ("token", "tree"):
        assert here.outcome == "rejected"


def test_another_token_is_drawn_with_a_draw_set_by_hand_and_the_later_coins_stay():
    first = run_with("")
    one = next(one for one in first.rounds[1:] if len(one.next.line) > 1)
    wanted, start, end = next(piece for piece in one.next.line if piece[0] != one.next.id)
    branch = run_with(f"{one.index + 1}.next={(start + end) / 2:.6f}")
    assert branch.rounds[one.index].next.id == wanted
    assert branch.rounds[one.index].drafted == one.drafted
    later = list(zip(branch.rounds, first.rounds))[one.index + 1 :]
    assert len(later) > 2 and all(mine.next.u == its.next.u for mine, its in later)
    assert all(mine.drafted[0].u == its.drafted[0].u for mine, its in later if mine.drafted and its.drafted)


def test_a_branch_is_linked_to_and_kept_as_one(tmp_path):
    run = run_with("3.1=0.5 4.next=0.25")
    run.save(tmp_path / "branch.json")
    loaded = Run.load(tmp_path / "branch.json")
    assert loaded == run
    assert links.settings_of_run(loaded)["coins"] == "3.1=0.5 4.next=0.25"
    settings, errors = links.settings_of({"prompt": "x", "coins": "3.1=0.5 4.next=0.25"})
    assert settings["coins"] == "3.1=0.5 4.next=0.25" and not errors


def test_coins_are_read_as_they_are_written():
    assert read_coins("3.2=0.41  5.next=.07 1.1=0 1.2=5e-3") == (
        SetCoin(2, 1, 0.41),
        SetCoin(4, None, 0.07),
        SetCoin(0, 0, 0.0),
        SetCoin(0, 1, 0.005),
    )
    assert read_coins("") == ()


def test_at_temperature_0_there_is_no_coin_to_set():
    with refused("coins", "no coin is flipped"):
        prepare(tiny_pair("llama"), RunSettings("x", coins="1.1=0.5", sampling=SamplingParams(temperature=0)))
