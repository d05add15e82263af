"""Five questions before and after: on recorded rounds, in two parallel forms, in any order, told at the end only."""

import csv
import json

import pytest
from elements import element, give
from playwright.sync_api import Page, expect

from specviz.__main__ import main
from specviz.records.recordings import recording_named
from specviz.records.runs import DraftedToken
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
        if name == "tree":
            bound = round(values["left"], 4) / round(values["q"], 4)
            return [i for i, one in enumerate(options) if abs(one.get("bound", 9) - bound) < 0.01]
        return [i for i, one in enumerate(options) if expected_speedup(one["alpha"], one["gamma"], one["c"]) < 1]

    for name in ("kept", "replaced", "tree", "pays"):
        assert right(name) == [asked[name]["truth"]], name
    assert asked["law"]["options"][asked["law"]["truth"]]["key"] in ("threshold", "from_p")


def test_what_is_asked_was_recorded():
    for form, replaced in zip(FORMS, ("sampled", "at_once")):
        kept, tree = named(form, "kept")["values"], named(form, "tree")["values"]
        one = next(token for token in recorded("sampled") if token.u == kept["u"])
        assert (one.text, one.p, one.q, one.outcome) == (kept["token"]["token"], kept["p"], kept["q"], kept["why"])
        two = next(token for token in recorded("tree") if token.p_left == tree["left"])
        assert (two.text, two.p, two.q, two.accept_prob) == (
            tree["second"]["token"],
            tree["p"],
            tree["q"],
            tree["bound"],
        )
        values = named(form, "replaced")["values"]
        three = next(token for token in recorded(replaced) if token.p == values["p"] and token.q == values["q"])
        assert (three.text, three.outcome) == (values["token"]["token"], "rejected")


def recorded(name: str) -> list[DraftedToken]:
    return [token for round_ in recording_named(name).load().rounds for token in round_.drafted]


def test_the_forms_ask_the_same_with_other_figures():
    one, other = FORMS
    for first, second in zip(one, other):
        assert first["name"] == second["name"] and first["values"].keys() == second["values"].keys()
        assert (first["values"], first["options"]) != (second["values"], second["options"])


@pytest.mark.parametrize("form", FORMS)
def test_no_single_figure_tells_which_setting_is_slower(form):
    question = named(form, "pays")
    right = question["options"][question["truth"]]
    for figure in ("alpha", "c", "gamma"):
        assert sorted(one[figure] for one in question["options"])[1] == right[figure]


@pytest.mark.parametrize("language", ["en", "de"])
def test_whoever_takes_the_longest_or_the_shortest_answer_is_wrong_more_often_than_right(alone, language):
    page = alone("quiz", language)
    for form in FORMS:
        for most in (max, min):
            by_chance = 0
            for one in form:
                lengths = [len(text_of(page, one, option)) for option in range(CHOICES)]
                if lengths[one["truth"]] == most(lengths):
                    by_chance += 1 / lengths.count(most(lengths))
            assert by_chance < len(form) / 2, (form, most)


def text_of(page: Page, question: dict, option: int) -> str:
    return page.evaluate(f"([one, option]) => {QUIZ}.option(one, option).textContent", [question, option])


#: Answers all questions `times` times, the first option each time. Returns by form and question in which places the
#: right answer stood, and which forms came first; throws where options differ in anything but their texts, or have a
#: title. The chance is mulberry32's.
PLACES = """([quiz, times]) => {
  let seed = 0;
  Math.random = () => {
    let mixed = (seed = (seed + 0x6d2b79f5) | 0);
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const { forms } = quiz, all = (parts) => [...quiz.shadow.querySelectorAll(parts)], places = {}, firsts = [];
  const own = ({ attributes }) => [...attributes].map(({ name, value }) => name + value);
  const unseen = (node) => own(node).concat(...[...node.children].map(unseen));
  for (let time = 0; time < times; time++) {
    quiz.restart();
    const { first } = quiz.state;
    firsts.push(first);
    for (const [phase, form] of [["before", first], ["after", 1 - first]]) {
      quiz.ask(phase);
      for (const _ of forms[form]) {
        const name = all("[part=question]")[0].dataset.question;
        const question = forms[form].find((one) => one.name === name), options = all(".option");
        if (new Set(options.map((one) => unseen(one).join())).size > 1 || all("[part=body] [title]").length) throw name;
        const right = quiz.option(question, question.truth).textContent;
        (places[form + name] ??= []).push(options.findIndex((one) => one.textContent === right));
        options[0].click();
        all("[part=next], [part=done]")[0].click();
      }
    }
  }
  return [places, firsts];
}"""


def test_neither_the_place_of_an_answer_nor_anything_unseen_tells_which_is_right(alone):
    page = alone("quiz")
    give(page, "quiz", [json.dumps(quiz_message())])
    places, firsts = page.evaluate(PLACES, [page.evaluate_handle(QUIZ), 90])
    assert len(places) == 2 * len(QUESTIONS) and 30 < sum(firsts) < 60
    for question, seen in places.items():
        assert len(seen) == 90 and all(15 < seen.count(place) < 45 for place in range(CHOICES)), question


def answer_all(page: Page, choose) -> list[str]:
    """Answers five questions; choose: from a question of a form, the option, or several, one after another. Returns the
    order in which they came."""
    order = []
    for _ in QUESTIONS:
        question = page.locator("specviz-quiz [part=question]")
        name = question.get_attribute("data-question")
        asked = named(FORMS[page.evaluate(f"{QUIZ}.state.before ? 1 - {QUIZ}.state.first : {QUIZ}.state.first")], name)
        assert question.inner_text() == page.evaluate(f"asked => {QUIZ}.said(asked, 'ask')", asked)
        choices = choose(asked)
        for option in choices if isinstance(choices, tuple) else (choices,):
            options = page.locator("specviz-quiz .option")
            options.nth(options.all_text_contents().index(text_of(page, asked, option))).click()
        page.locator("specviz-quiz [part=next], specviz-quiz [part=done]").click()
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
        before = answer_all(page, lambda one: (one["truth"] + (one["name"] != "tree")) % CHOICES)
        assert sorted(before) == sorted(QUESTIONS)
        assert "✓" not in page.locator("specviz-quiz [part=body]").inner_text()
        page.locator("specviz-quiz [part=again]").click()
        after = answer_all(page, lambda one: one["truth"])
        expect(page.locator("specviz-quiz [part=total]")).to_have_text("1 of 5 right before, 5 of 5 after.")
        forms = page.evaluate(f"[{QUIZ}.state.before.form, {QUIZ}.state.after.form]")
        assert forms == [first, 1 - first]
        orders |= {tuple(before), tuple(after)}
        page.locator("specviz-quiz [part=forget]").click()
    assert len(orders) > 3


def test_an_answer_can_be_taken_back_until_the_next_question(alone):
    page = alone("quiz")
    give(page, "quiz", [json.dumps(quiz_message())])
    page.locator("specviz-quiz [part=opener]").click()
    for button in ("begin", "again"):
        page.locator(f"specviz-quiz [part={button}]").click()
        answer_all(page, lambda one: ((one["truth"] + 1) % CHOICES, one["truth"]))
    expect(page.locator("specviz-quiz [part=total]")).to_have_text("5 of 5 right before, 5 of 5 after.")


def test_the_saved_table_says_what_was_right_and_how_long_it_took_and_gain_reads_it(alone, tmp_path, capsys):
    page = alone("quiz")
    # Each question takes 2.5 seconds, by a clock that is asked twice a question.
    page.evaluate("() => { let now = 0; performance.now = () => (now += 2500); }")
    give(page, "quiz", [json.dumps(quiz_message())])
    page.locator("specviz-quiz [part=opener]").click()
    people = set()
    for person in range(3):
        page.locator("specviz-quiz [part=begin]").click()
        answer_all(page, lambda one: (one["truth"] + (one["name"] != "law")) % CHOICES)
        page.locator("specviz-quiz [part=again]").click()
        answer_all(page, lambda one: (one["truth"] + (one["name"] == "pays")) % CHOICES)
        with page.expect_download() as saved:
            page.locator("specviz-quiz [part=save]").click()
        file = tmp_path / f"{person}.csv"
        saved.value.save_as(file)
        first, rows = "AB"[page.evaluate(f"{QUIZ}.state.first")], list(csv.reader(file.open(encoding="utf-8")))
        people.add(rows[1][-1])
        assert rows == [
            ["form", "item", "before", "after", "seconds", "person"],
            *(
                [first, name, str(int(name == "law")), str(int(name != "pays")), "5.0", rows[1][-1]]
                for name in QUESTIONS
            ),
        ]
        page.locator("specviz-quiz [part=forget]").click()
    assert len(people) == 3 and main(["gain", str(tmp_path)]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["all", "five", "0.20", "0.80", "0.75"] in printed and ["pays", "0.00", "0.00", "0.00"] in printed


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
        page.locator("specviz-quiz [part=next], specviz-quiz [part=done]").click()
    assert seen.count("onerror") == 2 and page.evaluate("window.hit") is None
