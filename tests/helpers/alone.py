"""The live view alone in a browser, outside Gradio: what it is given, and what the tests do with it."""

from __future__ import annotations

from dataclasses import replace

from elements import RUN, give
from playwright.sync_api import Locator, Page

from specviz.records import words
from specviz.records.runs import Run
from specviz.views import run_messages as messages

VIEW = RUN


def feed(page: Page, run: Run, rule: str) -> None:
    """The messages of an opened trace."""
    start = messages.opening("run", replace(run, rule=rule))
    rounds = messages.rounds_message("run", run.rounds, run.vocabulary)
    end = messages.end_message("run", total=len(run.rounds), reason=words.said(f"generate.end_{run.stop_reason}"))
    give(page, "run", [start, rounds, end])
    page.wait_for_function(f"() => {VIEW}.shadowRoot.querySelector('[part=view]').dataset.state === 'finished'")


def state(page: Page, name: str):
    return page.evaluate(f"name => {VIEW}[name]", name)


def chip(page: Page, round: int, index: int | str) -> Locator:
    return page.locator(f'button.chip[data-round="{round}"][data-index="{index}"]')


def switch(page: Page, round: int) -> Locator:
    return page.locator(f'button.toggle[data-round="{round}"]')


def unfold(page: Page, round: int) -> None:
    if switch(page, round).get_attribute("aria-expanded") == "false":
        switch(page, round).click()


def said(page: Page) -> str:
    """The inspector's sentence, with ordinary spaces."""
    return page.locator('[part="say"]').inner_text().replace("\u00a0", " ")


def ask(page: Page, round: int, index: int | str) -> str:
    """Points at a chip and lets go again, so that the next one can be asked."""
    chip(page, round, index).click()
    sentence = said(page)
    page.keyboard.press("Escape")
    return sentence


def shown(page: Page, round: int) -> set[str]:
    chips = page.locator(f'button.chip[data-round="{round}"]')
    return set(chips.evaluate_all("nodes => nodes.map(node => node.dataset.index)"))
