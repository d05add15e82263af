"""A run as one file: opened from a folder it shows all that the page shows, asks for nothing, and runs no text."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from alone import chip, said, state
from handmade import a_round, a_run
from on_page import assert_no_sideways_scrolling, violations
from playwright.sync_api import Page, expect

from specviz.records.metrics import tally
from specviz.records.recordings import recording_named
from specviz.records.runs import Candidates, Round, Run
from specviz.views.bundle import bundle
from specviz.views.run_page import run_page

MOST_BYTES = 1_500_000

#: What a model may write, and what would happen if any of it were taken for code or markup.
HOSTILE = "</script></noscript><!-- <script>${window.hit = 1} <img src=x onerror='window.hit = 1'>\u2028 \"]}"


@pytest.fixture
def open_file(new_page: Callable[..., Page], tmp_path) -> Callable[..., Page]:
    """Saves a run as a page and opens it from its folder; it may ask for nothing but itself."""
    asked = []

    def opened(run: Run, **options) -> Page:
        path = tmp_path / "run.html"
        run.save(path)
        page = new_page(heard={"request": lambda request: asked.append(request.url)}, **options)
        page.goto(path.as_uri())
        page.locator("specviz-run [data-state=finished]").wait_for()
        page.locator("[data-chart='3'] svg").wait_for()
        return page

    yield opened
    assert set(asked) <= {(tmp_path / "run.html").as_uri()}


def test_the_file_shows_rounds_inspector_figures_and_charts_of_the_run(open_file):
    run = recording_named("sampled").load()
    page = open_file(run)
    assert state(page, "text") == run.text and len(state(page, "rounds")) == len(run.rounds)
    assert state(page, "figures")["acceptance_rate"] == tally(run.rounds).acceptance_rate
    expect(page.locator("[data-figure=speedup]")).to_have_text("1.33×")
    chip(page, 0, 1).click()
    assert "The coin came up u = 0.62: rejected" in said(page)
    bars = page.locator("[data-chart='1'] rect title")
    told = [f"round {one.index + 1}: {len(one.emitted)} tokens" for one in run.rounds]
    assert bars.all_text_contents() == told
    assert page.locator("[data-chart='2'] .value").all_text_contents() == ["90%", "56%", "80%", "100%"]
    assert page.locator("[data-chart='0'] circle title").last.text_content() == "after round 10: 78.6%"
    assert page.locator("[data-chart='3'] rect").count() == 3


def test_the_file_plays_presents_and_asks_first_by_keyboard(open_file):
    page = open_file(recording_named("sampled").load(), viewport={"width": 390, "height": 844})
    assert_no_sideways_scrolling(page)
    page.locator("[part=to_start]").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    assert state(page, "place")["round"] == 0
    page.keyboard.press("p")
    expect(page.locator("[part=presentation]")).to_be_visible()
    expect(page.locator("[part=qr-button]")).to_be_hidden()
    page.locator("[part=present-predict]").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("[part=present-question]")).to_be_visible()


def test_the_file_has_every_language_and_keeps_the_pinned_token(open_file):
    page = open_file(recording_named("sampled").load(), color_scheme="dark")
    chip(page, 0, 1).click()
    page.get_by_role("button", name="Deutsch").press("Enter")
    expect(page.locator("[data-figure=acceptance_length]")).to_have_text("3,20")
    assert "Die Münze fiel auf u = 0,62: abgelehnt" in said(page)
    assert page.evaluate("[document.documentElement.lang, document.body.className]") == ["de", "dark"]
    expect(page.get_by_role("button", name="English")).to_be_focused()
    assert page.locator("[data-chart='3'] .value").first.text_content() == "16,4 ms · 42%"
    assert violations(page) == []
    page.emulate_media(color_scheme="light")
    page.wait_for_function("() => document.body.className === ''")


def test_the_shortest_runs_are_drawn_too(open_file):
    page = open_file(a_run((a_round("ard", 0),)))
    assert page.locator("[data-chart='0'] circle").first.get_attribute("r") == "3"
    title, *ticks = page.locator("[data-chart='1'] text").all_text_contents()
    assert title == "Tokens per target pass, mean 2.00" and ticks[:5] == ["0", "1", "2", "1", "round"]
    page = open_file(a_run(()))
    assert page.locator("[data-chart] rect").count() == 3


def test_text_of_a_model_stays_text(open_file):
    rounds = (a_round("ar", 0, texts=(HOSTILE, HOSTILE, HOSTILE)), a_round("", 1, texts=("\ud800",)))
    page = open_file(a_run(rounds, prompt=HOSTILE, drafter=HOSTILE))
    assert page.locator("[part=prompt]").evaluate("node => node.textContent") == HOSTILE
    assert state(page, "text").startswith(HOSTILE * 2)
    assert page.locator("img, script[src]").count() == 0
    assert page.evaluate("window.hit ?? null") is None


def test_a_file_of_500_rounds_is_small():
    tree = recording_named("tree").load()
    chance = random.Random(0)

    def another(one: Round, index: int) -> Round:
        def row(pairs):
            return tuple((id, chance.random() / 10) for id, _ in pairs)

        rows = [Candidates(*map(row, (top.p, top.q, top.residual, top.p_raw, top.q_raw))) for top in one.top]
        tokens = [replace(token, p=chance.random(), q=chance.random(), u=chance.random()) for token in one.drafted]
        return replace(one, index=index, drafted=tuple(tokens), top=tuple(rows))

    rounds = tuple(another(tree.rounds[i % len(tree.rounds)], i) for i in range(500))
    assert len(run_page(replace(tree, rounds=rounds)).encode()) < MOST_BYTES


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(new_page):
    run = a_run((a_round("ar", 0, texts=(HOSTILE, " b", " c")),))
    page = new_page()
    page.set_content(f"<style>p {{ display: none; }}</style>{run._repr_html_()}")
    shown = page.frames[1].locator("specviz-run [part=prompt]")
    expect(shown).to_have_text("Once upon a time")
    assert page.evaluate("window.hit ?? null") is None
    assert len(repr(run)) < 60


def test_a_module_that_no_file_can_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("specviz.views.bundle.WEB", tmp_path)
    (tmp_path / "page.js").write_text("export default function () {}\n")
    with pytest.raises(ValueError, match=r"page\.js"):
        bundle("page.js")
