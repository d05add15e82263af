"""Two runs side by side: aligned texts are the runs' own, and the first difference is where they really part."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from elements import element, give
from handmade import a_round, a_run
from on_page import VIEW, assert_no_sideways_scrolling, generate, quoted, set_control, settle, state
from playwright.sync_api import Locator, Page, expect

from specviz.records.metrics import tally
from specviz.records.runs import Run
from specviz.records.settings import SamplingParams
from specviz.records.words import words
from specviz.views.run_messages import rounds_message

say = words("en")


def run_of(*rounds: tuple[str, ...], prompt: str = "Once upon a time") -> Run:
    """A run of these pieces, round by round: the last of each is the target's own, those before it were drafted."""
    ids = {text: id for id, text in enumerate(sorted({piece for pieces in rounds for piece in pieces}), start=100)}
    made = [
        a_round("a" * (len(pieces) - 1), index, texts=pieces, ids=tuple(ids[piece] for piece in pieces))
        for index, pieces in enumerate(rounds)
    ]
    made[-1] = replace(made[-1], stop_reason="length")
    return a_run(tuple(made), prompt=prompt)


def finished(run: Run, key: str) -> str:
    """The run as the live view tells it at its end."""
    counts = tally(run.rounds)
    rounds = json.loads(rounds_message(key, run.rounds, run.vocabulary))["rounds"]
    start = {"prompt": run.prompt.text, "drafter": run.drafter or "", "num_draft_tokens": run.num_draft_tokens}
    start |= {"greedy": run.sampling.greedy, "lossy": run.rule == "typical", "pair": ""}
    figures = {"target_passes": counts.rounds, "tokens": counts.tokens}
    figures |= {name: getattr(counts, name) for name in ("acceptance_rate", "acceptance_length")}
    told = {"run": key, "start": start, "rounds": rounds, "text": run.text, "figures": figures}
    return json.dumps({"kind": "finished", "run": told})


def part(page: Page, name: str) -> Locator:
    return page.locator(f'specviz-beside [part="{name}"]')


@pytest.fixture
def beside(alone) -> Callable[[Run, Run], Page]:
    """A page whose only element keeps the first run and shows the second one next to it."""

    def shown(first: Run, second: Run) -> Page:
        page = alone("beside", viewport={"width": 1280, "height": 900})
        give(page, "beside", [finished(first, "first")])
        part(page, "keep").click()
        give(page, "beside", [finished(second, "second")])
        part(page, "card").wait_for()
        return page

    return shown


def lines(page: Page) -> list[dict]:
    """Each line: both sides' text, whether it says they are the same, and where its top stands on either side."""
    return part(page, "line").evaluate_all(
        """lines => lines.map(line => {
          const cells = [...line.querySelectorAll('.cell')];
          return {sides: cells.map(cell => cell.querySelector('.words').textContent),
                  same: line.classList.contains('same'),
                  tops: cells.map(cell => cell.getBoundingClientRect().top),
                  marked: cells.map(cell => cell.querySelector('.parts')?.textContent ?? null)};
        })"""
    )


def assert_aligned(page: Page, first: Run, second: Run) -> None:
    """The lines are both texts in full; those called the same are, and they are all that is."""
    shown = lines(page)
    assert ["".join(line["sides"][side] for line in shown) for side in (0, 1)] == [first.text, second.text]
    same = [line["sides"] for line in shown if line["same"]]
    assert [line["same"] for line in shown] == sorted((line["same"] for line in shown), reverse=True)
    assert all(a == b for a, b in same)
    assert "".join(a for a, _ in same) == "".join(pieces_within(first, common_length(first.text, second.text)))
    assert all(line["tops"][0] == line["tops"][1] for line in shown)


def common_length(a: str, b: str) -> int:
    """The characters that both texts begin with."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b))))


def pieces_within(run: Run, characters: int) -> list[str]:
    """The tokens that end within so many characters of the text."""
    pieces = [piece for one in run.rounds for piece in one.pieces]
    ends = itertools.accumulate(map(len, pieces))
    return [piece for piece, end in zip(pieces, ends) if end <= characters]


THE_SAME = ((" a", " little", " old"), (" woman",), (" who", " lived"), (".\n", "She", " had", " many"))

PARTING = [
    pytest.param(run_of(*THE_SAME, (" cats",)), run_of(*THE_SAME, (" dogs", "."), (" Good",)), id="late"),
    pytest.param(run_of((" the", " cat")), run_of((" a", " dog", " sat")), id="at once, within a token"),
    pytest.param(run_of(("Yes",)), run_of(("No",)), id="at once"),
    pytest.param(
        run_of((" old", " kingdom"), (" by",)), run_of((" old", " king"), ("dom", " of")), id="other tokens, same text"
    ),
    pytest.param(run_of((" so", "😀"), ("!",)), run_of((" so", "😁"), ("!",)), id="half a character in common"),
]


@pytest.mark.parametrize(("first", "second"), PARTING)
def test_the_first_difference_is_where_it_is(beside, first, second):
    page = beside(first, second)
    assert_aligned(page, first, second)
    common = common_length(first.text, second.text)
    count = len(pieces_within(first, common))
    words_there = [
        quoted([piece for one in run.rounds for piece in one.pieces][len(pieces_within(run, common))])
        for run in (first, second)
    ]
    key = "beside.part" if count else "beside.part_at_once"
    expected = say(key, n=count, a=words_there[0], b=words_there[1], character=common + 1)
    expect(part(page, "verdict").locator("span")).to_have_text(expected)
    [marked] = [line["marked"] for line in lines(page) if any(line["marked"])]
    assert [quoted(word) for word in marked] == words_there


@pytest.mark.parametrize(
    "greedy, words, drafter, key",
    [
        ((False, False), "a dog", "suffix", "sampled"),
        ((False, False), "a dog", "medusa", "sampled_lossy"),
        ((False, True), "a dog", "suffix", "one_greedy"),
        ((True, True), "a dog", "suffix", "greedy_part"),
        ((False, False), "a cat sat", "suffix", None),
    ],
    ids=["both sampled", "by a lossy rule", "one greedy", "both greedy", "one longer"],
)
def test_texts_that_differ_by_design_are_said_to_and_greedy_ones_that_part_are_a_finding(
    beside, greedy, words, drafter, key
):
    one, other = (run_of(*((f" {word}",) for word in text.split())) for text in ("a cat", words))
    first, second = (
        replace(run, sampling=SamplingParams(temperature=0.0 if is_greedy else 1.0), drafter=drafter, rule=rule)
        for run, is_greedy, rule in zip(
            (one, other), greedy, ("token", "typical" if key == "sampled_lossy" else "token")
        )
    )
    page = beside(first, second)
    expect(part(page, "verdict")).to_be_visible()
    expect(part(page, "reason")).to_have_text([say(f"beside.{key}")] if key else [])


def test_equal_texts_are_called_equal_and_differ_in_their_passes(beside):
    pieces = [piece for pieces in THE_SAME for piece in pieces]
    plain, drafted = run_of(*((piece,) for piece in pieces)), run_of(*THE_SAME)
    page = beside(plain, drafted)
    assert_aligned(page, plain, drafted)
    passes = say("beside.fewer_passes", a=len(plain.rounds), b=len(drafted.rounds))
    text = f"{say('beside.equal', n=len(pieces))} {passes}"
    expect(part(page, "verdict").locator("span")).to_have_text(text)
    assert not any(any(line["marked"]) for line in lines(page))
    for name, run in (("A", plain), ("B", drafted)):
        shown, counts = part(page, f"head-{name}").locator("[data-figure]"), tally(run.rounds)
        figures = {one.get_attribute("data-figure"): one.text_content() for one in shown.all()}
        rate = counts.acceptance_rate
        assert figures == {
            "acceptance_rate": "–" if rate is None else f"{round(100 * rate)}\u202f%",
            "acceptance_length": f"{counts.acceptance_length:.2f}",
            "target_passes": str(counts.rounds),
            "tokens": str(counts.tokens),
        }
        ticks = part(page, "line").locator(f'.cell[data-side="{name}"] .starts')
        assert ticks.count() == len(run.rounds)
    # A text goes on where the other ends.
    short, long = run_of(*THE_SAME), run_of(*THE_SAME, (" cats", "."))
    page = beside(short, long)
    assert_aligned(page, short, long)
    said = say("beside.shorter", n=10, characters=len(short.text), name="A", token=quoted(" cats"))
    expect(part(page, "verdict").locator("span")).to_have_text(said)
    expect(part(beside(long, short), "verdict")).to_contain_text("then B ends")


def test_runs_on_different_prompts_are_not_compared_and_texts_of_the_models_never_act(beside):
    page = beside(run_of(*THE_SAME), run_of(*THE_SAME, prompt="Another prompt"))
    expect(part(page, "verdict").locator("span")).to_have_text(say("beside.prompts_differ"))
    expect(part(page, "settings")).to_have_count(2)
    expect(part(page, "line")).to_have_count(0)
    hostile = "<img/src=x/onerror=window.pwned=1>${window.pwned=1}{{value}}"
    page = beside(run_of((" a", hostile)), run_of((" a", "b")))
    assert lines(page)[1]["sides"][0] == hostile
    assert page.evaluate("window.pwned") is None


def test_on_a_phone_the_texts_stand_one_below_the_other_and_keys_do_it(alone):
    page, run = alone("beside", viewport={"width": 390, "height": 844}), run_of(*THE_SAME)
    give(page, "beside", [finished(run, "first")])
    part(page, "keep").press("Enter")
    expect(part(page, "let-go")).to_be_focused()
    expect(part(page, "hint")).to_contain_text("Kept: draft_model")
    give(page, "beside", [finished(run, "second")])
    assert all(line["tops"][0] < line["tops"][1] for line in lines(page))
    assert_no_sideways_scrolling(page)
    part(page, "let-go").press("Enter")
    expect(part(page, "keep")).to_be_focused()
    assert page.evaluate(f"{element('beside')}.kept") is None


def test_a_run_with_a_coin_set_by_hand_stands_beside_the_one_that_it_leaves(visit):
    page = visit(viewport={"width": 1280, "height": 900})
    set_control(page, "Temperature (0 is greedy)", 1)
    generate(page, new_tokens=32)
    first = state(page, "rounds")
    index, token = next(
        (one["index"], place)
        for one in first
        for place, token in enumerate(one["drafted"])
        if token["outcome"] == "accepted" and token["accept_prob"] < 0.99
    )
    page.evaluate(f"spot => {VIEW}.choose(...spot)", [index, token])
    page.locator('[part="what-if"]').press("End")
    before = page.evaluate(f"{VIEW}.finished.run")
    page.locator('[part="branch"]').click()
    page.wait_for_function(f"run => ({VIEW}.finished?.run ?? run) !== run", arg=before)
    settle(page)
    second = state(page, "rounds")
    assert [one["drafted"] for one in second[:index]] == [one["drafted"] for one in first[:index]]
    assert (second[index]["drafted"][token]["u"], second[index]["drafted"][token]["outcome"]) == (
        pytest.approx(0.999),
        "rejected",
    )
    assert state(page, "chosen") == {"round": index, "index": token}
    expect(page.locator("#coins textarea")).to_have_value(f"{index + 1}.{token + 1}=0.999")
    expect(part(page, "reason")).to_contain_text(f"You set a coin ({index + 1}.{token + 1}=0.999)")
    agreed = sum(len(one["emitted"]) for one in first[:index]) + token
    assert page.evaluate(f"{element('beside')}.alignment.first")[0] >= agreed
