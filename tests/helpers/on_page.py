"""What the tests do with the page; the hooks are the components' exposed state, data attributes, roles and labels."""

from axe_playwright_python.sync_playwright import Axe
from elements import VIEW as VIEW
from elements import state as state
from gradio_client import Client
from playwright.sync_api import Locator, Page, expect

from specviz.records.prompts import PRESETS
from specviz.records.runs import Run
from specviz.records.words import words

#: What the slider of γ is called.
GAMMA = words()("controls.num_draft_tokens")


def control(page: Page, label: str) -> Locator:
    """The text box or number field of that label, unfolded."""
    number = f'input[type=number][aria-label="{label}"], input[aria-label="number input for {label}"]'
    field = page.locator({"Prompt": ".sv-prompt textarea", "Grammar": "#grammar textarea"}.get(label, number))
    for fold in ("#fields-fold button", "[aria-controls=more-controls]"):
        closed = page.locator(f"{fold}[aria-expanded=false]")
        if closed.is_visible() and not field.is_visible():
            closed.click()
    return field


def set_control(page: Page, label: str, value: object) -> None:
    control(page, label).fill(str(value))


def choose_drafter(page: Page, name: str, language: str = "en") -> None:
    """Chooses a drafter and waits until the controls have followed, as a visitor does who reads what it says."""
    say = words(language)
    page.locator("#drafter input").click()
    page.locator("#drafter").get_by_role("option", name=say(f"ways.{name}"), exact=True).click()
    expect(page.locator(".sv-drafting .sv-note").first).to_have_text(say(f"ways.{name}_about"))


def expect_drafter(page: Page, name: str) -> None:
    """Expects it to be the chosen one."""
    expect(page.locator("#drafter input")).to_have_value(words()(f"ways.{name}"))


def await_arrival(page: Page, button: str) -> None:
    """A button takes no press for a moment after it has appeared. A click that is tried meanwhile scrolls the page."""
    page.wait_for_function(
        """(button) => {
          const { x, y, width, height } = document.querySelector(button).getBoundingClientRect();
          const there = document.elementFromPoint(x + width / 2, y + height / 2);
          const above = document.querySelector('.sv-controls').getBoundingClientRect().top;
          return !there || there.closest(button) || y + height / 2 > innerHeight || y < above;
        }""",
        arg=button,
    )


def start(page: Page, button: str = "#go") -> None:
    await_arrival(page, button)
    page.locator(button).click()
    page.locator("#stop, #stop-race").locator("visible=true").wait_for()


def settle(page: Page) -> None:
    """Waits until everything that was started is over, and drawn."""
    # Before it is expected: an `expect` that finds a button hidden describes the whole page, each time that it looks.
    page.locator("#go").wait_for()
    expect(page.locator("#go")).to_be_enabled()
    wait_until_drawn(page)


def wait_until_drawn(page: Page) -> None:
    """The component draws a few times a second; waits until the page has caught up with what the component holds."""
    page.wait_for_function(
        """() => {
          const view = document.querySelector('specviz-run');
          if (!view?.shadowRoot) return false;  // its script is still on its way
          const find = (what) => [...view.shadowRoot.querySelectorAll(what)];
          const unknown = (node) => typeof view.figures[node.dataset.figure] !== 'number';
          return find('[part=view]')[0].dataset.state === view.state
            && find('[data-token]').map(node => node.textContent).join('') === view.text
            && find('[data-figure]').every(node => (node.textContent === '—') === unknown(node));
        }"""
    )


def wait_for_rounds(page: Page, count: int) -> None:
    """Drawn ones of the visitor's own run, not of the recorded one that the page opens with."""
    page.wait_for_function(f"count => !{VIEW}.recorded && {VIEW}.view.drawn >= count", arg=count)


def generate(page: Page, *, new_tokens: int, measure: bool = False) -> None:
    """Presses the button and waits for the end."""
    set_control(page, "New tokens", new_tokens)
    page.get_by_label("Then measure the speedup").set_checked(measure)
    start(page)
    settle(page)


def downloaded_trace(page: Page, folder) -> Run:
    with page.expect_download() as download:
        page.locator("#download-trace").click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return Run.load(path)


def downloaded_page(page: Page, kind: str) -> str:
    """The page in a file of the race or the comparison that is on the screen."""
    with page.expect_download() as download:
        page.locator(f"#download-{kind}-page").click()
    assert download.value.suggested_filename == f"specviz-{kind}.html"
    return download.value.path().read_text(encoding="utf-8")


#: What is asked of the page: WCAG 2.1, levels A and AA, and axe's own advice.
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    # Else it describes every element that keeps to a rule as well, which takes most of its time.
    "resultTypes": ["violations"],
}
SERIOUS = ("serious", "critical")

#: Nothing moves but what moves for ever, or as somebody scrolls.
STILL = """() => document.getAnimations().every(({ effect, playState, timeline }) => timeline !== document.timeline ||
    playState !== "running" || effect.getComputedTiming().endTime === Infinity)"""


def violations(page: Page, within: str | None = None) -> list[str]:
    """A line for each element that breaks a rule of axe-core's seriously: the rule, the element, what is wrong.

    within: the element, by its selector, that is looked at alone; a whole page takes seconds.
    """
    # A button that is enabled again has, for a moment, a colour between the two that it is meant to have; a list that
    # opens fades in.
    page.add_style_tag(content="*, ::before, ::after { transition: none !important }")
    page.wait_for_function(STILL)
    found = Axe().run(page, within, RULES).response["violations"]
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found
        if rule["impact"] in SERIOUS
        for node in rule["nodes"]
    ]


#: Where the nodes stand in the window, null for one that is not seen; nothing if one of them is no longer on the page.
BOXES = """(nodes) => nodes.every((node) => node.isConnected) && nodes.map((node) => {
  const { x, y, width, height } = node.getBoundingClientRect();
  return node.checkVisibility() ? { x, y, width, height } : null;
})"""


def boxes(*parts: Locator) -> list[dict[str, float]]:
    """Where they stand, as `bounding_box` has it, all in one look: between two the page may scroll."""
    while not (seen := parts[0].page.evaluate(BOXES, [part.element_handle() for part in parts])):
        pass  # drawn anew while they were being found
    return seen


def assert_no_sideways_scrolling(page: Page) -> None:
    page.wait_for_function(
        "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        " && document.body.scrollWidth <= document.documentElement.clientWidth"
    )


def quoted(token: str) -> str:
    """A token as sentences quote it."""
    return "‹\u2068" + token.replace(" ", "\u00a0").replace("\n", "⏎") + "\u2069›"


def order(client: Client, **arguments) -> dict:
    settings = {"prompt": PRESETS[0].prompt, "max_new_tokens": 8} | arguments
    return client.predict(**settings, api_name="/generate")
