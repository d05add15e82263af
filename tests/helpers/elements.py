"""The page's elements, as the tests reach them, and a page that holds nothing but one of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl, urlencode, urlsplit

from playwright.sync_api import Locator, Page
from running import serving

from specviz.records.assets import WEB
from specviz.records.runs import Run
from specviz.records.words import said as text_of
from specviz.views import run_messages as messages


def element(name: str) -> str:
    """The element specviz-NAME, in the browser's words; its getters show what it holds."""
    return f"document.querySelector('specviz-{name}')"


#: All there are; shared/element.js is what they extend.
ELEMENTS = sorted({path.parent.name for path in WEB.glob("*/element.js")} - {"shared"})

#: The live view.
VIEW = element("run")

#: Where a server of bare pages has nothing at all.
EMPTY = "empty"


class _Answer(BaseHTTPRequestHandler):
    """The files of assets/web, at `/` the page that holds nothing but one element, at `/empty` nothing."""

    protocol_version = "HTTP/1.1"  # connections are kept

    def do_GET(self) -> None:
        # Not above: whoever tests something else, or only hands tests to others, would load gradio too.
        from specviz.ui.routes.web_files import FILES, TYPES

        address = urlsplit(self.path)
        name = address.path.removeprefix("/")
        if name in FILES:
            self._send(200, FILES[name], TYPES[name[name.rindex(".") :]], "max-age=3600")
        elif not name:
            self._send(200, _bare(**dict(parse_qsl(address.query))).encode(), "text/html")
        else:
            self._send(200 if name == EMPTY else 204 if name == "favicon.ico" else 404, type="text/html")

    def _send(self, status: int, body: bytes = b"", type: str = "text/plain", kept: str = "no-store") -> None:
        self.send_response(status)
        for header in (("Content-Type", type), ("Cache-Control", kept), ("Content-Length", str(len(body)))):
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nobody reads it."""


def _bare(name: str, language: str, scheme: str) -> str:
    from specviz.ui.routes.web_files import page_css

    return f"""<!doctype html><html lang="{language}"><meta charset="utf-8"><title>{name}</title>
      <meta name="viewport" content="width=device-width">
      <style>{page_css()} body {{ margin: 12px; }}</style>
      <body class="{scheme}"><specviz-{name}></specviz-{name}><script type="module">
        import "/{name}/element.js";
        import {{ words }} from "/words/{language}.js";
        {element(name)}.words = words;
      </script></body>"""


@contextmanager
def bare_pages() -> Iterator[str]:
    """The address of a server of bare pages, on this machine."""
    with serving(_Answer) as port:
        yield f"http://127.0.0.1:{port}/"


def show_alone(page: Page, home: str, name: str, language: str = "en", dark: bool = False) -> None:
    """A page without Gradio whose only content is the element, which has been given its words.

    home: the address of `bare_pages`.
    """
    page.goto(f"{home}?{urlencode({'name': name, 'language': language, 'scheme': 'dark' if dark else 'light'})}")
    page.wait_for_function(f"() => {element(name)}?.built")


def give(page: Page, name: str, messages: list[str]) -> None:
    """Hands messages over, as they come from the server."""
    page.evaluate(f"messages => messages.forEach(one => {element(name)}.receive(JSON.parse(one)))", messages)


# The live view alone


def feed(page: Page, run: Run, rule: str) -> None:
    """The messages of an opened trace."""
    start = messages.opening("run", replace(run, rule=rule))
    rounds = messages.rounds_message("run", run.rounds, run.vocabulary)
    end = messages.end_message("run", total=len(run.rounds), reason=text_of(f"generate.end_{run.stop_reason}"))
    give(page, "run", [start, rounds, end])
    page.wait_for_function(f"() => {VIEW}.shadowRoot.querySelector('[part=view]').dataset.state === 'finished'")


def state(page: Page, name: str):
    return page.evaluate(f"name => {VIEW}[name]", name)


def chip(page: Page, round: int, index: int | str) -> Locator:
    return page.locator(f'.list button.chip[data-round="{round}"][data-index="{index}"]')


def switch(page: Page, round: int) -> Locator:
    return page.locator(f'button.toggle[data-round="{round}"]')


def unfold(page: Page, round: int) -> None:
    if switch(page, round).get_attribute("aria-expanded") == "false":
        switch(page, round).click()


def said(page: Page) -> str:
    """The close-up's sentence, with ordinary spaces."""
    return page.locator('[part="say"]').inner_text().replace("\u00a0", " ")


def ask(page: Page, round: int, index: int | str) -> str:
    """Points at a chip and lets go again, so that the next one can be asked."""
    chip(page, round, index).click()
    sentence = said(page)
    page.keyboard.press("Escape")
    return sentence


def shown(page: Page, round: int) -> set[str]:
    chips = page.locator(f'.list button.chip[data-round="{round}"]')
    return set(chips.evaluate_all("nodes => nodes.map(node => node.dataset.index)"))
