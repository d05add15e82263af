"""γ = auto and coins set by hand: what is chosen for each round is in the record, and the text stays the target's."""

import dataclasses
import itertools
from functools import lru_cache

import pytest
from refusal import refused
from tiny import tiny_pair, with_heads

import specviz
from specviz.decoding import engine, lengths
from specviz.decoding.request import prepare
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses
from specviz.records import links
from specviz.records.links import settings_of_run
from specviz.records.metrics import draft_depths
from specviz.records.runs import Run
from specviz.records.settings import AUTO, LONGEST_AUTO, DraftParams, RunSettings, SamplingParams, SetCoin, read_coins
from specviz.rules.draft import draft_depth

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
    """Every level of a draft takes a quarter of a plain step."""

    def learn(length, request, verdict, seconds):
        deep = draft_depth(verdict.draft.parents)
        length.observe(deep, len(verdict.path), (0.25 * deep, 1.0))

    monkeypatch.setattr(engine, "learn", learn)


def test_a_run_that_is_made_once_more_is_the_same_whatever_the_clock_says_now(known_costs, monkeypatch):
    pair = dataclasses.replace(pair_of("llama"), passes=PairPasses())
    first = auto(pair, seed=3)
    clock = itertools.cycle([(1e-3, 1.0), (5.0, 1e-3)])
    monkeypatch.setattr(engine, "learn", lambda length, *_: length.observe(1, 0, next(clock)))
    index = next(one.index for one in first.rounds[2:] if one.drafted)
    again, branch = auto(pair, seed=3), auto(pair, seed=3, coins=f"{index + 1}.next=0.999")
    assert again.token_ids == first.token_ids
    drafted = [one.drafted for one in first.rounds[: index + 1]]
    assert [one.drafted for one in branch.rounds[: index + 1]] == drafted
    assert auto(pair, seed=4).rounds[-1].choice.behind  # what the clock says is heard in another run


def test_what_rounds_have_shown_is_kept_for_each_way_to_draft():
    pair = dataclasses.replace(pair_of("llama"), passes=PairPasses())
    for branches, runs in ((1, 2), (3, 1)):
        for seed in range(runs):
            auto(pair, seed=seed, drafting=DraftParams(branches=branches))
    assert len(pair.passes.histories) == 2 and len(pair.passes.depths) == 3
    # A quicker machine, another text: the next run begins with what these have shown.
    known = next(iter(pair.passes.histories.values()))
    request = prepare(pair, RunSettings(PROMPT, num_draft_tokens=AUTO, seed=9, drafting=DraftParams(branches=1)))
    assert lengths.depth_policy(request).history is known


@pytest.mark.parametrize("drafter, branches", [("draft_model", 1), ("eagle", 3), ("prompt_lookup", None)])
def test_the_record_says_what_was_chosen_and_why(known_costs, drafter, branches):
    run = auto(pair_of("llama"), drafter=drafter, drafting=DraftParams(branches=branches), seed=1)
    assert run.num_draft_tokens == settings_of_run(run)["num_draft_tokens"] == AUTO
    for one in run.rounds:
        assert max(draft_depths(one), default=-1) < one.choice.depth
        assert one.choice.speed >= 1
        deepest = one.choice.depth == LONGEST_AUTO
        assert deepest == (one.choice.kept is None) and (deepest or (one.choice.cost > 0 and 0 < one.choice.kept < 1))
    assert len({one.choice.depth for one in run.rounds}) > 1
    assert Run.from_dict(run.to_dict()) == run


@pytest.mark.parametrize(
    "drafter, row, branches, seed",
    [
        # A tree that was refused at once is not given up: what it has to match is what chains have shown.
        *[("draft_model", 0.0, 3, seed) for seed in range(3)],
        *[("eagle", 0.0, 3, seed) for seed in range(3)],
        *[(drafter, 0.3, 1, 0) for drafter in ("draft_model", "eagle", "medusa")],
    ],
)
def test_trees_are_chains_where_rows_are_dear(monkeypatch, drafter, row, branches, seed):
    def learn(length, request, verdict, seconds):
        drafted = verdict.draft.parents
        length.observe(draft_depth(drafted), len(verdict.path), (0.01 * draft_depth(drafted), 1 + row * len(drafted)))

    monkeypatch.setattr(engine, "learn", learn)
    pair = dataclasses.replace(pair_of("llama"), passes=PairPasses())
    order = {"drafter": drafter, "drafting": DraftParams(branches=3), "max_new_tokens": 120, "seed": seed}
    run = auto(pair, **order)
    drafts = [one for one in run.rounds if len(one.drafted) > 1][-8:]
    widths = [len(one.drafted) / (1 + max(draft_depths(one))) for one in drafts]
    assert widths.count(branches) > len(widths) / 2


def test_no_draft_is_longer_than_what_the_request_allows(known_costs):
    request = prepare(pair_of("llama"), RunSettings(PROMPT, num_draft_tokens=AUTO, sampling=GREEDY))
    request = dataclasses.replace(request, most_draft_tokens=2)
    assert request.num_draft_tokens == 2
    assert max(len(one.drafted) for one in specviz.decoding.engine.rounds(request)) == 2


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
