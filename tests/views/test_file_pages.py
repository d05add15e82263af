"""A run, a race, a comparison as one file: opened from a folder it shows all that the page shows, asks for nothing, and
runs no text."""

import random
from collections.abc import Callable
from dataclasses import replace

import elements
import pytest
from elements import chip, state
from handmade import a_round, a_run, rounds_of
from on_page import assert_no_sideways_scrolling, violations
from playwright.sync_api import Page, expect
from refusal import refused

from specviz.bench.contest import Row
from specviz.records.metrics import compare, tally
from specviz.records.recordings import recording_named
from specviz.records.runs import Candidates, Round, Run
from specviz.records.settings import SamplingParams
from specviz.records.words import words
from specviz.views.pages import bundle, comparison_page, race_page, run_page
from specviz.views.tab_messages import contest_message

MOST_BYTES = 1_500_000

#: What a model may write, and what would happen if any of it were taken for code or markup.
HOSTILE = "</script></noscript><!-- <script>${window.hit = 1} <img src=x onerror='window.hit = 1'>\u2028 \"]}"


@pytest.mark.parametrize("name", ["run.html", "RUN.HTML"])
def test_a_name_that_ends_in_html_gets_the_page_however_it_is_written(name, tmp_path):
    a_run(rounds_of("aar")).save(tmp_path / name)
    assert (tmp_path / name).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_is_no_run_has_no_page():
    with refused("run", "must be specviz"):
        run_page(None)


@pytest.fixture
def open_page(new_page: Callable[..., Page], tmp_path) -> Callable[..., Page]:
    """Opens a page from a folder; it may ask for nothing but itself."""
    path, asked = tmp_path / "page.html", []

    def opened(text: str, **options) -> Page:
        path.write_text(text, encoding="utf-8")
        page = new_page(heard={"request": lambda request: asked.append(request.url)}, **options)
        page.goto(path.as_uri())
        page.locator("main > *").first.wait_for()
        return page

    yield opened
    assert set(asked) <= {path.as_uri()}


@pytest.fixture
def open_file(open_page, tmp_path) -> Callable[..., Page]:
    """Saves a run as a page and opens it."""

    def opened(run: Run, **options) -> Page:
        run.save(tmp_path / "run.html")
        page = open_page((tmp_path / "run.html").read_text(encoding="utf-8"), **options)
        page.locator("specviz-run [data-state=finished]").wait_for()
        page.locator("[data-chart='3'] svg").wait_for()
        return page

    return opened


def first_rejected(run: Run) -> tuple[int, int]:
    """Round and place in it of the first draft token that the verdict refused."""
    drafted = ((one.index, place, token) for one in run.rounds for place, token in enumerate(one.drafted))
    return next((round, place) for round, place, token in drafted if token.outcome == "rejected")


def german(number: str) -> str:
    return number.replace(".", ",")


def test_the_file_shows_rounds_inspector_figures_and_charts_of_the_run(open_file):
    run = recording_named("sampled").load()
    page = open_file(run)
    assert state(page, "text") == run.text and len(state(page, "rounds")) == len(run.rounds)
    assert state(page, "figures")["acceptance_rate"] == tally(run.rounds).acceptance_rate
    expect(page.locator("[data-figure=speedup]")).to_have_text(f"{run.measured.ratio:.2f}×")
    round, token = first_rejected(run)
    chip(page, round, token).click()
    assert f"The coin came up u = {run.rounds[round].drafted[token].u:.2f}: rejected" in elements.said(page)
    bars = page.locator("[data-chart='1'] rect title")
    told = [f"round {one.index + 1}: {len(one.emitted)} tokens" for one in run.rounds]
    assert bars.all_text_contents() == told
    counted = tally(run.rounds)
    by_position = [f"{100 * kept / seen:.0f}\u202f%" for kept, seen in zip(counted.accepted_at, counted.judged_at)]
    assert page.locator("[data-chart='2'] .value").all_text_contents() == by_position
    latest = f"after round {len(run.rounds)}: {100 * counted.acceptance_rate:.1f}\u202f%"
    assert page.locator("[data-chart='0'] circle title").last.text_content() == latest
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
    page.locator("[part=predict]").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("[part=question]")).to_be_visible()


def test_the_file_has_every_language_and_keeps_the_pinned_token(open_file):
    run = recording_named("sampled").load()
    page = open_file(run, color_scheme="dark")
    round, token = first_rejected(run)
    chip(page, round, token).click()
    page.get_by_role("button", name="Deutsch").press("Enter")
    counted, coin = tally(run.rounds), run.rounds[round].drafted[token].u
    expect(page.locator("[data-figure=acceptance_length]")).to_have_text(german(f"{counted.acceptance_length:.2f}"))
    assert f"Die Münze fiel auf u = {german(f'{coin:.2f}')}: abgelehnt" in elements.said(page)
    assert page.evaluate("[document.documentElement.lang, document.body.className]") == ["de", "dark"]
    expect(page.get_by_role("button", name="English")).to_be_focused()
    each, share = counted.draft_seconds / counted.rounds, counted.draft_seconds / counted.seconds
    told = german(f"{each * 1000:.1f}\u00a0ms · {100 * share:.0f}\u202f%")
    assert page.locator("[data-chart='3'] .value").first.text_content() == told
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


def test_text_of_a_model_stays_text(open_file, open_page):
    rounds = (a_round("ar", 0, texts=(HOSTILE, HOSTILE, HOSTILE)), a_round("", 1, texts=("\ud800",)))
    page = open_file(a_run(rounds, prompt=HOSTILE, drafter=HOSTILE))
    assert page.locator("[part=prompt]").evaluate("node => node.textContent") == HOSTILE
    assert state(page, "text").startswith(HOSTILE * 2)
    assert page.locator("img, script[src]").count() == 0 and page.evaluate("window.hit ?? null") is None
    hostile = a_race(HOSTILE, HOSTILE, "\ud800")
    page = open_page(race_page(*hostile, compare(*hostile), "Abacus 9", "en"), reduced_motion="reduce")
    lanes = page.locator("specviz-race").evaluate("race => race.lanes")
    assert [lane["text"][: len(HOSTILE)] for lane in lanes] == [HOSTILE] * 2
    assert page.locator("img, script[src]").count() == 0 and page.evaluate("window.hit ?? null") is None


def a_race(*texts: str, prompt: str = "Once upon a time") -> tuple[Run, Run]:
    """A plain and a speculative run of the same greedy text."""
    words, greedy = texts or (" a", " b", " c"), SamplingParams(temperature=0)
    plain = a_run(rounds_of("", "", "", texts=words[:1]), prompt=prompt, sampling=greedy)
    return plain, a_run((a_round("aa", 0, texts=words),), prompt=prompt, sampling=greedy, drafter="eagle")


def test_the_file_of_a_race_replays_it_on_its_clock_in_every_language(open_page):
    look = {"viewport": {"width": 390, "height": 844}, "reduced_motion": "reduce", "color_scheme": "dark"}
    page = open_page(race_page(*a_race(), compare(*a_race()), "Abacus 9", "en"), **look)
    expect(page).to_have_title("specviz: a race")
    expect(page.locator("header")).to_contain_text("γ = 2 · greedy · seed 0 · plain passes · Abacus 9")
    faster = page.locator("specviz-race [part=speedup]").inner_text()
    assert faster.endswith("×") and float(faster[:-1]) == round(compare(*a_race())["speedup"], 2)
    page.locator("specviz-race").evaluate("race => race.seek(0.02)")
    page.locator("specviz-race [part=speed]").select_option("10× slower")
    lanes = page.locator("specviz-race").evaluate("race => race.lanes")
    page.get_by_role("button", name="Deutsch").press("Enter")
    race = page.locator("specviz-race")
    expect(race.locator("[part=clock]")).to_have_text("0,02\u202fs")
    expect(race.locator("[part=speed] option:checked")).to_have_text("10× langsamer")
    assert race.evaluate("race => [race.lanes, race.playing]") == [lanes, False]
    assert page.evaluate("document.body.className") == "dark" and violations(page) == []
    assert_no_sideways_scrolling(page)


def test_the_file_of_a_comparison_ranks_and_keeps_how_it_is_sorted(open_page):
    def row(mode, gamma=None, speedup=None):
        known = {"num_draft_tokens": gamma, "repeats": 2, "tokens_per_second": 100.0, "temperature": 1.0}
        return Row(title=mode, engine="specviz", mode=mode, rule=gamma and "token", speedup_measured=speedup, **known)

    rows = [row(HOSTILE), row("eagle", 2, 1.5), row("eagle", 4, 2.0)]
    table = contest_message(rows, phase="finished", text=HOSTILE, fraction=1, repeats=2)
    page = open_page(comparison_page(a_race(prompt=HOSTILE)[0], table, None, "de"), color_scheme="light")
    expect(page.locator("main > .prompt")).to_have_text(HOSTILE.replace("\u2028", " "))
    heads = page.locator("specviz-compare [part=table] tbody th")
    gammas = page.locator("specviz-compare tbody [data-column=num_draft_tokens]")
    expect(gammas).to_have_text(["4", "2", "—"])
    rule = words("de")("ways.rule_token")  # below the name
    assert heads.all_text_contents() == [f"★ EAGLE{rule}", f"EAGLE{rule}", HOSTILE]
    expect(page.locator("specviz-compare [part=map] tbody td")).to_have_text(["1,50×", "★ 2,00×"])
    page.locator("specviz-compare [data-sort=num_draft_tokens]").click()
    page.locator("specviz-compare [data-sort=num_draft_tokens]").click()
    page.get_by_role("button", name="English").click()
    expect(gammas).to_have_text(["2", "4", "—"])
    assert page.evaluate("window.hit ?? null") is None and violations(page) == []


def test_a_file_of_500_rounds_is_small_and_a_module_that_none_can_hold_is_refused(tmp_path, monkeypatch):
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
    monkeypatch.setattr("specviz.views.pages.WEB", tmp_path)
    (tmp_path / "page.js").write_text("export default function () {}\n")
    with pytest.raises(ValueError, match=r"page\.js"):
        bundle("page.js")


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(new_page):
    run = a_run((a_round("ar", 0, texts=(HOSTILE, " b", " c")),))
    page = new_page()
    page.set_content(f"<style>p {{ display: none; }}</style>{run._repr_html_()}")
    shown = page.frames[1].locator("specviz-run [part=prompt]")
    expect(shown).to_have_text("Once upon a time")
    assert page.evaluate("window.hit ?? null") is None
    assert len(repr(run)) < 60
