"""The challenges: solved by what the page measured in a visitor's own runs, and by nothing else."""

import json
from typing import Any

from elements import element
from handmade import VOCABULARY, a_round
from playwright.sync_api import Page, expect

from specviz.views.run_messages import rounds_message

CHALLENGES = element("challenges")
SETTINGS = {"prompt": "Once", "drafter": "draft_model", "num_draft_tokens": 4, "temperature": 0.8, "seed": 0}


def finished(
    page: Page, key: str, *, start: dict[str, Any] | None = None, rounds=(), settings=None, **figures: Any
) -> None:
    """A run is over, as <specviz-run> tells it."""
    made = json.loads(rounds_message("run", list(rounds), VOCABULARY))["rounds"]
    given = {"share": {"settings": SETTINGS | (settings or {})}, "recorded": "", "file": ""} | (start or {})
    detail = {"run": key, "start": given, "rounds": made, "text": "", "figures": figures}
    page.evaluate("detail => document.dispatchEvent(new CustomEvent('specviz-finished', { detail }))", detail)


def tried(page: Page, **trial: Any) -> None:
    """A trial is over, as <specviz-lossless> tells it."""
    known = {"lossless": False, "phase": "finished", "verdict": {"state": "different"}, "rule_name": "<b>"}
    detail = known | {"p_value": 1e-9} | trial
    page.evaluate("detail => document.dispatchEvent(new CustomEvent('specviz-tried', { detail }))", detail)


def solved(page: Page) -> list[str]:
    return page.evaluate(f"Object.keys({CHALLENGES}.solved)")


def how(page: Page, name: str):
    return page.locator(f"specviz-challenges [data-challenge={name}] .how")


def test_a_longer_draft_that_is_slower_solves_the_first(alone):
    page = alone("challenges")
    finished(page, "a", settings={"num_draft_tokens": 2}, speedup=None)
    finished(page, "a", settings={"num_draft_tokens": 2}, speedup=1.312)
    # Another prompt, a shorter draft, a file that was opened, a recorded run: none of them is what was asked for.
    finished(page, "b", settings={"num_draft_tokens": 12, "prompt": "Other"}, speedup=0.8)
    finished(page, "c", settings={"num_draft_tokens": 1}, speedup=0.9)
    finished(page, "d", settings={"num_draft_tokens": 12}, start={"file": "trace.json"}, speedup=0.8)
    finished(page, "e", settings={"num_draft_tokens": 12}, start={"recorded": "A story"}, speedup=0.8)
    finished(page, "p", settings={"num_draft_tokens": 12}, start={"pair": "Another"}, speedup=0.8)
    assert solved(page) == []
    finished(page, "f", settings={"num_draft_tokens": 12, "seed": 3}, speedup=0.86)
    assert solved(page) == ["turn"]
    expect(page.locator("specviz-challenges [part=told]")).to_contain_text("γ = 2: 1.31×. γ = 12: 0.86×.")
    expect(page.locator("specviz-challenges [part=opener]")).to_have_accessible_name("Challenges: 1 of 4 solved")
    # A reload keeps it.
    page.reload()
    page.wait_for_function(f"() => {CHALLENGES}?.built")
    page.locator("specviz-challenges [part=opener]").press("Enter")
    expect(how(page, "turn")).to_have_text("γ = 2: 1.31×. γ = 12: 0.86×.")
    page.keyboard.press("Escape")
    expect(page.locator("specviz-challenges [part=dialog]")).to_be_hidden()


def test_a_coin_that_refuses_copies_that_count_and_a_rule_caught_early_solve_the_others(alone):
    page = alone("challenges", "de")
    rounds = [a_round("ard"), a_round("aa", 1)]
    finished(page, "a", rounds=rounds, settings={"coins": "1.1=0.2"})
    finished(page, "b", rounds=rounds, settings={"coins": "2.next=0.2"})
    assert solved(page) == []
    finished(page, "c", rounds=rounds, settings={"coins": "2.next=0.2 1.2=0.99"})
    assert solved(page) == ["coin"]
    finished(page, "d", settings={"drafter": "prompt_lookup"}, tokens=20, acceptance_length=4.0)
    finished(page, "e", settings={"drafter": "prompt_lookup"}, tokens=64, acceptance_length=2.9)
    finished(page, "f", tokens=64, acceptance_length=4.0)
    assert solved(page) == ["coin"]
    finished(page, "g", settings={"drafter": "prompt_lookup"}, tokens=64, acceptance_length=3.25)
    assert solved(page) == ["coin", "copy"]
    page.locator("specviz-challenges [part=opener]").click()
    expect(how(page, "copy")).to_have_text("3,25 Token je Zieldurchlauf über 64 Token.")
    for trial in ({"n": 1000}, {"n": 500, "lossless": True}, {"n": 500, "phase": "running"}, {"n": 5, "greedy": {}}):
        tried(page, **trial)
    tried(page, n=500, verdict={"state": "same"})
    assert solved(page) == ["coin", "copy"]
    tried(page, n=400)
    # The rule's name is text, whatever it says.
    expect(how(page, "liar")).to_have_text("<b>: p < 0,000001 nach 400 Läufen.")
