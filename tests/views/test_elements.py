"""The page's elements on a page without Gradio: words and messages in as properties, events out."""

import json
import posixpath
import re
import urllib.error
import urllib.request

import pytest
from elements import ELEMENTS, VIEW, element, give, show_alone
from handmade import a_round, a_run
from playwright.sync_api import Page, expect

from specviz.bench.contest import Row
from specviz.records.assets import WEB
from specviz.records.words import LANGUAGES, words
from specviz.ui.routes.web_files import ADDRESS, FILES, TYPES
from specviz.views import run_messages as messages
from specviz.views.tab_messages import contest_message

ROUNDS = tuple(a_round(word, index) for index, word in enumerate(("ard", "aa", "r", "aard")))

#: What a model may write, and what would happen if any of it were taken for code or markup.
HOSTILE = "${window.hit = 1} <script>window.hit = 1</script> {{window.hit}} <img src=x onerror='window.hit = 1'>"


def hear(page: Page, *events: str) -> None:
    """Keeps the details of these events, wherever on the page they are fired."""
    page.evaluate(
        """events => {
          window.heard = [];
          for (const type of events) document.addEventListener(type, ({ detail }) => {
            window.heard.push([type, JSON.parse(JSON.stringify(detail ?? null))]);
          });
        }""",
        list(events),
    )


def heard(page: Page, event: str) -> list:
    return [detail for type, detail in page.evaluate("window.heard") if type == event]


def run_of() -> list[str]:
    run = a_run(ROUNDS)
    start = {"prompt": "Once", "drafter": "Draft model", "num_draft_tokens": 4, "greedy": False}
    return [
        messages.message("start", **{"run": "run", "settings": ""} | start),
        messages.rounds_message("run", run.rounds, run.vocabulary),
        messages.end_message("run", total=len(ROUNDS), reason="It ended."),
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_run_is_shown_and_told_to_the_page_around_it_and_is_busy_until_its_speedup_has_come(alone, scheme):
    page = alone("run", color_scheme=scheme)
    status = page.locator('specviz-run [part="status"]')
    hear(page, "specviz-finished")
    assert not page.evaluate(f"{VIEW}.busy")
    start, rounds, end = run_of()
    give(page, "run", [start])
    expect(status).to_contain_text("Reading the prompt")
    more = messages.end_message("run", total=len(ROUNDS), reason="It ended.", more=True)
    for told, busy in ((rounds, True), (more, True), (end, False)):
        give(page, "run", [told])
        assert page.evaluate(f"{VIEW}.busy") == busy
    expect(status).to_have_text("It ended.")
    expect(page.locator("specviz-run [data-round='3'] .chip").last).to_be_attached()
    finished = heard(page, "specviz-finished")[-1]
    assert finished["run"] == "run" and len(finished["rounds"]) == len(ROUNDS)
    assert finished["text"] == page.evaluate(f"{VIEW}.text")
    # What the browser draws itself is as dark as the page.
    for of in ("html", "specviz-run select"):
        drawn = page.locator(of).first.evaluate("node => getComputedStyle(node).colorScheme")
        assert drawn == ("dark" if scheme == "dark" else "normal")


def test_rounds_that_were_lost_are_asked_for_and_filled_in(alone):
    page = alone("run")
    hear(page, "specviz-ask-missing")
    start, _, end = run_of()
    vocabulary = a_run(ROUNDS).vocabulary
    give(page, "run", [start, messages.rounds_message("run", ROUNDS[2:], vocabulary)])
    assert [(one["run"], one["first"], one["count"]) for one in heard(page, "specviz-ask-missing")] == [("run", 0, 2)]
    expect(page.locator("specviz-run [part=note]")).not_to_be_empty()
    assert page.evaluate(f"{VIEW}.missing") == [0, 1]
    # Whoever knows the rounds answers the event itself.
    page.evaluate(
        """answer => document.addEventListener('specviz-ask-missing', (event) => {
          setTimeout(() => event.detail.answer([JSON.parse(answer)]));
        })""",
        messages.rounds_message("again", ROUNDS[:2], vocabulary),
    )
    again = [one.replace('"run":"run"', '"run":"again"') for one in (start, end)]
    give(page, "run", [again[0], messages.rounds_message("again", ROUNDS[2:], vocabulary), again[1]])
    page.wait_for_function(f"() => {VIEW}.finished")
    assert page.evaluate(f"{VIEW}.missing") == []
    expect(page.locator("specviz-run [part=note]")).to_be_hidden()


def test_properties_set_before_the_element_is_defined_are_taken(alone):
    page = alone("run")
    text = page.evaluate(
        """async message => {
          const late = document.createElement('specviz-race');
          late.words = new Proxy({}, { get: (_, key) => String(key), has: () => true });
          late.message = JSON.parse(message);
          document.body.append(late);
          await import('/race/element.js');
          return [late.built, late.state];
        }""",
        json.dumps({"kind": "phase", "text": "Measuring", "fraction": 0.5}),
    )
    assert text == [True, "measuring"]


def a_race(comparison: dict, prompt: str = HOSTILE) -> str:
    lane = {"pieces": [" a", " b", " c"], "tokens": 3, "label": "Draft model", "tokens_per_second": 9.25}
    plain = {"counts": [1, 1, 1], "times": [0.1, 0.25, 0.3], "sources": "ppp", "target_passes": 3}
    lanes = [lane | plain, lane | {"counts": [2, 1], "times": [0.1, 0.2], "sources": "aab", "target_passes": 2}]
    race = {"kind": "race", "prompt": prompt, "lanes": lanes, "comparison": comparison, "passes": "plain"}
    return json.dumps(race)


def test_a_race_replays_what_it_is_given(alone):
    page, comparison = alone("race"), {"speedup": 1.5, "greedy": True, "identical": True, "parting": None}

    def raced(*at: float, **known) -> None:
        give(page, "race", [a_race(comparison | known)])
        page.evaluate(f"{element('race')}.pause()")
        for one in at:
            page.evaluate(f"at => {element('race')}.seek(at)", one)

    result = page.locator('specviz-race [part="summary"]')
    raced(0.25)
    expect(result).to_be_hidden()  # nobody learns who won before it is run
    raced(1)
    expect(page.locator('specviz-race [part="speedup"]')).to_have_text("1.50×")
    raced(1, 0, 1)
    expect(result).to_be_visible()
    lanes = page.evaluate(f"{element('race')}.lanes")
    assert [lane["tokens"] for lane in lanes] == [3, 3]
    for name, lane in zip(("plain", "speculative"), lanes):  # what the lanes show is what they hold
        card = page.locator(f'specviz-race [data-lane="{name}"]')
        assert card.locator('[part="tokens"]').evaluate("node => node.textContent") == lane["text"] == " a b c"
        assert card.locator('[data-count="tokens"]').inner_text() == "3"
        assert card.locator('[data-count="target_passes"]').inner_text() == str(lane["passes"])
        assert card.locator('[data-count="tokens_per_second"]').inner_text() != "—"
    assert page.locator("specviz-race .prompt").first.inner_text() == HOSTILE
    assert page.evaluate("window.hit ?? null") is None
    crowns = page.locator("specviz-race [part=winner][data-on]")
    expect(crowns).to_have_count(1)
    # A trace of an earlier version has no interval.
    interval = page.locator('specviz-race [data-figure="interval"]')
    expect(interval).to_have_text("")
    raced(1, low=1.42, high=1.58, busy=True)
    expect(interval).to_have_text("1.42 to 1.58, 90 %")
    expect(result).to_contain_text("Other programs were using the processor")
    # Where the interval does not decide, its range is said in words: no figure, no winner.
    raced(1, speedup=1.5, low=0.8, high=2.1)
    expect(result.locator("[part=verdict]")).to_contain_text("0.80 to 2.10 times as fast: not decided")
    expect(page.locator('specviz-race [part="speedup"]')).to_have_count(0)
    expect(crowns).to_have_count(0)
    raced(1, speedup=None)
    expect(result).to_contain_text("too short to time")


def test_a_race_runs_slower_pauses_and_goes_on_to_its_end(alone):
    page, race = alone("race"), element("race")
    give(page, "race", [a_race({"speedup": 1.5, "greedy": True, "identical": True, "parting": None})])
    speed = page.get_by_role("combobox", name="Replay speed")
    speed.select_option("50× slower")
    assert page.evaluate(f"{race}.slow") == 50
    page.evaluate(f"{race}.seek({race}.end)")
    page.get_by_role("button", name="Replay").click()
    page.wait_for_function(f"() => {race}.clock > 0 && {race}.playing")
    assert page.evaluate(f"{race}.clock < {race}.end")
    page.get_by_role("button", name="Pause").click()
    assert not page.evaluate(f"{race}.playing")
    speed.select_option("real speed")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function(f"() => {race}.lanes.every(lane => lane.done)")


def test_a_comparison_ranks_what_it_is_given_and_folds_what_loses_into_a_line(alone):
    page = alone("compare")
    common = {"branches": 1, "rule": "", "lossless": True, "best": False, "repeats": 1}
    rows = [
        common | {"drafter": name, "num_draft_tokens": gamma, "figures": {"speedup_measured": speedup}}
        for name, gamma, speedup in (("Medusa", 2, 0.7), ("Suffix", 8, 0.9), (HOSTILE, 4, 1.2))
    ]
    contest = {"kind": "contest", "phase": "finished", "text": "Done", "fraction": 1, "rows": rows, "texts": None}
    give(page, "compare", [json.dumps(contest)])
    names = page.locator("specviz-compare [part=table] tbody th")
    assert page.locator("specviz-compare [part=table] thead th").first.get_attribute("data-column") == "speedup"
    assert names.all_inner_texts() == [HOSTILE]
    page.get_by_role("button", name=words()("compare.below", n=2)).press("Enter")
    assert names.all_inner_texts() == [HOSTILE, "Suffix", "Medusa"]
    expect(page.get_by_role("button", name=words()("compare.below", n=2), expanded=True)).to_be_focused()
    # Ranked already: a click turns it round.
    page.locator("specviz-compare [data-sort=speedup]").click()
    assert names.all_inner_texts() == [HOSTILE, "Medusa", "Suffix"]
    assert page.evaluate(f"{element('compare')}.rows.length") == 3
    assert page.evaluate("window.hit ?? null") is None


@pytest.mark.parametrize(("name", "kind"), [("compare", "contest_phase"), ("lossless", "phase")])
def test_work_that_begins_below_the_window_comes_into_sight_and_later_news_leaves_the_window_alone(alone, name, kind):
    page = alone(name, reduced_motion="reduce")
    page.evaluate("name => document.querySelector(`specviz-${name}`).style.marginTop = '2000px'", name)
    began = {"kind": kind, "text": "Warming up", "fraction": 0}
    give(page, name, [json.dumps(began)])
    expect(page.get_by_text("Warming up")).to_be_in_viewport()
    page.evaluate("scrollTo(0, 0)")
    give(page, name, [json.dumps(began | {"text": "Half", "fraction": 0.5})])
    expect(page.get_by_text("Half")).to_have_count(1)
    assert page.evaluate("scrollY") == 0


#: All that an element says to readers and to screen readers.
SAID = """name => {
    const nodes = [...document.querySelector(`specviz-${name}`).shadowRoot.querySelectorAll("*:not(style)")];
    const own = node => [...node.childNodes].filter(one => one.nodeType === Node.TEXT_NODE).map(one => one.data);
    return nodes.flatMap(node => [...own(node), node.ariaLabel, node.getAttribute("title")]).filter(Boolean);
}"""


def german_contest() -> str:
    figures = {"speedup_measured": 1.5, "speedup_interval": (1.4, 1.6), "acceptance_rate": 0.61}
    figures |= {
        "tokens_per_second": 100.25,
        "spread": (90.5, 110.5),
        "acceptance_length": 2.5,
        "cost_coefficient": 0.13,
    }
    drafted = {"num_draft_tokens": 4, "branches": 1, "rule": "token", "repeats": 2}
    row = Row(title="x", engine="specviz", mode="draft_model", **drafted, **figures)
    return contest_message([row], phase="finished", text="", fraction=1, repeats=2)


#: What tells of the line, by the element.
IN_LINE = {"race": "phase", "compare": "contest_phase", "lossless": "phase"}


@pytest.mark.parametrize("name", ELEMENTS)
def test_every_element_needs_no_more_than_its_words_and_whoever_waits_has_got_nowhere_yet(alone, name):
    page, view = alone(name), f"specviz-{name}"
    assert page.evaluate(f"{element(name)}.built")
    if name in IN_LINE:
        give(page, name, [json.dumps({"kind": IN_LINE[name], "text": "2 before you"})])
        expect(page.locator(view)).to_contain_text("2 before you")
        tracks = page.locator(f"{view} [aria-valuenow]").evaluate_all("all => all.map(one => one.ariaValueNow)")
        assert set(tracks) <= {"0", None}
    if name == "why":  # the lab asks the page to press a button
        hear(page, "specviz-press")
        give(page, "why", [json.dumps({"kind": "why", "story": {"seed": 7}, "runs": []})])
        page.locator("specviz-why .diagnosis button.act").click()
        assert heard(page, "specviz-press") == [{"settings": {"seed": 7}, "press": "generate", "back": "why"}]


@pytest.mark.parametrize(
    "name, given, comma",
    [
        ("run", run_of(), "0,25"),
        ("race", [a_race({"speedup": 1.5, "greedy": False, "identical": False, "parting": None}, "")], "1,50×"),
        ("compare", [german_contest()], "1,50×"),
        ("why", [json.dumps({"kind": "why", "runs": []})], "0,70"),
    ],
    ids=["run", "race", "compare", "why"],
)
def test_in_german_every_number_has_a_decimal_comma(alone, name: str, given: list[str], comma: str):
    page = alone(name, "de")
    give(page, name, given)
    if name == "race":
        page.evaluate(f"{element('race')}.pause()")
        page.evaluate(f"{element('race')}.seek(1)")
    page.wait_for_function(f"comma => ({SAID})('{name}').some(text => text.includes(comma))", arg=comma)
    assert [text for text in page.evaluate(SAID, name) if re.search(r"\d\.\d|(?<![\w.])\.\d", text)] == []


def test_german_labels_need_no_more_lines_than_english_ones(alone):
    """Beside the picture, as on the page."""
    heights = {}
    for language in LANGUAGES:
        page = alone("run", language, viewport={"width": 936, "height": 720})
        give(page, "run", run_of())
        page.locator("specviz-run [part=suppose]:not([data-closed])").wait_for()  # drawn with a later frame
        parts = page.locator("specviz-run").locator("[part=figures], .legend:visible").all()
        heights[language] = [one.bounding_box()["height"] for one in parts]
    assert all(german <= english for german, english in zip(heights["de"], heights["en"], strict=True))


# As they are served


def test_every_file_is_served_at_an_address_that_names_its_content(page_url):
    on_disk = {path.relative_to(WEB).as_posix() for path in WEB.rglob("*") if path.suffix in TYPES}
    assert on_disk | {f"words/{language}.js" for language in LANGUAGES} == set(FILES)
    for name, held in FILES.items():
        with urllib.request.urlopen(f"{page_url}{ADDRESS}/{name}") as answer:
            assert answer.read() == held
            assert answer.headers.get_content_type() == TYPES[name[name.rindex(".") :]]
            assert "immutable" in answer.headers["Cache-Control"]
    for name in ("run/nothing.js", "../text/en/run.json"):
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{page_url}{ADDRESS}/{name}")


def test_modules_import_what_is_there_and_never_in_a_circle():
    names = [name for name in FILES if name.endswith(".js")]
    paths = {name: re.findall(r'^(?:import\b[^;]*?|\}) from "([^"]+)";', FILES[name].decode(), re.M) for name in names}
    imports = {name: {posixpath.normpath(f"{name}/../{path}") for path in found} for name, found in paths.items()}
    assert set().union(*imports.values()) <= set(names)
    while free := [name for name, others in imports.items() if not others & imports.keys()]:
        for name in free:
            del imports[name]
    assert not imports, "in a circle, or above one"
    # A file is about one thing, and says what it is for.
    texts = {name: held.decode() for name, held in FILES.items()}
    assert [name for name, text in texts.items() if len(text.splitlines()) > 400] == []
    assert all(text.startswith(("// ", "/* ")) for text in texts.values())


@pytest.mark.parametrize("engine", ["browser", "firefox"])
def test_a_box_that_holds_all_it_has_is_faded_nowhere(engine, request, bare_home):
    """Firefox knows no animations by scrolling, and would show a box as if it were scrolled to its end."""
    page = request.getfixturevalue(engine).new_page()
    show_alone(page, bare_home, "compare")
    shown = """compare => {
      const box = document.createElement("div");
      box.className = "scroll";
      compare.shadowRoot.append(box);
      return getComputedStyle(box).maskPosition;
    }"""
    assert page.locator("specviz-compare").evaluate(shown) == "0px 0px, 100% 0px"
    page.close()
