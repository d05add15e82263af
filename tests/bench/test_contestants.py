"""Figures, worked out by hand from rounds whose times are known: of one contestant, and of several by domain."""

from collections import Counter
from dataclasses import replace

import pytest
from handmade import a_round, a_tree, a_typical, rounds_of

from specviz.bench.advice import ALL, FEWEST, Work, good_lengths, offers_of
from specviz.bench.contestants import Contestant, TimedRun, Turn, figures_of, formula_speedup, speedup_of
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
    figures = figures_of(own, plain)
    assert figures.tokens_per_second == pytest.approx(5.0)
    assert figures.spread == pytest.approx((2.5, 10.0))
    assert figures.speedup_measured == pytest.approx((12 / 2.8) / 5)
    low, high = figures.speedup_interval
    assert low < figures.speedup_measured < high
    alone = figures_of(own[:1], plain[:1])
    assert alone.speedup_measured == pytest.approx(5 / 5) and alone.speedup_interval is None


def test_plain_decoding_has_speed_and_shares_and_nothing_of_drafts():
    figures = figures_of([PLAIN])
    assert figures.tokens_per_second == pytest.approx(5.0)
    assert figures.acceptance_length == 1.0 and figures.phase_share["verify"] == pytest.approx(1.0)
    nothing = (figures.speedup_measured, figures.speedup_interval, figures.acceptance_rate, figures.cost_coefficient)
    assert (*nothing, figures.speedup_formula, figures.distance) == (None,) * 6


def test_repeats_are_counted_together():
    own = [a_run(timed(["aaa", "ard"], draft=0.06, verify=0.1)), a_run(timed(["rdd"], draft=0.06, verify=0.1))]
    figures = figures_of(own, [PLAIN, PLAIN])
    assert figures.acceptance_rate == pytest.approx(4 / 6)
    assert figures.acceptance_length == pytest.approx(1 + 4 / 3)
    assert figures.drafted_per_round == figures.levels_per_round == 3


def test_the_cost_coefficient_is_a_draft_step_over_a_plain_pass():
    # 0.06 s for three tokens is 0.02 a step; verifying four tokens at 0.2 s does not enter: a plain pass takes 0.1.
    figures = figures_of([a_run(timed(["aaa", "ard"], draft=0.06, verify=0.2))], [PLAIN])
    assert figures.cost_coefficient == pytest.approx(0.2)
    assert figures.speedup_formula == pytest.approx(theory.expected_speedup(4 / 5, 3, 0.2))


def test_a_level_of_a_tree_is_one_step_and_trees_have_no_formula():
    tree = replace(a_tree((-1, -1, 0, 0, 1)), seconds=Seconds(0.06, 0.1, 0.0, 0.16, 0.16))
    figures = figures_of([a_run([tree])], [PLAIN])
    assert (figures.drafted_per_round, figures.levels_per_round) == (5, 2)
    assert figures.cost_coefficient == pytest.approx(0.03 / 0.1)
    assert figures.speedup_formula is None


def test_rounds_without_a_draft_count_in_the_formula_as_the_plain_steps_they_are():
    # A drafter that found two tokens in one round of two: (1 + expected tokens of 2) / 2 for a mean length of 1.
    figures = figures_of([a_run(timed(["aa", ""], draft=0.01, verify=0.1))], [PLAIN])
    assert figures.cost_coefficient == pytest.approx(0.01 / 0.1)
    assert figures.speedup_formula == pytest.approx((3 + 1) / 2 / (1 * 0.1 + 1))


def test_for_drafts_of_one_length_the_formula_is_the_theorem():
    for alpha in (0.0, 0.6, 1.0):
        assert formula_speedup(alpha, 0.1, Counter({5: 7})) == pytest.approx(theory.expected_speedup(alpha, 5, 0.1))


def test_a_lossy_rule_has_its_mean_distance():
    figures = figures_of([a_run([a_typical(0), replace(a_typical(1), distance=0.03)])], [PLAIN])
    assert figures.distance == pytest.approx((0.37 + 0.03) / 2)


def test_shares_of_time_add_up():
    figures = figures_of([a_run(timed(["a", "r"], draft=0.02, verify=0.06, rest=0.02))], [PLAIN])
    assert figures.phase_share == pytest.approx({"draft": 0.2, "verify": 0.6, "rest": 0.2})
    assert figures.overhead_share == pytest.approx(0.2)


# Several prompts

PLAIN_RUN, MODEL, COPIES = Contestant("plain"), Contestant("draft_model", 2), Contestant("suffix", 4)


def run_on(prompt: int, number: int, seconds: float, words=("",) * 4, group: int = 0) -> TimedRun:
    """Rounds of these outcomes in two turns."""
    rounds = rounds_of(*words)
    ids = tuple(token for one in rounds for token in one.emitted)
    half = len(ids) // 2
    turns = Turn(0, half, seconds / 2), Turn(1, len(ids) - half, seconds / 2)
    return TimedRun(number, (prompt, group), 0, turns, ids, rounds, True)


def measured(domains, drafted=("aa", "ar"), slower=lambda prompt: 1.0) -> Work:
    """Every prompt once: plain decoding takes 4 s for 4 tokens, the draft model 2 s for 5, `slower` times as long."""
    work = Work((PLAIN_RUN, MODEL, COPIES), domains)
    for prompt in range(len(domains)):
        work.add(run_on(prompt, 0, 4.0))
        work.add(run_on(prompt, 1, 2.0 * slower(prompt), drafted))
    return work


def test_there_is_a_row_for_all_prompts_and_one_for_each_domain_of_those_that_were_measured():
    rows = measured(["code", "story", "code", ""]).rows()
    assert [(row.domain, row.contestant, row.prompts) for row in rows] == [
        (ALL, MODEL, 4),
        ("code", MODEL, 2),
        ("story", MODEL, 1),
        ("", MODEL, 1),
    ]
    assert [row.domain for row in measured(["code", "code"]).rows()] == [ALL], "one domain is all of them"
    assert [row.domain for row in measured([ALL, "code"]).rows()] == [ALL, "code"], "nothing is told twice"


def test_a_row_has_its_speedup_its_tokens_a_pass_and_what_was_kept_where_it_was_reached():
    row, *_ = measured(["a", "b", "a", "b"]).rows()
    assert row.speedup_measured == row.ratio.value == pytest.approx((5 / 2) / (4 / 4))
    assert row.tokens_a_pass.value == row.acceptance_length == 2.5
    assert [one.value for one in row.kept_at] == [1.0, 0.5]
    assert row.speedup_interval == (row.ratio.low, row.ratio.high)


def test_from_a_few_prompts_on_intervals_are_over_prompts():
    def told(count):
        work = measured(["x"] * count, slower=lambda prompt: 1.0 if prompt % 2 else 3.0)
        row, *_ = work.rows()
        return row.ratio, speedup_of(work.runs[MODEL], work.runs[PLAIN_RUN])

    few, turns = told(FEWEST - 1)
    assert few == turns
    many, turns = told(FEWEST)
    # At worst every prompt drawn is one of the slow ones, at best none is.
    assert many.value == turns.value == pytest.approx(5 / 4) and many.low == pytest.approx(2.5 / 3)
    assert many.high == pytest.approx(5 / 2) and (many.low, many.high) != (turns.low, turns.high)


def test_one_prompt_leaves_acceptance_without_an_interval():
    row, *_ = measured(["x"]).rows()
    assert row.tokens_a_pass.low is None and all(one.low is None for one in row.kept_at)


def test_each_is_compared_with_the_plain_runs_that_it_took_turns_with():
    work = Work((PLAIN_RUN, MODEL, COPIES), ["x"] * FEWEST)
    for prompt in range(FEWEST):
        for group, (number, slow) in enumerate(((1, 1.0), (2, 5.0))):
            work.add(run_on(prompt, 0, 4.0 * slow, group=group))
            work.add(run_on(prompt, number, 2.0 * slow, ("aa", "ar"), group=group))
    rows = {row.contestant: row.ratio.value for row in work.rows()}
    assert rows == {MODEL: pytest.approx(2.5), COPIES: pytest.approx(2.5)}, "the machine was slow to the second group"


def test_lengths_that_cannot_be_told_apart_are_good_lengths():
    work = Work((PLAIN_RUN, *(Contestant("suffix", gamma) for gamma in (2, 4, 6, 8))), ["x"] * 6)
    for prompt in range(6):
        work.add(run_on(prompt, 0, 4.0))
        for number, seconds in enumerate((4.0, 2.05, 2.0, 2.1), start=1):
            work.add(run_on(prompt, number, seconds * (0.9 + 0.04 * ((prompt + number) % 6)), ("aa", "ar")))
    offers = offers_of(work.rows(), None, False, {})
    best = max(offers, key=lambda one: one.row.ratio.value)
    assert best.num_draft_tokens == 6 and good_lengths(offers, best) == [4, 6, 8]
