"""Five questions before and after: about what was recorded, in any order, and answered only at the end."""

import json

import pytest
from elements import element, give
from playwright.sync_api import Page, expect

from specviz.records.recordings import recording_named
from specviz.theory.formulas import expected_speedup
from specviz.views.quiz import CHOICES, QUESTIONS, quiz_message

FORMS = quiz_message()["forms"]
QUIZ = element("quiz")


@pytest.mark.parametrize("form", FORMS)
def test_each_question_has_one_right_answer_by_the_figures_that_it_shows(form):
    asked = {question["name"]: question for question in form}
    assert tuple(asked) == QUESTIONS and all(len(one["options"]) == CHOICES for one in form)

    def right(name: str) -> list[int]:
        values, options = asked[name]["values"], asked[name]["options"]
        shown = {key: round(value, 2) for key, value in values.items() if isinstance(value, float)}
        if name == "kept":
            kept = shown["u"] < shown["p"] / shown["q"]
            return [i for i, one in enumerate(options) if one["key"] == ("accepted" if kept else "rejected")]
        if name == "replaced":
            return [i for i, one in enumerate(options) if round(one["p"], 2) <= round(one["q"], 2)]
        if name == "cost":
            speedup = round(values["length"], 1) / (values["gamma"] * shown["c"] + 1)
            return [i for i, one in enumerate(options) if abs(one["speedup"] - speedup) < 0.06]
        return [i for i, one in enumerate(options) if expected_speedup(one["alpha"], one["gamma"], one["c"]) < 1]

    for name in ("kept", "replaced", "cost", "pays"):
        assert right(name) == [asked[name]["truth"]], name
    assert asked["law"]["options"][asked["law"]["truth"]]["key"] in ("threshold", "from_p")


def test_what_is_asked_was_recorded():
    tokens = [one for each in recording_named("sampled").load().rounds for one in each.drafted]
    for form in FORMS:
        values = form[0]["values"]
        one = next(one for one in tokens if one.u == values["u"])
        assert (one.text, one.p, one.q, one.outcome) == (
            values["token"]["token"],
            values["p"],
            values["q"],
            values["why"],
        )


def answer_all(page: Page, choose) -> list[str]:
    """Answers five questions; choose: from a question of a form, the option. Returns the order in which they came."""
    order = []
    for _ in QUESTIONS:
        question = page.locator("specviz-quiz [part=question]")
        name, text = question.get_attribute("data-question"), question.inner_text()
        form = next(
            form for form in FORMS if page.evaluate(f"form => {QUIZ}.said(form, 'ask')", named(form, name)) == text
        )
        onward = page.locator("specviz-quiz [part=onward]")
        expect(onward).to_be_disabled()  # nothing is chosen by the press that answered the question before
        page.locator("specviz-quiz .option").last.click()
        page.locator(f"specviz-quiz [data-option='{choose(named(form, name))}']").click()  # changed in time
        onward.click()
        order.append(name)
    return order


def named(form: list[dict], name: str) -> dict:
    return next(one for one in form if one["name"] == name)


def test_two_times_five_questions_in_any_order_and_nothing_is_told_between(alone):
    page, orders = alone("quiz"), set()
    give(page, "quiz", [json.dumps(quiz_message())])
    page.locator("specviz-quiz [part=opener]").click()
    for _ in range(6):
        page.locator("specviz-quiz [part=begin]").click()
        first = page.evaluate(f"{QUIZ}.state.first")
        before = answer_all(page, lambda one: (one["truth"] + (one["name"] != "cost")) % CHOICES)
        assert sorted(before) == sorted(QUESTIONS)
        assert "✓" not in page.locator("specviz-quiz [part=body]").inner_text()
        page.locator("specviz-quiz [part=again]").click()
        after = answer_all(page, lambda one: one["truth"])
        expect(page.locator("specviz-quiz [part=total]")).to_have_text("1 of 5 right before, 5 of 5 after.")
        expect(page.locator("specviz-quiz details[open]")).to_have_count(4)  # what was wrong, unasked
        forms = page.evaluate(f"[{QUIZ}.state.before.form, {QUIZ}.state.after.form]")
        assert forms == [first, 1 - first]
        orders |= {tuple(before), tuple(after)}
        page.locator("specviz-quiz [part=forget]").click()
    assert len(orders) > 3


def test_a_models_text_is_text(alone):
    page, form = alone("quiz"), json.loads(json.dumps(FORMS[0]))
    hostile = "<img src=x onerror='window.hit = 1'>{p}${window.hit = 1}"
    form[0]["values"]["token"]["token"] = form[1]["options"][0]["token"]["token"] = hostile
    give(page, "quiz", [json.dumps({"kind": "quiz", "forms": [form, form]})])
    page.locator("specviz-quiz [part=opener]").click()
    page.locator("specviz-quiz [part=begin]").click()
    seen = ""
    for _ in QUESTIONS:
        seen += page.locator("specviz-quiz [part=body]").inner_text()
        page.locator("specviz-quiz .option").first.click()
        page.locator("specviz-quiz [part=onward]").click()
    assert seen.count("onerror") == 2 and page.evaluate("window.hit") is None
