"""The table's figures: worked out by hand from rounds whose times are known."""

from collections import Counter
from dataclasses import replace

import pytest
from handmade import a_round, a_tree, a_typical

from specviz.bench.contestants import Contestant, TimedRun, Turn, formula_speedup, standing
from specviz.records.runs import Seconds
from specviz.theory import formulas as theory


def timed(words, *, draft, verify, rest=0.0):
    """Rounds of these outcomes, all of which take the same time; the rest is spent outside the models."""
    total = draft + verify + rest
    return [
        a_round(word, index, seconds=Seconds(draft, verify, rest, total, total - rest))
        for index, word in enumerate(words)
    ]


def a_run(rounds, *turns, number=1, repeat=0):
    """turns: tokens and seconds of each."""
    ids = tuple(token for one in rounds for token in one.emitted)
    taken = tuple(Turn(place, *turn) for place, turn in enumerate(turns or [(len(ids), 1.0)]))
    return TimedRun(number, 0, repeat, taken, ids, tuple(rounds), True)


#: Plain decoding: a token each 0.1 s, and 0.5 s for the prompt.
PLAIN = a_run(timed([""] * 5, draft=0.0, verify=0.1), (2, 0.7), (3, 0.3), number=0)


@pytest.mark.parametrize(
    "contestant, title",
    [
        (Contestant("plain"), "plain"),
        (Contestant("plain", engine="transformers"), "transformers plain"),
        (Contestant("draft_model", 4), "draft_model γ=4"),
        (Contestant("draft_model", 4, branches=3, rule="typical"), "draft_model γ=4 ×3 typical"),
        (Contestant("quantised_self", 2, bits=4), "quantised_self γ=2 4 bits"),
        (Contestant("early_exit", 2, branches=1, exit_layer=3), "early_exit γ=2 chain layer 3"),
    ],
)
def test_a_title_says_what_differs(contestant, title):
    assert contestant.title == title


def test_contestants_are_keys():
    assert {Contestant("eagle", 4): 1}[Contestant("eagle", 4)] == 1


def test_speed_is_tokens_over_the_seconds_of_all_turns_and_the_speedup_is_of_all_turns_together():
    chain = timed(["aaa"], draft=0.1, verify=0.1)
    own = [a_run(chain, (2, 0.4), (2, seconds), repeat=place) for place, seconds in enumerate((0.4, 0.0, 1.2))]
    plain = [replace(PLAIN, repeat=repeat) for repeat in range(3)]
    figures = standing(own, plain)
    assert figures.tokens_per_second == pytest.approx(5.0)
    assert figures.spread == pytest.approx((2.5, 10.0))
    assert figures.speedup_measured == pytest.approx((12 / 2.8) / 5)
    low, high = figures.speedup_interval
    assert low < figures.speedup_measured < high
    alone = standing(own[:1], plain[:1])
    assert alone.speedup_measured == pytest.approx(5 / 5) and alone.speedup_interval is None


def test_plain_decoding_has_speed_and_shares_and_nothing_of_drafts():
    figures = standing([PLAIN])
    assert figures.tokens_per_second == pytest.approx(5.0)
    assert figures.acceptance_length == 1.0 and figures.phase_share["verify"] == pytest.approx(1.0)
    nothing = (figures.speedup_measured, figures.speedup_interval, figures.acceptance_rate, figures.cost_coefficient)
    assert (*nothing, figures.speedup_formula, figures.distance) == (None,) * 6


def test_repeats_are_counted_together():
    own = [a_run(timed(["aaa", "ard"], draft=0.06, verify=0.1)), a_run(timed(["rdd"], draft=0.06, verify=0.1))]
    figures = standing(own, [PLAIN, PLAIN])
    assert figures.acceptance_rate == pytest.approx(4 / 6)
    assert figures.acceptance_length == pytest.approx(1 + 4 / 3)
    assert figures.drafted_per_round == figures.levels_per_round == 3


def test_the_cost_coefficient_is_a_draft_step_over_a_plain_pass():
    # 0.06 s for three tokens is 0.02 a step; verifying four tokens at 0.2 s does not enter: a plain pass takes 0.1.
    figures = standing([a_run(timed(["aaa", "ard"], draft=0.06, verify=0.2))], [PLAIN])
    assert figures.cost_coefficient == pytest.approx(0.2)
    assert figures.speedup_formula == pytest.approx(theory.expected_speedup(4 / 5, 3, 0.2))


def test_a_level_of_a_tree_is_one_step_and_trees_have_no_formula():
    tree = replace(a_tree((-1, -1, 0, 0, 1)), seconds=Seconds(0.06, 0.1, 0.0, 0.16, 0.16))
    figures = standing([a_run([tree])], [PLAIN])
    assert (figures.drafted_per_round, figures.levels_per_round) == (5, 2)
    assert figures.cost_coefficient == pytest.approx(0.03 / 0.1)
    assert figures.speedup_formula is None


def test_rounds_without_a_draft_count_in_the_formula_as_the_plain_steps_they_are():
    # A drafter that found two tokens in one round of two: (1 + expected tokens of 2) / 2 for a mean length of 1.
    figures = standing([a_run(timed(["aa", ""], draft=0.01, verify=0.1))], [PLAIN])
    assert figures.cost_coefficient == pytest.approx(0.01 / 0.1)
    assert figures.speedup_formula == pytest.approx((3 + 1) / 2 / (1 * 0.1 + 1))


def test_for_drafts_of_one_length_the_formula_is_the_theorem():
    for alpha in (0.0, 0.6, 1.0):
        assert formula_speedup(alpha, 0.1, Counter({5: 7})) == pytest.approx(theory.expected_speedup(alpha, 5, 0.1))


def test_a_lossy_rule_has_its_mean_distance():
    figures = standing([a_run([a_typical(0), replace(a_typical(1), distance=0.03)])], [PLAIN])
    assert figures.distance == pytest.approx((0.37 + 0.03) / 2)


def test_shares_of_time_add_up():
    figures = standing([a_run(timed(["a", "r"], draft=0.02, verify=0.06, rest=0.02))], [PLAIN])
    assert figures.phase_share == pytest.approx({"draft": 0.2, "verify": 0.6, "rest": 0.2})
    assert figures.overhead_share == pytest.approx(0.2)
