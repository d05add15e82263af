"""The page by axe-core's rules, in both languages, light and dark, wide and narrow: no serious violation anywhere."""

from collections.abc import Iterator

import pytest
from on_page import state, violations
from playwright.sync_api import Page, expect


def first_tab(page: Page) -> Iterator[str | None]:
    """Brings the parts of the tab that is open forward, one after the other: the whole page, then what opens in it."""
    for fold in ("#fields-fold button", "[aria-controls=more-controls]"):
        if page.locator(fold).is_visible():
            page.locator(fold).click()
    page.locator("#drafter input").press("ArrowDown")
    yield None  # a recorded run, controls unfolded
    page.locator('specviz-tour [part="opener"]').press("Enter")
    # Whatever the fonts of this machine, its text is longer than the room for it.
    page.locator('specviz-tour [part="panel"]').evaluate("panel => panel.style.maxHeight = '160px'")
    yield "specviz-tour"
    page.keyboard.press("Escape")
    page.locator('specviz-quiz [part="opener"]').press("Enter")
    page.locator('specviz-quiz [part="teach"]').press("Enter")
    page.locator('specviz-quiz [part="counted"]').first.wait_for()
    yield "specviz-quiz"  # a class's answers
    page.locator('specviz-quiz [part="end"]').press("Enter")
    page.locator('specviz-quiz [part="begin"]').press("Enter")
    yield "specviz-quiz"  # a question of five
    page.keyboard.press("Escape")
    page.locator('specviz-run [part="present"]').press("Enter")
    page.keyboard.press("Home")
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    yield "specviz-run"  # the presentation
    page.emulate_media(reduced_motion="reduce")  # what fades in has no contrast yet
    page.locator('specviz-run [part="predict"]').press("Enter")
    page.keyboard.press("End")
    page.keyboard.press("Home")
    while not page.locator('specviz-run [part="options"] button').count():
        page.keyboard.press("ArrowRight")
    yield "specviz-run"  # a question in it


def every_other_tab(page: Page, first: int) -> Iterator[None]:
    names = page.get_by_role("tab")
    for place in range(first, names.count(), 2):
        names.nth(place).press("Enter")
        yield


#: What is looked at on one page: all of it together would take a minute.
PARTS = {
    "first": first_tab,
    "odd": lambda page: every_other_tab(page, 1),
    "even": lambda page: every_other_tab(page, 2),
}


@pytest.mark.parametrize(
    ("parts", "width", "theme", "language"),
    [
        ("first", 1280, "light", ""),
        ("first", 390, "dark", "de"),
        ("odd", 390, "dark", "de"),
        ("even", 1280, "light", ""),
    ],
)
def test_no_part_breaks_a_rule_seriously(visit, width, theme, language, parts):
    page = visit(language, viewport={"width": width, "height": 844}, color_scheme=theme)
    wrong = [violations(page, within) for within in PARTS[parts](page)]
    assert len(wrong) > 1 and wrong == [[]] * len(wrong) and state(page, "recorded")


def test_the_focus_goes_on_from_a_field_whose_list_scrolls(visit):
    page = visit(viewport={"width": 1280, "height": 720})
    page.locator("#drafter input").focus()
    scrolls = "list => list.scrollHeight > list.clientHeight"
    assert page.locator("#drafter ul").evaluate(scrolls), "a shorter list would not have the focus"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.ariaLabel").startswith("number input for Draft tokens")
    page.wait_for_timeout(300)
    expect(page.locator("#drafter ul")).to_have_count(0)  # Gradio would open it again
    page.locator("#drafter input").focus()
    expect(page.locator("#drafter ul")).to_have_count(1)
    page.keyboard.press("Shift+Tab")
    page.wait_for_timeout(300)
    expect(page.locator("#drafter ul")).to_have_count(0)
    top = page.evaluate("scrollY")
    page.locator("#drafter input").press("ArrowDown")
    assert page.evaluate("scrollY") == top


def test_the_focus_stays_in_a_field_whose_list_was_chosen_from(visit):
    page = visit(viewport={"width": 1280, "height": 720})
    page.locator("#go").focus()  # and does not go back to a button that was pressed before
    page.keyboard.press("Enter")
    expect(page.locator("#stop")).to_be_focused()
    page.keyboard.press("Enter")
    field = page.locator("#drafter input")
    field.focus()
    before = field.input_value()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(field).not_to_have_value(before)
    expect(field).to_be_focused()
    page.wait_for_timeout(300)
    expect(field).to_be_focused()
    expect(page.locator("#drafter ul")).to_have_count(0)
    page.keyboard.press("ArrowDown")  # opens it again
    expect(page.locator("#drafter ul")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(field).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.type") == "number"


@pytest.mark.parametrize(
    ("language", "names"),
    [
        ("", ["number input for Temperature (0 is greedy)", "range slider for Temperature (0 is greedy)"]),
        ("de", ["Temperatur (0 ist greedy)"] * 2),
    ],
)
def test_sliders_are_named_in_the_pages_language(visit, language, names):
    page = visit(language)
    fields = page.locator("input[aria-label*=Temperatur]:visible")
    expect(fields).to_have_count(2)
    assert fields.evaluate_all("nodes => nodes.map(node => node.ariaLabel)") == names


def test_the_focus_goes_to_the_button_that_takes_the_place_of_the_pressed_one(visit):
    page = visit(viewport={"width": 1280, "height": 720})
    page.locator("#go").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#stop")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#go")).to_be_focused()


def test_arrows_choose_among_the_choices_of_a_question(visit):
    page = visit("#lossless", viewport={"width": 1280, "height": 720})
    choices = page.locator(".sv-lab-rules input[type=radio]")
    choices.first.focus()
    for place in (1, 2, 3):
        page.keyboard.press("ArrowDown")
        expect(choices.nth(place)).to_be_focused()
        expect(choices.nth(place)).to_be_checked()
    page.keyboard.press("Tab")
    assert not choices.evaluate_all("nodes => nodes.includes(document.activeElement)")
