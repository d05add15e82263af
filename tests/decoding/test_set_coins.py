"""A coin set by hand changes what it decides and what follows from that, and nothing before it."""

from functools import lru_cache

import pytest
from tiny import tiny_pair

import specviz
from specviz.decoding.request import prepare
from specviz.records import links
from specviz.records.coins import SetCoin, read_coins
from specviz.records.errors import SpecvizError
from specviz.records.runs import Run
from specviz.records.settings import DraftParams, RunSettings, SamplingParams

PROMPT = [5, 17, 33, 8, 5, 17, 33, 8, 60, 61]


@lru_cache
def run_with(coins: str, rule: str = "auto", branches: int = 1) -> Run:
    return specviz.run(
        tiny_pair("llama", noise=0.15),
        PROMPT,
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
    with pytest.raises(SpecvizError, match="no coin is flipped") as caught:
        prepare(tiny_pair("llama"), RunSettings("x", coins="1.1=0.5", sampling=SamplingParams(temperature=0)))
    assert caught.value.field == "coins"
