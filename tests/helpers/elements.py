"""The page's elements, as the tests reach them, and a page that holds nothing but one of them."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from playwright.sync_api import Page, Route

from specviz.records.words import words
from specviz.ui.components import AREAS, page_css
from specviz.ui.web_files import FILES, TYPES

#: Where the bare page lives; nothing is asked of any network for it.
HOME = "http://alone.test/"


def element(name: str) -> str:
    """The element specviz-NAME, in the browser's words; its getters show what it holds."""
    return f"document.querySelector('specviz-{name}')"


RUN = element("run")


def show_alone(page: Page, name: str, language: str = "en", dark: bool = False) -> None:
    """A page without Gradio whose only content is the element, which has been given its words."""
    texts = json.dumps(words(language).texts("common", *AREAS[name])).replace("<", "\\u003c")
    body = f"""<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
      <style>{page_css()} body {{ margin: 12px; }}</style>
      <body class="{"dark" if dark else ""}"><specviz-{name}></specviz-{name}><script type="module">
        import "/{name}/element.js";
        {element(name)}.words = {texts};
      </script></body>"""

    def answer(route: Route) -> None:
        path = urlsplit(route.request.url).path.removeprefix("/")
        if path in FILES:
            route.fulfill(body=FILES[path], content_type=TYPES[path[path.rindex(".") :]])
        elif path == "":
            route.fulfill(body=body, content_type="text/html")
        else:
            route.fulfill(status=204 if path == "favicon.ico" else 404)

    page.route(f"{HOME}**", answer)
    page.goto(HOME)
    page.wait_for_function(f"() => {element(name)}.built")


def give(page: Page, name: str, messages: list[str]) -> None:
    """Hands messages over, as they come from the server."""
    page.evaluate(f"messages => messages.forEach(one => {element(name)}.receive(JSON.parse(one)))", messages)
