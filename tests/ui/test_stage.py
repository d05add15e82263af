"""The Generate tab as its reader finds it: one stage in a projector's window, with motion, and nothing that jumps."""

from dataclasses import replace

import pytest
from elements import VIEW, feed
from handmade import a_round, a_run
from on_page import boxes
from playwright.sync_api import Page, expect

from specviz.records.prompts import PRESETS, SEED, TEMPERATURE
from specviz.records.recordings import RECORDINGS
from specviz.records.settings import RunSettings

PROJECTOR = {"width": 1280, "height": 720}

#: How far things that nobody touched have jumped: https://web.dev/articles/cls.
SHIFTS = """if (!window.shifts) new PerformanceObserver((list) => {
  for (const { value, startTime, hadRecentInput, sources } of list.getEntries()) {
    const moved = sources.map(({ node }) => node?.className ?? node?.nodeName);
    if (!hadRecentInput) window.shifts.push({ value, startTime, moved });
  }
}).observe({ type: 'layout-shift', buffered: true });
window.shifts ??= [];"""

#: What of the stage is not wholly inside the window, or cut inside its own box.
OUTSIDE = f"""() => {{
  const shadow = {VIEW}.shadowRoot;
  const parts = ['.figures', '[part=text-card]', '[part=picture]', '.caption p', '[part=transport]', '.table .chosen']
    .flatMap((name) => [...shadow.querySelectorAll(name)]);
  const nodes = [...parts, ...document.querySelectorAll('#go, .sv-drafting')].filter((node) => node.offsetParent);
  const within = (at, top, bottom) => at.height > 0 && at.top >= top && at.bottom <= bottom + 0.5;
  return nodes.filter((node) => {{
    const box = node.closest('.screen')?.getBoundingClientRect() ?? {{ top: 0, bottom: innerHeight }};
    return !within(node.getBoundingClientRect(), box.top, Math.min(box.bottom, innerHeight));
  }}).map((node) => `${{node.className || node.id}} ${{node.getBoundingClientRect().bottom}}`);
}}"""

#: Headline figures of which nobody sees what they are of.
NAMELESS = f"""() => {{
  const seen = (node) => node.textContent && node.checkVisibility({{ visibilityProperty: true }});
  return [...{VIEW}.shadowRoot.querySelectorAll('.figure')]
    .filter((figure) => ![...figure.querySelectorAll('span:not(.between)')].some(seen))
    .map((figure) => figure.innerText);
}}"""

#: The legend's words that reach out of the picture's card, or into the picture.
OVER_OTHERS = f"""() => {{
  const shadow = {VIEW}.shadowRoot, place = (name) => shadow.querySelector(name).getBoundingClientRect();
  const begin = place('.frame > .picture').top, end = place('.frame > .picture .screen').top;
  return [...shadow.querySelectorAll('.steer .legend *')].map((word) => [word.innerText, word.getBoundingClientRect()])
    .filter(([, at]) => at.height && (at.top < begin || at.bottom > end)).map(([text]) => text);
}}"""


#: A run is being shown, and its first round is over; so are others where a page on a busy machine is seldom looked at.
FIRST_IS_OVER = f"() => {VIEW}?.view?.drawn > 0 && !({VIEW}.place?.round < 1)"


def assert_little_moved(page: Page) -> None:
    shifts = page.evaluate("window.shifts")
    assert sum(shift["value"] for shift in shifts) <= 0.1, [shift for shift in shifts if shift["value"] > 0.005]


@pytest.mark.parametrize(("width", "height"), [(390, 844), (768, 1024)])
def test_little_moves_while_the_page_opens_on_a_phone_and_a_tablet(visit, width, height):
    page = visit("de", viewport={"width": width, "height": height}, watches=True, script=SHIFTS)
    page.wait_for_function(FIRST_IS_OVER)
    assert_little_moved(page)


def test_on_a_tablet_figures_have_names_and_the_legend_lies_over_nothing(visit):
    page = visit("de", viewport={"width": 550, "height": 1024}, watches=True)
    page.wait_for_function(FIRST_IS_OVER)
    for at_end in (False, True):
        if at_end:
            page.evaluate(f"{VIEW}.shadowRoot.querySelector('[part=to_end]').click()")
            page.wait_for_function(f"() => !{VIEW}.shadowRoot.querySelector('.figure[data-scope]')")
        for width in (550, 640, 720, 768, 900):
            page.set_viewport_size({"width": width, "height": 1024})
            assert page.evaluate(NAMELESS) == [] and page.evaluate(OVER_OTHERS) == [], (width, at_end)


@pytest.mark.parametrize("language", ["", "de"])
def test_all_of_the_stage_is_in_a_projectors_window_and_nothing_has_jumped(visit, language):
    page = visit(language, viewport=PROJECTOR, watches=True, script=SHIFTS)
    page.wait_for_function(FIRST_IS_OVER)
    assert page.evaluate(OUTSIDE) == []
    assert_little_moved(page)
    page.locator("#go").click()
    page.wait_for_function(f"() => !{VIEW}.recorded && ({FIRST_IS_OVER})()")
    assert page.evaluate(OUTSIDE) == []
    page.locator('[part="to_end"]').click()
    page.wait_for_function(f"() => {VIEW}.place === null")
    assert page.evaluate(OUTSIDE) == []


def test_the_recording_that_opens_the_page_is_what_its_form_would_make():
    run = RECORDINGS[0].load()
    settings = RunSettings(PRESETS[0].prompt)
    assert (run.prompt.text, run.sampling.temperature, run.seed) == (PRESETS[0].prompt, TEMPERATURE, SEED)
    assert (run.drafter, run.num_draft_tokens, run.rule) == ("draft_model", settings.num_draft_tokens, "token")


#: The tokens of the picture that are not seen whole.
CUT = f"""() => [...{VIEW}.shadowRoot.querySelectorAll('.overview :is(.drafted, .drawn) .w')]
  .filter((node) => node.checkVisibility() && node.scrollWidth > node.clientWidth + 1)
  .map((node) => node.textContent)"""


#: Moves the slider to a round's end; where the reader stands then, and once that is drawn. Nothing here looks again and
#: again: a page on a busy machine was seen to have no frame to look in for half a minute.
GO_TO = f"""async (scrub, round) => {{
  scrub.value = round + 1;
  scrub.dispatchEvent(new Event('input'));
  const at = {VIEW}.place;
  await new Promise(requestAnimationFrame);
  return at;
}}"""


def go_to(page: Page, round: int) -> None:
    assert page.locator("[part=scrub]").evaluate(GO_TO, round)["round"] == round


@pytest.mark.parametrize("presented", [False, True])
@pytest.mark.parametrize("height", [720, 860])
def test_no_token_of_a_usual_draft_is_cut_nor_the_one_that_comes_of_it(visit, height, presented):
    page = visit(viewport={"width": 1280, "height": height})
    if presented:
        page.keyboard.press("p")
        page.locator("[part=presentation]").wait_for()
    for one in RECORDINGS[0].load().rounds:
        go_to(page, one.index)
        assert page.evaluate(CUT) == []


@pytest.mark.parametrize("token", [" beautiful", " everything"])
def test_a_long_token_that_is_drawn_is_seen_whole(visit, token):
    page = visit(viewport={"width": 1280, "height": 860})
    feed(page, a_run((a_round("ardd", texts=(" and", " high", ",", " and", token)),)), "token")
    expect(page.locator(".overview .drawn .w")).to_have_text(token.replace(" ", "·"))
    assert page.evaluate(CUT) == []


#: A table that is wider than its place, words that are wider than their box, and a legend over the table.
CRAMPED = f"""() => {{
  const shadow = {VIEW}.shadowRoot, box = (node) => node.getBoundingClientRect();
  const table = shadow.querySelector('.overview .table');
  const leaves = (node) => box(node).right > box(node.closest('.piece')).right - 1;
  const words = [...table.querySelectorAll('.verdict, .w, .m')]
    .filter((node) => leaves(node) || node.scrollWidth > node.clientWidth + 1).map((node) => node.textContent);
  const legend = box(shadow.querySelector('.steer .legend')).bottom > box(table).top + 1;
  return [table.scrollWidth > table.clientWidth && 'table', legend && 'legend', ...words].filter(Boolean);
}}"""


#: Where u of the draw stands: over the name of its piece or the token that was drawn. How many lines the legend takes.
OVER_U = f"""() => {{
  const shadow = {VIEW}.shadowRoot, box = (node) => node.getBoundingClientRect();
  const piece = [...shadow.querySelectorAll('.overview .next')].at(-1), u = box(piece.querySelector('.mark'));
  return [...piece.querySelectorAll('.stage, .w')].filter((node) => {{
    const at = box(node);
    return at.left < u.right && u.left < at.right && at.top < u.bottom && u.top < at.bottom;
  }}).map((node) => node.textContent);
}}"""
LINES = f"new Set([...{VIEW}.shadowRoot.querySelectorAll('.steer .legend > *')].map((one) => one.offsetTop)).size"


@pytest.mark.parametrize("language", ["", "de"])
def test_the_legend_is_one_line_and_u_stands_clear_of_words_wherever_it_falls(visit, language):
    page = visit(language, viewport=PROJECTOR)
    for width, height in ((1280, 720), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        assert width < 520 or page.evaluate(LINES) == 1
        for one in RECORDINGS[0].load().rounds:
            go_to(page, one.index)
            assert page.evaluate(OVER_U) == [], (width, one.index)


@pytest.mark.parametrize("language", ["", "de"])
def test_a_round_has_room_on_phones_in_half_a_window_and_on_tablets(visit, language):
    page = visit(language)
    for one in (RECORDINGS[0].load().rounds[0], RECORDINGS[0].load().rounds[7]):  # a rejection; four accepted
        go_to(page, one.index)
        for width in (360, 390, 580, 640, 720, 800, 901, 1000, 1100, 1200):
            page.set_viewport_size({"width": width, "height": 860})
            page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            assert page.evaluate(CRAMPED) == [], width


@pytest.mark.parametrize("language", ["", "de"])
def test_a_question_of_a_class_with_five_long_answers_is_in_a_projectors_window(visit, language):
    page = visit(language, viewport=PROJECTOR)
    one = a_round("r", texts=(" everything", " extraordinarily"))
    long = tuple((99 + i, 0.4 - i / 10) for i in range(4))
    top = (replace(one.top[0], residual=long), *one.top[1:])
    texts = {id: f" extraordinarily{id}" for id, _ in long}
    page.keyboard.press("p")
    page.locator("[part=wall-open]").click()
    expect(page.locator("[part=wall-link]")).to_contain_text("/join")
    page.keyboard.press("Escape")
    run = a_run((replace(one, top=top),))
    feed(page, replace(run, vocabulary=run.vocabulary | texts), "token")
    answers, bar = page.locator("[part=options] .go"), page.locator("[part=transport]")
    while page.locator("[part=options] .token").count() < 4:
        if answers.count():
            answers.last.click()
        page.keyboard.press("ArrowRight")
        page.evaluate("() => new Promise(requestAnimationFrame)")
    for presented in (True, False):
        page.locator("[part=presentation]").evaluate("(node, yes) => yes || node.close()", presented)
        for counted in (False, True):
            if counted:
                expect(answers.first).to_have_attribute("data-votes", "0")
            at, *places = boxes(bar, *answers.all())
            tops = {round(box["y"]) for box in places}
            assert len(tops) == 1 and at["y"] + at["height"] <= PROJECTOR["height"] + 0.5, (presented, counted)
    assert page.evaluate(OUTSIDE) == []
