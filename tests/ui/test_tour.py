"""The tour in a real browser, by keyboard: every step does its thing, and says what the page measured."""

import re

import pytest
from elements import element
from on_page import (
    VIEW,
    assert_no_sideways_scrolling,
    boxes,
    control,
    expect_drafter,
    quoted,
    set_control,
    settle,
    state,
    wait_for_rounds,
)
from playwright.sync_api import Locator, Page, expect

from specviz.records.prompts import PRESETS
from specviz.records.words import words
from specviz.ui.components import LONG_DRAFT, SHORT_DRAFT, TOUR_TOKENS
from specviz.ui.routes.web_files import ADDRESS

say = words("en")
TOUR = element("tour")
PROMPTS = {preset.name: preset.prompt for preset in PRESETS}


def part(page: Page, name: str) -> Locator:
    return page.locator(f'specviz-tour [part="{name}"]')


def tab_to(page: Page, name: str) -> None:
    """Goes on with the Tab key until that part of the tour has the focus."""
    for _ in range(200):
        if page.evaluate(f"{TOUR}.shadowRoot.activeElement?.getAttribute('part')") == name:
            return
        page.keyboard.press("Tab")
    pytest.fail(f"Tab never reaches {name}")


def press(page: Page, name: str) -> None:
    tab_to(page, name)
    page.keyboard.press("Enter")


def show(page: Page) -> str:
    """Presses the step's button and waits for what it says."""
    press(page, "show")
    page.wait_for_function(f"() => {TOUR}.said !== null || {TOUR}.failure !== null")
    assert page.evaluate(f"{TOUR}.failure") is None
    said = page.evaluate(f"{TOUR}.said")
    expect(part(page, "said")).to_contain_text(said.replace("\u202f", " "), use_inner_text=False)
    return said


def shown_figures(page: Page) -> dict[str, str]:
    """The headline figures as a reader sees them."""
    page.wait_for_function(f"() => {VIEW}.shadowRoot.querySelector('[part=view]').dataset.state === 'finished'")
    return page.locator("specviz-run [data-figure]").evaluate_all(
        "nodes => Object.fromEntries(nodes.map(node => [node.dataset.figure, node.textContent]))"
    )


def finished(page: Page) -> dict:
    """The run on the page."""
    return page.evaluate(f"{VIEW}.finished")


#: What the page's judge says of the run's speedup.
FAST = f"""async () => {{
  const {{ speedupVerdict }} = await import(new URL('{ADDRESS}/shared/verdict.js', document.baseURI));
  const {{ speedup, speedup_low, speedup_high }} = {VIEW}.finished.figures;
  return speedupVerdict({TOUR}.say, speedup, speedup_low, speedup_high);
}}"""


def headline(page: Page) -> dict[str, str]:
    """What a sentence about the run on the page has to quote, read off the page."""
    figures, run = shown_figures(page), finished(page)
    fast = page.evaluate(FAST)
    assert fast["open"] or fast["text"] == figures["speedup"], "the tile says the same"
    known = say("tour.fast" if fast["decided"] else "tour.not_measured", speedup=fast["text"])
    return {
        "tokens": sum(len(one["emitted"]) for one in run["rounds"]),
        "passes": len(run["rounds"]),
        "length": figures["acceptance_length"],
        "share": figures["acceptance_rate"],
        "fast": fast["text"] if fast["open"] else known,
    }


# What each step has to have done, and said: every figure is the page's own


#: What drafts in each step's run, and what checks the rest of what it says; without, it is the headline's figures.
STEPS = {
    "pass": (None, None),
    "draft": ("Draft model", None),
    "round": ("Draft model", lambda page, said: check_round(page, said)),
    "coin": ("Draft model", lambda page, said: check_coin(page, said)),
    "match": ("Early exit", lambda page, said: check_match(page, said)),
    "long": ("Draft model", lambda page, said: check_long(page, said)),
    "copy": ("Prompt lookup", None),
    "same": ("Draft model", lambda page, said: finished(page)["start"]["greedy"] or pytest.fail("not greedy")),
}


#: The steps whose runs are measured, and the one that looks at such a run.
MEASURED = "draft", "round", "long"


def check_round(page: Page, said: str) -> None:
    """The first refusal of the run is chosen, and taken apart."""
    refusals = [one for one in finished(page)["rounds"] if one["next"]["kind"] == "recovered"]
    one = next(one for one in refusals if one["drafted"][0]["outcome"] == "accepted")
    outcomes = [token["outcome"] for token in one["drafted"]]
    refused = outcomes.index("rejected")
    expect(page.locator("specviz-run")).to_be_visible()
    assert state(page, "chosen") == {"round": one["index"], "index": refused}
    assert said == say(
        "tour.round_said",
        round=one["index"] + 1,
        drafted=len(outcomes),
        accepted=outcomes.count("accepted"),
        refused=quoted(one["drafted"][refused]["text"]),
        discarded=outcomes.count("discarded"),
        next=quoted(one["next"]["text"]),
        emitted=len(one["emitted"]),
    )
    expect(page.locator('specviz-run [part="picture-title"]')).to_contain_text(f"Round {one['index'] + 1}")
    assert_in_sight(page, one["index"])


def assert_in_sight(page: Page, round_: int) -> None:
    """The row that it speaks about is to be seen in its list."""
    names = f".round[data-round='{round_}'] .chips", ".rounds"
    box, within = boxes(*(page.locator(f"specviz-run {name}").first for name in names))
    assert within["y"] <= box["y"] + 1 and box["y"] < within["y"] + within["height"], (box, within)


def check_coin(page: Page, said: str) -> None:
    """A token is chosen that p < q made depend on its coin, and the coin is the run's."""
    run, chosen = finished(page), state(page, "chosen")
    one = run["rounds"][chosen["round"]]
    token = one["drafted"][chosen["index"]]
    assert not run["start"]["greedy"]
    assert token["p"] < token["q"]
    assert (token["u"] < token["p"] / token["q"]) == (token["outcome"] == "accepted") == ("✓" in said)
    assert said.startswith(f"Round {one['index'] + 1}, {quoted(token['text'])}:")
    p, q, ratio, u = map(float, re.search(r"= ([\d.]+) / ([\d.]+) = ([\d.]+)\..* u = ([\d.]+),", said).groups())
    assert (p, q, u) == pytest.approx((token["p"], token["q"], token["u"]), rel=0.05)
    assert ratio == pytest.approx(token["accept_prob"], abs=0.0051)
    # Both are rounded on the screen.
    assert ratio == pytest.approx(p / q, rel=0.05)


def check_match(page: Page, said: str) -> None:
    """The page still shows the second one: the bad junior."""
    run, now = finished(page), headline(page)
    assert "exit after layer 1" in run["start"]["settings"]
    assert said.endswith(f"First layer alone: {now['share']} accepted, {now['length']} tokens per target pass.")
    good, bad = map(int, re.findall(r"(\d+)\u202f% accepted", said))
    assert good > bad + 20, "on the embedded pair"


def check_long(page: Page, said: str) -> None:
    run, now = finished(page), headline(page)
    drafts = [token for one in run["rounds"] for token in one["drafted"]]
    discarded = sum(token["outcome"] == "discarded" for token in drafts)
    assert run["start"]["num_draft_tokens"] == LONG_DRAFT
    assert f"γ = {SHORT_DRAFT}: " in said
    assert f"γ = {LONG_DRAFT}: {now['length']} tokens per target pass. {now['fast']} " in said
    counted = said.removesuffix(f" {say('tour.long_paid')}")
    assert counted.endswith(f"{discarded} of {len(drafts)} draft tokens were discarded ┄ unjudged.")


#: What the step says of two runs of these speedups.
SAID_OF = f"""async speedups => {{
  const {{ STEPS }} = await import(new URL('{ADDRESS}/tour/steps.js', document.baseURI));
  const rounds = [{{ drafted: [{{ outcome: "accepted" }}] }}];
  const runs = speedups.map(speedup => ({{ figures: {{ speedup }}, rounds }}));
  return (await STEPS.find(step => step.name === "long").show({TOUR}, async () => runs.shift())).said;
}}"""


@pytest.mark.parametrize(
    "speedups, paid", [((1.2, 1.5), True), ((1.5, 1.2), False), ((1.2, None), False), ((None, 1.5), False)]
)
def test_long_drafts_that_paid_are_not_called_too_long(page, speedups, paid):
    assert page.evaluate(SAID_OF, speedups).endswith(say("tour.long_paid")) is paid


def test_the_tour_from_end_to_end_by_keyboard(page):
    expect(part(page, "opener")).to_have_text(say("tour.start"))
    tab_to(page, "opener")
    page.keyboard.press("Enter")
    runs, sentences, ids = {}, {}, {}
    for number, (step, (drafter, check)) in enumerate(STEPS.items(), start=1):
        expect(part(page, "title")).to_be_focused()
        expect(part(page, "title")).to_have_text(say(f"tour.{step}_title"))
        expect(part(page, "progress")).to_have_text(say("tour.progress", n=number, count=len(STEPS)))
        expect(part(page, "back")).to_be_enabled(enabled=number > 1)
        if step == "round":  # this one looks at the run that is there, wherever its reader has been meanwhile
            page.get_by_role("tab", name="Models").click()
        sentences[step], runs[step] = show(page), finished(page)
        assert runs[step]["start"]["drafter"] == drafter
        if check:
            check(page, sentences[step])
        else:
            assert sentences[step] == say(f"tour.{step}_said", **headline(page))
        ids[step] = [id for one in runs[step]["rounds"] for id in one["emitted"]]
        assert len(ids[step]) <= TOUR_TOKENS
        assert (state(page, "prompt") == PROMPTS["repeats"]) == (step == "copy")
        assert step in MEASURED or runs[step]["figures"]["speedup"] is None, "the tour waits only where it tells of it"
        assert "per second" not in sentences[step], "figures of different moments are not compared"
        press(page, "next")
    # The first step ran what the last one compares with: plain, greedy, the same prompt.
    plain, speculative = runs["pass"], runs["same"]
    passes = {"plain": len(plain["rounds"]), "speculative": len(speculative["rounds"])}
    equal = say("tour.same_equal", tokens=len(ids["pass"]), **passes)
    assert (sentences["same"] == equal) == (ids["pass"] == ids["same"])
    assert "1.00 tokens per target pass" in sentences["pass"]
    expect(part(page, "panel")).to_be_hidden()
    expect(part(page, "opener")).to_be_focused()
    expect(part(page, "opener")).to_have_text(say("tour.start"))
    expect(page.locator("#measured input")).to_be_checked()


#: On a page whose events are slow: has the tour's next run ask for these settings, too, while another request is on its
#: way to the server; and once the run is refused, an event that reads the controls takes down what stands beside them.
ASKS_WRONGLY = """(wrong) => {
  const ask = () => document.dispatchEvent(
    new CustomEvent('specviz-press', { detail: { settings: {}, press: null, measure: null } }));
  let goOn;
  const { fetch } = window, asked = new Promise((resolve) => { goOn = resolve; });
  window.fetch = async (address, options) => {
    if (!String(address).includes('queue/join')) return fetch(address, options);
    window.fetch = fetch;
    await asked;
    return fetch(address, options);
  };
  ask();
  const amend = ({ detail }) => Object.assign(detail.settings, wrong);
  addEventListener('specviz-press', amend, { capture: true, once: true });
  addEventListener('specviz-press', () => setTimeout(goOn), { once: true });
  document.addEventListener('specviz-refused', ask, { once: true });
}"""

#: Refused beside a control, and by what sets the controls.
REFUSED = [({"top_p": 7}, "Top-p must be above 0 and at most 1"), ({"rule": "none"}, "none")]


def test_it_waits_while_a_run_is_on_says_what_did_not_work_and_is_resumed_where_it_was(page):
    page.get_by_label("Then measure the speedup").uncheck()
    set_control(page, "New tokens", 1024)
    # Of a run that is sampled; a greedy one flips none.
    asked = {"settings": {"coins": "900.1=0.5"}, "press": "generate"}
    page.evaluate("detail => document.dispatchEvent(new CustomEvent('specviz-press', { detail }))", asked)
    wait_for_rounds(page, 1)
    part(page, "opener").press("Enter")
    expect(part(page, "show")).to_have_attribute("aria-disabled", "true")
    press(page, "show")
    expect(part(page, "said")).to_have_attribute("data-kind", "before")
    page.locator("#stop").click()
    expect(part(page, "show")).to_have_attribute("aria-disabled", "false")
    # Settings that the page refuses, for once.
    for wrong, sentence in REFUSED:
        page.evaluate(ASKS_WRONGLY, wrong)
        press(page, "show")
        expect(part(page, "said")).to_contain_text(sentence)
        expect(part(page, "show")).to_have_text(say("tour.retry"))
    assert show(page) == say("tour.pass_said", **headline(page))
    press(page, "close")
    expect(page.locator("#measured input")).not_to_be_checked()
    # The controls stand as the visitor had them.
    expect(control(page, "New tokens")).to_have_value("1024")
    expect_drafter(page, "draft_model")

    # It closes with Escape, and is resumed where it was.
    page.set_viewport_size({"width": 390, "height": 844})
    part(page, "opener").press("Enter")
    press(page, "next")
    press(page, "next")
    assert part(page, "panel").bounding_box()["height"] <= 0.45 * 844
    assert_no_sideways_scrolling(page)
    # Nor at 200 % in a projector's window is there nothing but buttons.
    page.set_viewport_size({"width": 640, "height": 360})
    expect(part(page, "title")).to_be_in_viewport(ratio=1)
    assert page.locator("specviz-tour [part=text]").bounding_box()["height"] > 40
    expect(part(page, "text")).to_be_in_viewport(ratio=0.5)
    for button in ("show", "next"):
        expect(part(page, button)).to_be_in_viewport(ratio=1)
    assert_no_sideways_scrolling(page)
    page.keyboard.press("Escape")
    expect(part(page, "panel")).to_be_hidden()
    expect(part(page, "opener")).to_be_focused()
    resume = say("tour.resume", n=3, count=len(STEPS))
    expect(part(page, "opener")).to_have_text(resume)
    settle(page)
    page.reload()
    expect(part(page, "opener")).to_have_text(resume)
    expect(control(page, "New tokens")).to_have_value("1024")  # the visitor's, not the tour's
    part(page, "opener").press("Enter")
    expect(part(page, "title")).to_have_text(say("tour.round_title"))
    # A browser that keeps nothing: the tour starts at its beginning, and goes on.
    page.add_init_script("Object.defineProperty(window, 'sessionStorage', {get() { throw new Error('refused'); }})")
    settle(page)
    page.reload()
    expect(part(page, "opener")).to_have_text(say("tour.start"))
    part(page, "opener").press("Enter")
    press(page, "next")
    expect(part(page, "title")).to_have_text(say("tour.draft_title"))
    page.close()  # nobody else should have a browser that keeps nothing
