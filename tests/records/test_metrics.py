"""The figures of runs: each counted when it was decided, as tables too, and compared with plain decoding's."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from handmade import PAIR, a_round, a_run, a_tree, drafted, rounds_of

from specviz.records.metrics import compare, emission_times, speedup, tally
from specviz.records.runs import Candidates, Round, Seconds
from specviz.records.settings import SamplingParams
from specviz.records.tables import rounds_table, runs_table, tokens_table

#: Position 1: judged 5 times, accepted 4. Position 2: judged 4, accepted 2. Position 3: judged 2, accepted 1.
EXAMPLE = rounds_of("aaa", "ard", "rdd", "aar", "ard")


def test_conditional_rates_by_position_are_shares_of_the_rounds_that_got_there():
    assert tally(EXAMPLE).conditional_position_rates() == [4 / 5, 2 / 4, 1 / 2]


def test_the_acceptance_rate_is_over_judged_positions_so_discarded_ones_are_unobserved():
    counts = tally(EXAMPLE)
    assert (counts.drafted, counts.judged, counts.accepted) == (15, 11, 7)
    assert counts.acceptance_rate == 7 / 11
    # The same decisions with nothing drafted after each refusal: not one figure of acceptance moves.
    bare = tally(rounds_of("aaa", "ar", "r", "aar", "ar"))
    assert bare.acceptance_rate == counts.acceptance_rate
    assert bare.conditional_position_rates() == counts.conditional_position_rates()


def test_a_position_that_was_only_ever_discarded_has_no_rate():
    assert tally(rounds_of("rdd", "rdd")).conditional_position_rates() == [0.0, None, None]


def test_the_acceptance_length_counts_the_targets_own_token_and_ignores_truncation():
    whole = tally([a_round("aaa"), a_round("ard", 1)])
    cut = tally([a_round("aaa"), a_round("ard", 1, emit=1, stop_reason="length")])
    assert whole.acceptance_length == cut.acceptance_length == 1 + 4 / 2
    assert (whole.tokens, cut.tokens) == (6, 5)


def test_plain_steps_have_a_length_of_one_and_no_acceptance_rate():
    counts = tally(rounds_of("", "", ""))
    assert counts.acceptance_length == 1.0
    assert counts.acceptance_rate is None and counts.conditional_position_rates() == []


def test_nothing_yet_is_none_and_never_zero():
    counts = tally([])
    figures = (counts.acceptance_rate, counts.acceptance_length, counts.tokens_per_second, counts.overhead_share)
    assert figures == (None,) * 4


def test_a_tree_is_counted_by_depth_not_by_place_in_the_list():
    # Two guesses for the first position, one continuation of each; the second guess and its continuation are kept.
    tokens = tuple(drafted(outcome, parent=parent) for outcome, parent in zip("rada", (-1, -1, 0, 1)))
    chain = a_round("a")
    tree = Round(0, tokens, chain.next, (1, 1, 2), ("", "", ""), (), chain.seconds)
    counts = tally([tree])
    assert (counts.judged_at, counts.accepted_at) == ([2, 1], [1, 1])
    assert counts.acceptance_length == 3.0


def test_reading_the_prompt_counts_as_time():
    first = a_round("a", seconds=Seconds(0.1, 0.2, 0.1, 0.4, 0.3, prefill=0.6))
    second = a_round("a", 1, seconds=Seconds(0.1, 0.2, 0.1, 0.4, 0.3))
    assert emission_times([first, second]) == pytest.approx([1.0, 1.4])
    counts = tally([first, second])
    assert counts.tokens_per_second == pytest.approx(4 / 1.4)
    assert counts.overhead_share == pytest.approx(0.25)


RUN = a_run(rounds_of("aaa", "ard", "", "r"))


def test_the_table_of_rounds_has_one_row_a_target_pass():
    table = rounds_table(RUN)
    assert list(table["round"]) == [0, 1, 2, 3]
    assert list(table["drafted"]) == [3, 3, 0, 1]
    assert list(table["judged"]) == [3, 2, 0, 1]
    assert list(table["accepted"]) == [3, 1, 0, 0]
    assert list(table["next_kind"]) == ["bonus", "recovered", "bonus", "recovered"]
    assert "".join(table["text"]) == RUN.text
    parts = table[["draft_seconds", "verify_seconds", "accept_seconds"]].sum(axis=1)
    assert (parts - table["total_seconds"]).abs().max() < 1e-12


def test_the_table_of_tokens_has_one_row_a_draft_token():
    table = tokens_table(RUN)
    assert len(table) == 7
    second = table[table["round"] == 1]
    assert list(second["outcome"]) == ["accepted", "rejected", "discarded"]
    assert list(second["position"]) == [0, 1, 2] and list(second["parent"]) == [-1, 0, 1]
    discarded = second.iloc[2]
    assert pd.isna(discarded["u"]) and pd.isna(discarded["accept_prob"])
    assert list(second["p"]) == [token.p for token in RUN.rounds[1].drafted]


def test_the_tables_give_the_tallys_figures():
    counts, rounds, tokens = tally(RUN.rounds), rounds_table(RUN), tokens_table(RUN)
    assert rounds["accepted"].sum() / rounds["judged"].sum() == counts.acceptance_rate
    assert 1 + rounds["accepted"].mean() == counts.acceptance_length
    judged = tokens[tokens["outcome"] != "discarded"]
    rates = (judged["outcome"] == "accepted").groupby(judged["position"]).mean()
    assert list(rates) == counts.conditional_position_rates()


def test_a_run_without_rounds_is_two_empty_tables():
    empty = a_run(())
    assert len(rounds_table(empty)) == len(tokens_table(empty)) == 0


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


GREEDY = SamplingParams(temperature=0)


def plain_run(ids, seconds=0.01, **settings):
    """One plain step a token; at each, the best two tokens have raw probabilities 0.5 and 0.4."""
    took = Seconds(0.0, seconds, 0.0, seconds, seconds)
    top = (Candidates(p=((1, 1.0),), p_raw=((1, 0.5), (2, 0.4))),)
    rounds = tuple(replace(a_round("", i, ids=(id,), seconds=took), top=top) for i, id in enumerate(ids))
    return a_run(rounds, **({"sampling": GREEDY} | settings))


def fast_run(*rounds_ids, seconds=0.01, **settings):
    """One round a group of ids, all accepted."""
    took = Seconds(0.0, seconds, 0.0, seconds, seconds)
    rounds = tuple(a_round("a" * (len(ids) - 1), i, ids=ids, seconds=took) for i, ids in enumerate(rounds_ids))
    return a_run(rounds, **({"sampling": GREEDY} | settings))


def test_the_speedup_is_the_ratio_of_tokens_per_second():
    plain = plain_run([1, 2, 3, 4, 5, 6], seconds=0.01)
    fast = fast_run((1, 2, 3), (4, 5, 6), seconds=0.015)
    # 100 tokens per second against 6 tokens in 30 ms.
    assert speedup(plain, fast) == pytest.approx(2.0)
    assert speedup(fast, plain) == pytest.approx(0.5)


def test_the_speedup_does_not_need_texts_of_one_length():
    assert speedup(plain_run([1, 2]), fast_run((1, 2, 3, 4), seconds=0.02)) == pytest.approx(2.0)


def test_without_a_round_there_is_no_speedup():
    assert speedup(a_run(()), fast_run((1, 2))) is None
    assert speedup(plain_run([1]), a_run(())) is None


def test_equal_greedy_texts_are_identical_and_do_not_part():
    result = compare(plain_run([1, 2, 3, 4]), fast_run((1, 2), (3, 4)))
    assert result["greedy"] is True and result["identical"] is True and result["parting"] is None


def test_greedy_texts_that_differ_say_where_and_how_close_it_was():
    plain, fast = plain_run([1, 2, 3, 4]), fast_run((1, 2), (5, 4))
    result = compare(plain, fast)
    assert result["identical"] is False
    parting = result["parting"]
    assert (parting["position"], parting["plain"], parting["speculative"]) == (2, " w3", " w5")
    assert parting["margin"] == pytest.approx(math.log(0.5 / 0.4))
    assert parting["half_precision"] is False


def test_half_precision_is_told():
    half = replace(PAIR, dtype="bfloat16")
    result = compare(plain_run([1, 2], pair=half), fast_run((1, 3), pair=half))
    assert result["parting"]["half_precision"] is True


def test_a_text_that_ends_before_the_other_parts_at_its_end():
    parting = compare(plain_run([1, 2, 3]), fast_run((1, 2)))["parting"]
    assert (parting["position"], parting["plain"], parting["speculative"]) == (2, " w3", "")
    parting = compare(plain_run([1, 2]), fast_run((1, 2), (3, 4)))["parting"]
    assert (parting["position"], parting["plain"], parting["speculative"]) == (2, "", " w3")
    assert parting["margin"] is None, "plain decoding made no pass there"


def test_sampled_runs_are_not_compared_token_for_token():
    sampled = SamplingParams(temperature=1.0)
    result = compare(plain_run([1, 2], sampling=sampled), fast_run((3, 4), sampling=sampled))
    assert result["greedy"] is False and result["identical"] is None and result["parting"] is None
