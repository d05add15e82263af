"""The Lossless tab: what it asks for, what it says of right and wrong rules, and the page."""

import json
import pathlib
import re
import threading
from dataclasses import replace

import pytest
from elements import element
from on_page import GAMMA, assert_no_sideways_scrolling, set_control, violations
from playwright.sync_api import expect
from refusal import refused
from tiny import tiny_pair, with_heads

from specviz.decoding.lossless import GreedyToken
from specviz.grading.judging import Grade, Verdict
from specviz.grading.questions import counted_runs
from specviz.grading.solutions import RIGHT, Solution
from specviz.models.pair import ModelPair
from specviz.records.settings import RunSettings, SamplingParams
from specviz.records.words import words
from specviz.ui.device import PairName
from specviz.ui.orders import Order
from specviz.ui.tabs import lossless
from specviz.ui.tabs.lossless import Trial, count_graded, trial_order, trial_request, try_rule
from specviz.views.grades import as_json
from specviz.views.lossless_messages import TrialInfo, greedy_message

PROMPT = "Once upon a time, upon a time"


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    """A draft model that is right about every other time, and trained parts of random weights."""
    return with_heads(tiny_pair("llama"))


ORDER = Order(PairName(), RunSettings(PROMPT, sampling=SamplingParams(0.9), max_new_tokens=64, seed=5))
TRIAL = Trial("auto", 150, 4)


@pytest.mark.parametrize(
    ("order", "trial", "field"),
    [
        ({"drafter": "plain"}, {}, "drafter"),
        ({"prompt": ""}, {}, "prompt"),
        ({"prompt": "word " * 51}, {}, "prompt"),
        ({"temperature": -1}, {}, "temperature"),
        ({"top_k": -3}, {}, "top_k"),
        ({}, {"rule": "wishful"}, "rule"),
        ({"drafter": "medusa"}, {"rule": "block"}, "rule"),
        ({"drafter": "prompt_lookup"}, {"rule": "mislabelled"}, "rule"),
        ({"drafter": "prompt_lookup"}, {"rule": "p_min"}, "rule"),
        ({"drafter": "prompt_lookup"}, {"rule": "shared_noise"}, "rule"),
        ({"branches": 3}, {"rule": "mixed_rows"}, "rule"),
        ({}, {"rule": "stale_state"}, "rule"),
        ({}, {"runs": 10**9}, "runs"),
        ({}, {"support": None}, "support"),
    ],
)
def test_a_mistake_is_told_beside_its_control(runner, pair, order, trial, field):
    trial_request(pair, ORDER, TRIAL, runner.deployment)
    with refused(field) as caught:
        trial_request(pair, ORDER.but(**order), replace(TRIAL, **trial), runner.deployment)
    assert words("de").error(caught.value)


def tried(runner, order: Order, rule: str = "auto", language: str = "en") -> dict:
    """What the last message of a trial says."""
    *_, last = try_rule(runner, order, replace(TRIAL, rule=rule), threading.Event())
    return words(language).translated(json.loads(last))


def test_the_last_message_alone_holds_distribution_counts_and_verdict(runner):
    last = tried(runner, ORDER, language="de")
    assert last["phase"] == "finished" and last["n"] == 150 and last["fraction"] == 1
    assert last["verdict"]["state"] == "same"
    assert words("de").number(last["distance"], ".3f") in last["verdict"]["sentence"]
    shares = [bar["share"] for bar in last["bars"]]
    assert sum(shares) == pytest.approx(1) and sum(bar["p"] for bar in last["bars"]) == pytest.approx(1, abs=1e-6)
    assert last["curve"][-1] == [150, last["distance"]]
    assert last["noise"][0][0] == 10 and last["noise"][-1][0] == 150
    # It keeps to the narrower top-k.
    kept = [trial_order(ORDER.but(top_k=asked), TRIAL).settings.sampling.top_k for asked in (3, 40, 0)]
    assert kept == [3, 4, 4]


def test_a_wrong_rule_that_had_no_say_is_still_called_wrong(runner):
    """Prompt lookup finds nothing in this prompt and drafts nothing: every rule then writes the target's own text."""
    verdict = tried(runner, ORDER.but(drafter="prompt_lookup", prompt="abcdef"), "typical")["verdict"]
    assert verdict["state"] == "same" and "wrong all the same" in verdict["why"]


def test_temperature_0_is_judged_by_its_one_text_and_only_half_precision_excuses_a_near_tie(runner):
    right, wrong = (tried(runner, ORDER.but(temperature=0), rule) for rule in ("auto", "everything"))
    assert right["verdict"]["state"] == "same" and right["greedy"]["parting"] is None
    assert wrong["verdict"]["state"] == "different"
    place = wrong["greedy"]["parting"]
    assert wrong["greedy"]["plain"][:place] == wrong["greedy"]["rule"][:place]
    assert "apart in log probability" in wrong["verdict"]["why"]

    asked = TrialInfo("x", "auto", "Draft model", "", True, True, "bfloat16", 2, 4)
    for changes, gap, state in (
        ({}, 0.06, "near"),
        ({"half_precision": False}, 0.06, "different"),
        ({"rule": "everything", "lossless": False}, 0.06, "different"),
        ({}, 1.5, "different"),
    ):
        tokens = [GreedyToken(True, 1, "a", 0.06), GreedyToken(False, 2, "b", gap=gap)]
        message = json.loads(greedy_message(replace(asked, **changes), tokens, "finished"))
        assert message["verdict"]["state"] == state


# What a grader wrote

#: A wrong part for each function.
WRONG = {
    "accept": replace(RIGHT, passing=lambda p, q, token, u: u < q[token] / p[token]),
    "residual": replace(RIGHT, after=lambda p, q: p),
    "verify": replace(RIGHT, bonus=lambda p, q: q[-1]),
    "speculate": replace(RIGHT, rewinds=False),
}


def report(folder: pathlib.Path, wrong: dict[str, Solution]) -> pathlib.Path:
    """Of one file, whose functions are right but for these."""
    verdicts = []
    for name in WRONG:
        runs = " ".join(".".join(map(str, ids)) for ids in counted_runs(wrong.get(name, RIGHT), name))
        told = (f"{name} is wrong.", ["With p = 1."]) if name in wrong else ("", [])
        verdicts.append(Verdict(name, {"law": name not in wrong}, *told, runs=runs))
    path = folder / "report.json"
    path.write_text(as_json([Grade("ann.py", verdicts)]), encoding="utf-8")
    return path


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(lossless, "GRADED_SECONDS", 0)


@pytest.mark.parametrize("wrong", [{}, WRONG], ids=["right", "wrong"])
def test_what_a_graded_function_wrote_is_counted_and_its_mistake_said(tmp_path, at_once, wrong):
    shown = [json.loads(one) for one in count_graded(report(tmp_path, wrong))]
    over = [one for one in shown if one["phase"] != "running"]
    assert [(one["n"], one["lossless"]) for one in over] == [(1000, not wrong)] * 4
    for name, one in zip(WRONG, over):
        said = words("de").translated(one)
        assert said["drafter"] == f"{name} · ann.py"
        assert said["verdict"]["state"] == ("different" if wrong else "same")
        assert said["verdict"]["why"].startswith(f"{name} is wrong. With p = 1." if wrong else "Eine Abweichung")


def test_a_mistake_that_the_counts_do_not_show_is_said_after_the_right_functions(tmp_path, at_once):
    shown = [json.loads(one) for one in count_graded(report(tmp_path, {"accept": RIGHT}))]
    assert [one["drafter"] for one in shown if one["phase"] == "finished"][-1] == "accept · ann.py"
    verdict = words().translated(shown[-1])["verdict"]
    assert verdict["state"] == "same" and verdict["why"].startswith("accept is wrong. With p = 1.")


def test_ids_that_are_none_are_counted_as_what_the_target_never_writes(tmp_path, at_once):
    path = report(tmp_path, {})
    path.write_text(path.read_text(encoding="utf-8").replace("1.0 ", "7.x "), encoding="utf-8")
    *_, last = count_graded(path)
    *_, outside = json.loads(last)["bars"]
    assert outside["kind"] == "outside" and outside["share"] > 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "not a report"),
        ("[]", "not a report"),
        (as_json([Grade("ann.py")]).replace("grade/1", "grade/2"), "not a report"),
        (as_json([Grade("ann.py", [Verdict("accept", {"law": True})])]), "no runs"),
    ],
)
def test_a_file_that_cannot_be_counted_is_refused_in_both_languages(tmp_path, text, sentence):
    path = tmp_path / "report.json"
    path.write_text(text, encoding="utf-8")
    with refused(None, sentence) as caught:
        next(count_graded(path))
    assert words("de").error(caught.value) != str(caught.value)


# In the browser

VIEW = element("lossless")


def test_the_lab_fills_in_judges_and_keeps_what_was_counted(pair, serve, new_page, monkeypatch, tmp_path, at_once):
    monkeypatch.setenv("SPECVIZ_PASSES", "plain")
    url, _ = serve(pair)
    page = new_page()
    page.goto(url)

    def start(rule: str, runs: int) -> None:
        page.locator(f".sv-lab-rules input[value={rule}]").check()
        page.get_by_label("number input for Runs").fill(str(runs))
        page.locator("#start-lossless").click()

    set_control(page, GAMMA, 1)
    page.get_by_role("tab", name="Lossless?").click()
    # Fewer, Gradio makes 500 of once the field is left. They may be over before a page on a busy machine has drawn any.
    start("everything", 500)
    page.wait_for_function(f"() => {VIEW}.state === 'finished'")
    view = page.locator("#lossless-view")
    expect(view.locator("[part=headline]")).to_have_text("Not the target's distribution")
    expect(view.locator("[part=why]")).to_contain_text("the drafter's distribution")
    curve, key = view.locator(".curve"), view.locator(".key.line")
    red = curve.evaluate("node => getComputedStyle(node).stroke")
    assert key.evaluate("node => getComputedStyle(node).borderTopColor") == red
    assert red in view.locator(".key.observed").evaluate("node => getComputedStyle(node).backgroundImage")
    assert page.evaluate(f"{VIEW}.trial.n") == 500
    page.locator("#start-lossless").wait_for()

    start("auto", 20000)
    page.wait_for_function(f"() => {VIEW}.state === 'running' && {VIEW}.trial?.rule === 'auto' && {VIEW}.trial.n > 80")
    page.locator("#stop-lossless").click()
    page.wait_for_function(f"() => {VIEW}.state === 'stopped'")
    counted = page.evaluate(f"{VIEW}.trial.n")
    assert 80 < counted < 20000
    expect(view.locator("[part=headline]")).to_have_text("No difference from the target's distribution found")
    expect(view.locator("[part=status]")).to_contain_text(f"{counted:,}".replace(",", "\u202f"))
    rows = view.locator("[part=history] tbody tr")
    expect(rows).to_have_count(2)
    assert re.search("not the target's", rows.last.inner_text())

    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Open a graded rule").click()
    chooser.value.set_files(report(tmp_path, {"verify": WRONG["verify"]}))
    expect(rows).to_have_count(6)
    expect(view.locator("[part=why]")).to_have_text("verify is wrong. With p = 1.")
    assert violations(page, "#lossless-view") == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert_no_sideways_scrolling(page)
