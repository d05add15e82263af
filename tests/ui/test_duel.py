"""A run and its plain rival, in turn: the ratio and the interval that are told, and what is said where it is wide."""

import math
from dataclasses import replace

import pytest
from refusal import refused
from tiny import tiny_pair

from specviz.bench import duel as dueling
from specviz.bench.contestants import Turn
from specviz.bench.duel import LEAST_PAIRS, Duel, duel, runs_of
from specviz.decoding.request import prepare
from specviz.records.settings import RunSettings, SamplingParams
from specviz.ui.tabs.race import progress

REQUEST = prepare(tiny_pair("llama"), RunSettings("Once upon", sampling=SamplingParams(0), max_new_tokens=100))


def settled(plain: list[tuple[float, ...]], fast: list[tuple[float, ...]]) -> Duel:
    """A duel with these seconds of each repeat's turns of ten tokens; texts and rounds are those of a real one."""
    [*_, done] = duel(REQUEST, whole=False)
    sides = []
    for number, (like, side) in enumerate(((done.plain[0], plain), (done.fast[0], fast))):
        turns = [tuple(Turn(place, 10, taken) for place, taken in enumerate(seconds)) for seconds in side]
        like = replace(like, number=number, finished=True)
        sides.append([replace(like, repeat=repeat, turns=taken) for repeat, taken in enumerate(turns)])
    return Duel(*sides, "Xeon")


def test_both_decode_the_whole_text_in_turn_and_what_is_done_meanwhile_is_said():
    *handed, fought = duel(REQUEST, whole=True)
    assert {len(run.token_ids) for run in (*fought.plain, *fought.fast)} == {100}
    assert len(fought.plain) == len(fought.fast) <= dueling.REPEATS
    places = [[turn.place for turn in side[0].turns] for side in (fought.plain, fought.fast)]
    assert places[0] == list(range(len(places[0]))) and len(places[0]) >= 8 and places[1] == places[0][: len(places[1])]
    assert fought.ratio.low < fought.ratio.value < fought.ratio.high
    said = [progress(one) for one in handed if one is not None and not isinstance(one, Duel)]
    assert said[0] == said[1] == ({"say": "common.warming_up"}, 0.0)
    assert {text["say"] for text, _ in said[2:]} <= {"common.in_turn"} and all(0 <= share <= 1 for _, share in said)
    assert [one.drafter for one in runs_of(REQUEST.settings, True)] == [None, "draft_model"] * 2


def test_the_ratio_is_that_of_all_turns_and_its_interval_is_told_with_it():
    done = settled([(2.0, 2.2), (2.1, 2.0)], [(1.0, 1.1), (1.0, 1.0)])
    told, outcome = done.speedup(), done.outcome(REQUEST)
    assert told.ratio == outcome["speedup"] == pytest.approx(8.3 / 4.1) and told.machine == "Xeon"
    assert told.low == outcome["low"] < told.ratio < told.high == outcome["high"] < 1.2 * told.ratio


def test_where_the_interval_says_nothing_its_range_is_told_and_no_winner():
    done = settled([(1.0, 1.0), (1.0, 9.0)], [(9.0, 1.0), (1.0, 1.0)])
    low, high = done.ratio.low, done.ratio.high
    assert high > 2 * low
    outcome = done.outcome(REQUEST)
    assert (outcome["speedup"], outcome["low"], outcome["high"]) == (None, low, high)
    with refused("measured", rf"The speedup's interval runs from {round(low, 2)}× to {round(high, 2)}×"):
        done.speedup()


def test_the_runs_shown_are_those_of_the_repeat_nearest_to_the_ratio_of_all():
    # 1×, 2× and 4×: all together 21 s by 11 s.
    done = settled([(6.0,), (7.0,), (8.0,)], [(6.0,), (3.5,), (2.0,)])
    assert math.isclose(done.ratio.value, 21 / 11.5)
    assert [run.repeat for run in done.shown(REQUEST)] == [1, 1]
    assert [run.drafter for run in done.runs(REQUEST)] == [None, "draft_model"]
    # Each repeat has the next seed, and a record says which.
    sampled = REQUEST.but(replace(REQUEST.settings, sampling=SamplingParams(1)))
    assert [run.repeat for run in done.shown(sampled)] == [0, 0]


def test_there_are_turns_enough_for_an_interval_however_long_they_take(monkeypatch):
    monkeypatch.setattr(dueling, "BUDGET", 0.0)
    short = REQUEST.but(RunSettings("Once upon", sampling=SamplingParams(0), max_new_tokens=4))
    [*_, done] = duel(short, whole=True)
    assert [len(run.turns) for run in done.plain] == [1] * LEAST_PAIRS and done.ratio.low is not None
    [*_, cut] = duel(REQUEST, whole=False)
    assert len(cut.plain) == 1 and len(cut.plain[0].token_ids) < 100 and cut.ratio.low is not None
