"""What limits a run: rounds by hand, milliseconds of draft, verification and the rest."""

import pytest
from handmade import curve, rounds_of

from specviz.records.metrics import tally
from specviz.records.runs import Seconds
from specviz.records.words import LANGUAGES, words
from specviz.theory import formulas as theory
from specviz.theory.diagnosis import diagnose, run_figures


def counted(*outcomes: str, ms: tuple[float, float, float]):
    draft, verify, rest = (one / 1000 for one in ms)
    return tally(rounds_of(*outcomes, seconds=Seconds(draft, verify, rest, draft + verify + rest, draft + verify)))


PLAIN = counted("", "", ms=(0, 10, 1))


@pytest.mark.parametrize(
    "limit, outcomes, ms",
    [
        ("refused", ("rddd", "ardd"), (4, 10, 1)),
        ("draft", ("aaaa", "aaar"), (30, 10, 1)),
        ("verify", ("aaaa", "aaar"), (4, 40, 1)),
        ("rest", ("aaaa", "aaar"), (4, 10, 50)),
        ("short", ("aaaa", "", ""), (1, 10, 1)),
    ],
)
def test_the_limit_is_the_cause_without_which_the_run_would_gain_most(limit, outcomes, ms):
    figures = run_figures(counted(*outcomes, ms=ms), 4, plain=PLAIN)
    found = diagnose(figures)
    assert found.limit == limit
    steps = {step.cause: step.speedup for step in found.steps}
    assert steps["ideal"] == 5 and steps["short"] == figures.depth + 1 and steps["refused"] == figures.tokens_per_pass
    # What is left in the end: tokens a round, over the time of a round in plain steps.
    assert steps["rest"] == pytest.approx(figures.tokens_per_pass / (sum(ms) / 11))
    assert found.speedup == steps["rest"] and found.pays == (steps["rest"] > 1)


def test_each_cause_takes_away_what_its_own_time_costs():
    found = diagnose(run_figures(counted("aaar", ms=(8, 13, 3)), 4, plain=PLAIN))
    assert [step.speedup for step in found.steps[2:]] == pytest.approx([4, 4 * 11 / 19, 4 * 11 / 22, 4 * 11 / 24])
    assert found.gain == pytest.approx(24 / 16)


def test_forecasts_are_the_formula_and_only_what_would_help_is_said():
    figures = run_figures(counted("aard", "rddd", "aaaa", ms=(8, 10, 1)), 4, plain=PLAIN)
    alpha, cost = 6 / 8, 0.2
    assert (figures.alpha, figures.cost_coefficient) == (pytest.approx(alpha), pytest.approx(cost))
    found = diagnose(figures)
    assert found.formula == pytest.approx(theory.expected_speedup(alpha, 4, cost))
    assert found.best_gamma == theory.optimal_gamma(alpha, cost, longest=16)
    forecasts = {change.what: change for change in found.changes}
    assert forecasts["cost"].speedup == pytest.approx(theory.expected_speedup(alpha, 4, cost / 2))
    assert forecasts["alpha"].speedup == pytest.approx(theory.expected_speedup(0.875, 4, cost))
    assert [change.speedup for change in found.changes] == sorted((c.speedup for c in found.changes), reverse=True)
    assert all(change.speedup > found.formula for change in found.changes)


def test_forecasts_count_verification_as_measured():
    figures = run_figures(counted("aard", "rddd", "aaaa", ms=(2, 10, 1)), 4, plain=PLAIN)
    free = curve({1: 1.0, 64: 1.0})
    dear = curve({width: float(width) for width in (1, 2, 4, 8, 17, 64)})
    assert diagnose(figures, free).formula == pytest.approx(diagnose(figures).formula)
    assert diagnose(figures, free).best_gamma == diagnose(figures).best_gamma > 1
    found = diagnose(figures, dear)
    assert found.formula == pytest.approx(theory.expected_tokens(0.75, 4) / (4 * 0.05 + 5))
    assert (found.best_gamma, found.best_formula < 1) == (1, True)


def test_forecasts_go_no_further_than_verification_was_measured():
    figures = run_figures(counted("aard", "rddd", "aaaa", ms=(0.1, 10, 1)), 4, plain=PLAIN)
    slow = {width: 1 + 0.3 * (width - 1) for width in (1, 2, 4, 8, 17)}
    whole = diagnose(figures, curve(slow))
    near = diagnose(figures, curve({width: slow[width] for width in (1, 2, 4, 8)}))
    assert near.with_passes and (near.formula, near.best_gamma) == (whole.formula, whole.best_gamma)
    # Stopped before it came to the run's own verification.
    assert diagnose(figures, curve({1: 1.0, 2: 1.3})) == diagnose(figures)


def test_what_one_plain_step_takes_is_taken_from_plain_decoding_or_else_from_the_run_itself():
    counts = counted("aard", ms=(8, 12, 1))
    sources = [run_figures(counts, 4, plain=PLAIN), run_figures(counts, 4)]
    assert [(one.one_source, one.one) for one in sources] == [
        ("plain", pytest.approx(0.010)),
        ("round", pytest.approx(0.012)),
    ]


def test_no_forecast_where_the_formula_does_not_hold_and_no_figures_where_nothing_was_judged():
    short = diagnose(run_figures(counted("aaaa", "", ms=(1, 10, 1)), 4, plain=PLAIN))
    block = diagnose(run_figures(counted("aaaa", ms=(1, 10, 1)), 4, rule="block", plain=PLAIN))
    once = diagnose(run_figures(counted("aaaa", "aard", ms=(1, 10, 1)), 4, plain=PLAIN, at_once=True))
    for found in (short, block, once):
        assert (found.formula, found.best_gamma, found.changes) == (None, None, ())
    assert run_figures(counted("", ms=(0, 10, 1)), 4) is None


@pytest.mark.parametrize("language", LANGUAGES)
def test_everything_that_can_be_found_has_its_words(language):
    say = words(language)
    causes = {step.cause for step in diagnose(run_figures(counted("aard", ms=(8, 13, 3)), 4, plain=PLAIN)).steps}
    named = [f"step_{cause}" for cause in causes] + [f"limit_{cause}" for cause in causes - {"ideal"}]
    named += [f"change_{what}" for what in ("gamma", "cost", "alpha")]
    named += [f"no_forecast_{reason}" for reason in ("tree", "short", "once")]
    named += [f"one_{source}" for source in ("plain", "round")]
    phases = ("empty", "preparing", "running", "finished", "stopped", "failed")
    named += [f"{what}_phase_{phase}" for what in ("passes", "batches", "forced") for phase in phases]
    assert all(say(f"why.{name}") for name in named)
