"""The page in another site's frame, as on the hub, in two browsers: everything works and is in sight."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import urlopen

import pytest
from elements import VIEW
from on_page import settle, wait_for_rounds
from playwright.sync_api import Browser, Frame, Page, expect
from running import PATIENCE, serving, wait_until

from specviz.records.words import words
from specviz.ui.page import TABS
from specviz.views.static_site import write_site

#: Pixels of the framing page above the frame.
HEAD = 56

#: What the hub lends to its frames; other sites lend nothing.
LENT = "clipboard-write; fullscreen"

#: Makes the frame as tall as what it holds, as iframe-resizer 4 does, and takes scrolling away from it when asked to.
FRAMING = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<body style="margin: 0"><header style="height: %dpx"></header>
<iframe style="display: block; width: 100%%; border: 0" allow="%s" src="%s"></iframe><script>
  const frame = document.querySelector("iframe");
  const tell = (text) => frame.contentWindow.postMessage(`[iFrameSizer]${text}`, "*");
  const told = () => tell(`pageInfo:${JSON.stringify({
    clientHeight: innerHeight, clientWidth: innerWidth, iframeHeight: frame.offsetHeight,
    offsetTop: frame.offsetTop, offsetLeft: 0, scrollTop: scrollY, scrollLeft: 0 })}`);
  const begin = () => tell("frame:8:false:false:32:true:true:null:bodyOffset:null:null:0:false:parent:scroll:false");
  frame.addEventListener("load", begin);
  addEventListener("message", ({ data }) => {
    if (data.type === "SET_SCROLLING") frame.scrolling = data.enabled ? "yes" : "no";
    if (data === "[iFrameResizerChild]Ready") begin();
    const [id, height, , what] = String(data).split(":");
    if (id !== "[iFrameSizer]frame") return;
    if (what === "pageInfo") told();
    else if (Number(height)) frame.style.height = `${height}px`;
  });
  for (const event of ["scroll", "resize"]) addEventListener(event, told);
</script>"""

#: To a short run, which waits for its button: a link that starts its own would be in the way of a press.
LINK = "?prompt=Once+upon&drafter=draft_model&max_new_tokens=8&start=0"

#: A browser whose user lets other sites' frames keep nothing.
KEEPS_NOTHING = """for (const name of ["localStorage", "sessionStorage", "indexedDB"])
  Object.defineProperty(window, name, { get() { throw new DOMException("refused", "SecurityError"); } });"""


#: What a static host may be told to send, the hub by `custom_headers`.
ISOLATING = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "cross-origin",
}


class _Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write((FRAMING % (HEAD, asked.get("allow", ""), asked["app"])).encode())

    def log_message(self, *arguments: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    """The address of a page that frames others: another site for the browser, but secure for it, too."""
    with serving(_Hub) as port:
        yield f"http://localhost:{port}/"


class _StaticHost(SimpleHTTPRequestHandler):
    def __init__(self, *arguments: object, given: dict[str, str], **options: object):
        self.given = given
        super().__init__(*arguments, **options)

    def end_headers(self) -> None:
        for name, value in self.given.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module", params=[{}, ISOLATING], ids=["bare", "isolating"])
def static_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page without a server, with each set of headers."""
    folder = tmp_path_factory.mktemp("static")
    write_site(folder)
    with serving(partial(_StaticHost, given=request.param, directory=folder)) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(params=["chromium", "firefox"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def browser(request: pytest.FixtureRequest, engine: str, browser: Browser) -> Browser:
    """One after the other. With a parameter of its own it would end the browser of all other tests."""
    return request.getfixturevalue("firefox") if engine == "firefox" else browser


@pytest.fixture
def framing(new_page: Callable[..., Page], hub: str) -> Callable[..., Frame]:
    """Opens an address in the hub's frame; keyword arguments go to the browser's context."""

    def open_page(address: str, allow: str = LENT, **options) -> Frame:
        page = new_page(**options)
        page.goto(f"{hub}?{urlencode({'app': address, 'allow': allow})}")
        frame = page.locator("iframe").element_handle().content_frame()
        assert frame
        return frame

    return open_page


@pytest.fixture
def framed(framing: Callable[..., Frame], page_url: str) -> Callable[..., Frame]:
    """Opens a page of the app there."""

    def open_page(path: str = "", **options) -> Frame:
        frame = framing(page_url + path, **options)
        # By the clock: under load Firefox was seen to draw no frames to look at it in.
        frame.wait_for_function(f"() => {VIEW}?.built", polling=100)
        frame.locator("#go").wait_for(state="attached")
        # What a link asks for comes after the pair, which a busy machine was seen to load for more than a minute.
        expect(frame.locator(".sv-pair").first).to_contain_text("storybook", timeout=3000 * PATIENCE)
        return frame

    return open_page


def in_sight(frame: Frame, selector: str) -> bool:
    """Whether all of an element stands in the browser's window: what is seen of the frame is what counts."""
    box, window = frame.locator(selector).bounding_box(), frame.page.viewport_size
    return bool(box and window and box["y"] >= HEAD - 1 and box["y"] + box["height"] <= window["height"] + 1)


def test_in_the_hubs_frame_all_that_is_opened_is_in_sight_and_works(framed):
    say, frame = words(), framed(LINK)
    assert frame.evaluate("isSecureContext")
    expect(frame.locator(".sv-prompt textarea")).to_have_value("Once upon")
    # The frame covers what is seen of it, however long the tab, and the page scrolls in it.
    for name in reversed(TABS):
        frame.get_by_role("tab", name=say(f"{name}.tab"), exact=True).click()
        frame.wait_for_function(f"(seen) => innerHeight === seen - {HEAD}", arg=frame.page.viewport_size["height"])
    assert frame.evaluate("() => { scrollBy(0, 500); return scrollY; }") == 0
    frame.page.mouse.move(640, 600)
    frame.page.mouse.wheel(0, 500)
    frame.wait_for_function("() => document.body.scrollTop > 0")
    frame.locator("#go").click()
    wait_for_rounds(frame, 2)
    assert frame.evaluate("sessionStorage.getItem('specviz:settings')")
    frame.get_by_role("button", name=say("tour.start")).click()
    wait_until(lambda: in_sight(frame, "specviz-tour [part=progress]"))
    wait_until(lambda: in_sight(frame, "specviz-tour [part=next]"))
    frame.locator("specviz-tour [part=close]").click()
    frame.get_by_role("button", name=say("quiz.open")).click()
    wait_until(lambda: in_sight(frame, "specviz-quiz dialog"))


def test_a_frame_that_is_lent_nothing_and_keeps_nothing_shows_the_link_and_presents(framed):
    say, frame = words("de"), framed(f"de{LINK}", allow="", script=KEEPS_NOTHING)
    expect(frame.locator(".sv-prompt textarea")).to_have_value("Once upon")
    frame.locator("#go").click()
    wait_for_rounds(frame, 2)
    settle(frame)  # the buttons of a run that is over stand elsewhere
    frame.get_by_role("button", name=say("share.copy")).click()
    # Whatever has become of the clipboard.
    expect(frame.get_by_role("textbox", name=say("share.link"))).to_have_value(re.compile("prompt="))
    frame.get_by_role("button", name=say("playback.present")).click()
    wait_until(lambda: in_sight(frame, "dialog[part=presentation]"))
    frame.locator("[part=present-close]").click()
    expect(frame.locator("dialog[part=presentation]")).to_be_hidden()


def test_the_page_without_a_server_runs_in_the_hubs_frame_under_any_headers(framing, static_url):
    frame = framing(f"{static_url}?lang=en", script=KEEPS_NOTHING)
    frame.get_by_role("button", name=words()("page.go")).click()  # the models are still on their way
    wait_for_rounds(frame, 2)


def test_where_a_space_asks_for_pages_of_nodes_they_are_still_ours(monkeypatch, serve):
    monkeypatch.setenv("GRADIO_SSR_MODE", "true")
    monkeypatch.setenv("SPECVIZ_TARGET", "none")
    address, _ = serve()
    with urlopen(address) as answer:
        assert f'<meta property="og:title" content="{words()("page.title")}">' in answer.read().decode()
