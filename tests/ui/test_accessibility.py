"""The page by axe-core's rules, in both languages, light and dark, wide and narrow: no serious violation anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from elements import RUN
from on_page import state, violations
from playwright.sync_api import Page


def tabs(page: Page) -> Iterator[str]:
    """Opens the other tabs, one after the other."""
    names = page.get_by_role("tab")
    for place in range(1, names.count()):  # the first one is open
        names.nth(place).press("Enter")
        yield names.nth(place).inner_text()


def parts(page: Page) -> Iterator[str]:
    """Brings the page's parts forward, one after the other."""
    page.locator(".sv-fold").click()
    yield "recorded run, controls unfolded"
    page.locator('specviz-tour [part="opener"]').press("Enter")
    yield "tour"
    page.keyboard.press("Escape")
    page.locator('specviz-run [part="present"]').press("Enter")
    page.keyboard.press("Home")
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    yield "presentation"
    page.keyboard.press("Escape")
    yield from tabs(page)


@pytest.mark.parametrize(
    ("width", "theme", "language"), [(1280, "light", ""), (390, "dark", "de")], ids=["wide-light", "narrow-dark-german"]
)
def test_no_part_breaks_a_rule_seriously(visit, page_url, width, theme, language):
    page = visit(viewport={"width": width, "height": 844}, color_scheme=theme)
    page.goto(page_url + language)
    page.wait_for_function(f"() => {RUN}?.recorded")
    wrong = {name: violations(page) for name in parts(page)}
    assert {name: lines for name, lines in wrong.items() if lines} == {}
    assert state(page, "recorded")
