"""Playback in a real browser: a place in a run shows what had happened there and nothing of what came later."""

import itertools
import json

import pytest
from elements import VIEW, feed, give, state
from handmade import a_block, a_round, a_run, a_tree, a_typical
from playwright.sync_api import Page, expect

from specviz.records.metrics import draft_depths, tally
from specviz.records.runs import Round, Run
from specviz.views import run_messages as messages
from specviz.views.charts import Trail

TREE = (-1, -1, -1, 0, 0, 1, 3, 3, 4)

#: Everything that a reader can see of the text, and of the chips of each round: index -> what is pending.
SEEN = f"""() => {{
  const shadow = {VIEW}.shadowRoot;
  const seen = (node) => node.checkVisibility({{visibilityProperty: true}});
  const chips = {{}};
  for (const node of [...shadow.querySelectorAll('.list .chip')].filter(seen)) {{
    const shown = [...node.children].filter(seen).map(part => part.textContent);
    const said = [node.getAttribute('aria-label'), ...shown].join(' ');
    (chips[node.dataset.round] ??= {{}})[node.dataset.index] = {{pending: node.dataset.pending ?? null, said}};
  }}
  const text = [...shadow.querySelectorAll('.text .t')].filter(seen).map(node => node.textContent).join('');
  return {{place: {VIEW}.place, chips, text}};
}}"""

VERDICTS = ("accepted", "rejected", "discarded", "matches", "coin", "✓", "✗", "┄")


def more(page: Page, run: Run, *rounds: Round, opens: bool = False) -> None:
    """Hands rounds of a live run over, and waits until they are drawn. opens: the run is a new one."""
    start = [messages.opening("live", run)] if opens else []
    give(page, "run", [*start, *([messages.rounds_message("live", rounds, run.vocabulary)] if rounds else [])])
    page.wait_for_function(
        f"""() => {VIEW}.shadowRoot.querySelector('[part=view]').dataset.state === {VIEW}.state
          && {VIEW}.shadowRoot.querySelector('[part=scrub]').max === String({VIEW}.rounds.length)"""
    )


def press(page: Page, *keys: str) -> dict:
    """Presses keys with the focus in the text, and waits for the next frame each time; what is seen then."""
    page.locator('[part="text"]').focus()
    for key in keys:
        page.keyboard.press(key)
        page.evaluate("() => new Promise(requestAnimationFrame)")
    return page.evaluate(SEEN)


# What should be seen, worked out from the records


def expected(rounds: tuple[Round, ...], at_once: bool = False) -> list[tuple[dict, str, dict]]:
    """(place, text, the round's chips) of each place of a run, the first one after the start.

    at_once: the rule judges a whole draft in one decision.
    """
    places, text = [], ""
    for one in rounds:
        count, depths = len(one.drafted), draft_depths(one)
        judged = [index for index in range(count) if one.drafted[index].outcome != "discarded"]
        judged.sort(key=lambda index: (depths[index], index))
        turns = [judged] if at_once and judged else [[index] for index in judged]
        stages = [("draft", dict.fromkeys(range(shown + 1), "drafted"), text) for shown in range(count)]
        chips = dict.fromkeys(range(count), "passed")
        stages.append(("pass", dict(chips), text))
        kept = 0
        for turn in turns:
            chips |= dict.fromkeys(range(count) if turn is turns[-1] else turn)
            kept += sum(one.drafted[index].outcome == "accepted" for index in turn)
            stages.append(("decide", dict(chips), text + "".join(one.pieces[:kept])))
        text += "".join(one.pieces)
        stages.append(("next", {**dict.fromkeys(range(count)), "next": None}, text))
        for number, (kind, seen, so_far) in enumerate(stages, start=1):
            places.append(({"round": one.index, "stage": number, "kind": kind}, so_far, seen))
    return places


def assert_seen(seen: dict, place: dict, text: str, chips: dict, rounds: tuple[Round, ...]) -> None:
    assert seen["place"] == place
    assert seen["text"] == text
    here = seen["chips"].get(str(place["round"]), {})
    assert {index: chip["pending"] for index, chip in here.items()} == {
        str(index): kind for index, kind in chips.items()
    }
    for index, chip in here.items():
        if chip["pending"]:
            assert not any(verdict in chip["said"] for verdict in VERDICTS)
        elif index != "next":
            assert rounds[place["round"]].drafted[int(index)].outcome in chip["said"]
    assert all(int(other) <= place["round"] for other in seen["chips"]), "nothing of a later round"


# Stepping


RUNS = {
    "chain": (a_round("ard"), a_round("aa", 1), a_round("rd", 2)),
    "cut off": (a_round("ar"), a_round("aaa", 1, emit=2, stop_reason="length")),
    "plain": (a_round(""), a_round("", 1)),
    "tree": (a_tree(TREE, 0, seed=5), a_tree(TREE, 1, seed=3)),
    "block": (a_block("AAB", (0.1, 0.9, 0.95)), a_block("BB", (0.5, 0.2), 1)),
    "typical": (a_typical(), a_typical(1)),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_step_shows_its_stage_and_nothing_later(show, name):
    rounds = RUNS[name]
    page = show(a_run(rounds), name if name in ("block", "typical", "tree") else "token")
    places = expected(rounds, at_once=name in ("block", "typical"))
    seen = press(page, "Home")
    assert (seen["text"], seen["chips"], seen["place"]["kind"]) == ("", {}, "start")
    for place, text, chips in places:
        assert_seen(press(page, "ArrowRight"), place, text, chips, rounds)
    # The end, and the same way back.
    end = press(page, "ArrowRight")
    assert end["place"] is None and end["text"] == "".join(piece for one in rounds for piece in one.pieces)
    for place, text, chips in reversed(places[:-1]):
        assert_seen(press(page, "ArrowLeft"), place, text, chips, rounds)
    assert press(page, "ArrowLeft")["place"]["kind"] == "start"
    # Steps are tokens, decisions or rounds. A tree that was not drafted token by token is folded.
    units = (("decision", {"pass", "decide", "next"}), ("round", {"next"}))
    for unit, kinds in units if name in ("chain", "block") else ():
        page.locator('[part="unit"]').select_option(unit)
        press(page, "Home")
        for place, text, chips in [one for one in places if one[0]["kind"] in kinds]:
            assert_seen(press(page, "ArrowRight"), place, text, chips, rounds)


def test_each_step_shows_only_what_is_known_then_and_no_verdict_moves_a_chip(show):
    one = a_round("ard", 0)
    page = show(a_run((one, a_round("aa", 1))))
    said, distribution, residual = (page.locator(f'[part="{name}"]') for name in ("say", "distribution", "residual"))
    following = one.next.text.strip()

    def places() -> list:
        return page.locator('.list .chip[data-round="0"]').evaluate_all(
            "nodes => nodes.map(node => [node.offsetLeft, node.offsetTop, node.offsetWidth, node.offsetHeight])"
        )

    page.locator('.list .chip[data-round="1"][data-index="1"]').click()  # near: the close-up follows the place
    press(page, "Home", *["ArrowRight"] * 4)
    assert page.evaluate(SEEN)["place"]["kind"] == "pass"
    before = places()
    expect(distribution).not_to_contain_text("p − q")
    press(page, "ArrowRight", "ArrowRight")
    assert "rejected" in said.inner_text() and following not in said.inner_text()
    token = "‹\u2068" + one.drafted[1].text + "\u2069›"
    expect(page.locator('[part="place"]')).to_have_text(f"Round 1 of 2: decision 2, ✗ {token} rejected")
    # Of the residual there is everything but the draw.
    expect(distribution).to_contain_text("p − q")
    expect(residual).to_be_visible()
    expect(residual.locator(".u, .drawn, .mark")).to_have_count(0)
    assert places() == before
    press(page, "ArrowRight", "ArrowLeft", "ArrowRight")
    assert places() == before
    page.locator('.chip[data-round="0"][data-index="1"]').click()
    assert following in said.inner_text()
    expect(residual.locator(".u, .drawn").first).to_be_visible()


def test_the_slider_counts_rounds_figures_are_of_those_so_far_and_playing_goes_on_to_the_end(show):
    rounds = (*RUNS["chain"], a_round("aard", 3), a_round("", 4), a_round("aaa", 5))
    page = show(a_run(rounds))
    for count in (1, 4, 2, 6, 5):
        page.locator('[part="scrub"]').fill(str(count))
        page.evaluate("() => new Promise(requestAnimationFrame)")
        seen, counts = page.evaluate(SEEN), tally(rounds[:count])
        assert seen["place"]["round"] == count - 1 and seen["place"]["kind"] == "next"
        assert seen["text"] == "".join(piece for one in rounds[:count] for piece in one.pieces)
        expect(page.locator('[data-figure="acceptance_length"]')).to_have_text(f"{counts.acceptance_length:.2f}")
        rate = page.locator('[data-figure="acceptance_rate"]').inner_text()
        assert float(rate.rstrip("%\u202f")) == pytest.approx(100 * counts.acceptance_rate, abs=0.501)
        expect(page.locator('[part="place"]')).to_contain_text(f"Round {count} of 6")
    page.locator('[part="speed"]').select_option("8")
    press(page, "Home", " ")
    assert page.evaluate(f"{VIEW}.playing")
    page.wait_for_function(f"() => !{VIEW}.playing")
    assert page.evaluate(SEEN)["text"] == "".join(piece for one in rounds for piece in one.pieces)
    # A key stops it where it is.
    press(page, " ")
    page.wait_for_function(f"() => {VIEW}.place.stage > 1")
    press(page, "ArrowLeft")
    assert not page.evaluate(f"{VIEW}.playing")


# Behind a live run


def test_a_reader_stays_where_they_are_while_the_run_goes_on(alone):
    rounds = tuple(
        a_round(word, index) for index, word in enumerate(itertools.islice(itertools.cycle(("ard", "aa")), 30))
    )
    run, page = a_run(rounds), alone("run")
    more(page, run, *rounds[:3], opens=True)
    live = page.locator('[part="to_end"]')
    expect(live).to_have_text("● live")
    place, text, chips = expected(rounds)[6]
    assert_seen(press(page, "Home", *["ArrowRight"] * 7), place, text, chips, rounds)
    expect(live).to_have_text("○ go live")
    for first in range(3, 30, 9):
        more(page, run, *rounds[first : first + 9])
        assert_seen(page.evaluate(SEEN), place, text, chips, rounds)
    expect(page.locator('[part="place"]')).to_contain_text("of 30")
    live.click()
    page.wait_for_function(f"() => {VIEW}.place === null")
    expect(live).to_have_text("● live")
    page.get_by_role("region", name="Rounds").evaluate("node => node.scrollIntoView()")
    expect(page.locator('.list .round[data-round="29"]')).to_be_in_viewport()
    assert page.evaluate(SEEN)["text"] == run.text
    # A new run is followed from its first round, wherever the reader was.
    press(page, "Home")
    feed(page, a_run((a_round("a"),)), "token")
    assert page.evaluate(SEEN)["place"] is None


#: Hands a message over and, before the next frame, moves the slider to the first round's end and presses "Present".
PRESSED_AT_ONCE = f"""message => {{
  const part = (name) => {VIEW}.shadowRoot.querySelector(`[part=${{name}}]`);
  {VIEW}.receive(JSON.parse(message));
  part('scrub').value = 1;
  part('scrub').dispatchEvent(new Event('input'));
  part('present').click();
  return {VIEW}.place;
}}"""


def test_what_is_pressed_as_lost_rounds_come_in_is_not_lost(alone):
    rounds = RUNS["chain"]
    run, page = a_run(rounds), alone("run")
    more(page, run, *rounds[1:], opens=True)
    assert state(page, "missing") == [0]
    found = messages.rounds_message("live", rounds[:1], run.vocabulary)
    assert page.evaluate(PRESSED_AT_ONCE, found) == expected(rounds[:1])[-1][0]
    expect(page.locator('[part="presentation"]')).to_be_visible()
    expect(page.locator('[part="place"]')).to_contain_text("Round 1 of 3")


#: As browsers do with what was never seen: an estimate stands for its height.
ESTIMATED = ".round { content-visibility: auto; contain-intrinsic-size: auto 20px; }"


def assert_at_the_end(page: Page) -> None:
    """The newest round stands at the list's lower edge, and still does some frames later."""
    ends = f"""() => {{
      const box = {VIEW}.shadowRoot.querySelector('[part=rounds]');
      const newest = [...box.querySelectorAll('.round')].at(-1)?.dataset.round;
      return newest === String({VIEW}.rounds.length - 1) && box.scrollHeight - box.scrollTop - box.clientHeight < 2;
    }}"""
    page.wait_for_function(ends)
    page.evaluate("async () => { for (let n = 0; n < 10; n++) await new Promise(requestAnimationFrame); }")
    assert page.evaluate(ends)


def test_the_end_is_followed_until_heights_have_settled(alone):
    words = itertools.islice(itertools.cycle(("ard", "aaaaaaad", "r")), 600)
    rounds = tuple(a_round(word, index) for index, word in enumerate(words))
    run, page = a_run(rounds), alone("run", viewport={"width": 1280, "height": 720})
    more(page, run, opens=True)
    page.evaluate(
        f"""css => {VIEW}.shadowRoot.append(Object.assign(document.createElement('style'), {{textContent: css}}))""",
        ESTIMATED,
    )
    more(page, run, *rounds[:10])
    assert_at_the_end(page)
    # Rows take more lines in a narrow window.
    page.set_viewport_size({"width": 400, "height": 720})
    assert_at_the_end(page)
    press(page, "Home")
    more(page, run, *rounds[10:510])
    page.locator('[part="to_end"]').click()
    assert_at_the_end(page)
    # And while rounds keep arriving.
    press(page, "Home")
    page.locator('[part="to_end"]').click()
    for first in range(510, 600, 15):
        more(page, run, *rounds[first : first + 15])
    assert_at_the_end(page)


def test_at_the_end_the_last_round_is_looked_at_however_a_reader_came_there(show):
    page = show(a_run(RUNS["tree"]), "tree")
    chosen = f"{VIEW}.chosen"
    for first in ("Home", "ArrowRight"):  # nothing is looked at; then a token of the first round
        press(page, "Home")
        press(page, first)
        page.locator('[part="to_end"]').click()
        page.wait_for_function(f"last => {chosen}?.round === last", arg=len(RUNS["tree"]) - 1)


# Presentation


def test_presentation_is_large_follows_the_place_and_gives_the_focus_back(show):
    rounds = RUNS["tree"]
    page = show(a_run(rounds), "tree", viewport={"width": 1280, "height": 720})
    press(page, "Home", "p")
    dialog = page.get_by_role("dialog", name="Presentation")
    expect(dialog).to_be_visible()
    for place, text, chips in expected(rounds):
        page.keyboard.press("ArrowRight")
        expect(page.locator('[part="place"]')).to_contain_text(f"Round {place['round'] + 1} of {len(rounds)}")
        page.wait_for_function("place => " + VIEW + ".place.stage === place.stage", arg=place)
        page.evaluate("() => new Promise(requestAnimationFrame)")
        large = dialog.locator(".chip").evaluate_all(
            "nodes => nodes.filter(node => node.checkVisibility({visibilityProperty: true}))"
            ".map(node => [node.dataset.index, node.dataset.pending ?? null])"
        )
        assert dict(large) == {str(index): kind for index, kind in chips.items()}
        assert dialog.locator('[data-piece="new"] .tail').inner_text().endswith(text.split(" ")[-1])
        assert dialog.locator('[part="caption"]').inner_text()
    sizes = dialog.evaluate(
        """node => ['.grove .chip .w', '.caption'].map(what => {
          const one = node.querySelector(what);
          return parseFloat(getComputedStyle(one).fontSize) * (one.currentCSSZoom ?? 1);
        })"""
    )
    # A tree is as large as its height allows.
    assert sizes[0] >= 18 and sizes[1] >= 20
    box = dialog.bounding_box()
    assert (box["x"], box["y"]) == (0, 0) and box["width"] == page.evaluate("innerWidth")
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    page.wait_for_function(f"() => {VIEW}.shadowRoot.activeElement?.getAttribute('part') === 'text'")
    # In a tree no name lies over its figures.
    page.evaluate("location.hash = 'race'")
    press(page, "Home", *["ArrowRight"] * (len(TREE) + 1), "p")
    expect(dialog).to_be_visible()
    index = next(place for place, token in enumerate(rounds[0].drafted) if token.outcome == "rejected")
    for where in (".list", ".grove"):
        # In one look: the page may still scroll.
        name, figures = page.locator(f'{where} .tree .chip[data-round="0"][data-index="{index}"]').evaluate(
            """chip => [".w", ".sealed"].map(part => {
              const range = new Range();
              range.selectNodeContents(chip.querySelector(part));
              const { top, bottom } = range.getBoundingClientRect();
              return { top, bottom };
            })"""
        )
        assert (name["top"] + name["bottom"]) / 2 < figures["top"]
    # The presentation ends where the browser goes back.
    page.go_back()
    expect(dialog).not_to_be_visible()


#: What is cut off in the presentation: pieces by the window, and what is in a piece by the piece.
CUT = f"""() => {{
  const shadow = {VIEW}.shadowRoot;
  const inside = (node, {{ left, top, right, bottom }}) => {{
    const own = node.getBoundingClientRect();
    return own.left >= left - 1 && own.top >= top - 1 && own.right <= right + 1 && own.bottom <= bottom + 1;
  }};
  const screen = {{ left: 0, top: 0, right: innerWidth, bottom: innerHeight }};
  const sideways = innerHeight > innerWidth ? ':not(.chip)' : '';
  const cut = [];
  for (const box of shadow.querySelectorAll(`.presentation :is(.piece, .chip, .caption, h2)${{sideways}}`)) {{
    if (!box.checkVisibility({{ visibilityProperty: true }})) continue;
    if (!inside(box, screen)) cut.push(`window: ${{box.className}}`);
    for (const node of box.querySelectorAll('.stage, .w, .m, .verdict, .line, .bars, .pieces, .drawn, .caption p')) {{
      const seen = node.checkVisibility();
      if (seen && !inside(node, box.getBoundingClientRect())) cut.push(`${{box.className}}: ${{node.className}}`);
    }}
  }}
  return cut;
}}"""


@pytest.mark.parametrize(
    "name, width, height, predicting",
    [
        *(("chain", 390, 844, True), ("bonus", 1280, 720, True), ("tree", 390, 844, True), ("tree", 1280, 720, False)),
        *(("block", 390, 844, False), ("typical", 1280, 720, True)),
    ],
)
def test_everything_of_a_presented_round_is_on_the_screen_at_every_step(show, name, width, height, predicting):
    rounds = (a_block("AB", (0.1, 0.2)),) if name == "bonus" else RUNS[name][:1]
    rule = {"chain": "token", "bonus": "block"}.get(name, name)
    page = show(a_run(rounds), rule, language="de", viewport={"width": width, "height": height})
    press(page, "Home", "p")
    expect(page.locator('[part="presentation"]')).to_be_visible()
    if predicting:
        page.locator('[part="predict"]').click()
    for _ in expected(rounds, at_once=rule in ("block", "typical")):
        page.keyboard.press("ArrowRight")
        page.evaluate("() => new Promise(requestAnimationFrame)")
        assert page.evaluate(CUT) == [], page.evaluate(f"{VIEW}.place")
        for shown in page.locator('[part="options"] .show').all():
            shown.click()
            page.evaluate("() => new Promise(requestAnimationFrame)")
            assert page.evaluate(CUT) == [], page.evaluate(f"{VIEW}.place")


def test_without_motion_nothing_is_animated(show):
    for motion in ("reduce", "no-preference"):
        page = show(a_run(RUNS["chain"]), reduced_motion=motion)
        page.locator('[part="unit"]').select_option("decision")
        press(page, "Home", "ArrowRight", "ArrowRight")
        names = page.locator(".list .landing").evaluate_all(
            "nodes => nodes.map(node => getComputedStyle(node).animationName)"
        )
        assert names and all((name == "none") == (motion == "reduce") for name in names)


# The page around


def test_keys_act_wherever_the_focus_is_but_in_a_field(show):
    page = show(a_run((a_round("ard"), a_round("aa", 1))))
    page.evaluate(
        """() => {
          const made = (tag, options) => Object.assign(document.createElement(tag), options);
          document.body.prepend(made("input", { id: "field" }), made("button", { id: "other", textContent: "Other" }));
          other.onclick = () => (window.pressed = (window.pressed ?? 0) + 1);
        }"""
    )

    def place() -> dict | None:
        page.evaluate("() => new Promise(requestAnimationFrame)")
        return page.evaluate(f"{VIEW}.place")

    def playing() -> bool:
        return page.evaluate(f"{VIEW}.playing")

    page.locator("#other").focus()
    page.keyboard.press("Home")
    assert place()["kind"] == "start"
    page.keyboard.press("ArrowRight")
    assert place()["stage"] == 1
    # A button keeps its own key, a field all of them.
    page.keyboard.press("Space")
    assert page.evaluate("window.pressed") == 1 and not playing()
    page.locator("#field").focus()
    for key in ("ArrowRight", "End", "p", " "):
        page.keyboard.press(key)
    assert place()["stage"] == 1 and page.locator("#field").input_value() == "p "
    # Those of the bar that were clicked leave the keys to the view: one press, one turn.
    for name in ("predict", "play"):
        page.locator(f'[part="{name}"]').click()
        before = playing()
        page.keyboard.press("Space")
        assert playing() != before
        expect(page.locator('[part="predict"]')).to_have_attribute("aria-pressed", "true")
        if playing():
            page.keyboard.press("Space")
    # Another tab is shown.
    page.evaluate(f"{VIEW}.style.display = 'none'")
    page.locator("#other").focus()
    page.keyboard.press("p")
    assert not page.evaluate(f"{VIEW}.view.presentation.open")
    page.evaluate(f"{VIEW}.style.display = ''")
    page.keyboard.press("p")
    expect(page.locator('[part="presentation"]')).to_be_visible()


def test_charts_show_the_rounds_that_are_over_at_the_readers_place(show):
    rounds = (a_round("ard"), a_tree(TREE, 1, seed=5), a_round("aa", 2), a_round("", 3))
    page = show(a_run(rounds))
    page.evaluate(
        """charts => {
          document.addEventListener("specviz-charts", ({ detail }) => (window.charts = detail));
          const message = { kind: "rounds", run: "run", first: null, rounds: [], charts };
          document.querySelector("specviz-run").receive(message);
        }""",
        json.loads(json.dumps(Trail.of(rounds).charts())),
    )
    page.locator('[part="unit"]').select_option("round")
    press(page, "Home")
    for count in range(len(rounds)):
        # Its times are the whole run's, and whether it drafted trees.
        shown = Trail.of(rounds[:count]).charts() | {3: Trail.of(rounds).charts()[3]}
        shown[2]["trees"] = True
        page.wait_for_function(
            "charts => JSON.stringify(window.charts) === JSON.stringify(JSON.parse(charts))", arg=json.dumps(shown)
        )
        press(page, "ArrowRight")
