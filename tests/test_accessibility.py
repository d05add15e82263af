"""The page by axe-core's rules, in both languages, light and dark, wide and narrow: no serious violation anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from on_page import generate, set_control
from playwright.sync_api import Page

#: What is asked of the page: WCAG 2.1, levels A and AA, and axe's own advice.
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
SERIOUS = ("serious", "critical")


def tabs(page: Page) -> Iterator[str]:
    """Opens one tab after the other."""
    names = page.get_by_role("tab")
    for place in range(names.count()):
        names.nth(place).press("Enter")
        yield names.nth(place).inner_text()


def violations(page: Page) -> list[str]:
    """A line for each element that breaks a rule seriously: the rule, the element, what is wrong."""
    found = Axe().run(page, options=RULES).response["violations"]
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found
        if rule["impact"] in SERIOUS
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")], ids=["wide-light", "narrow-dark"])
def test_no_tab_breaks_a_rule_seriously(visit, width, theme):
    page = visit(viewport={"width": width, "height": 844}, color_scheme=theme)
    set_control(page, "New tokens", 24)
    generate(page, new_tokens=24)
    wrong = {name: violations(page) for name in tabs(page)}
    assert {name: lines for name, lines in wrong.items() if lines} == {}
