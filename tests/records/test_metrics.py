"""The figures of runs: each counted when it was decided, as tables too, and compared with plain decoding's."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from handmade import PAIR, a_round, a_run, a_tree, drafted, rounds_of
from refusal import refused

from specviz.records.metrics import compare, emission_times, speedup, tally
from specviz.records.runs import Candidates, Round, Seconds
from specviz.records.settings import SamplingParams
from specviz.records.tables import rounds_table, runs_table, tokens_table

#: Two guesses for the first position, one continuation of each; the second guess and its continuation are kept.
TREE = Round(
    0,
    tuple(drafted(outcome, parent=parent) for outcome, parent in zip("rada", (-1, -1, 0, 1))),
    *(a_round("a").next, (1, 1, 2), ("", "", ""), (), a_round("a").seconds),
)


@pytest.mark.parametrize(
    "rounds, judged_at, accepted_at, length, rates",
    [
        (rounds_of("aaa", "ard", "rdd", "aar", "ard"), [5, 4, 2], [4, 2, 1], 1 + 7 / 5, [4 / 5, 2 / 4, 1 / 2]),
        # The same decisions with nothing drafted after each refusal: not one figure of acceptance moves.
        (rounds_of("aaa", "ar", "r", "aar", "ar"), [5, 4, 2], [4, 2, 1], 1 + 7 / 5, [4 / 5, 2 / 4, 1 / 2]),
        (rounds_of("rdd", "rdd"), [2, 0, 0], [0, 0, 0], 1.0, [0.0, None, None]),
        # Truncation comes after the verdict, and changes none of it.
        ((a_round("aaa"), a_round("ard", 1, emit=1, stop_reason="length")), [2, 2, 1], [2, 1, 1], 3.0, [1, 1 / 2, 1]),
        (rounds_of("", "", ""), [], [], 1.0, []),
        ([TREE], [2, 1], [1, 1], 3.0, [1 / 2, 1]),
        ([], [], [], None, []),
    ],
)
def test_acceptance_is_over_what_was_judged_by_depth_and_the_targets_own_token_counts(
    rounds, judged_at, accepted_at, length, rates
):
    counts = tally(rounds)
    assert (counts.judged_at, counts.accepted_at) == (judged_at, accepted_at)
    assert (counts.judged, counts.accepted) == (sum(judged_at), sum(accepted_at))
    assert counts.acceptance_rate == (sum(accepted_at) / sum(judged_at) if judged_at else None)
    assert (counts.acceptance_length, counts.conditional_position_rates()) == (length, rates)
    assert counts.drafted == sum(len(one.drafted) for one in rounds)
    assert counts.tokens == sum(len(one.emitted) for one in rounds)


def test_reading_the_prompt_counts_as_time_and_without_a_round_no_time_is_known():
    first = a_round("a", seconds=Seconds(0.1, 0.2, 0.1, 0.4, 0.3, prefill=0.6))
    second = a_round("a", 1, seconds=Seconds(0.1, 0.2, 0.1, 0.4, 0.3))
    assert emission_times([first, second]) == pytest.approx([1.0, 1.4])
    counts = tally([first, second])
    assert counts.tokens_per_second == pytest.approx(4 / 1.4)
    assert counts.overhead_share == pytest.approx(0.25)
    assert tally([]).tokens_per_second is tally([]).overhead_share is None


RUN = a_run(rounds_of("aaa", "ard", "", "r"))


def test_the_tables_of_rounds_and_of_tokens_hold_the_run_and_give_the_tallys_figures():
    counts, rounds, tokens = tally(RUN.rounds), rounds_table(RUN), tokens_table(RUN)
    assert rounds[["round", "drafted", "judged", "accepted"]].T.to_numpy().tolist() == [
        *([0, 1, 2, 3], [3, 3, 0, 1], [3, 2, 0, 1], [3, 1, 0, 0])
    ]
    assert list(rounds["next_kind"]) == ["bonus", "recovered", "bonus", "recovered"]
    assert "".join(rounds["text"]) == RUN.text
    parts = rounds[["draft_seconds", "verify_seconds", "accept_seconds"]].sum(axis=1)
    assert (parts - rounds["total_seconds"]).abs().max() < 1e-12
    assert 1 + rounds["accepted"].mean() == counts.acceptance_length

    assert len(tokens) == 7
    second = tokens[tokens["round"] == 1]
    assert list(second["outcome"]) == ["accepted", "rejected", "discarded"]
    assert list(second["position"]) == [0, 1, 2] and list(second["parent"]) == [-1, 0, 1]
    assert list(second["p"]) == [token.p for token in RUN.rounds[1].drafted]
    assert list(second[["u", "accept_prob"]].isna().all(axis=1)) == [False, False, True]
    judged = tokens[tokens["outcome"] != "discarded"]
    rates = (judged["outcome"] == "accepted").groupby(judged["position"]).mean()
    assert list(rates) == counts.conditional_position_rates()
    assert len(rounds_table(a_run(()))) == len(tokens_table(a_run(()))) == 0


def test_a_trees_tokens_stand_at_their_depth_and_name_their_parent():
    tree = a_tree((-1, -1, 0, 1), 0, seed=3, sources=("head 1", "head 1", "head 2", "head 2"))
    table = tokens_table(a_run((tree,)))
    assert list(table["position"]) == [0, 0, 1, 1]
    assert list(table["token"]) == [0, 1, 2, 3] and list(table["parent"]) == [-1, -1, 0, 1]
    assert list(table["source"]) == [token.source for token in tree.drafted]


def test_the_table_of_runs_compares_with_the_plain_run_of_the_same_prompt():
    hostile = "<script>hit()</script>"
    plain, other = a_run(rounds_of("", "", "")), a_run(rounds_of("a"), prompt="Another", drafter=hostile)
    other = replace(other, prompt=replace(other.prompt, ids=(1,)))
    table = runs_table([RUN, plain, other])
    assert list(table["drafter"]) == ["draft_model", "plain", hostile]
    assert table["acceptance_rate"][0] == tally(RUN.rounds).acceptance_rate and pd.isna(table["acceptance_rate"][1])
    assert table["speedup"][0] == tally(RUN.rounds).tokens_per_second / tally(plain.rounds).tokens_per_second
    assert table["speedup"][1] == 1 and pd.isna(table["speedup"][2])
    assert hostile not in table._repr_html_(), "a notebook gets it escaped"
    assert runs_table(iter([RUN, plain, other])).equals(table), "runs may come one by one"
    with refused("runs", "must be specviz"):
        runs_table([RUN, None])


def plain_run(*ids, temperature=0.0, **settings):
    """One plain step of 10 ms a token; at each, the best two tokens have raw probabilities 0.5 and 0.4."""
    top = (Candidates(p=((1, 1.0),), p_raw=((1, 0.5), (2, 0.4))),)
    rounds = tuple(replace(one, top=top) for one in fast_run(*((id,) for id in ids)).rounds)
    return a_run(rounds, sampling=SamplingParams(temperature), **settings)


def fast_run(*rounds_ids, seconds=0.01, temperature=0.0, **settings):
    """One round a group of ids, all accepted."""
    took = Seconds(0.0, seconds, 0.0, seconds, seconds)
    rounds = tuple(a_round("a" * (len(ids) - 1), i, ids=ids, seconds=took) for i, ids in enumerate(rounds_ids))
    return a_run(rounds, sampling=SamplingParams(temperature), **settings)


@pytest.mark.parametrize(
    "plain, fast, expected",
    [
        # 100 tokens per second against 6 tokens in 30 ms.
        (plain_run(1, 2, 3, 4, 5, 6), fast_run((1, 2, 3), (4, 5, 6), seconds=0.015), 2.0),
        (plain_run(1, 2), fast_run((1, 2, 3, 4), seconds=0.02), 2.0),
        (a_run(()), fast_run((1, 2)), None),
        (plain_run(1), a_run(()), None),
    ],
)
def test_the_speedup_is_the_ratio_of_tokens_per_second_whatever_the_lengths(plain, fast, expected):
    assert speedup(plain, fast) == (expected and pytest.approx(expected))


@pytest.mark.parametrize(
    "plain, fast, position, texts, known",
    [
        ((1, 2, 3, 4), [(1, 2), (5, 4)], 2, (" w3", " w5"), True),
        ((1, 2, 3), [(1, 2)], 2, (" w3", ""), True),
        ((1, 2), [(1, 2), (3, 4)], 2, ("", " w3"), False),  # plain decoding made no pass there
    ],
)
def test_greedy_texts_that_differ_say_where_and_how_close_it_was(plain, fast, position, texts, known):
    for dtype in ("float32", "bfloat16"):
        pair = replace(PAIR, dtype=dtype)
        result = compare(plain_run(*plain, pair=pair), fast_run(*fast, pair=pair))
        parting = result["parting"]
        assert result["identical"] is False and parting["half_precision"] is (dtype == "bfloat16")
        assert (parting["position"], parting["plain"], parting["speculative"]) == (position, *texts)
        assert parting["margin"] == (pytest.approx(math.log(0.5 / 0.4)) if known else None)


def test_equal_greedy_texts_do_not_part_and_sampled_ones_are_not_compared():
    equal = compare(plain_run(1, 2, 3, 4), fast_run((1, 2), (3, 4)))
    assert (equal["greedy"], equal["identical"], equal["parting"]) == (True, True, None)
    sampled = compare(plain_run(1, 2, temperature=1.0), fast_run((3, 4), temperature=1.0))
    assert (sampled["greedy"], sampled["identical"], sampled["parting"]) == (False, None, None)
