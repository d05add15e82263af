"""The lab on why speculation works: passes as measured, the closed forms in the browser, what limits a run."""

from __future__ import annotations

import json
import pickle
import re
import threading
import types

import pytest
import torch
from elements import element
from handmade import rounds_of
from on_page import assert_no_sideways_scrolling, set_control, state, violations
from playwright.sync_api import Page, expect
from tiny import tiny_model, tiny_pair
from torch.utils.flop_counter import FlopCounterMode

from specviz.bench.machine_limits import model_size
from specviz.bench.pass_times import measure_passes
from specviz.models.pair import ModelPair
from specviz.models.pass_timer import PassTimer
from specviz.records.metrics import tally
from specviz.records.runs import Seconds
from specviz.records.settings import RunSettings
from specviz.records.words import LANGUAGES, words
from specviz.theory import formulas as theory
from specviz.theory.diagnosis import GAMMAS, RunFigures, diagnose, run_figures
from specviz.theory.roofline import Curve, Limits, ModelSize, Point
from specviz.ui.deployment import Deployment
from specviz.ui.generate_tab import generate
from specviz.ui.lab import Lab
from specviz.ui.live_runs import LiveRuns
from specviz.ui.orders import Order
from specviz.ui.pairs import PairName
from specviz.ui.runner import Runner
from specviz.ui.visitors import Visit
from specviz.ui.web_files import ADDRESS
from specviz.ui.why_tab import time_passes
from specviz.views.why_messages import why_message

VIEW = element("why")

#: Leviathan et al. 2023, arXiv 2211.17192, table 1: α, γ, and the speed (1 − α^(γ+1)) / (1 − α) to two decimals.
TABLE_1 = [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)]
#: Table 4: γ, α, c and the expected speedup, whose inputs are rounded.
TABLE_4 = [(7, 0.75, 0.02, 3.2), (7, 0.82, 0.11, 2.5), (5, 0.68, 0.04, 2.4), (3, 0.56, 0.11, 1.6)]


def curve(seconds: dict[int, float], role: str = "target") -> Curve:
    points = tuple(Point(width, one, one, one, 1) for width, one in seconds.items())
    return Curve(role, ModelSize(10, 20, 4.0, 8.0, 16), Limits(1.0, 1.0), points)


# The roofline


def test_a_pass_waits_for_the_slower_of_moving_and_computing():
    size = ModelSize(parameters=1000, weight_bytes=2000, position_bytes=8.0, positions=50.0, attention_width=4)
    assert size.bytes_moved(2) == 2000 + 8 * 52
    # Each of two tokens: 2 · 1000; the first looks at 51 positions, the second at 52.
    assert size.operations(2) == 2 * 2000 + 4 * 4 * (51 + 52)
    assert Limits(bandwidth=100.0, peak=1e9).seconds(size, 2) == size.bytes_moved(2) / 100
    assert Limits(bandwidth=1e9, peak=100.0).seconds(size, 2) == size.operations(2) / 100


def test_passes_cost_about_one_up_to_the_first_width_that_does_not():
    assert curve({1: 1.0, 2: 1.1, 4: 1.4, 8: 1.6, 16: 1.4}).about_one == 4
    assert curve({1: 1.0, 2: 1.5, 4: 1.4}).about_one == 1
    assert curve({1: 1.0, 2: 0.9}).about_one == 2
    assert curve({}).about_one is None


def test_between_measured_widths_the_cost_is_a_straight_line_and_beyond_them_unknown():
    measured = curve({1: 2.0, 2: 2.0, 4: 3.0})
    assert [measured.ratio(width) for width in (1, 2, 3, 4, 5)] == [1.0, 1.0, 1.25, 1.5, None]
    assert curve({}).ratio(1) is None


# Measuring


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gpt_neox"])
def test_counted_operations_are_those_that_torch_counts(architecture):
    model = tiny_model(architecture, layers=3)
    # Its fused attention on a CPU is none of the operations that torch counts.
    model.set_attn_implementation("eager")
    timer = PassTimer(model, [4], context=96)
    with FlopCounterMode(display=False) as counter:
        timer.seconds(4)
    # Norms and biases have parameters and no product, and a mask hides what torch computes anyway.
    assert model_size(timer).operations(4) == pytest.approx(counter.get_total_flops(), rel=0.03)
    assert model_size(timer).positions == 96


def test_weights_that_are_only_looked_up_are_not_read():
    tied, untied = (tiny_model("llama", tie_word_embeddings=tie) for tie in (True, False))
    sizes = [model_size(PassTimer(model, [1])) for model in (tied, untied)]
    assert sizes[0] == sizes[1]
    assert sizes[0].parameters == tied.num_parameters()
    assert sizes[0].weight_bytes == 4 * tied.num_parameters()
    # 2 layers × 2 heads × 12 wide, keys and values, 4 bytes each.
    assert sizes[0].position_bytes == 2 * 2 * 12 * 2 * 4


def test_a_measurement_fills_in_pass_by_pass_and_ends_complete():
    pair = tiny_pair("llama")
    shown = list(measure_passes(pair, widths=(1, 2, 4), context=32, repeats=2))
    assert [sum(len(curve.points) for curve in one.curves) for one in shown[:8]] == [0, 1, 2, 3, 4, 5, 6, 6]
    assert [one.fraction for one in shown] == sorted(one.fraction for one in shown) and shown[-1].fraction == 1
    last = pickle.loads(pickle.dumps(shown[-1]))
    assert last == shown[-1] and (last.context, last.target, last.dtype) == (32, pair.target_name, "float32")
    for role in ("target", "draft"):
        points = last.curve(role).points
        assert [(point.width, point.repeats) for point in points] == [(1, 2), (2, 2), (4, 2)]
        assert all(0 < point.low <= point.seconds <= point.high for point in points)
    assert last.cost_coefficient == last.curve("draft").one / last.curve("target").one


def test_a_slow_pair_is_measured_once_and_a_small_one_only_as_far_as_it_goes():
    pair = tiny_pair("llama", max_position_embeddings=16)
    last = list(measure_passes(pair, repeats=50, budget=0.0))[-1]
    assert {point.repeats for curve in last.curves for point in curve.points} == {1}
    assert [point.width for point in last.curve("target").points] == [1, 2, 3, 4, 5, 6, 8]
    assert last.context == 8
    alone = ModelPair.of(pair.target, None, pair.tokenizer)
    assert [one.role for one in list(measure_passes(alone, widths=(1, 2), repeats=1))[-1].curves] == ["target"]


# Diagnosis: rounds by hand, milliseconds of draft, verification and the rest


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


def test_where_no_gamma_pays_none_is_praised():
    figures = run_figures(counted("rddd", "rddd", "ardd", ms=(24, 10, 1)), 4, plain=PLAIN)
    found = diagnose(figures)
    assert not theory.pays(figures.alpha, figures.cost_coefficient)
    assert not found.pays and found.best_formula < 1
    assert max(theory.expected_speedup(figures.alpha, gamma, figures.cost_coefficient) for gamma in GAMMAS) < 1


def test_what_one_plain_step_takes_is_taken_from_the_best_there_is():
    counts = counted("aard", ms=(8, 12, 1))
    known = curve({1: 0.009, 5: 0.011})
    sources = [run_figures(counts, 4, plain=plain, target=target) for plain, target in ((PLAIN, known), (None, known))]
    sources.append(run_figures(counts, 4))
    assert [(one.one_source, one.one) for one in sources] == [
        ("plain", pytest.approx(0.010)),
        ("passes", pytest.approx(0.009)),
        ("round", pytest.approx(0.012)),
    ]


def test_no_forecast_where_the_formula_does_not_hold_and_no_figures_where_nothing_was_judged():
    short = diagnose(run_figures(counted("aaaa", "", ms=(1, 10, 1)), 4, plain=PLAIN))
    block = diagnose(run_figures(counted("aaaa", ms=(1, 10, 1)), 4, rule="block", plain=PLAIN))
    for found in (short, block):
        assert (found.formula, found.best_gamma, found.changes) == (None, None, ())
    assert run_figures(counted("", ms=(0, 10, 1)), 4) is None


@pytest.mark.parametrize("language", LANGUAGES)
def test_everything_that_can_be_found_has_its_words(language):
    say = words(language)
    causes = {step.cause for step in diagnose(run_figures(counted("aard", ms=(8, 13, 3)), 4, plain=PLAIN)).steps}
    named = [f"step_{cause}" for cause in causes] + [f"limit_{cause}" for cause in causes - {"ideal"}]
    named += [f"change_{what}" for what in ("gamma", "cost", "alpha")]
    named += [f"one_{source}" for source in ("plain", "passes", "round")]
    named += [f"phase_{phase}" for phase in ("empty", "preparing", "running", "finished", "stopped", "failed")]
    assert all(say(f"why.{name}") for name in named)


# What the tab is told


@pytest.fixture
def pair() -> ModelPair:
    return tiny_pair("llama")


@pytest.fixture
def runner(pair, monkeypatch) -> Runner:
    for name in ("TARGET", "DRAFT", "DEVICE", "DTYPE"):
        monkeypatch.delenv(f"SPECVIZ_{name}", raising=False)
    store = types.SimpleNamespace(get=lambda name: pair, loaded=lambda name: pair, home=pair)
    return Runner(store, Deployment.from_environment())


ORDER = Order(PairName(), RunSettings("Once upon", num_draft_tokens=3, max_new_tokens=24, seed=5))


def test_the_lab_reads_the_visitors_own_runs_and_passes(runner, pair):
    runs = LiveRuns()
    lab, me, another = Lab(runs), Visit("me", threading.Event()), Visit("another", threading.Event())
    for order, visit in ((ORDER, me), (ORDER, another), (ORDER.but(drafter="plain"), me)):
        list(generate(runner, runs, order, True, visit, words()))
    (run,) = lab.runs_of("me")
    live = next(iter(runs.runs.values()))
    assert run.figures.alpha == live.trail.counts.acceptance_rate
    assert (run.figures.num_draft_tokens, run.figures.one_source) == (3, "plain")
    assert run.figures.speedup == run.diagnosis.speedup == live.speedup and not run.diagnosis.with_passes
    messages = [json.loads(text) for text in time_passes(runner, lab, PairName(), me, words())]
    assert [one["phase"] for one in (messages[0], messages[-1])] == ["preparing", "finished"]
    assert messages[-1]["passes"]["fraction"] == 1
    assert [one["diagnosis"]["with_passes"] for one in messages[-1]["runs"]] == [True]
    # Passes of other models say nothing about this run.
    pair.dtype = torch.bfloat16
    assert not lab.runs_of("me")[0].diagnosis.with_passes


def test_stopped_at_once_a_measurement_keeps_what_there_is(runner):
    halt = threading.Event()
    halt.set()
    found = time_passes(runner, Lab(LiveRuns()), PairName(), Visit(None, halt), words())
    messages = [json.loads(text) for text in found]
    assert messages[-1]["phase"] == "stopped" and messages[-1]["runs"] == []
    assert messages[-1]["passes"]["fraction"] < 1


def test_a_message_is_no_html_whatever_a_model_is_called(runner, pair):
    pair.target_name = "</script><b>"
    passes = list(measure_passes(pair, widths=(1, 2), repeats=1))[-1]
    assert "<" not in why_message(passes=passes, phase="finished")


# In the browser


def lab(page: Page, expression: str, *arguments):
    """With the element as `lab` and its closed forms as `forms`."""
    forms = f"await import(new URL('{ADDRESS}/why/formulas.js', document.baseURI))"
    given = f"async ([...given]) => {{ const lab = {VIEW}, forms = {forms}; return {expression}; }}"
    return page.evaluate(given, list(arguments))


def open_why(page: Page) -> None:
    page.get_by_role("tab", name="Why it works", exact=True).click()
    page.locator("#measure-passes").wait_for()


def part(page: Page, name: str):
    return page.locator(f"specviz-why [part={name}]")


def figure(page: Page, name: str) -> str:
    return page.locator(f"specviz-why [data-figure={name}] dd").inner_text()


def test_the_page_computes_the_papers_closed_forms(page):
    open_why(page)
    for alpha, gamma, speed in TABLE_1:
        assert lab(page, "forms.expectedTokens(...given)", alpha, gamma) == pytest.approx(speed, abs=0.005001)
    for gamma, alpha, cost, expected in TABLE_4:
        assert lab(page, "forms.expectedSpeedup(...given)", alpha, gamma, cost) == pytest.approx(expected, abs=0.07)
    grid = [(a / 10, g, c / 10) for a in range(11) for g in (1, 2, 5, 16) for c in (0, 1, 4, 9)]
    computed = lab(
        page, "given.map((one) => [forms.expectedSpeedup(...one), forms.optimalGamma(one[0], one[2])])", *grid
    )
    for (alpha, gamma, cost), (speedup, best) in zip(grid, computed):
        assert speedup == pytest.approx(theory.expected_speedup(alpha, gamma, cost), rel=1e-12)
        assert best == theory.optimal_gamma(alpha, cost, longest=16)
    sliders = page.locator("specviz-why [data-slider]")
    for slider, keys in zip(sliders.all(), (["End"], ["Home", *["ArrowRight"] * 30], ["Home", "ArrowRight"])):
        for pressed in keys:
            slider.press(pressed)
    assert [figure(page, name) for name in ("tokens", "speedup", "best")] == ["3.00", "1.88×", "γ = 16: 2.93×"]
    sliders.first.press("Home")
    expect(part(page, "theory-verdict")).to_contain_text("α = 0.00 does not exceed c = 0.30")
    assert figure(page, "best") == "—"


def test_from_the_invitation_to_the_diagnosis_with_passes_measured_on_this_machine(page):
    set_control(page, "New tokens", 32)
    open_why(page)
    page.get_by_role("button", name="Make a run").click()
    page.locator("#stop").wait_for()
    page.locator("#go").wait_for()
    open_why(page)
    expect(part(page, "verdict")).to_contain_text("Measured:")
    run = lab(page, "lab.state.runs.at(-1)")
    figures, found = run["figures"], run["diagnosis"]
    assert (run["drafter"], figures["num_draft_tokens"], run["temperature"]) == ("Draft model", 4, 0.8)
    assert figures["speedup"] == state(page, "figures")["speedup"]
    assert f"{figures['speedup']:.2f}×" in part(page, "verdict").inner_text()
    again = diagnose(RunFigures(**{name: figures[name] for name in RunFigures.__dataclass_fields__}))
    assert (found["limit"], found["gain"]) == (again.limit, pytest.approx(again.gain))
    shown = part(page, "steps").locator("li b").all_inner_texts()
    full = figures["depth"] >= 3.95
    kept = [step.speedup for step in again.steps if not (step.cause == "short" and full)]
    assert shown == [f"{speedup:.2f}×" for speedup in (*kept, figures["speedup"])]
    assert lab(page, "[lab.state.alpha, lab.state.cost, lab.state.gamma]") == [
        figures["alpha"],
        figures["cost_coefficient"],
        4,
    ]
    page.locator("#measure-passes").click()
    page.locator("#stop-passes").wait_for()
    page.locator("#measure-passes").wait_for()
    expect(part(page, "passes-status")).to_contain_text("each point is the median")
    assert_measured(page)
    assert lab(page, "lab.state.runs.at(-1).diagnosis.with_passes") is True
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert_no_sideways_scrolling(page)


def assert_measured(page: Page) -> None:
    """The sentence, the table and the second card say what was measured."""
    target = next(one for one in lab(page, "lab.state.passes.curves") if one["role"] == "target")
    seconds = {point["width"]: point["seconds"] for point in target["points"]}
    measured = curve(seconds)
    if measured.about_one > 1:
        expect(part(page, "passes-meaning")).to_contain_text(f"up to {measured.about_one - 1} draft tokens")
    part(page, "passes-numbers").locator("summary").press("Enter")
    rows = part(page, "passes-table").locator("tbody tr")
    ratios = rows.locator("td:nth-child(3)").all_inner_texts()
    assert [float(text) for text in ratios] == [pytest.approx(measured.ratio(k), abs=0.0051) for k in seconds]
    for width in (1, 5, 7, 13, 64):
        in_page = lab(page, "forms.passRatio(lab.state.passes.curves[0], given[0])", width)
        assert in_page == pytest.approx(measured.ratio(width))
    alpha, cost, gamma = lab(page, "[lab.state.alpha, lab.state.cost, lab.state.gamma]")
    expected = theory.expected_tokens(alpha, gamma) / (gamma * cost + measured.ratio(gamma + 1))
    assert float(figure(page, "measured").rstrip("×")) == pytest.approx(expected, abs=0.0051)


def test_a_measurement_can_be_stopped_and_the_device_is_free_again(page):
    open_why(page)
    page.locator("#measure-passes").click()
    page.wait_for_function(f"() => {VIEW}.state.passes?.curves[0].points.length > 3")
    page.locator("#stop-passes").press("Enter")
    page.locator("#measure-passes").wait_for()
    assert lab(page, "lab.state.phase") == "stopped" and lab(page, "lab.state.passes.fraction") < 1
    expect(part(page, "passes-status")).to_contain_text(re.compile("Stopped by you"))
    expect(page.locator("#go")).to_be_visible()
