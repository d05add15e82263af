"""The picture of a round: all of it at once, a way into each piece and back, and what follows if something is moved."""

import dataclasses
from collections.abc import Callable
from functools import lru_cache

import pytest
from elements import VIEW
from handmade import VOCABULARY, a_block, a_round, a_run, a_tree, a_typical
from on_page import boxes
from playwright.sync_api import Page, expect
from tiny import tiny_pair

import specviz
from specviz.decoding.record import vocabulary
from specviz.records.assets import ASSETS
from specviz.records.runs import Run
from specviz.records.settings import SamplingParams
from specviz.views import run_messages as messages

TREE = (-1, -1, -1, 0, 0, 1, 3, 3, 4)

RUNS = {
    "token": a_run((a_round("ard"), a_round("aa", 1)), vocabulary=VOCABULARY),
    "tree": a_run((a_tree(TREE, 0, seed=5),), vocabulary=VOCABULARY),
    "block": a_run((a_block("AAB", (0.1, 0.9, 0.95)),), vocabulary=VOCABULARY),
    "typical": a_run((a_typical(),), vocabulary=VOCABULARY),
    "plain": a_run((a_round(""),), vocabulary=VOCABULARY),
}

#: What has the focus: a piece of the picture and its token, or null.
FOCUS = f"""() => {{
  const {{ dataset }} = {VIEW}.shadowRoot.activeElement ?? {{}};
  return dataset?.piece ? [dataset.piece, dataset.index] : null;
}}"""


@pytest.fixture
def presented(show: Callable[..., Page]) -> Callable[..., Page]:
    """Opens a run, and its last round over the window."""

    def open_page(run: Run, rule: str = "token", **options) -> Page:
        page = show(run, rule, **{"viewport": {"width": 1280, "height": 720}, "reduced_motion": "reduce"} | options)
        page.locator('[part="text"]').focus()
        page.keyboard.press("p")
        expect(page.locator('[part="presentation"]')).to_be_visible()
        return page

    return open_page


@pytest.mark.parametrize(
    "rule, language, width, height",
    [*((rule, "de", 390, 844) for rule in RUNS), ("token", "en", 1280, 720), ("tree", "en", 1280, 720)],
)
def test_every_piece_says_what_it_shows_and_leads_in_and_out(presented, rule, language, width, height):
    page = presented(RUNS[rule], rule, language=language, viewport={"width": width, "height": height})
    pieces = page.locator(".overview [data-piece]")
    drafted = len(RUNS[rule].rounds[-1].drafted)
    assert pieces.count() == 2 + (drafted + 3 if rule in ("tree", "typical") else 3 * drafted + 2)
    for piece in pieces.all():
        box = piece.bounding_box()
        assert min(box["width"], box["height"]) >= 44
        assert len(piece.get_attribute("aria-label")) > 10
        piece.focus()
        here = page.evaluate(FOCUS)
        page.keyboard.press("Enter")
        expect(page.locator(".overview")).not_to_be_visible()
        assert page.locator(".closeup h3").inner_text()
        page.keyboard.press("Escape")
        expect(page.locator(".closeup")).not_to_be_visible()
        assert page.evaluate(FOCUS) == here, "the focus comes back to where it was"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.keyboard.press("Escape")
    expect(page.locator('[part="presentation"]')).not_to_be_visible()


def test_the_presentation_shows_whose_p_and_q_are_and_opens_where_a_token_is_pinned(show):
    page = show(RUNS["token"], viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    page.evaluate(f"{VIEW}.choose(0, 1)")
    page.keyboard.press("p")
    expect(page.locator('[part="presentation"]')).to_be_visible()
    expect(page.locator('[part="place"]')).to_contain_text("Round 1 of 2")
    expect(page.locator(".overview .drafted.chosen")).to_have_attribute("data-index", "1")
    legend = page.locator('.overview [part="pair-legend"]')
    expect(legend).to_have_text("p targetq draft")
    colour = "node => getComputedStyle(node).color"
    assert legend.locator("b").evaluate_all("nodes => nodes.map(node => getComputedStyle(node).color)") == [
        "rgb(0, 98, 163)",
        "rgb(163, 95, 0)",
    ]
    red, green, blue = page.locator(".overview .drafted .m .q").first.evaluate(
        colour + ".match(/[\\d.]+/g).map(Number)"
    )
    assert red > green > blue, "amber, not grey"
    # Steps go on from there.
    page.keyboard.press("ArrowRight")
    expect(page.locator('[part="place"]')).to_contain_text("Round 2 of 2")


def test_the_text_is_one_line_whose_end_is_seen(presented):
    long = a_run([a_round("aaa", index) for index in range(9)], vocabulary=VOCABULARY)
    for prompt, side in (("Once\nupon a time, ", "right"), ("היה היה ", "left")):
        page = presented(dataclasses.replace(long, prompt=dataclasses.replace(long.prompt, text=prompt * 20)))
        row = page.locator(".words .tail").first
        line, text = boxes(row, row.locator("> span"))
        assert text["width"] > line["width"] and text["height"] < 1.5 * line["height"]
        ends = {"left": (line["x"], text["x"]), "right": (line["x"] + line["width"], text["x"] + text["width"])}
        assert ends[side][0] == pytest.approx(ends[side][1], abs=1)
        assert "\n" not in row.inner_text()
    page = presented(dataclasses.replace(RUNS["plain"], prompt=dataclasses.replace(long.prompt, text="Once\nupon")))
    expect(page.locator(".words .tail").first).to_have_text("Once↵upon")


def test_the_residual_lists_what_it_has_and_not_what_the_target_likes_best(presented):
    page = presented(Run.load(ASSETS / "traces" / "sampled.json"))
    run = Run.load(ASSETS / "traces" / "sampled.json")
    one = next(one for one in run.rounds if one.next.kind == "recovered")
    likeliest = [(id, share) for row in one.top for id, share in row.residual if share > 0.0005][:3]
    if one.next.id not in dict(likeliest):
        likeliest[2:] = [(one.next.id, one.next.prob)]
    page.evaluate(f"index => {VIEW}.choose(index, 'next')", one.index)
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    names = page.locator(".overview .passed.next .name")
    expect(names).to_have_text([run.vocabulary[id].replace(" ", "·").replace("\n", "⏎") for id, _ in likeliest])


def test_on_a_phone_the_residual_is_seen_with_the_verdict_that_leaves_it(show):
    page = show(a_run((a_round("rddd"),)), "token", viewport={"width": 390, "height": 844}, has_touch=True)
    page.locator('[part="text"]').focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator('[part="place"]')).to_contain_text("rejected")
    names = ".table", ".rejected.drafted", ".passed.next .bars"
    spans = [
        (box["y"], box["y"] + box["height"]) for box in boxes(*(page.locator(f".overview {one}") for one in names))
    ]
    (top, bottom), *seen = spans
    assert all(top - 1 <= first and last <= bottom + 1 for first, last in seen), spans


def test_tokens_that_the_end_of_the_text_cut_off_do_not_point_into_it(presented):
    page = presented(a_run((a_round("aar", emit=1, stop_reason="eos"),)))
    signs = page.locator(".overview .flipped").evaluate_all(
        "all => all.map((one) => getComputedStyle(one.querySelector('.m, .verdict'), '::after').content)"
    )
    assert ["↓" in sign for sign in signs] == [True, False, False, False]
    assert ["✂" in sign for sign in signs] == [False, True, False, True]


def test_a_token_and_its_probabilities_stand_side_by_side_and_bars_inside_their_box(presented):
    run = Run.load(ASSETS / "traces" / "sampled.json")
    page = presented(run)
    cells = page.locator(".overview .drafted").all()
    for cell in cells:
        word, numbers = boxes(*(cell.locator(name) for name in ("> .w", "> .m")))
        assert word["x"] + word["width"] <= numbers["x"] + 1
    assert len(cells) == len(run.rounds[-1].drafted) > 1
    for cell in page.locator(".overview .passed").all():
        box, *bars = boxes(cell, *cell.locator(".bar:visible").all())
        assert box["y"] <= bars[0]["y"] and bars[-1]["y"] + bars[-1]["height"] <= box["y"] + box["height"]


def test_arrows_go_from_piece_to_piece_from_afar_and_near(presented):
    page = presented(RUNS["token"])
    page.locator('.overview [data-piece="draft"][data-index="0"]').focus()
    for key, there in (
        *(("ArrowRight", ["draft", "1"]), ("ArrowDown", ["pass", "1"]), ("ArrowDown", ["coin", "1"])),
        *(
            ("ArrowLeft", ["coin", "0"]),
            ("ArrowUp", ["pass", "0"]),
            ("ArrowUp", ["draft", "0"]),
            ("ArrowUp", ["text", "next"]),
        ),
    ):
        page.keyboard.press(key)
        assert page.evaluate(FOCUS) == there
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    before = page.locator(".closeup h3").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator(".screen > .layer").count() == 2
    assert page.locator(".closeup h3").inner_text() != before
    assert page.evaluate(f"{VIEW}.place") is None, "the reader's place has not moved"


def test_the_camera_goes_in_without_a_break_and_rests_where_text_is_sharp(presented):
    page = presented(RUNS["token"], reduced_motion="no-preference")
    # Looked at with the click: half a second later, which a slow page takes to answer, all is at rest again.
    page.evaluate(
        f"""() => addEventListener("click", () => {{
          const layers = [...{VIEW}.shadowRoot.querySelectorAll(".screen > .layer")];
          window.moving = layers.map((node) => node.getAnimations().length);
        }}, {{ once: true }})"""
    )
    page.locator('.overview [data-piece="coin"][data-index="0"]').click()
    layers = page.locator(".screen > .layer")
    assert page.evaluate("window.moving") == [1, 1]
    page.wait_for_function(f"() => {VIEW}.shadowRoot.getAnimations().length === 0")
    assert layers.evaluate_all("nodes => nodes.map((node) => getComputedStyle(node).transform)") == ["none", "none"]


# What if


def move(page: Page, part: str, value: float) -> None:
    page.locator(f'[part="{part}"]').evaluate(
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input')); }", value
    )


def outcomes(page: Page, count: int) -> list[str]:
    """What the overview says of each draft token."""
    kinds = ("accepted", "rejected", "discarded", "open", "undrafted")
    classes = [page.locator(f'.drafted[data-index="{index}"]').get_attribute("class").split() for index in range(count)]
    return [next(kind for kind in kinds if kind in names) for names in classes]


@lru_cache
def sampled(rule: str, coins: str = "") -> Run:
    pair = dataclasses.replace(tiny_pair("llama", noise=0.15, vocab=16), eos_ids=frozenset())
    return specviz.run(
        pair,
        [3, 5, 7, 11, 3, 5],
        rule=rule,
        num_draft_tokens=4,
        max_new_tokens=24,
        seed=5,
        coins=coins,
        sampling=SamplingParams(temperature=0.8),
    )


def move_coin(page: Page, index: int, way: str) -> str:
    """Moves a coin as far up as it goes, in its close-up or in the overview; returns what it came to lie at."""
    coin = page.locator(f'.overview [data-piece="coin"][data-index="{index}"]')
    if way == "close-up":
        coin.click(position={"x": 12, "y": 6})
        move(page, "what-if", 0.999)
        page.keyboard.press("Escape")
    elif way == "keys":
        coin.focus()
        for _ in range(100):
            page.keyboard.press("Shift+ArrowRight")
        assert page.evaluate(FOCUS) == ["coin", str(index)]
    else:
        line = coin.locator(".track").bounding_box()
        page.mouse.move(line["x"] + 4, line["y"] + 3)
        page.mouse.down()
        page.mouse.move(line["x"] + line["width"] + 9, line["y"] + 30, steps=3)
        page.mouse.up()
    expect(page.locator(".closeup")).not_to_be_visible()
    return coin.locator(".mark.above").inner_text().removeprefix("u = ")


@pytest.mark.parametrize(
    "rule, way", [("token", "close-up"), ("token", "keys"), ("token", "mouse"), ("block", "mouse")]
)
def test_a_moved_coin_leads_to_the_verdicts_of_the_run_that_has_it(presented, rule, way):
    run = sampled(rule)
    one, index = next(
        (one, index)
        for one in run.rounds
        for index, token in enumerate(one.drafted)
        if token.outcome == "accepted" and token.accept_prob < 0.9
    )
    page = presented(run, rule)
    page.evaluate(f"([round, index]) => {VIEW}.choose(round, index)", [one.index, index])
    page.keyboard.press("Escape")
    expect(page.locator('.frame > [part="picture"]')).to_be_visible()  # back beside the list
    page.locator('[part="scrub"]').evaluate(
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input')); }", one.index + 1
    )
    page.keyboard.press("p")
    expect(page.locator('[part="presentation"] .overview')).to_be_visible()
    assert move_coin(page, index, way) == "0.999"
    there = sampled(rule, f"{one.index + 1}.{index + 1}=0.999").rounds[one.index]
    assert outcomes(page, len(one.drafted)) == [token.outcome for token in there.drafted]
    page.locator('[part="suppose-reset"]').click()
    assert outcomes(page, len(one.drafted)) == [token.outcome for token in one.drafted]


def test_gamma_says_what_would_be_drafted_and_what_is_expected(presented):
    page = presented(RUNS["token"])
    page.evaluate(
        f"{VIEW}.receive({{kind: 'rounds', run: 'run', first: null, rounds: [], figures: {{acceptance_rate: 0.5}}}})"
    )
    move(page, "suppose-gamma", 1)
    assert outcomes(page, 2) == ["accepted", "undrafted"]
    expect(page.locator('[part="caption"]')).to_contain_text(
        "γ = 1 and this run's acceptance rate of 0.50, expect 1.50 tokens"
    )


def test_a_temperature_makes_ranges_that_hold_the_truth(alone):
    page = alone("run")
    weights = [1 / (place + 1) ** 1.2 for place in range(60)]
    shares = [weight / sum(weights) for weight in weights]
    for power in (0.4, 0.8, 1.25, 2, 8):
        total = sum(share**power for share in shares)
        ranges = page.evaluate(
            """async ([listed, power]) => {
              const { tempered } = await import('/run/picture/tempered.js');
              return [...tempered(new Map(listed), power)].map(([, range]) => range);
            }""",
            [list(enumerate(shares[:5])), power],
        )
        for share, (least, most) in zip(shares, ranges):
            assert least - 1e-9 <= share**power / total <= most + 1e-9
        if power > 1.5:
            assert ranges[0][1] - ranges[0][0] < 0.3, "colder, it is nearly known"


def test_a_colder_round_is_judged_as_far_as_its_record_goes(presented):
    page = presented(RUNS["token"])
    share = page.locator('.overview .drafted[data-index="0"] .m .p')
    expect(share).to_have_text("p .25")
    # At half the temperature shares are squared: of .5 and .25 the second becomes .0625 / .3125.
    move(page, "suppose-temperature", 0.5)
    expect(share).to_have_text("p .20")
    expect(page.locator('[part="caption"]')).to_contain_text("judged at temperature 0.5")
    expect(page.locator(".flipped.next .w")).to_have_text("?")


def test_what_the_record_does_not_hold_comes_from_whoever_has_the_models(show):
    """Here the test has them, in the page's place (tests/decoding/test_supposed.py)."""
    run = sampled("token")
    pair = dataclasses.replace(tiny_pair("llama", noise=0.15, vocab=16), eos_ids=frozenset())
    one, index = next(
        (one, index)
        for one in run.rounds
        for index, token in enumerate(one.drafted)
        if token.outcome == "rejected" and token.accept_prob > 0.1
    )
    there = sampled("token", f"{one.index + 1}.{index + 1}=0.05").rounds[one.index]
    page = show(run)
    page.evaluate(
        """([view, message]) => {
          const run = document.querySelector("specviz-run");
          run.receive({ kind: "trace", parts: [], share: { pair: "tiny", settings: { seed: 5 } } });
          run.receive({ kind: "pair", pair: "tiny" });
          run.addEventListener("specviz-ask-supposed", ({ detail }) => {
            window.asked = detail;
            detail.answer(JSON.parse(message));
          });
        }""",
        [VIEW, messages.rounds_message("", [there], vocabulary(pair, [there]))],
    )
    page.evaluate(f"([round, index]) => {VIEW}.choose(round, index)", [one.index, index])
    move(page, "what-if", 0.05)
    expect(page.locator('.closeup [part="say"]')).to_contain_text("u = 0.05: accepted")
    page.locator('[part="picture-out"]').click()
    assert outcomes(page, len(one.drafted)) == [token.outcome for token in there.drafted]
    expect(page.locator(".flipped.next .w")).to_have_text(there.next.text.replace(" ", "·"))
    asked = page.evaluate("(({ settings, pair, what }) => ({ settings, pair, what }))(window.asked)")
    before = [id for earlier in run.rounds[: one.index] for id in earlier.emitted]
    assert asked["what"]["tokens"] == before + [token.id for token in one.drafted]
    assert asked["what"]["coins"] == {str(index): 0.05} and asked["pair"] == "tiny"


def test_nothing_can_be_moved_before_it_has_happened(presented):
    page = presented(RUNS["token"])
    panel = page.locator('[part="suppose"]')
    expect(panel).to_be_visible()
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    expect(panel).not_to_be_visible()
