"""What leaves the page: a moment as a picture or a clip, made in the browser from the record; and a run on paper."""

import re
from collections.abc import Callable

from elements import VIEW, element, feed, give, show_alone, state
from handmade import a_round, a_run, rounds_of
from playwright.sync_api import Browser, Page, expect

from specviz.records.metrics import compare
from specviz.views.run_messages import race_message

#: Notes what is written on a canvas.
NOTE_WRITING = """() => {
  const pen = CanvasRenderingContext2D.prototype, { fillText } = pen;
  window.written = [];
  pen.fillText = function (text, ...rest) { window.written.push(text); return fillText.call(this, text, ...rest); };
}"""

#: The film in a file, as a browser reads it: how long it is and how large.
READ_FILM = """async (bytes) => {
  const film = document.createElement("video");
  film.src = URL.createObjectURL(new Blob([Uint8Array.from(bytes)], { type: "video/webm" }));
  await new Promise((resolve, reject) => Object.assign(film, { onloadeddata: resolve, onerror: reject }));
  return { seconds: film.duration, size: [film.videoWidth, film.videoHeight] };
}"""


def moment(page: Page, name: str = "run") -> list[str]:
    """Opens the panel and returns what its picture says."""
    page.evaluate("window.written = []")
    page.locator(f"specviz-{name} [part=moment-open]").click()
    expect(page.locator("[part=moment] canvas")).to_be_visible()
    written = page.evaluate("window.written")
    page.keyboard.press("Escape")
    expect(page.locator("[part=moment]")).to_be_hidden()
    return written


def test_the_picture_shows_the_round_as_far_as_the_reader_is_and_models_words_as_text(show: Callable[..., Page]):
    texts = (" <b>one", "\n", "\x07", " end")
    page = show(a_run((a_round("", 0, texts=(" first",)), a_round("ard", 1, texts=texts))))
    page.evaluate(NOTE_WRITING)
    page.locator("[part=to_start]").click()
    for _ in range(2 + 3 + 1 + 1):  # the first round; then three tokens, the pass, the first verdict
        page.locator("[part=forward]").click()
    assert state(page, "place")["kind"] == "decide"
    early = moment(page)
    assert {"Once upon a time first", " <b>one", "·<b>one", "⏎", "␇", "✓ accepted", "p", "q"} <= set(early)
    assert not {"·end", " end", "✗ rejected", "↻ recovered", "Residual"} & set(early)
    page.locator("[part=to_end]").click()
    late = set(moment(page))
    assert {"·end", " end", "✗ rejected", "┄ discarded", "↻ recovered", "Residual", "specviz"} <= late
    assert any(text.startswith("u = ") for text in late) and any("γ = 3" in text for text in late)


def test_of_a_long_draft_the_picture_shows_where_it_ended_and_how_many_it_leaves_out(show: Callable[..., Page]):
    page = show(a_run(rounds_of(14 * "a" + "rd")))
    page.evaluate(NOTE_WRITING)
    written = moment(page)
    assert {"8 / 16", "·w15", "✗", "·w16", "·w17"} <= set(written) and "·w8" not in written


def test_the_clip_is_a_film_of_the_round_and_the_picture_a_file(show: Callable[..., Page], tmp_path):
    page = show(a_run(rounds_of("ar")), accept_downloads=True)
    page.locator("[part=moment-open]").click()
    with page.expect_download() as picture:
        page.locator("[part=moment-picture]").click()
    assert picture.value.suggested_filename == "specviz-round-1.png"
    assert picture.value.path().read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as clip:
        page.locator("[part=moment-clip]").click()
        expect(page.locator("[part=moment-told]")).to_contain_text("to go")
    assert clip.value.suggested_filename == "specviz-round-1.webm"
    film = page.evaluate(READ_FILM, list(clip.value.path().read_bytes()))
    assert film["size"] == [1280, 720] and film["seconds"] > 3
    expect(page.locator("[part=moment-told]")).to_have_text("The clip is saved.")


def test_a_browser_without_a_recorder_is_offered_the_picture_alone(browser: Browser, bare_home: str):
    with browser.new_context() as context:
        page = context.new_page()
        page.add_init_script("delete window.MediaRecorder")
        show_alone(page, bare_home, "run")
        page.locator("[part=moment-open]").click()
        expect(page.locator("[part=moment-told]")).to_have_text("There is nothing to share yet.")
        page.keyboard.press("Escape")
        feed(page, a_run(rounds_of("a")), "token")
        page.locator("[part=moment-open]").click()
        expect(page.locator("[part=moment-told]")).to_contain_text("cannot record clips")
        expect(page.locator("[part=moment-clip]")).to_be_hidden()
        expect(page.locator("[part=moment-picture]")).to_be_enabled()


def test_the_picture_of_a_race_stands_at_its_clock_and_keeps_the_result_for_the_end(alone: Callable[..., Page]):
    plain = a_run(rounds_of("", "", "", texts=(" a",)))
    speculative = a_run((a_round("aa", 0, texts=(" a", " b", " c")),))
    page = alone("race", reduced_motion="reduce")
    page.evaluate(NOTE_WRITING)
    give(page, "race", [race_message(plain, speculative, compare(plain, speculative))])
    page.evaluate(f"{element('race')}.seek(0.017)")
    early = " | ".join(moment(page, "race"))
    assert "1 tokens · 1 target passes" in early and "was faster" not in early
    page.evaluate(f"{element('race')}.seek({element('race')}.end)")
    late = " | ".join(moment(page, "race"))
    assert "3 tokens · 1 target passes" in late and "was faster" in late and " a b c" in late and "γ = 2 · " in late


def test_on_paper_stands_the_whole_run_and_the_page_is_as_it_was_afterwards(show: Callable[..., Page]):
    run = a_run(rounds_of(*["aard", ""] * 30))
    page = show(run, color_scheme="dark")
    page.locator("[part=to_start]").click()
    page.locator("[part=forward]").click()
    place = state(page, "place")
    page.evaluate(f"""() => addEventListener("beforeprint", () => {{
        const shadow = {VIEW}.shadowRoot;
        const count = (kind) => shadow.querySelectorAll(kind).length;
        window.paper = {{ rows: count(".round"), later: count(".later"),
          dark: document.querySelector(".dark") !== null }};
      }})""")
    sheets = len(re.findall(rb"/Type\s*/Page\b", page.pdf()))
    assert page.evaluate("window.paper") == {"rows": 60, "later": 0, "dark": False} and sheets > 2
    assert state(page, "place") == place and page.locator(".dark").count() == 1
    page.wait_for_function(f"() => {VIEW}.shadowRoot.querySelectorAll('.round').length < 60")
    page.emulate_media(media="print")
    for part in ("text", "rounds"):
        box = page.locator(f"specviz-run [part={part}]")
        assert box.evaluate("box => box.scrollHeight <= box.clientHeight"), part
    for part in ("transport", "picture"):
        expect(page.locator(f"specviz-run [part={part}]")).to_be_hidden()
    page.emulate_media(media="screen")
