"""The Why it works tab: what it is told, and in the browser the closed forms, the passes and the diagnosis."""

import json
import re
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from elements import element, give
from handmade import curve, pass_times, rounds_of
from on_page import assert_no_sideways_scrolling, set_control, state, violations
from playwright.sync_api import Page, expect
from refusal import refused

from specviz.bench.duel import Duel
from specviz.bench.machine import name_of
from specviz.bench.pass_times import measure_passes
from specviz.records.metrics import tally
from specviz.records.runs import Seconds, Speedup
from specviz.records.settings import RunSettings
from specviz.records.words import words
from specviz.theory import formulas as theory
from specviz.theory.diagnosis import RunFigures, diagnose, run_figures
from specviz.theory.roofline import Limits, PassTimes
from specviz.theory.statistics import Ratio
from specviz.ui.device import PairName
from specviz.ui.line import Visit
from specviz.ui.orders import Order
from specviz.ui.routes.web_files import ADDRESS
from specviz.ui.runs import LiveRuns, Visitors
from specviz.ui.tabs.generate import generate
from specviz.ui.tabs.why import explain_runs, measured
from specviz.views.run_messages import headline
from specviz.views.tab_messages import LabRun, Measuring, why_message

VIEW = element("why")

#: Leviathan et al. 2023, arXiv 2211.17192, table 1: α, γ, and the speed (1 − α^(γ+1)) / (1 − α) to two decimals.
TABLE_1 = [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)]
#: Table 4: γ, α, c and the expected speedup, whose inputs are rounded.
TABLE_4 = [(7, 0.75, 0.02, 3.2), (7, 0.82, 0.11, 2.5), (5, 0.68, 0.04, 2.4), (3, 0.56, 0.11, 1.6)]


ORDER = Order(PairName(), RunSettings("Once upon", num_draft_tokens=3, max_new_tokens=24, seed=5))


def test_the_lab_reads_the_visitors_own_runs_and_passes(runner, pair, monkeypatch):
    monkeypatch.setattr(Duel, "ratio", Ratio(1.5, 1.4, 1.6))
    runs = LiveRuns()
    visitors, me, another = Visitors(runs), Visit("me", threading.Event()), Visit("another", threading.Event())
    for order, visit in ((ORDER, me), (ORDER, another), (ORDER.but(drafter="plain"), me)):
        list(generate(runner, runs, order, True, visit, words()))
    (run,) = explain_runs(visitors, "me")
    live = next(iter(runs.runs.values()))
    assert (run.figures.num_draft_tokens, run.figures.one_source, run.repeats) == (3, "plain", live.repeats)
    assert run.figures.speedup == run.diagnosis.speedup == live.speedup and not run.diagnosis.with_passes
    # All of it, and the tile of tokens a second, are of the repeats in turn, however slow the shown run was.
    plain, fast = live.duel_counts
    live.trail.counts.verify_seconds *= 100
    run = explain_runs(visitors, "me")[0]
    assert (run.figures.alpha, run.figures.verify) == (fast.acceptance_rate, fast.verify_seconds / fast.rounds)
    assert run.figures.one == plain.verify_seconds / plain.rounds
    assert headline(live.trail, live.measured)["tokens_per_second"] == live.measured.tokens_per_second
    # The trace keeps what was measured, and where.
    told = live.run().measured
    assert (told.ratio, told.low, told.high) == (live.speedup, 1.4, 1.6) == (1.5, 1.4, 1.6)
    assert told.machine == name_of(torch.device("cpu"))
    messages = [json.loads(text) for text in measured(runner, visitors, PairName(), me, "passes")]
    assert [one["passes"]["phase"] for one in (messages[0], messages[-1])] == ["preparing", "finished"]
    assert messages[-1]["passes"]["result"]["fraction"] == 1
    assert [one["diagnosis"]["with_passes"] for one in messages[-1]["runs"]] == [True]
    assert explain_runs(visitors, "me")[0].figures == run.figures, "passes timed at another moment change no figure"
    # Passes of other models say nothing about this run.
    pair.dtype = torch.bfloat16
    assert not explain_runs(visitors, "me")[0].diagnosis.with_passes


def test_a_run_that_nothing_was_measured_beside_stands_alone_and_says_if_it_was_held_up(runner, pair):
    runs = LiveRuns()
    list(generate(runner, runs, ORDER, False, Visit("me", threading.Event()), words()))
    (live,) = runs.runs.values()

    def explained(slow: float):
        seconds = Seconds(0.001, 0.002, 0.0001, 0.0031, 0.003)
        held_up = replace(seconds, verify=slow)
        live.rounds = [replace(one, seconds=held_up if one.index == 3 else seconds) for one in live.rounds]
        return explain_runs(Visitors(runs), "me")[0]

    run = explained(0.002)
    assert (run.figures.one_source, run.repeats, run.disturbed) == ("round", 0, "")
    assert explained(0.1).disturbed == "uneven"


def measuring(runner, *asked, halt_at: int | None = None) -> list[dict]:
    """What is told of it; halt_at: how many results there are when Stop is pressed."""
    visit, told = Visit(None, threading.Event()), []
    for text in measured(runner, Visitors(), PairName(), visit, *asked):
        told.append(json.loads(text))
        if halt_at is not None and sum(one[asked[0]]["result"] is not None for one in told) == halt_at:
            visit.halt.set()
    return told


def test_many_requests_are_measured_as_passes_are_and_what_was_stopped_keeps_what_there_is(runner):
    first, *_, last = (one["batches"] for one in measuring(runner, "batches"))
    assert (first["phase"], last["phase"]) == ("preparing", "finished")
    assert last["result"]["fraction"] == 1 and len(last["result"]["points"]) > 1
    for least in (0, 1):
        *_, last = measuring(runner, "passes", halt_at=least)
        assert last["passes"]["phase"] == "stopped" and last["runs"] == []
        assert least == 0 or last["passes"]["result"]["fraction"] < 1
    with refused("alpha", "a number from 0 to 1"):
        measuring(runner, "forced", "<b>", 4)


def test_a_message_is_no_html_whatever_a_model_is_called(runner, pair):
    pair.target_name = "</script><b>"
    passes = list(measure_passes(pair, widths=(1, 2), repeats=1))[-1]
    assert "<" not in why_message(passes=Measuring("finished", passes))


def passes_of(peak: float) -> PassTimes:
    """Both models' passes, of seven milliseconds and more, on a machine that computes so many operations a second."""
    seconds = {width: 0.007 * (1 + width / 64) for width in (1, 2, 4, 16, 64)}
    both = (curve(seconds), curve({width: 0.1 * one for width, one in seconds.items()}, "draft"))
    return pass_times(*(replace(one, limits=Limits(bandwidth=1e9, peak=peak)) for one in both))


# In the browser


def test_a_limit_that_a_pass_has_beaten_is_called_unknown_and_not_drawn(alone):
    page = alone("why")
    lines, machine = page.locator("specviz-why [part=passes] .line.dashed"), part(page, "machine")
    roofline = page.locator("specviz-why li.p.dashed")
    give(page, "why", [why_message(passes=Measuring("finished", passes_of(1e9)), runs=[])])
    expect(lines).to_have_count(2)
    expect(machine).to_contain_text("needs at least")
    expect(roofline).to_be_visible()
    beaten = why_message(passes=Measuring("finished", passes_of(1e5)), runs=[])
    assert all(one["peak"] is one["bandwidth"] is None for one in json.loads(beaten)["passes"]["result"]["curves"])
    give(page, "why", [beaten])
    expect(lines).to_have_count(0)
    expect(machine).to_contain_text("limit is not known")
    expect(machine).not_to_contain_text("at least")
    expect(roofline).to_be_hidden()
    part(page, "passes-numbers").locator("summary").press("Enter")
    expect(part(page, "passes-table").locator("tbody td:nth-child(4)").first).to_have_text("not known")
    # Up to twice a pass over one token and a little more, however far below it the limit had said.
    highest = part(page, "passes").locator("svg text", has_text=re.compile(r"^[\d.]+×$")).last
    assert float(highest.text_content().rstrip("×")) <= 2.5
    page.close()


def lab_run() -> LabRun:
    """One whose measured speedup is not what the formula computes."""
    seconds = Seconds(0.008, 0.01, 0.001, 0.019, 0.018)
    counts = tally(rounds_of("aard", "rddd", "aaaa", seconds=seconds))
    figures = run_figures(counts, 4, speedup=1.67)
    return LabRun("Draft model", 0.8, figures, diagnose(figures))


def test_measured_and_computed_speedups_share_no_sentence(alone):
    page, run = alone("why"), lab_run()
    give(page, "why", [why_message(runs=[run])])
    formula = f"{run.diagnosis.formula:.2f}×"
    assert formula != "1.67×"
    expect(part(page, "verdict")).to_contain_text("Measured: 1.67×")
    expect(part(page, "base")).to_contain_text(f"the formula gives {formula}")
    for line in part(page, "changes").locator("li span").all_inner_texts():
        assert line.endswith("computed.")
    computed = [part(page, "base"), *part(page, "changes").locator("li").all()]
    assert not any("1.67×" in one.inner_text() for one in computed)
    assert part(page, "verdict").inner_text().count("×") == 1


def test_words_come_before_a_figure_that_the_interval_does_not_bear_and_a_disturbed_run_says_so(alone):
    page, run = alone("why"), lab_run()
    measured = partial(Speedup, 1.67, "a machine")
    give(page, "why", [why_message(runs=[replace(run, measured=measured(0.9, 2.5), repeats=4, disturbed="busy")])])
    expect(part(page, "verdict")).to_contain_text("0.90 to 2.50 times as fast: not decided.")
    expect(part(page, "source")).to_contain_text("4 times each, taking turns")
    expect(part(page, "disturbed")).to_be_visible()
    expect(part(page, "steps").locator("[data-cause=measured] b")).to_have_text("0.90–2.50×")
    give(page, "why", [why_message(runs=[replace(run, measured=measured(1.6, 1.8), repeats=4)])])
    expect(part(page, "verdict")).to_contain_text("Measured: 1.67×")
    expect(part(page, "disturbed")).to_have_count(0)


def test_the_passes_are_drawn_to_scale_up_to_the_longest_chain_and_wider_ones_on_request(alone):
    page = alone("why")
    give(page, "why", [why_message(passes=Measuring("finished", passes_of(1e9)), runs=[lab_run()])])
    chart, wider = part(page, "passes"), part(page, "wider").locator("input")

    def places() -> dict[int, float]:
        return {
            int(title.split()[1]): float(x)
            for title, x in chart.locator("circle.mark").evaluate_all(
                "nodes => nodes.map(node => [node.textContent, node.getAttribute('cx')])"
            )
        }

    drawn = places()
    assert list(drawn) == [1, 2, 4, 16]
    steps = [(drawn[k] - drawn[1]) / (k - 1) for k in (2, 4, 16)]
    assert steps == pytest.approx([steps[0]] * 3)
    expect(chart).to_contain_text("γ = 4 verifies 5 tokens")
    wider.check()
    assert list(places()) == [1, 2, 4, 16, 64]
    page.locator("specviz-why [data-slider=gamma]").press("End")
    expect(chart).to_contain_text("γ = 16 verifies 17 tokens")


@pytest.mark.parametrize("language", ["en", "de"])
def test_on_a_phone_what_is_written_into_the_charts_is_inside_them(alone, language):
    page = alone("why", language, viewport={"width": 390, "height": 844})
    give(page, "why", [why_message(passes=Measuring("finished", passes_of(1e9)), runs=[lab_run()])])
    expect(part(page, "passes").locator(".zone")).to_have_count(1)
    outside = """node => {
      const { left, right } = node.closest("svg").getBoundingClientRect(), own = node.getBoundingClientRect();
      return own.left < left - 1 || own.right > right + 1 ? node.textContent : "";
    }"""
    texts = page.locator("specviz-why svg text")
    assert not any(texts.nth(i).evaluate(outside) for i in range(texts.count())) and texts.count() > 20


def test_a_run_beyond_the_sliders_keeps_its_figures(alone):
    page, run = alone("why"), lab_run()
    figures = replace(run.figures, num_draft_tokens=24, draft=0.48)
    give(page, "why", [why_message(runs=[replace(run, figures=figures, diagnosis=diagnose(figures))])])
    assert page.evaluate(f"[{VIEW}.state.cost, {VIEW}.state.gamma]") == [figures.cost_coefficient, 24]
    sliders = page.locator("specviz-why [data-slider]")
    assert [float(one.input_value()) for one in sliders.all()[1:3]] == pytest.approx([figures.cost_coefficient, 24])


def test_runs_that_the_server_keeps_no_longer_leave_the_sliders_to_the_reader(alone):
    page, run = alone("why"), lab_run()
    give(page, "why", [why_message(runs=[run])])
    expect(page.locator("specviz-why input[value=run]")).to_be_checked()
    give(page, "why", [why_message(runs=[])])
    expect(page.locator("specviz-why input[value=own]")).to_be_checked()
    expect(page.locator("specviz-why input[value=run]")).to_be_disabled()
    assert page.evaluate(f"{VIEW}.state.alpha") == run.figures.alpha, "the sliders stay where they are"


def lab(page: Page, expression: str, *arguments):
    """With the element as `lab` and its closed forms as `forms`."""
    forms = f"await import(new URL('{ADDRESS}/shared/formulas.js', document.baseURI))"
    given = f"async ([...given]) => {{ const lab = {VIEW}, forms = {forms}; return {expression}; }}"
    return page.evaluate(given, list(arguments))


def part(page: Page, name: str):
    return page.locator(f"specviz-why [part={name}]")


def figure(page: Page, name: str) -> str:
    return page.locator(f"specviz-why [data-figure={name}] dd").inner_text()


def test_the_page_computes_the_papers_closed_forms(alone):
    page = alone("why")

    def computed(expression: str, *arguments):
        given = f"async (given) => {{ const forms = await import('/shared/formulas.js'); return {expression}; }}"
        return page.evaluate(given, list(arguments))

    for alpha, gamma, speed in TABLE_1:
        assert computed("forms.expectedTokens(...given)", alpha, gamma) == pytest.approx(speed, abs=0.005001)
    for gamma, alpha, cost, expected in TABLE_4:
        assert computed("forms.expectedSpeedup(...given)", alpha, gamma, cost) == pytest.approx(expected, abs=0.07)
    grid = [(a / 10, g, c / 10) for a in range(11) for g in (1, 2, 5, 16) for c in (0, 1, 4, 9)]
    found = computed("given.map((one) => [forms.expectedSpeedup(...one), forms.optimalGamma(one[0], one[2])])", *grid)
    for (alpha, gamma, cost), (speedup, best) in zip(grid, found):
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
    page.get_by_role("tab", name="Why it works", exact=True).click()
    page.locator("#measure-passes").wait_for()
    page.get_by_role("button", name="Make a run").click()
    page.locator("#stop").wait_for()
    # The run is shown, and when it is over its diagnosis: nobody has to find the way back.
    expect(page.get_by_role("tab", name="Generate", exact=True)).to_have_attribute("aria-selected", "true")
    expect(part(page, "verdict")).to_be_in_viewport(timeout=60000)
    run = lab(page, "lab.state.runs.at(-1)")
    figures, found = run["figures"], run["diagnosis"]
    assert (run["drafter"], figures["num_draft_tokens"], run["temperature"]) == ("Draft model", 4, 0.6)
    assert figures["speedup"] == state(page, "figures")["speedup"]
    # On a busy machine the interval may bear no figure, or is so wide that it is none.
    low, high = run["low"], run["high"]
    assert (low is None) == (high is None) == (figures["speedup"] is None)
    decided = low is not None and (low > 1 or high < 1) and high <= 1.5 * low
    if low is None:
        measured, said = [], "The speedup itself was not measured."
    elif decided:
        measured, said = [f"{figures['speedup']:.2f}×"], f"{figures['speedup']:.2f}×"
    else:
        measured, said = [f"{low:.2f}–{high:.2f}×"], f"{low:.2f} to {high:.2f}"
    assert said in part(page, "verdict").inner_text()
    again = diagnose(RunFigures(**{name: figures[name] for name in RunFigures.__dataclass_fields__}))
    assert (found["limit"], found["gain"]) == (again.limit, pytest.approx(again.gain))
    shown = part(page, "steps").locator("li b").all_inner_texts()
    full = figures["depth"] >= 3.95
    left_out = {"short"} if full else set()
    if figures["one_source"] == "round":  # nothing was timed beside the run
        left_out.add("verify")
    kept = [step.speedup for step in again.steps if step.cause not in left_out]
    assert shown == [*(f"{speedup:.2f}×" for speedup in kept), *measured]
    sliders = lab(page, "[lab.state.alpha, lab.state.cost, lab.state.gamma]")
    assert sliders == [figures["alpha"], figures["cost_coefficient"], 4]
    # A measurement can be stopped, and the device is free again.
    for name, begun in (
        ("passes", "passes?.curves[0].points.length > 3"),
        ("batches", "measuring.batches.phase === 'running'"),
    ):
        page.locator(f"#measure-{name}").click()
        page.wait_for_function(f"() => {VIEW}.state.{begun}")
        page.locator("#stop-passes").press("Enter")
        page.locator(f"#measure-{name}").wait_for()
        assert lab(page, f"lab.state.{name}.fraction") < 1
        expect(part(page, f"{name}-status")).to_contain_text("You stopped")
    page.locator("#measure-passes").click()
    page.locator("#stop-passes").wait_for()
    page.locator("#measure-passes").wait_for()
    expect(part(page, "passes-status")).to_contain_text("each point is the median")
    assert_measured(page)
    assert lab(page, "lab.state.runs.at(-1).diagnosis.with_passes") is True
    assert violations(page, "specviz-why") == []
    expect(page.locator("#go")).to_be_visible()
    # An oracle is run at the α and γ that the sliders say.
    page.locator("specviz-why #alpha").press("End")
    part(page, "run-forced").click()
    rows = part(page, "forced-table").locator("tbody tr")
    expect(part(page, "forced-status")).to_contain_text("Measured here")
    assert rows.locator("td").all_inner_texts()[:4] == ["1.00", "4", "1.00", "5.00"]
    expect(page.locator("specviz-why path.forced")).to_have_count(1)
    assert page.locator("#start-forced").is_hidden()
    page.set_viewport_size({"width": 390, "height": 844})
    assert_no_sideways_scrolling(page)
    page.locator(".sv-to-server:visible").click()
    page.locator("specviz-server [part=ask-about]").wait_for()


def assert_measured(page: Page) -> None:
    """The sentence, the table and the second card say what was measured."""
    target = next(one for one in lab(page, "lab.state.passes.curves") if one["role"] == "target")
    seconds = {point["width"]: point["seconds"] for point in target["points"]}
    measured = curve(seconds)
    if measured.about_one > 1:
        longest = measured.about_one - 1
        expect(part(page, "passes-meaning")).to_contain_text(
            f"up to {longest} draft token{'' if longest == 1 else 's'}"
        )
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
