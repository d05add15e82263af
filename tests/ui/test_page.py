"""The page in a real browser, against the real app on the embedded pair: what is shown is what was measured."""

import json
import re
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from elements import element
from gradio_client import Client
from handmade import a_run, rounds_of
from on_page import (
    VIEW,
    assert_no_sideways_scrolling,
    await_arrival,
    boxes,
    choose_drafter,
    control,
    downloaded_page,
    downloaded_trace,
    expect_drafter,
    generate,
    order,
    set_control,
    settle,
    start,
    state,
    wait_for_rounds,
    wait_until_drawn,
)
from playwright.sync_api import Page, expect
from running import PATIENCE, wait_until

from specviz.records.metrics import tally
from specviz.records.prompts import PRESETS
from specviz.records.recordings import RECORDINGS
from specviz.records.runs import Run
from specviz.records.words import words
from specviz.ui.page import TABS
from specviz.views import run_messages as messages

RACE = element("race")
DASH = "—"


def open_trace(page: Page, content: bytes | str, name: str = "trace.json") -> None:
    content = content.encode() if isinstance(content, str) else content
    chooser = page.locator("input[type=file]:has(+ #open-run)")
    chooser.set_input_files({"name": name, "mimeType": "application/json", "buffer": content})


def open_run(page: Page, run: Run) -> None:
    open_trace(page, json.dumps(run.to_dict()))
    page.wait_for_function(f"text => {VIEW}.state === 'finished' && {VIEW}.text === text", arg=run.text)
    wait_until_drawn(page)


def chips(page: Page) -> list[dict]:
    """Every chip of the list, which holds those near its window only: scrolls through it."""
    return page.locator('specviz-run [part="rounds"]').evaluate(
        """async box => {
          const found = new Map();
          const frames = async (count) => { while (count--) await new Promise(requestAnimationFrame); };
          for (let top = 0; ; top += box.clientHeight / 2) {
            box.scrollTop = top;
            await frames(3);
            for (const node of box.querySelectorAll('button[data-round][data-index]'))
              found.set(`${node.dataset.round} ${node.dataset.index}`,
                        {...node.dataset, label: node.getAttribute('aria-label'), text: node.textContent});
            if (top >= box.scrollHeight - box.clientHeight) return [...found.values()];
          }
        }"""
    )


def number(page: Page, figure: str) -> float | None:
    """What a headline figure says: "2.67", "71 %", "1.84×" or a dash."""
    text = page.locator(f'[data-figure="{figure}"]').first.inner_text()
    return None if text == DASH else float(re.sub(r"[^\d.]", "", text))


def near(value: float | None, half: float = 0.0051):
    return None if value is None else pytest.approx(value, abs=half)


# A run, from the click to the finished text


def assert_shows(page: Page, run: Run) -> None:
    """Figures, text, rounds and chips on the page are those of the trace."""
    assert_figures_and_text(page, run)
    assert state(page, "rounds") == json.loads(messages.rounds_message("run", run.rounds, run.vocabulary))["rounds"]
    assert_chips(page, run)


def assert_figures_and_text(page: Page, run: Run) -> None:
    counts = tally(run.rounds)
    rate, speed = counts.acceptance_rate, counts.tokens_per_second
    assert number(page, "acceptance_length") == near(counts.acceptance_length)
    assert number(page, "acceptance_rate") == near(rate and 100 * rate, 0.51)
    assert number(page, "tokens_per_second") == near(speed, 0.51 if speed >= 99.5 else 0.051)
    held = state(page, "figures")
    assert (held["tokens"], held["target_passes"]) == (counts.tokens, counts.rounds)
    assert state(page, "text") == run.text
    assert page.locator('specviz-run [part="prompt"]').evaluate("node => node.textContent") == run.prompt.text
    shown = page.locator("specviz-run [data-token]").evaluate_all(
        "nodes => nodes.map(node => [node.textContent, node.dataset.kind])"
    )
    sources = [pair for one in run.rounds for pair in zip(one.pieces, messages.token_sources(one))]
    assert [tuple(word) for word in shown] == sources and "".join(text for text, _ in shown) == run.text


def assert_chips(page: Page, run: Run) -> None:
    shown = {(chip["round"], chip["index"]): chip for chip in chips(page)}
    assert len(shown) == sum(len(one.drafted) + 1 for one in run.rounds)
    for one in run.rounds:
        for index, token in enumerate(one.drafted):
            chip = shown[str(one.index), str(index)]
            assert chip["outcome"] == token.outcome
            assert token.outcome in chip["label"] and token.text.strip() in chip["text"]
            if token.u is not None:
                label = chip["label"].replace("−", "-")  # of a power of ten
                said = re.search(r"q ([\d.e+-]+), p ([\d.e+-]+), coin ([\d.e+-]+) against ([\d.e+-]+)", label)
                exact = (token.q, token.p, token.u, token.accept_prob)
                assert [float(text) for text in said.groups()] == [near(value) for value in exact]
        last = shown[str(one.index), "next"]
        assert last["kind"] == (one.next.kind if one.drafted else "plain")


def test_a_sampled_run_shows_exactly_what_its_trace_holds_and_so_does_the_opened_trace(page, tmp_path):
    set_control(page, "Temperature (0 is greedy)", 0.9)
    set_control(page, "Seed", 3)
    generate(page, new_tokens=48)
    run = downloaded_trace(page, tmp_path)
    assert (run.drafter, run.seed, run.sampling.temperature, run.pair.dtype) == ("draft_model", 3, 0.9, "bfloat16")
    assert run.prompt.text == PRESETS[0].prompt
    assert run.stop_reason == "length" and len(run.token_ids) == 48
    assert {token.outcome for one in run.rounds for token in one.drafted} == {"accepted", "rejected", "discarded"}
    assert_shows(page, run)
    assert state(page, "missing") == []
    for opened in (a_run(rounds_of("aaa", "ard")), run):
        open_run(page, opened)
        assert_shows(page, opened)
        expect(page.locator("specviz-run [part=recorded]")).to_have_text("Opened: trace.json")


def test_on_a_fresh_page_the_recording_s_files_are_there(page, tmp_path):
    assert downloaded_trace(page, tmp_path).to_dict() == RECORDINGS[0].load().to_dict()


def test_while_a_run_is_made_and_timed_nobody_is_given_the_last_one_s_files(page, tmp_path):
    set_control(page, "New tokens", 96)
    await_arrival(page, "#go")
    start(page)
    wait_for_rounds(page, 3)
    for one in ("#download-trace", "#download-page"):
        expect(page.locator(one)).to_be_disabled()
    settle(page)
    expect(page.locator("#download-trace")).to_be_enabled()
    run = downloaded_trace(page, tmp_path)
    assert len(run.token_ids) == 96 and len(run.rounds) == len(state(page, "rounds"))
    # A press that is refused leaves the run on the screen, and its files.
    set_control(page, "Seed", "")
    page.locator("#go").click()
    page.get_by_text("Enter a whole number.", exact=True).first.wait_for()
    expect(page.locator("#download-trace")).to_be_enabled()
    assert downloaded_trace(page, tmp_path) == run


#: As if the page had been left while it had not heard of the run's first round.
UNHEARD = """
  const left = JSON.parse(sessionStorage.getItem("specviz:left") ?? "null");
  const run = JSON.parse(sessionStorage.getItem("specviz:run") ?? "null");
  const messages = [{ kind: "left", run, text: "Nothing has begun." }];
  if (left && run) sessionStorage.setItem("specviz:left", JSON.stringify({ page: left.page, messages }));
"""


def test_a_run_that_had_begun_unheard_of_is_not_said_to_have_been_lost(new_page, page_url):
    page = new_page(heard={"console": lambda message: None}, script=UNHEARD)
    page.goto(page_url)
    page.wait_for_function(f"() => {VIEW}?.recorded && {VIEW}.view.drawn === {VIEW}.rounds.length")
    await_arrival(page, "#go")
    generate(page, new_tokens=16)
    page.reload()
    page.wait_for_function(f"() => {VIEW}?.state === 'finished' && !{VIEW}.recorded")
    page.wait_for_timeout(500)
    expect(page.locator('specviz-run [part="status"]')).not_to_contain_text("Nothing has begun")


def test_stop_and_a_reload_in_the_middle_of_a_run_keep_everything_so_far(new_page, page_url, tmp_path):
    errors = []
    page = new_page(heard={"console": lambda message: message.type == "error" and errors.append(message.text)})
    page.goto(page_url)
    page.wait_for_function(f"() => {VIEW}?.recorded && {VIEW}.view.drawn === {VIEW}.rounds.length")
    page.locator("#go").wait_for()
    set_control(page, "New tokens", 1024)
    await_arrival(page, "#go")
    places = boxes(page.locator("#go"), page.locator("#start-race"))
    start(page)
    expect(page.locator("#start-race")).to_be_disabled()
    # Stop takes the place of the button.
    assert boxes(page.locator("#stop"), page.locator("#start-race")) == places
    wait_for_rounds(page, 3)
    open_trace(page, json.dumps(RECORDINGS[0].load().to_dict()))
    page.get_by_text(words()("gallery.busy")).first.wait_for()
    text, kept = state(page, "text"), "sessionStorage.getItem('specviz:run')"
    run = page.evaluate(kept)
    page.reload()
    page.wait_for_function(f"() => {VIEW}?.state === 'finished' && !{VIEW}.recorded")
    errors.clear()  # what is broken off, Gradio reports in the console of the page that is being left
    assert page.evaluate(kept) == run
    assert state(page, "text").startswith(text) and len(state(page, "rounds")) < 1024
    expect(page.locator("#go")).to_be_enabled()
    assert len(downloaded_trace(page, tmp_path).rounds) == len(state(page, "rounds"))

    start(page)
    page.wait_for_function(f"() => {VIEW}.state === 'running'")  # until then the view shows the run before
    wait_for_rounds(page, 3)
    page.locator("#stop").press("Enter")
    settle(page)
    run = downloaded_trace(page, tmp_path)
    assert run.stop_reason == "stopped"
    assert len(run.rounds) >= 3 and len(run.token_ids) < 1024
    assert_figures_and_text(page, run)
    assert len(state(page, "rounds")) == len(run.rounds)
    expect(page.locator('specviz-run [part="status"]')).to_contain_text("The run was stopped")
    assert errors == []


def test_a_reload_keeps_the_last_runs_settings_and_the_tab_and_back_leads_to_the_tab_before(new_page, page_url):
    page, held = new_page(), []
    # A tab that is opened before the page knows its history stays open.
    page.route("**/gradio/history.js*", lambda route: held.append(route))
    page.goto(page_url)
    page.get_by_role("tab", name="Models", exact=True).click()
    page.wait_for_function(f"() => {VIEW}?.recorded")
    wait_until(lambda: held or page.wait_for_timeout(10))  # it may be asked for later than the run is there
    held[0].continue_()
    expect(page).to_have_url(re.compile("#models$"))
    expect(page.get_by_role("tab", name="Models", exact=True)).to_have_attribute("aria-selected", "true")
    page.unroute("**/gradio/history.js*")
    page.get_by_role("tab", name="Generate", exact=True).click()
    set_control(page, "Seed", 7)
    choose_drafter(page, "suffix")
    generate(page, new_tokens=8)
    text = state(page, "text")
    page.get_by_role("tab", name="Models", exact=True).click()
    page.get_by_role("tab", name="Compare", exact=True).click()
    expect(page).to_have_url(re.compile("#compare$"))
    page.reload()
    expect(page.get_by_role("tab", name="Compare", exact=True)).to_have_attribute("aria-selected", "true")
    frames = "[...document.querySelectorAll('[data-chart]')]"
    widths = f"{frames}.map(one => [one.clientWidth, one.querySelector('svg')?.clientWidth])"
    page.wait_for_function("document.querySelectorAll('[data-chart] svg').length >= 4")
    assert page.evaluate(widths)[0][0] == 0, "they are hidden"
    expect(control(page, "Seed")).to_have_value("7")
    expect_drafter(page, "suffix")
    for tab in ("Models", "Generate"):
        page.go_back()
        expect(page.get_by_role("tab", name=tab, exact=True)).to_have_attribute("aria-selected", "true")
    # Charts that were drawn in a hidden tab fit, and the run is there too, as far as it had come.
    page.wait_for_function(f"{widths}.every(([frame, drawn]) => frame && frame === drawn)")
    page.wait_for_function(f"text => {VIEW}.text === text", arg=text)
    # What a button opens is history too.
    page.locator("#start-race").click()
    expect(page).to_have_url(re.compile("#race$"))
    settle(page)


# The race


def race_state(page: Page, name: str):
    return page.evaluate(f"name => {RACE}[name]", name)


def run_race(page: Page, new_tokens: int) -> None:
    set_control(page, "New tokens", new_tokens)
    start(page, "#start-race")
    page.wait_for_function(f"() => {RACE}.state === 'race'")


@pytest.mark.parametrize("language", ["", "de"])
@pytest.mark.parametrize("width", [390, 560, 640, 760, 901, 1000])
def test_in_a_window_of_any_width_every_tab_is_there_and_found_by_its_link(visit, language, width):
    page = visit(language, viewport={"width": width, "height": 860})
    for name in TABS:
        page.evaluate("name => { location.hash = name; }", name)
        tab = page.locator(f"[role=tablist] [data-tab-id={name}]")
        expect(tab).to_have_attribute("aria-selected", "true")
        expect(tab).to_be_in_viewport(ratio=1)
    assert_no_sideways_scrolling(page)


def test_a_race_shows_the_runs_of_its_order_and_their_ratio(page, page_url):
    set_control(page, "Temperature (0 is greedy)", 0.8)
    set_control(page, "Seed", 5)
    run_race(page, 32)

    settle(page)
    page.evaluate(f"{RACE}.seek({RACE}.end)")

    lanes, comparison = race_state(page, "lanes"), race_state(page, "comparison")
    assert comparison["low"] < comparison["high"]
    low, high = (f"{comparison[end]:.2f}" for end in ("low", "high"))
    expect(page.locator("specviz-race [part=summary]")).to_contain_text(f"{low} to {high}")
    assert comparison["greedy"] is False and comparison["identical"] is None
    assert [lane["tokens"] for lane in lanes] == [32, 32]
    assert lanes[0]["passes"] == 32 > lanes[1]["passes"]
    assert "<title>specviz: a race</title>" in downloaded_page(page, "race")
    # The lanes are real runs: the same order through the API gives the same texts.
    client = Client(page_url, verbose=False)
    for lane, drafter in zip(lanes, ("plain", "draft_model")):
        trace = Run.from_dict(order(client, drafter=drafter, max_new_tokens=32, seed=5, temperature=0.8))
        assert (lane["text"], lane["passes"]) == (trace.text, len(trace.rounds))


# Dark and narrow


@pytest.mark.parametrize("language", ["", "de"])
def test_the_first_screen_of_a_projector_holds_what_a_class_needs(visit, language):
    # 1280 pixels wide, less a scroll bar that takes room of its own.
    page, say = visit(language, viewport={"width": 1264, "height": 720}), words(language or "en")
    for name in ("num_draft_tokens", "temperature"):
        expect(page.get_by_label(say(f"controls.{name}")).first).to_be_in_viewport(ratio=1)
    names = page.locator(".sv-drafting [data-testid=block-info]")
    heights = names.evaluate_all("names => names.map(one => one.offsetHeight)")
    assert len(heights) == 4 and max(heights) < 30, "no name takes two lines"
    expect(page.locator("#go")).to_be_in_viewport(ratio=1)
    go, *fields = boxes(*(page.locator(one) for one in ("#go", ".sv-prompt textarea", "#temperature")))
    assert all(box["y"] + box["height"] <= go["y"] for box in fields)
    for part in ('[part="figures"]', '[part="text"]', '.overview [data-index="0"]', '[part="transport"]'):
        expect(page.locator(f"specviz-run {part}").first).to_be_in_viewport(ratio=1)
    # The head is one line: no language's words push the page down.
    brand, chip = boxes(*(page.locator(one).first for one in (".sv-brand", ".sv-passes")))
    assert chip["y"] < brand["y"] + brand["height"]
    page.set_viewport_size({"width": 1280, "height": 640})
    assert_buttons_lie_over_no_control(page)


@pytest.mark.parametrize("language", ["", "de"])
@pytest.mark.parametrize("width, height", [(1280, 720), (390, 844)])
def test_a_race_is_in_one_window_with_its_button_and_its_result(visit, language, width, height):
    page = visit(language, viewport={"width": width, "height": height}, has_touch=width < 400)
    page.get_by_role("tab", name=words(language or "en")("race.tab")).click()
    page.wait_for_function(f"() => {RACE}?.built")
    long = [a_run(rounds_of(*rounds), prompt="Once upon a time") for rounds in ([""] * 128, ["aard"] * 40)]
    comparison = {"speedup": 1.5, "low": 1.4, "high": 1.6, "busy": True, "greedy": False, "identical": None}
    page.evaluate(f"race => {RACE}.receive(JSON.parse(race))", messages.race_message(*long, comparison))
    for lane in page.locator("specviz-race .lane").all():
        expect(lane).to_be_in_viewport(ratio=1)
    page.evaluate(f"{RACE}.pause(), {RACE}.seek({RACE}.end)")
    for part in ("play", "clock", "verdict", "speedup"):
        expect(page.locator(f"specviz-race [part={part}]")).to_be_in_viewport(ratio=1)
    if width > 400:
        for whole in ("#start-race", "specviz-race [part=summary]"):
            expect(page.locator(whole)).to_be_in_viewport(ratio=1)
    assert_no_sideways_scrolling(page)


#: Whether the buttons cover a point of a field inside the box that scrolls it.
COVERED = """() => {
  const inside = (a, b) => a.left < b.right && a.right > b.left && a.top < b.bottom - 1 && a.bottom > b.top + 1;
  const go = document.querySelector('.sv-go').getBoundingClientRect();
  const form = document.querySelector('.sv-form').getBoundingClientRect();
  const scrolls = getComputedStyle(document.querySelector('.sv-form')).overflowY === 'auto';
  if (scrolls) return inside(form, go) ? ['form'] : [];
  const fields = document.querySelectorAll('.sv-fields :is(input, textarea, button, select)');
  const seen = [...fields].filter(one => one.checkVisibility());
  return seen.filter(one => inside(one.getBoundingClientRect(), go)).map(one => one.outerHTML.slice(0, 80));
}"""


def assert_buttons_lie_over_no_control(page: Page) -> None:
    for button in ("#go", "#start-race"):
        expect(page.locator(button)).to_be_in_viewport(ratio=1)
    for fold in ("#fields-fold button", "[aria-controls=more-controls]"):
        if page.locator(fold).is_visible():
            page.locator(fold).click()
        for at in (0, 300, 10_000):
            page.evaluate("at => { scrollTo(0, at); document.querySelector('.sv-form').scrollTop = at; }", at)
            assert page.evaluate(COVERED) == []
            if page.viewport_size["width"] > 900:
                expect(page.locator("#go")).to_be_in_viewport(ratio=1)
        page.evaluate("() => { scrollTo(0, 0); document.querySelector('.sv-form').scrollTop = 0; }")
    assert_no_sideways_scrolling(page)


def test_in_a_low_window_what_unfolds_is_seen_and_the_buttons_stay(visit):
    page = visit(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    page.locator("[aria-controls=more-controls]").click()
    for part in ("Seed", "Min-p (0 is off)"):
        expect(page.get_by_label(part, exact=True)).to_be_in_viewport(ratio=1)
    for button in ("#go", "#start-race"):
        expect(page.locator(button)).to_be_in_viewport(ratio=1)


#: What is tapped and too low for a finger, in all of the page that is shown: its tag and its words.
LOW = """() => {
  const inside = one => (one.shadowRoot ? all(one.shadowRoot) : []);
  const all = root => [...root.querySelectorAll('*')].flatMap(one => [one, ...inside(one)]);
  const what = 'button, a[href], select, summary, textarea, input:not([type=checkbox], [type=radio])';
  const tapped = all(document.querySelector('.contain')).filter(one => one.matches(what));
  const shown = tapped.filter(one => one.checkVisibility() && !one.closest('.visually-hidden'));
  const low = shown.filter(one => one.getBoundingClientRect().height < 43.5);
  return low.map(one => `${one.tagName} ${one.className} ${one.textContent}`);
}"""


def test_on_a_phone_every_tab_fits_a_chip_opens_its_numbers_and_a_race_runs(visit):
    page = visit(color_scheme="dark", viewport={"width": 390, "height": 844}, has_touch=True)
    assert page.evaluate("() => document.body.classList.contains('dark')")
    for tab in reversed(page.get_by_role("tab").all()):
        tab.press("Enter")
        expect(tab).to_have_attribute("aria-selected", "true")
        assert_no_sideways_scrolling(page)
        assert page.evaluate(LOW) == []
    # The run comes first; what it is made with is one tap away, and gives way again to the next run.
    expect(page.locator("specviz-run [part=text]")).to_be_in_viewport(ratio=1)
    prompt = page.locator(".sv-prompt textarea")
    expect(prompt).to_be_hidden()
    assert_buttons_lie_over_no_control(page)  # which unfolds them
    expect(prompt).to_be_in_viewport(ratio=1)
    assert page.evaluate(LOW) == []
    generate(page, new_tokens=4)
    expect(prompt).to_be_hidden()
    expect(page.locator("specviz-run [part=text]")).to_be_in_viewport(ratio=1)
    open_run(page, a_run(rounds_of("aaa", "ard")))
    page.locator('specviz-run .list button[data-outcome="rejected"]').tap()
    picture = page.get_by_role("region", name="Picture of the round")
    for seen in (picture.locator(".closeup h3"), page.locator('specviz-run .list button[data-outcome="rejected"]')):
        expect(seen).to_be_in_viewport(ratio=1)
    expect(picture.locator(".closeup h3")).to_contain_text("w2")
    assert_no_sideways_scrolling(page)
    page.get_by_role("button", name="Whole round").tap()
    expect(picture.locator(".closeup")).to_be_hidden()
    run_race(page, 8)
    settle(page)
    assert_no_sideways_scrolling(page)


def test_a_damaged_or_foreign_trace_is_a_sentence_and_nothing_is_lost(page):
    run = a_run(rounds_of("aaa", "ard"))
    good = json.dumps(run.to_dict())
    open_run(page, run)
    files = {
        "not a JSON file": "once upon a time",
        "names no schema": '{"rounds": []}',
        "<img src=x onerror=window.pwned=1>": '{"schema": "<img src=x onerror=window.pwned=1>"}',
        "damaged at rounds.0.drafted.0.p": good.replace('"p": 0.25', '"p": NaN', 1),
        "damaged at rounds.0.next": good.replace('"next": {', '"previous": {', 1),
        "Round 1: kept must be": '{"tokens": [[1]], "kept": [2], "following": [3]}',
    }
    for sentence, content in files.items():
        open_trace(page, content)
        expect(page.locator("specviz-run [part=note]")).to_contain_text(sentence)
        assert_shows(page, run)
    assert page.evaluate("() => window.pwned") is None
    assert page.locator("specviz-run").locator("script, img, svg[onload], iframe").count() == 0
    # And the next good file is taken.
    other = a_run(rounds_of("r", "a"))
    open_run(page, other)
    assert_shows(page, other)
    # So are rounds of another engine, and a file that is dropped on the run.
    drop = """([selector, text]) => {
        const given = new DataTransfer();
        given.items.add(new File([text], "rounds.json"));
        const event = new DragEvent("drop", { dataTransfer: given, bubbles: true, composed: true, cancelable: true });
        document.querySelector(selector).dispatchEvent(event);
    }"""
    log = {"tokens": [[1, 2, 3]], "parents": [[-1, -1, 0]], "kept": [[1]], "following": [4]}
    log["texts"] = {"2": "so", "4": "!"}
    page.evaluate(drop, ["specviz-run", json.dumps(log)])
    page.wait_for_function(f"() => {VIEW}.text === 'so!'")
    page.evaluate(drop, ["specviz-run", "once"])
    expect(page.locator("specviz-run [part=note]")).to_contain_text("not a JSON file")
    expect(page.get_by_test_id("toast-text")).to_have_count(0)


# Bad input


LONG = "word " * 1500

BAD_INPUT = [
    ("Prompt", "", "Write a prompt first"),
    ("Prompt", LONG, re.compile(r"too long by 478.*1,501.*1,024")),
    ("Top-p (1 is off)", "0", "above 0 and at most 1"),
    ("Top-p (1 is off)", "2", "above 0 and at most 1"),
    ("Top-k (0 is off)", "-1", "0 (off) or more"),
    ("Top-k (0 is off)", "2.5", "whole number"),
    ("Min-p (0 is off)", "1.5", "between 0 (off) and 1"),
    ("Seed", "-1", "seed must be a whole number"),
    ("Seed", "1.5", "whole number"),
    ("Seed", "", "whole number"),
    ("Grammar", '{"type": "nope"}', "Invalid type: nope"),
]


#: Whether a refusal is shown in full within the card of its control, and the control with it.
INSIDE = """refusal => {
  const card = (refusal.closest('.form') ?? refusal.closest('.block')).getBoundingClientRect();
  const parts = [refusal, refusal.closest('.block').querySelector('input, textarea')];
  const boxes = parts.map(one => one.getBoundingClientRect());
  return boxes.every(one => one.left >= card.left && one.right <= card.right && one.bottom <= card.bottom)
    && refusal.scrollWidth <= refusal.clientWidth && getComputedStyle(refusal).whiteSpace !== 'nowrap';
}"""


def press_until_shown(button, sign):
    """A press that falls into the end of the event before it is ignored, as a double click should be: press again."""
    for _ in range(5):
        button.press("Enter")
        try:
            return expect(sign).to_be_visible(timeout=10_000)
        except AssertionError:
            continue
    expect(sign).to_be_visible()


def test_bad_input_is_a_sentence_at_its_control_and_nothing_is_lost(page):
    run = a_run(rounds_of("aaa", "ard"))
    open_run(page, run)
    for label, value, sentence in BAD_INPUT:
        field = control(page, label)
        before = field.input_value()
        field.fill(value)
        block = field.locator("xpath=ancestor::*[contains(concat(' ', @class, ' '), ' block ')][1]")
        refusal = block.locator(".validation-error").first
        press_until_shown(page.locator("#go"), refusal)
        expect(refusal).to_contain_text(sentence)
        assert refusal.evaluate(INSIDE), "in full, within its card"
        expect(page.locator("#go")).to_be_in_viewport(ratio=1)
        field.fill(before)
    assert_shows(page, run)
    # A slider that does not take a number says what it made of it.
    field, said = control(page, "New tokens"), page.locator(".block:has([aria-label$='New tokens']) .sv-corrected")
    for asked, held, sentence in (
        ("5000", "1024", "Maximum 1024 (you entered 5000)."),
        ("-3", "1", "Minimum 1 (you entered -3)."),
        ("", "1", "Not a number; kept 1."),
        ("64", "64", None),
    ):
        field.fill(asked)
        expect(said).to_have_count(0)
        field.press("Tab")
        expect(field).to_have_value(held)
        expect(said).to_have_text([sentence] if sentence else [])
    # Also for a press that leaves the focus where it was.
    field.fill("5000")
    page.evaluate("document.querySelector('#go').click()")
    expect(said).to_have_text("Maximum 1024 (you entered 5000).")
    page.locator("#stop").click()  # the run of so many tokens that it began
    settle(page)
    open_run(page, run)
    # On a phone a wrong value that is folded away is gone to, and named once.
    page.set_viewport_size({"width": 390, "height": 720})
    top_p = control(page, "Top-p (1 is off)")
    top_p.fill("3")
    top_p.blur()
    page.locator("#fields-fold button").click()
    expect(top_p).to_be_hidden()
    for _ in range(2):
        page.evaluate("window.scrollTo(0, 0)")
        refusal = page.locator(".sv-more div.validation-error")
        press_until_shown(page.locator("#go"), refusal)
        assert refusal.evaluate(INSIDE)
        expect(top_p).to_be_focused()
        expect(top_p).to_be_in_viewport()
        expect(page.get_by_text("Top-p must be above 0")).to_have_count(1)
        top_p.blur()
    top_p.fill("1")
    generate(page, new_tokens=4)
    expect(page.get_by_text("Top-p must be above 0")).to_be_hidden()
    assert len(state(page, "text")) > 0 and state(page, "prompt") == PRESETS[0].prompt


#: Counts what asks for a frame, from before the page's first script.
COUNTING = """
  window.framed = window.requestAnimationFrame.bind(window);
  window.asked = 0;
  window.requestAnimationFrame = (call) => { window.asked += 1; return window.framed(call); };
"""

#: How often a frame is asked for in thirty frames.
ASKED = """async () => {
  const before = window.asked;
  for (let i = 0; i < 30; i += 1) await new Promise(window.framed);
  return window.asked - before;
}"""


def test_no_choice_leaves_something_behind_that_asks_for_every_frame(browser, page_url):
    tab = browser.new_page()  # of its own: a script that is added stays for as long as a page does
    tab.set_default_timeout(1000 * PATIENCE)
    tab.add_init_script(COUNTING)
    tab.goto(page_url)
    settle(tab)
    for name in 3 * ("suffix", "draft_model"):
        choose_drafter(tab, name)
    # Gradio's own sign that it is loading asks for one in each frame for as long as the page is open.
    wait_until(lambda: tab.evaluate(ASKED) < 45)
    tab.close()


def test_a_link_to_the_page_is_shown_as_this_page_under_the_address_that_its_visitors_use(page_url):
    proxied = {"X-Forwarded-Host": "space.example", "X-Forwarded-Proto": "https"}
    for path, say in (("", words()), ("de", words("de"))):
        with urlopen(Request(page_url + path, headers=proxied)) as answer:
            text = answer.read().decode()
        head = dict(re.findall(r'<meta (?:property|name)="((?:og|twitter):\w+)" content="([^"]*)">', text))
        assert head["og:title"] == say("page.title") and head["og:description"] == say("page.preview")
        assert head["og:image"].startswith("https://space.example/") and head["twitter:card"] == "summary_large_image"
        assert text.count("og:") == len([name for name in head if name.startswith("og:")])
    with urlopen(page_url + urlsplit(head["og:image"]).path[1:]) as answer:
        picture = answer.read()
    assert picture.startswith(b"\x89PNG") and len(picture) <= 200_000


def test_proxies_are_asked_to_hold_no_rounds_back(page):
    with page.expect_response(re.compile("queue/data")) as rounds:
        start(page)
    assert rounds.value.headers["x-accel-buffering"] == "no"
    settle(page)
