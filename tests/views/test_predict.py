"""Predicting in a real browser: what comes next stays hidden until somebody has guessed it, and guesses are counted."""

from dataclasses import replace

import pytest
from elements import VIEW, give, state
from handmade import VOCABULARY, a_block, a_round, a_run, a_tree, a_typical, rounds_of
from playwright.sync_api import Locator, Page, expect

from specviz.records.metrics import draft_depths
from specviz.records.runs import Round, Run
from specviz.records.settings import SamplingParams
from specviz.views import run_messages as messages

TREE = (-1, -1, -1, 0, 0, 1, 3, 3, 4)


def run_of(*rounds: Round, greedy: bool = False) -> Run:
    sampling = SamplingParams(temperature=0.0 if greedy else 1.0)
    return a_run(rounds, vocabulary={**VOCABULARY, 99: " other"}, sampling=sampling)


def greedily(one: Round) -> Round:
    """The round as temperature 0 records it: without coins."""
    drafted = tuple(replace(token, u=None) for token in one.drafted)
    return replace(one, drafted=drafted, next=replace(one.next, u=None, prob=1.0))


RUNS = {
    "token": run_of(a_round("ard"), a_round("aa", 1), a_round("", 2)),
    "greedy": run_of(*map(greedily, rounds_of("ard", "aa")), greedy=True),
    "tree": run_of(a_tree(TREE, 0, seed=5), a_tree(TREE, 1, seed=3)),
    "block": run_of(a_block("AAB", (0.1, 0.9, 0.95)), a_block("BB", (0.5, 0.2), 1)),
    "typical": run_of(a_typical(), a_typical(1)),
}


def part(page: Page, name: str) -> Locator:
    return page.locator(f'[part="{name}"]')


def press(page: Page, *keys: str) -> dict:
    """Presses keys and waits for the next frame each time; the place then."""
    for key in keys:
        page.keyboard.press(key)
        page.evaluate("() => new Promise(requestAnimationFrame)")
    return state(page, "place")


def predict(page: Page) -> None:
    """Switches the mode on, which goes to the start of a run that is over."""
    part(page, "predict").click()
    part(page, "text").focus()
    page.wait_for_function(f"() => {VIEW}.place?.kind === 'start'")


def truths(one: Round, rule: str) -> list[str]:
    """The right answers of a round, in the order of the questions; a drawn token's is its id."""
    judged = [index for index, token in enumerate(one.drafted) if token.outcome != "discarded"]
    judged.sort(key=lambda index: (draft_depths(one)[index], index))
    outcomes = [one.drafted[index].outcome for index in judged]
    if outcomes and rule in ("block", "typical"):
        outcomes = [str(outcomes.count("accepted"))]
    return [*outcomes, str(one.next.id)]


def test_a_verdict_is_shown_once_it_was_guessed(show):
    page = show(RUNS["token"])
    predict(page)
    question, tally, coin = part(page, "question"), part(page, "tally"), page.locator(".overview .flipped .line")
    expect(part(page, "question")).to_contain_text("Predict is on")
    expect(part(page, "invitation")).to_have_text("This is the prompt. Nothing has been drafted yet.")
    expect(tally).to_have_text("0 of 0 guessed right")
    assert press(page, *["ArrowRight"] * 5)["kind"] == "pass"
    expect(question).to_contain_text("accepted or rejected?")
    # No step, and no playing, reveals it; p and q are there to reason with.
    before = press(page, "ArrowRight", " ", "ArrowRight")
    assert (before["kind"], state(page, "playing")) == ("pass", False)
    expect(coin).to_have_count(0)
    expect(page.locator(".overview .passed .bars").first).to_be_visible()
    assert press(page, "a")["kind"] == "decide"
    expect(question).to_have_text("✓ Guessed right.")
    expect(tally).to_have_text("1 of 1 guessed right")
    expect(coin).to_be_visible()
    press(page, "ArrowRight", "a")
    expect(question).to_have_text("✗ Guessed wrong.")
    expect(tally).to_have_text("1 of 2 guessed right")
    # What is only shown counts as no guess, and what was guessed is not asked again.
    press(page, "ArrowRight")
    page.get_by_role("button", name="Show it").click()
    expect(tally).to_have_text("1 of 2 guessed right")
    assert press(page, "ArrowLeft", "ArrowLeft", "ArrowRight")["kind"] == "decide"
    expect(part(page, "options").get_by_role("button")).to_have_count(0)
    # Without the mode, nothing waits.
    part(page, "predict").click()
    part(page, "text").focus()
    assert press(page, *["ArrowRight"] * 5) == {"round": 1, "stage": 4, "kind": "decide"}
    # In the presentation it is the same mode.
    page = show(RUNS["token"])
    predict(page)
    press(page, "p")
    dialog = page.get_by_role("dialog", name="Presentation")
    press(page, *["ArrowRight"] * 5)
    expect(part(page, "question")).to_contain_text("accepted or rejected?")
    expect(dialog.locator(".flipped .line")).to_have_count(0)
    dialog.get_by_role("button", name="accepted").click()
    expect(part(page, "tally")).to_have_text("1 of 1 guessed right")
    expect(dialog.locator(".flipped .line")).to_be_visible()
    # The keys go on: what was clicked is not pressed once more.
    press(page, "ArrowRight", "r")
    expect(part(page, "tally")).to_have_text("2 of 2 guessed right")


@pytest.mark.parametrize("rule, unit", [*zip(RUNS, ("token", "round", "token", "round", "token"))])
def test_every_verdict_and_every_drawn_token_is_asked_for_and_counted(show, rule, unit):
    run = RUNS[rule]
    page = show(run, "token" if rule == "greedy" else rule)
    part(page, "unit").select_option(unit)
    predict(page)
    options = part(page, "options").get_by_role("button")
    answers = [answer for one in run.rounds for answer in truths(one, rule)]
    for count, answer in enumerate(answers, start=1):
        while not options.count():
            press(page, "ArrowRight")
        chosen = part(page, "options").locator(f'[data-value="{answer}"]')
        if not chosen.count():
            chosen = part(page, "options").locator('[data-value="other"]')
        chosen.click()
        expect(part(page, "tally")).to_have_text(f"{count} of {count} guessed right")
    assert state(page, "place")["round"] == len(run.rounds) - 1
    expect(options).to_have_count(0)


def test_a_question_gives_no_token_away(show):
    one = next(one for one in (a_tree(TREE, seed=seed) for seed in range(99)) if one.next.kind == "recovered")
    # Drawn against the odds: the line lists it for that alone.
    likely = [
        replace(row, residual=tuple(pair for pair in row.residual if pair[0] != one.next.id)[:5]) for row in one.top
    ]
    one = replace(one, top=tuple(likely))
    page = show(run_of(one, replace(one, index=1)), "tree")
    predict(page)
    options = part(page, "options").get_by_role("button")
    for answer in truths(one, "tree")[:-1]:
        while not options.count():
            press(page, "ArrowRight")
        press(page, answer[0])
    press(page, "ArrowRight")
    expect(part(page, "question")).to_contain_text("residual")
    expect(page.locator(".overview .next")).to_have_count(2)
    for piece in page.locator(".overview .next").all():
        expect(piece).not_to_contain_text(one.next.text.strip())
    page.locator('.overview [data-piece="pass"][data-index="next"]').click()
    residual = part(page, "residual").first
    expect(residual).to_be_visible()
    drawn = one.next.text.strip()
    for seen in (residual, part(page, "options"), part(page, "say")):
        expect(seen).not_to_contain_text(drawn)
    expect(page.locator(".closeup .name.on, .closeup .drawn, .closeup .u")).to_have_count(0)
    page.get_by_role("button", name="another").click()
    expect(residual).to_contain_text(drawn)
    expect(part(page, "question")).to_have_text("✓ Guessed right.")


def test_another_run_is_predicted_from_its_start_and_not_overtaken(show):
    run = RUNS["token"]
    page = show(run)
    predict(page)
    press(page, *["ArrowRight"] * 5, "a")
    start = messages.message(
        "start", run="live", prompt="Then", drafter="draft_model", num_draft_tokens=3, greedy=False
    )
    give(page, "run", [start, messages.rounds_message("live", run.rounds[:1], run.vocabulary)])
    page.wait_for_function(f"() => {VIEW}.rounds.length === 1 && {VIEW}.place.kind === 'start'")
    expect(part(page, "tally")).to_have_text("0 of 0 guessed right")
    expect(part(page, "place")).to_contain_text("before the only round")
    expect(part(page, "question")).to_contain_text("Predict is on")
    expect(part(page, "invitation")).to_have_text("This is the prompt. Nothing has been drafted yet.")
    press(page, *["ArrowRight"] * 5, "a", "ArrowRight", "r", "ArrowRight", "1")
    expect(part(page, "tally")).to_have_text("3 of 3 guessed right")
    assert press(page, "ArrowRight", "ArrowRight")["kind"] == "next"
