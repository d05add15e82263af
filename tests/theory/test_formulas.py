"""Closed forms: the papers' tables, the roofline, and how deep to draft."""

import itertools
import json
import pathlib
import random
from dataclasses import replace

import pytest
from handmade import curve, pass_times

from specviz.records.runs import LengthChoice
from specviz.theory import formulas as theory
from specviz.theory.draft_length import CHOICES, OLD, STAKE, STANDS, TIMES, AdaptiveDepth, FixedDepth, History
from specviz.theory.roofline import Limits, ModelSize, pass_seconds

TABLES = json.loads((pathlib.Path(__file__).parents[1] / "data" / "leviathan.json").read_text())


@pytest.mark.parametrize("alpha, gamma, _operations, speed", TABLES["table_1"]["rows"])
def test_table_1_speed(alpha, gamma, _operations, speed):
    assert theory.expected_speedup(alpha, gamma, cost=0) == pytest.approx(speed, abs=0.005001)


@pytest.mark.parametrize("row", TABLES["table_4"]["rows"])
def test_table_4_expected_speedup(row):
    _task, _draft, _temperature, gamma, alpha, cost, expected, _measured = row
    assert theory.expected_speedup(alpha, gamma, cost) == pytest.approx(expected, abs=0.07)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("cost", [0.05, 0.2, 0.4, 0.6, 0.8])
def test_some_speedup_exists_exactly_where_acceptance_exceeds_cost(alpha, cost):
    assert (theory.expected_tokens(1, 5), theory.expected_tokens(0, 5)) == (6, 1)
    best = max(theory.expected_speedup(alpha, gamma, cost) for gamma in range(1, 40))
    assert (best > 1) == (alpha > cost) == (theory.optimal_gamma(alpha, cost) > 0)


@pytest.mark.parametrize("alpha, gamma, cost", [(1.1, 2, 0), (-0.1, 2, 0), (0.5, -1, 0), (0.5, 2, -0.1)])
def test_impossible_arguments_are_refused(alpha, gamma, cost):
    with pytest.raises(ValueError):
        theory.expected_speedup(alpha, gamma, cost)


def test_a_pass_waits_for_the_slower_of_moving_and_computing():
    size = ModelSize(parameters=1000, weight_bytes=2000, position_bytes=8.0, positions=50.0, attention_width=4)
    assert size.bytes_moved(2) == 2000 + 8 * 52
    # Each of two tokens: 2 · 1000; the first looks at 51 positions, the second at 52.
    assert size.operations(2) == 2 * 2000 + 4 * 4 * (51 + 52)
    assert Limits(bandwidth=100.0, peak=1e9).seconds(size, 2) == size.bytes_moved(2) / 100
    assert Limits(bandwidth=1e9, peak=100.0).seconds(size, 2) == size.operations(2) / 100


def test_limits_hold_until_any_pass_of_any_model_is_faster_than_one():
    target, draft = curve({1: 1e4, 4: 1e4}), curve({1: 1e4}, "draft")
    assert pass_times(target, draft).limits_hold and pass_times().limits_hold
    needed = target.limits.seconds(target.size, 4)
    assert pass_times(curve({1: 1e4, 4: needed}), draft).limits_hold
    assert not pass_times(curve({1: 1e4, 4: 0.99 * needed}), draft).limits_hold
    assert not pass_times(target, curve({1: 1.0}, "draft")).limits_hold
    # The spread that is drawn may not reach below the limit either.
    lucky = replace(target.points[1], low=0.5 * needed)
    assert not pass_times(replace(target, points=(target.points[0], lucky))).limits_hold


def test_passes_cost_about_one_up_to_the_first_width_that_does_not():
    assert curve({1: 1.0, 2: 1.1, 4: 1.4, 8: 1.6, 16: 1.4}).about_one == 4
    assert curve({1: 1.0, 2: 1.5, 4: 1.4}).about_one == 1
    assert curve({1: 1.0, 2: 0.9}).about_one == 2
    assert curve({}).about_one is None


def test_between_measured_widths_the_cost_is_a_straight_line_and_beyond_them_unknown():
    measured = curve({1: 2.0, 2: 2.0, 4: 3.0})
    assert [measured.ratio(width) for width in (1, 2, 3, 4, 5)] == [1.0, 1.0, 1.25, 1.5, None]
    assert curve({}).ratio(1) is None


def costs(step: float, wider: float = 0.0, start: float = 0.0, longest: int = 8) -> list[float]:
    """Of a machine whose plain step takes 1 s, a draft step `step`, each more token of the target pass `wider`, and
    drafting at all `start`."""
    return [1 + (depth > 0) * start + depth * (step + wider) for depth in range(longest + 1)]


def adaptive(seconds) -> AdaptiveDepth:
    """One that expects such rounds: a plain step takes `seconds[0]`, and all that deeper ones add is drafting."""
    return AdaptiveDepth(History([one - seconds[0] for one in seconds], [seconds[0]] * len(seconds)))


def simulated(seconds, chance, *, tokens=400, seed=0):
    """Seconds of a text and the depths chosen. chance: that a draft token is right, of the tokens written so far."""
    length, coins, made, taken, chosen = adaptive(seconds), random.Random(seed), 0, 0.0, []
    while made < tokens:
        depth = length.choose().depth
        kept = next((place for place in range(depth) if coins.random() >= chance(made)), depth)
        length.observe(depth, kept, (seconds[depth] - seconds[0], seconds[0]))
        made, taken = made + kept + 1, taken + seconds[depth]
        chosen.append(depth)
    return taken, chosen


@pytest.mark.parametrize("width, seconds", [(1, 1.0), (3, 2.0), (5, 3.0), (9, 4.0), (13, 5.5), (97, 37.0)])
def test_passes_between_those_that_were_timed_and_wider_ones(width, seconds):
    # From 1 to 9 tokens it takes 3 s more: 3/8 s for each token, and so each further one.
    assert pass_seconds({9: 4.0, 1: 1.0, 5: 3.0}, [width]) == [pytest.approx(seconds)]


@pytest.mark.parametrize(
    "alpha, step, wider", [(0.0, 0.1, 0), (0.05, 0.15, 0), (0.2, 0.3, 0), (0.2, 0.5, 0), (0.5, 0.1, 1)]
)
def test_where_drafting_does_not_pay_steps_are_plain_and_little_is_lost(alpha, step, wider):
    lost, late = [], []
    for seed in range(10):
        taken, chosen = simulated(costs(step, wider), lambda made: alpha, seed=seed)
        lost.append(taken / 400 - 1)
        late += chosen[100:]
    assert late.count(0) > 0.8 * len(late)
    assert sum(lost) / len(lost) < 0.03 and max(lost) < 0.05


@pytest.mark.parametrize("alpha, step", [(0.7, 0.2), (0.8, 0.2), (0.5, 0.04), (0.9, 0.5)])
def test_short_texts_are_hardly_ever_slower_and_mostly_as_fast_as_can_be(alpha, step):
    seconds = costs(step, start=0.1, longest=16)
    best = max(theory.expected_tokens(alpha, depth) / each for depth, each in enumerate(seconds))
    speeds = [128 / simulated(seconds, lambda made: alpha, tokens=128, seed=seed)[0] for seed in range(40)]
    assert min(speeds) > 0.95
    assert sum(speeds) / len(speeds) > 0.9 * best


def test_a_choice_stands_for_a_few_rounds_but_no_draft_while_rounds_lag():
    def stands(length, rounds, accepted):
        """For how many rounds each choice does."""
        made = []
        for _ in range(rounds):
            made.append(length.choose())
            length.observe(made[-1].depth, made[-1].depth * accepted, None)
        return [len(list(same)) for _, same in itertools.groupby(made, key=id)]

    while_all_is_accepted = stands(adaptive(costs(0.05)), 40, accepted=True)
    assert while_all_is_accepted[:CHOICES] == [1] * CHOICES and set(while_all_is_accepted[-4:-1]) == {STANDS}
    lagging, drafted = adaptive(costs(0.05, start=0.4)), []
    while lagging.history.lag <= STAKE:
        drafted.append(lagging.choose())
        lagging.observe(drafted[-1].depth, 0, None)
    assert drafted[-1].depth and not lagging.stands
    assert not AdaptiveDepth(lagging.history).choose().depth, "another run begins behind"
    assert STANDS in stands(lagging, 16, accepted=False), "plain steps risk nothing"


def test_rounds_are_made_ahead_for_as_long_as_a_choice_stands():
    first, made = adaptive(costs(0.05)), []
    while len(made) < 40:
        made.append(first.choose())
        made += [first.stand() for _ in range(first.stands)]
        for choice in made[-STANDS:]:
            first.observe(choice.depth, choice.depth, None)
    ahead = [len(list(same)) for _, same in itertools.groupby(made, key=id)]
    assert max(ahead) == STANDS and ahead[:2] == [1, 1]
    # An earlier run's choices are known to stand for as long as they did.
    again, repeated = AdaptiveDepth(adaptive(costs(0.5)).history, list(zip(made, itertools.repeat(False)))), []
    while len(repeated) < len(made):
        repeated.append(again.choose())
        repeated += [again.stand() for _ in range(again.stands)]
    assert repeated[: len(made)] == made
    assert FixedDepth(3).stands > 1000 and FixedDepth(3).stand() == FixedDepth(3).choose()


def test_what_has_paid_is_not_given_up_for_the_bad_beginning_of_another_text():
    first, bad = adaptive(costs(0.3)), 0
    for _ in range(50):
        first.observe(8, 8, None)
    then = AdaptiveDepth(first.history)
    while (chosen := then.choose()).depth:
        bad += 1
        then.observe(chosen.depth, 0, None)
    assert bad > STAKE / 0.3 and not chosen.behind, "what it has shown decides, not the stake of a new one"


def test_a_bad_beginning_is_forgiven_soon():
    length = adaptive(costs(0.05, start=0.4))
    for _ in range(2):
        length.observe(4, 0, None)
    assert length.choose().depth > 0, "two unlucky drafts are not the last"
    for _ in range(2):
        length.observe(4, 0, None)
    assert length.choose().behind
    for _ in range(40):
        depth = length.choose().depth
        length.observe(depth, depth, None)  # all is right from here on
    assert length.choose().depth == 8


@pytest.mark.parametrize("alpha, step, wider", [(0.8, 0.1, 0.0), (0.6, 0.1, 0.05), (0.9, 0.3, 0.0), (0.99, 0.05, 0)])
def test_the_length_comes_to_one_that_is_about_the_best(alpha, step, wider):
    seconds = costs(step, wider)
    speeds = [theory.expected_tokens(alpha, depth) / each for depth, each in enumerate(seconds)]
    for seed in range(3):
        _, chosen = simulated(seconds, lambda made: alpha, tokens=3000, seed=seed)
        settled = chosen[len(chosen) // 2 :]
        assert sum(speeds[depth] for depth in settled) / len(settled) > 0.95 * max(speeds)


def test_a_text_that_becomes_easy_is_noticed():
    _, chosen = simulated(costs(0.1), lambda made: 0.95 if made > 300 else 0.0, tokens=1500)
    assert chosen[100:290].count(0) > 0.8 * 190
    late = chosen[-50:]
    assert sum(late) / len(late) > 5


def test_survival_is_counted_depth_by_depth():
    """A drafter that knows two tokens and never a third is not taken for one that is right two times out of three."""
    length = adaptive(costs(0.05))
    for _ in range(60):
        length.observe(4, 2, None)
    survival = length.history.survival()
    assert survival[0] == 1 and survival[2] > 0.9 and survival[3] < 0.1
    assert length.choose().depth == 2


def test_rounds_that_were_cut_short_count_as_what_they_were():
    whole, cut = adaptive(costs(0.1)), adaptive(costs(0.1))
    for _ in range(20):
        whole.observe(8, 1, None)
        cut.observe(1, 1, None)  # nothing is known of what would have come next
    assert whole.history.survival()[1] == pytest.approx(cut.history.survival()[1], abs=0.1)
    assert cut.history.survival()[2] > 0.8 > 0.2 > whole.history.survival()[2]


def test_a_choice_says_what_one_token_more_would_bring_and_cost():
    length = adaptive([2.0, 2.2, 3.2])
    for kept in itertools.islice(itertools.cycle((2, 1, 1, 0)), 60):
        length.observe(2, kept, None)
    choice, survival = length.choose(), length.history.survival()
    assert choice == LengthChoice(1, (1 + survival[1]) / 1.1, kept=survival[2], cost=pytest.approx(0.5))
    # It chose rightly: one more would lower the tokens a second.
    assert (1 + survival[1] + survival[2]) / 1.6 < choice.speed
    assert adaptive([1.0]).choose() == LengthChoice(0, 1.0), "nothing lies beyond the longest"
    assert FixedDepth(3).choose() == LengthChoice(3), "which gives no reason"


@pytest.mark.parametrize("busy", [1.0, 3.0])
def test_what_rounds_take_replaces_what_was_expected(busy):
    """Of depths that were never timed, too; and one busy moment in five does not count."""
    shown = History([0.5 * depth for depth in range(5)], [1.0] * 5)
    for number in range(60):
        depth, slow = (0, 2, 3)[number % 3], 2 * (busy if number % 5 == 0 else 1)
        shown.observe(depth, 0, (0.1 * depth * slow, slow))
    assert shown.costs() == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4], abs=0.02)


@pytest.mark.parametrize("row, drafts_chain", [(0.0, False), (0.3, True)])
def test_a_tree_is_drafted_where_it_is_worth_its_rows(row, drafts_chain):
    """Three branches keep 8 of 10 levels, a chain 6; each row makes the target pass so much longer."""
    rest = {branches: [1 + branches * row * depth for depth in range(9)] for branches in (1, 3)}
    drafting = [0.05 * depth for depth in range(9)]
    trees, chains = History(drafting, [1.0] * 9), History(drafting, [1.0] * 9)
    length, coins, chosen = AdaptiveDepth(trees, None, chains), random.Random(1), []
    for _ in range(400):
        depth = length.choose().depth
        rate, branches = (0.6, 1) if length.drafts_chain else (0.8, 3)
        kept = next((place for place in range(depth) if coins.random() >= rate), depth)
        length.observe(depth, kept, (drafting[depth], rest[branches][depth]))
        chosen.append(length.drafts_chain)
    assert chosen[200:].count(drafts_chain) > 180


def test_times_of_long_ago_are_forgotten():
    shown = History([0.0, 0.1], [1.0, 1.0])
    for _ in range(TIMES):
        shown.observe(1, 0, (0.1, 3.0))
        shown.observe(0, 0, (0.0, 1.0))
    assert shown.costs()[1] > 1.8
    for _ in range(OLD):
        shown.observe(0, 0, (0.0, 1.0))
    assert shown.costs()[1] == pytest.approx(1.1)


def test_drafting_stops_once_it_has_lost_its_stake_and_says_so():
    length, lost = adaptive([1.0, 1.8]), 0.0
    while not length.choose().behind:
        length.observe(1, 0, None)
        lost += 0.8
    assert STAKE < lost <= STAKE + 0.8 and length.choose().depth == 0
