"""The figures: each counted when it was decided, and numbers that people confuse kept apart."""

import pytest
from handmade import a_round, drafted, rounds_of

from specviz.records.metrics import emission_times, tally
from specviz.records.runs import Round, Seconds

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
