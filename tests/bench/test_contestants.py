"""The table's figures: worked out by hand from rounds whose times are known."""

import pathlib
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from handmade import a_round, a_tree, a_typical

from specviz.bench.contestants import Contestant, formula_speedup, pace, standing
from specviz.records.metrics import tally
from specviz.records.runs import Seconds
from specviz.theory import formulas as theory

ROOT = pathlib.Path(__file__).parents[2]


def timed(words, *, draft, verify, rest=0.0, prefill=0.0):
    """Rounds of these outcomes, all of which take the same time; the rest is spent outside the models."""
    total = draft + verify + rest
    return [
        a_round(word, index, seconds=Seconds(draft, verify, rest, total, total - rest, 0.0 if index else prefill))
        for index, word in enumerate(words)
    ]


#: Plain decoding: a token each 0.1 s, and 0.5 s for the prompt.
PLAIN = tally(timed([""] * 5, draft=0.0, verify=0.1, prefill=0.5))


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


def test_speed_is_tokens_over_wall_time_with_the_prompt_and_speedup_a_ratio_within_a_repeat():
    own = [
        tally(timed(["aaa"], draft=0.1, verify=0.1, prefill=0.6)),  # 4 tokens in 0.8 s
        tally(timed(["aaa"], draft=0.1, verify=0.1, prefill=0.2)),  # 4 tokens in 0.4 s
        tally(timed(["aaa"], draft=0.1, verify=0.1, prefill=1.4)),  # 4 tokens in 1.6 s
    ]
    plain = [PLAIN, tally(timed([""] * 5, draft=0, verify=0.4, prefill=0.5)), PLAIN]  # 5, 2 and 5 tokens/s
    figures = standing(own, plain)
    assert figures.tokens_per_second == pytest.approx(5.0)
    assert figures.spread == pytest.approx((2.5, 10.0))
    assert figures.speedup_measured == pytest.approx(1.0), "the median of 1, 5 and 0.5"
    assert figures.speedup_spread == pytest.approx((0.5, 5.0))


def test_plain_decoding_has_speed_and_shares_and_nothing_of_drafts():
    figures = standing([PLAIN], [])
    assert figures.tokens_per_second == pytest.approx(5.0)
    assert figures.acceptance_length == 1.0 and figures.phase_share["verify"] == pytest.approx(1.0)
    nothing = (figures.speedup_measured, figures.speedup_spread, figures.acceptance_rate, figures.cost_coefficient)
    assert (*nothing, figures.speedup_formula, figures.distance) == (None,) * 6


def test_repeats_are_counted_together():
    own = [tally(timed(["aaa", "ard"], draft=0.06, verify=0.1)), tally(timed(["rdd"], draft=0.06, verify=0.1))]
    figures = standing(own, [PLAIN, PLAIN])
    assert figures.acceptance_rate == pytest.approx(4 / 6)
    assert figures.acceptance_length == pytest.approx(1 + 4 / 3)
    assert figures.drafted_per_round == figures.levels_per_round == 3


def test_the_cost_coefficient_is_a_draft_step_over_a_plain_pass():
    # 0.06 s for three tokens is 0.02 a step; verifying four tokens at 0.2 s does not enter: a plain pass takes 0.1.
    figures = standing([tally(timed(["aaa", "ard"], draft=0.06, verify=0.2))], [PLAIN])
    assert figures.cost_coefficient == pytest.approx(0.2)
    assert figures.speedup_formula == pytest.approx(theory.expected_speedup(4 / 5, 3, 0.2))


def test_a_level_of_a_tree_is_one_step_and_trees_have_no_formula():
    tree = replace(a_tree((-1, -1, 0, 0, 1)), seconds=Seconds(0.06, 0.1, 0.0, 0.16, 0.16))
    figures = standing([tally([tree])], [PLAIN])
    assert (figures.drafted_per_round, figures.levels_per_round) == (5, 2)
    assert figures.cost_coefficient == pytest.approx(0.03 / 0.1)
    assert figures.speedup_formula is None


def test_rounds_without_a_draft_count_in_the_formula_as_the_plain_steps_they_are():
    # A drafter that found two tokens in one round of two: (1 + expected tokens of 2) / 2 for a mean length of 1.
    figures = standing([tally(timed(["aa", ""], draft=0.01, verify=0.1))], [PLAIN])
    assert figures.cost_coefficient == pytest.approx(0.01 / 0.1)
    assert figures.speedup_formula == pytest.approx((3 + 1) / 2 / (1 * 0.1 + 1))


def test_for_drafts_of_one_length_the_formula_is_the_theorem():
    for alpha in (0.0, 0.6, 1.0):
        assert formula_speedup(alpha, 0.1, Counter({5: 7})) == pytest.approx(theory.expected_speedup(alpha, 5, 0.1))


def test_a_lossy_rule_has_its_mean_distance():
    figures = standing([tally([a_typical(0), replace(a_typical(1), distance=0.03)])], [PLAIN])
    assert figures.distance == pytest.approx((0.37 + 0.03) / 2)


def test_shares_of_time_add_up():
    figures = standing([tally(timed(["a", "r"], draft=0.02, verify=0.06, rest=0.02))], [PLAIN])
    assert figures.phase_share == pytest.approx({"draft": 0.2, "verify": 0.6, "rest": 0.2})
    assert figures.overhead_share == pytest.approx(0.2)


def test_a_contestant_stopped_before_plain_was_is_compared_over_its_own_repeats():
    assert pace([10.0], [5.0, 1.0]).speedup_measured == 2.0


def test_no_torch_is_loaded():
    code = "import sys, specviz.bench.contestants; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
