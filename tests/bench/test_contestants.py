"""Figures, worked out by hand from rounds whose times are known: of one contestant, and of several by domain."""

from collections import Counter
from dataclasses import replace

import pytest
from handmade import a_round, a_tree, a_typical, rounds_of

from specviz.bench.advice import good_lengths, offers_of
from specviz.bench.contest import ALL, FEWEST, Contest, Row
from specviz.bench.contestants import Contestant, Failed, TimedRun, Turn, figures_of, formula_speedup
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally, tally, total
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
    return TimedRun(number, 0, repeat, taken, ids, tally(rounds), True, rounds=tuple(rounds))


#: Plain decoding: a token each 0.1 s, and 0.5 s for the prompt.
PLAIN = a_run(timed([""] * 5, draft=0.0, verify=0.1), (2, 0.7), (3, 0.3), number=0)


@pytest.mark.parametrize(
    "contestant, title",
    [
        (Contestant.of("plain"), "plain"),
        (Contestant.of("plain", engine="transformers"), "transformers plain"),
        (Contestant.of("draft_model", 4), "draft_model γ=4"),
        (Contestant.of("draft_model", 4, branches=3, rule="typical"), "draft_model γ=4 ×3 typical"),
        (Contestant.of("quantised_self", 2, bits=4), "quantised_self γ=2 bits=4"),
        (Contestant.of("early_exit", 2, branches=1, exit_layer=3), "early_exit γ=2 chain exit_layer=3"),
    ],
)
def test_a_title_says_what_differs(contestant, title):
    assert contestant.title == title


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
    assert figures_of([PLAIN]).speedup_measured is None


TREE = replace(a_tree((-1, -1, 0, 0, 1)), seconds=Seconds(0.06, 0.1, 0.0, 0.16, 0.16))


@pytest.mark.parametrize(
    "runs, expected",
    [
        # 0.06 s for three tokens is 0.02 a step; verifying four tokens at 0.2 s does not enter: a plain pass takes 0.1.
        (
            [timed(["aaa", "ard"], draft=0.06, verify=0.2)],
            {"cost_coefficient": 0.2, "speedup_formula": theory.expected_speedup(4 / 5, 3, 0.2), "distance": None},
        ),
        # Repeats are counted together.
        (
            [timed(["aaa", "ard"], draft=0.06, verify=0.1), timed(["rdd"], draft=0.06, verify=0.1)],
            {"acceptance_rate": 4 / 6, "acceptance_length": 1 + 4 / 3, "drafted_per_round": 3, "levels_per_round": 3},
        ),
        # A level of a tree is one step, and trees have no formula.
        (
            [[TREE]],
            {"drafted_per_round": 5, "levels_per_round": 2, "cost_coefficient": 0.03 / 0.1, "speedup_formula": None},
        ),
        # A round without a draft is a plain step: (1 + expected tokens of 2) / 2 for a mean length of 1.
        (
            [timed(["aa", ""], draft=0.01, verify=0.1)],
            {"cost_coefficient": 0.01 / 0.1, "speedup_formula": (3 + 1) / 2 / (1 * 0.1 + 1)},
        ),
        # A lossy rule has its mean distance.
        ([[a_typical(0), replace(a_typical(1), distance=0.03)]], {"distance": (0.37 + 0.03) / 2}),
        # Shares of time add up.
        (
            [timed(["a", "r"], draft=0.02, verify=0.06, rest=0.02)],
            {"phase_share": {"draft": 0.2, "verify": 0.6, "rest": 0.2}, "overhead_share": 0.2},
        ),
        # Plain decoding has speed and shares, and nothing of drafts.
        (
            [PLAIN.rounds],
            {"tokens_per_second": 5.0, "acceptance_length": 1.0, "phase_share": {"draft": 0, "verify": 1, "rest": 0}}
            | dict.fromkeys(("acceptance_rate", "cost_coefficient", "speedup_formula", "distance")),
        ),
    ],
    ids=["a chain", "repeats", "a tree", "plain steps", "a lossy rule", "shares", "plain decoding"],
)
def test_figures_are_counted_over_the_rounds_of_all_repeats(runs, expected):
    figures = figures_of([a_run(rounds) for rounds in runs], [PLAIN] * len(runs))
    for name, value in expected.items():
        assert getattr(figures, name) == (value if value is None else pytest.approx(value)), name


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_for_drafts_of_one_length_the_formula_is_the_theorem(alpha):
    assert formula_speedup(alpha, 0.1, Counter({5: 7})) == pytest.approx(theory.expected_speedup(alpha, 5, 0.1))


# Several prompts


def entered(mode: str, gamma: int | None = None) -> Row:
    title = mode if gamma is None else f"{mode} γ={gamma}"
    return Row(title=title, engine="specviz", mode=mode, num_draft_tokens=gamma)


PLAIN_ROW, MODEL, COPIES = entered("plain"), entered("draft_model", 2), entered("suffix", 4)


def run_on(prompt: int, number: int, seconds: float, words=("",) * 4, group: int = 0, stage: int = 0) -> TimedRun:
    """Rounds of these outcomes in two turns."""
    rounds = rounds_of(*words)
    ids = tuple(token for round_ in rounds for token in round_.emitted)
    half = len(ids) // 2
    turns = Turn(0, half, seconds / 2), Turn(1, len(ids) - half, seconds / 2)
    return TimedRun(number, group, 0, turns, ids, tally(rounds), True, prompt, stage, rounds=rounds)


def measured(domains, drafted=("aa", "ar"), slower=lambda prompt: 1.0) -> Contest:
    """Every prompt once: plain decoding takes 4 s for 4 tokens, the draft model 2 s for 5, `slower` times as long."""
    contest = Contest((PLAIN_ROW, MODEL, COPIES), domains)
    for prompt in range(len(domains)):
        contest.hear(run_on(prompt, 0, 4.0))
        contest.hear(run_on(prompt, 1, 2.0 * slower(prompt), drafted))
    return contest


def test_the_counts_of_runs_together_are_those_of_all_their_rounds():
    one = timed(["aaa", "ar", ""], draft=0.1, verify=0.1)
    other = [replace(round_, distance=0.5) for round_ in timed(["arddd", "aaaa"], draft=0.25, verify=0.5)]
    both = total([tally(one), tally(other)])
    assert both == tally([*one, *other]) and both.levels == sum(map(len, ("aaa", "ar", "", "arddd", "aaaa")))
    assert total([]) == Tally()


@pytest.mark.parametrize("keeps_rounds, kept", [(True, [1, 0]), (False, [0, 0])])
def test_rounds_are_kept_only_of_first_repeats_that_may_be_shown_and_figures_are_the_same(keeps_rounds, kept):
    contest = Contest((PLAIN_ROW, MODEL), ["x"], repeats=2, keeps_rounds=keeps_rounds)
    for repeat in range(2):
        contest.hear(replace(run_on(0, 0, 4.0), repeat=repeat))
        contest.hear(replace(run_on(0, 1, 2.0, ("aa", "ar")), repeat=repeat))
    assert [bool(run.rounds) for run in contest.runs if run.number] == kept
    row = contest.row(1, over=True)
    assert (row.rounds, row.acceptance_length, row.tokens_a_pass.value, row.repeats) == (4, 2.5, 2.5, 2)


def test_there_is_a_row_for_all_prompts_and_one_for_each_domain_of_those_that_were_measured():
    rows = measured(["code", "story", "code", ""]).by_domain()
    assert [(row.domain, row.title, row.prompts) for row in rows] == [
        (ALL, MODEL.title, 4),
        ("code", MODEL.title, 2),
        ("story", MODEL.title, 1),
        ("", MODEL.title, 1),
    ]
    assert [row.domain for row in measured(["code", "code"]).by_domain()] == [ALL], "one domain is all of them"
    assert [row.domain for row in measured([ALL, "code"]).by_domain()] == [ALL, "code"], "nothing is told twice"


def test_every_contestant_has_a_row_at_any_time_and_one_that_failed_has_no_figures():
    contest = measured([""])
    assert [row.repeats for row in contest.rows()] == [1, 1, 0]
    contest.hear(Failed(MODEL.title, SpecvizError("It is full.")))
    plain, failed, waiting = contest.rows()
    assert (plain.tokens_per_second, failed, waiting) == (1.0, MODEL, COPIES) and contest.by_domain() == []


def test_a_row_has_its_speedup_its_tokens_a_pass_and_what_was_accepted_where_it_was_reached():
    row, *_ = measured(["a", "b", "a", "b"]).by_domain()
    assert row.speedup_measured == row.ratio.value == pytest.approx((5 / 2) / (4 / 4))
    assert row.tokens_a_pass.value == row.acceptance_length == 2.5
    assert [ratio.value for ratio in row.kept_at] == [1.0, 0.5]
    assert row.speedup_interval == (row.ratio.low, row.ratio.high)
    row, *_ = measured(["x"]).by_domain()
    assert row.tokens_a_pass.low is None and all(ratio.low is None for ratio in row.kept_at), "of a single prompt"


def test_from_a_few_prompts_on_intervals_are_over_prompts_once_all_is_measured():
    def told(count):
        contest = measured(["x"] * count, slower=lambda prompt: 1.0 if prompt % 2 else 3.0)
        return contest.by_domain()[0].ratio, contest.rows()[1].ratio

    few, turns = told(FEWEST - 1)
    assert few == turns
    many, turns = told(FEWEST)
    # At worst every prompt drawn is one of the slow ones, at best none is.
    assert many.value == turns.value == pytest.approx(5 / 4) and many.low == pytest.approx(2.5 / 3)
    assert many.high == pytest.approx(5 / 2) and (many.low, many.high) != (turns.low, turns.high)


def test_each_is_compared_with_the_plain_runs_that_it_took_turns_with():
    contest = Contest((PLAIN_ROW, MODEL, COPIES), ["x"] * FEWEST)
    for prompt in range(FEWEST):
        for group, (number, slow) in enumerate(((1, 1.0), (2, 5.0))):
            contest.hear(run_on(prompt, 0, 4.0 * slow, group=group))
            contest.hear(run_on(prompt, number, 2.0 * slow, ("aa", "ar"), group))
    speedups = {row.title: row.ratio.value for row in contest.by_domain()}
    fast = pytest.approx(2.5)
    assert speedups == {MODEL.title: fast, COPIES.title: fast}, "the machine was slow to the second group"


def test_the_runs_of_a_final_take_the_place_of_earlier_ones():
    contest = measured(["x", "x"])
    for number, seconds in ((0, 4.0), (1, 4.0)):
        contest.hear(run_on(0, number, seconds, ("aa", "ar") if number else ("",) * 4, stage=1))
    row, *_ = contest.by_domain()
    assert (row.prompts, row.ratio.value) == (1, pytest.approx(5 / 4))


@pytest.mark.parametrize("before", [(), ((4, 2.0),)], ids=["at once", "later"])
def test_a_server_whose_plain_one_failed_has_no_speedup_and_no_figure_is_no_number(before):
    served = Row(title="drafting", engine="llama.cpp", mode="served", host="a")
    plain = replace(served, title="plain server", mode="plain", host="b")
    contest = Contest((PLAIN_ROW, served, plain), ["x"], repeats=3)
    for repeat in range(3):
        contest.hear(TimedRun(1, 0, repeat, (Turn(0, 4, 1.0),), (1,) * 4, None, True))
        turns = tuple(Turn(0, *turn) for turn in before if not repeat)
        contest.hear(TimedRun(2, 0, repeat, turns, (1,) * 4 * len(turns), None, False))
    contest.hear(Failed(plain.title, SpecvizError("It went away.")))
    row = contest.row(1, over=True)
    assert (row.tokens_per_second, row.speedup_measured, row.speedup_interval) == (4.0, None, None)


def test_how_long_the_rest_will_take_is_told_once_a_run_was_timed():
    contest = Contest((PLAIN_ROW, MODEL), ["x"], repeats=2)
    assert (contest.count, contest.fraction, contest.seconds_left) == (4, 0.0, None)
    contest.hear(run_on(0, 0, 4.0))
    contest.hear(run_on(0, 1, 2.0, ("aa", "ar")))
    assert (contest.fraction, contest.seconds_left) == (0.5, pytest.approx(6.0))


def test_lengths_that_cannot_be_told_apart_are_good_lengths():
    contest = Contest((PLAIN_ROW, *(entered("suffix", gamma) for gamma in (2, 4, 6, 8))), ["x"] * 6)
    for prompt in range(6):
        contest.hear(run_on(prompt, 0, 4.0))
        for number, seconds in enumerate((4.0, 2.05, 2.0, 2.1), start=1):
            run = run_on(prompt, number, seconds * (0.9 + 0.04 * ((prompt + number) % 6)), ("aa", "ar"))
            contest.hear(run)
    offers = offers_of(contest, None, False, {})
    best = max(offers, key=lambda offer: offer.row.ratio.value)
    assert best.num_draft_tokens == 6 and good_lengths(offers, best) == [4, 6, 8]
