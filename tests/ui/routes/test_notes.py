"""Lessons ready to teach: both languages agree, every link leads where it says, every number is of a recorded run."""

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest
from markdown_it import MarkdownIt
from on_page import GAMMA, VIEW, control, state
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specviz.records import links
from specviz.records.assets import LESSONS
from specviz.records.metrics import tally
from specviz.records.recordings import recording_named
from specviz.records.rules import LAB_RULES
from specviz.records.runs import DraftedToken, Round
from specviz.records.settings import SETTINGS, RunSettings
from specviz.records.words import LANGUAGES
from specviz.theory.formulas import expected_tokens
from specviz.ui.page import TABS
from specviz.ui.routes.notes import HOME, LENGTHS, as_html, notes_routes

NOTES = {
    (language, length): (LESSONS / language / f"{length}.md").read_text(encoding="utf-8")
    for language in LANGUAGES
    for length in LENGTHS
}

#: What a link may say beside a run's settings.
OTHERS = {"recording", "round", "token", "present", "predict", "start", "lab", "quiz"}


def links_of(markdown: str) -> list[str]:
    tokens = MarkdownIt("commonmark").parse(markdown)
    parts = [part for token in tokens for part in token.children or () if part.type == "link_open"]
    return [str(part.attrs["href"]) for part in parts]


def slides_of(notes: str) -> list[tuple[int, int, str, list[str]]]:
    """The first and the last minute of each slide, its text, and its links."""
    references = "\n".join(re.findall(r"^\[\w+\]: .*", notes, flags=re.M))
    parts = re.split(r"^## ", notes, flags=re.M)[1:]
    timed = [(match, part) for part in parts if (match := re.match(r"(\d+)–(\d+) min · ", part))]
    return [(int(match[1]), int(match[2]), part, links_of(f"{part}\n\n{references}")) for match, part in timed]


def asked_of(link: str) -> tuple[dict[str, str], str]:
    """The parameters of a link to the page, and the tab."""
    parts = urlsplit(link)
    return dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))), parts.fragment


@pytest.mark.parametrize("length", LENGTHS)
def test_slides_fill_their_minutes_and_are_the_same_in_every_language(length):
    plans = {}
    for language in LANGUAGES:
        slides, home = slides_of(NOTES[language, length]), HOME + ("" if language == "en" else language)
        begins, ends = [first for first, *_ in slides], [last for _, last, *_ in slides]
        assert [*begins, length] == [0, *ends] and all(first < last for first, last in zip(begins, ends))
        every = links_of(NOTES[language, length])
        assert all(link.startswith((f"{home}?", f"{home}#")) or link in map("{}.md".format, LENGTHS) for link in every)
        plans[language] = begins, [link.removeprefix(home) for link in every]
    first, *others = plans.values()
    assert all(other == first for other in others)


@pytest.mark.parametrize("length", LENGTHS)
def test_every_link_names_what_there_is(length):
    for link in filter(lambda link: link.startswith(HOME), links_of(NOTES["en", length])):
        asked, tab = asked_of(link)
        settings, errors = links.settings_of(asked)
        assert errors == [] and asked.keys() <= {*SETTINGS, *OTHERS} and tab in ("", *TABS), link
        assert asked.get("lab", "auto") in LAB_RULES and ("lab" not in asked or tab == "lossless")
        assert not settings or RunSettings.of(settings)
        if name := asked.get("recording"):
            round_ = recording_named(name).load().rounds[int(asked["round"]) - 1]
            assert asked.get("token", "next") == "next" or round_.drafted[int(asked["token"]) - 1]


# Numbers


def rounds_of(shown: list[str]) -> Iterator[tuple[Round, DraftedToken | None, dict[int, str]]]:
    """The rounds of recorded runs that a slide shows, the draft token that it points at, and the tokens' texts."""
    for asked, _ in map(asked_of, shown):
        if "recording" in asked:
            run = recording_named(asked["recording"]).load()
            round_ = run.rounds[int(asked["round"]) - 1]
            at = asked.get("token", "next")
            yield round_, None if at == "next" else round_.drafted[int(at) - 1], run.vocabulary


def quoted(text: str, label: str, number: str = r"\d[.,]\d+") -> list[str]:
    return [found.replace(",", ".") for found in re.findall(rf"(?<![/\w] ){label} ({number})", text)]


@pytest.mark.parametrize(("language", "length"), NOTES)
def test_probabilities_and_coins_on_a_slide_are_those_of_the_tokens_it_shows(language, length):
    for *_, text, shown in slides_of(NOTES[language, length]):
        tokens = [token for _, token, _ in rounds_of(shown) if token and token.u is not None]
        true = {
            "p =": {f"{token.p:.2f}" for token in tokens} | {"0"},
            "q =": {f"{token.q:.2f}" for token in tokens},
            "u =": {f"{token.u:.2f}" for token in tokens},
            "p / q =": {f"{min(1, token.p / token.q):.2f}" for token in tokens},
        }
        for label, values in true.items():
            assert set(quoted(text, label)) <= values, (text[:40], label)
        rows = [(round_.top, texts) for round_, _, texts in rounds_of(shown)]
        known = {
            (texts[id].strip(), f"{p:.2f}", f"{dict(row.q or ()).get(id, 0):.2f}")
            for top, texts in rows
            for row in top
            for id, p in row.p
        }
        for token, p, q in re.findall(r"‹(\S+)›[^‹]*? (\d[.,]\d\d) − (\d[.,]\d\d)", text):
            assert (token, p.replace(",", "."), q.replace(",", ".")) in known


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_residual_that_is_worked_by_hand_is_the_recorded_one(language):
    [(_, _, text, shown)] = [slide for slide in slides_of(NOTES[language, 45]) if slide[0] == 13]
    (round_, token, texts), *_ = rounds_of(shown)
    row = round_.top[token.parent + 1]
    q, residual = dict(row.q), dict(row.residual)
    ids = {texts[id].strip(): id for id, _ in row.p}
    table = [line.replace(",", ".").split() for line in text.splitlines() if re.match(r"    \S+ .*\d$", line)]
    *named, others, whole = table
    for name, *cells in named:
        p, left = dict(row.p)[ids[name]], max(0, dict(row.p)[ids[name]] - q[ids[name]])
        share = residual[ids[name]] if left else 0
        zeros = "0", "0"
        assert cells == [f"{p:.4f}", f"{q[ids[name]]:.4f}", *((f"{left:.4f}", f"{share:.3f}") if left else zeros)]
    likeliest, shares = ids[named[0][0]], [float(cells[-1]) for cells in named]
    total = (dict(row.p)[likeliest] - q[likeliest]) / residual[likeliest]
    assert len(named) == 5 and whole[1:] == [f"{total:.4f}", "1"]
    assert list(map(float, others[1:])) == pytest.approx([total * (1 - sum(shares)), 1 - sum(shares)], abs=5e-4)
    drawn = f"{100 * round_.next.prob:.0f} %"
    assert f"‹{round_.next.text.strip()}›" in text and drawn in text


@pytest.mark.parametrize(("language", "length"), NOTES)
def test_counts_in_the_notes_are_those_of_the_recorded_runs(language, length):
    sampled, mismatch = (tally(recording_named(name).load().rounds) for name in ("sampled", "mismatch"))
    pairs = {(run.accepted, run.judged) for run in (sampled, mismatch)}
    pairs |= {(sampled.accepted_at[3], sampled.rounds), (sampled.accepted_at[3], sampled.judged_at[3])}
    found = re.findall(r"\b(\d+) (?:of|von) (\d+)\b", NOTES[language, length])
    assert {(int(kept), int(judged)) for kept, judged in found} <= pairs
    alpha = sampled.accepted / sampled.judged
    assert set(quoted(NOTES[language, length], "α =")) <= {f"{alpha:.2f}"}
    known = {f"{sampled.acceptance_length:.2f}", f"{mismatch.acceptance_length:.1f}", "1.5"}  # the last: a temperature
    known |= {f"{expected_tokens(alpha, gamma):.2f}" for gamma in (2, 4, 16)}
    known |= {f"{recording_named('sampled').load().measured.ratio:.2f}"}
    found = re.findall(r"(?<![\d.,])[1-9][.,]\d\d?\b", NOTES[language, length].partition("\n[window]")[0])
    assert {number.replace(",", ".") for number in found} <= known


# The page that shows them


@pytest.fixture(scope="module")
def client():
    return TestClient(Starlette(routes=notes_routes("none")))


def test_links_lead_to_the_page_that_shows_the_notes_and_into_one_window(client):
    both = ("/lesson/45", "../?", "../de/lesson/45"), ("/de/lesson/45", "../../de?", "../../lesson/45")
    for address, root, other in both:
        shown = client.get(address).text
        assert f'<html lang="{address[1:3] if root.count("/") > 1 else "en"}">' in shown and HOME not in shown
        opened = re.findall(r'<a href="([^"]+)" target="specviz">', shown)
        assert len(opened) > 15 and all(link.startswith((root, root.replace("?", "#"))) for link in opened)
        assert 'href="90"' in shown and f'href="{other}"' in shown and "noopener" not in shown
    assert client.get("/lesson/45").text != client.get("/lesson/90").text
    assert client.get("/lesson/11").status_code == client.get("/fr/lesson/45").status_code == 404


def test_notes_are_text():
    shown = as_html(f"<b>x</b> [a]({HOME}?a=1&b=<2>) [b](45.md)", "../")
    assert "&lt;b&gt;" in shown and 'href="45"' in shown and "<2" not in shown


# What they open


def shows(page: Page, link: str) -> None:
    """Waits until the page shows what the link says."""
    asked, tab = asked_of(link)
    if name := asked.get("recording"):
        page.wait_for_function(f"name => {VIEW}?.share?.recording === name", arg=name)
        shows_round(page, asked)
    if links.settings_of(asked)[0]:
        expect(page.locator(f"[data-tab-id={tab}][aria-selected=true]").first).to_be_attached()
        expect(control(page, GAMMA)).to_have_value(asked["num_draft_tokens"])
        assert state(page, "recorded")  # nothing was started
    if rule := asked.get("lab"):
        expect(page.locator(f".sv-lab-rules input[value={rule}]")).to_be_checked()
    if "quiz" in asked:
        expect(page.locator("specviz-quiz dialog")).to_be_visible()


def shows_round(page: Page, asked: dict[str, str]) -> None:
    view, first = page.locator("specviz-run [part=view]"), int(asked["round"]) - 1
    if asked.get("predict") == "1":
        expect(view).to_have_attribute("data-predicting", "")
        assert state(page, "place")["stage"] == 0 or state(page, "place")["round"] == first - 1
    else:
        page.wait_for_function(f"() => {VIEW}.pinned")
        spot, token = state(page, "pinned"), asked.get("token")
        assert spot["round"] == first
        assert token is None or spot["index"] == (token if token == "next" else int(token) - 1)
        expect(page.locator("specviz-run [part=picture]")).to_contain_text("u = ")  # how its coin came up
    expect(page.locator("specviz-run [part=presentation]")).to_be_visible(visible="present" in asked)


def test_every_link_of_a_lesson_opens_in_one_window_on_a_fresh_page_at_what_it_says(new_page, page_url):
    speaker = new_page(watches=True)
    speaker.goto(f"{page_url}lesson/10")
    slides = speaker.locator("a[target=specviz]")
    window = None
    for slide, link in zip(slides.all(), links_of(NOTES["en", 10]), strict=True):
        if window is None:
            with speaker.expect_popup() as opened:
                slide.click()
            window = opened.value
        else:
            with window.expect_navigation():
                slide.click()
        assert urlsplit(window.url).query == urlsplit(link).query
        shows(window, link)
        expect(speaker.locator("[data-shown]")).to_have_text(slide.inner_text())
    assert speaker.context.pages == [speaker, window]
    window.close()
