"""Fixtures of the tests that need a browser: the real app and its visitors, and pages that hold a single element."""

import collections
import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from elements import EMPTY, VIEW, bare_pages, feed, show_alone
from playwright.sync_api import Browser, BrowserType, Error, Page, Playwright, expect, sync_playwright
from running import PATIENCE, ROOT, running_app

from specviz.records.runs import Run
from tools.chromium import INSTALLED

#: The window of a desk.
WINDOW = {"width": 1280, "height": 900}

BROWSER_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
#: A name under which this machine is found as others would find it.
NETWORK_NAME = "school.example"
#: Nothing outside this machine is found; a route that asks Playwright about every request would slow each page down.
BROWSER_OPTIONS += [
    f"--host-resolver-rules=MAP {NETWORK_NAME} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
]

#: Scripts run once or a few times: to compile the busiest anew, and better, would not pay.
BROWSER_OPTIONS += ["--js-flags=--no-opt --no-maglev --single-threaded-gc"]

#: Firefox's names, with long support first.
FIREFOXES = ("firefox-esr", "firefox")
#: With a process for each site, what a script presses would not reach frames of other sites.
FIREFOX_PREFERENCES = {"fission.autostart": False}

#: How the browser reports that Gradio refused a control's value: the sentence beside the control is what counts.
REFUSED = "the server responded with a status of 422"
#: What Gradio reports of a page that is left while it asks its server something: how passes are coming along, say.
LEFT = ("AbortError: signal is aborted", "Connection errored out")

#: A reader who has skipped two runs is not made to watch the next: it stands at its end, as in most tests.
SKIPS = "try { localStorage.setItem('specviz:skipped', '2'); } catch { /* a page without an address */ }"

#: Whoever is left keeps something for its return; heard last, this comes after it.
FORGETS = "() => addEventListener('pagehide', () => { sessionStorage.clear(); localStorage.clear(); })"

#: How the browser reports that a frame was not lent the clipboard: the link that is copied by hand is what counts.
NOT_LENT = "Permissions policy violation: The Clipboard API"

_LOG = pytest.StashKey[pathlib.Path]()


@pytest.fixture(scope="session")
def page_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Where the app under test writes what it keeps for a while: traces, uploads."""
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="session")
def page_url(page_folder: pathlib.Path, pytestconfig: pytest.Config) -> Iterator[str]:
    """The address of the app, running on the embedded pair."""
    pytestconfig.stash[_LOG] = page_folder / "app.log"
    with running_app(ROOT, page_folder) as url:
        yield url


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure of a test that used the page shows what the app had to say."""
    report = (yield).get_result()
    log = item.config.stash.get(_LOG, None)
    if report.failed and log and "page_url" in item.fixturenames:
        report.sections.append(("The app's log", log.read_text(errors="replace")[-4000:]))


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    expect.set_options(timeout=1000 * PATIENCE)
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """A Chromium: an installed one, or else Playwright's own. Having none is a failure."""
    browser = _installed(playwright.chromium, INSTALLED, args=BROWSER_OPTIONS)
    browser = browser or _fetched(playwright.chromium, args=BROWSER_OPTIONS)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def firefox(playwright: Playwright) -> Iterator[Browser]:
    """A Firefox: an installed one, driven over WebDriver BiDi, or else Playwright's own. Having none is a failure."""
    browser = _installed(playwright.firefox, FIREFOXES, channel="moz-firefox", firefox_user_prefs=FIREFOX_PREFERENCES)
    browser = browser or _fetched(playwright.firefox)
    yield browser
    browser.close()


def _installed(kind: BrowserType, names: Iterable[str], **options: Any) -> Browser | None:
    for path in filter(None, map(shutil.which, names)):
        try:
            return kind.launch(executable_path=path, **options)
        except Error:  # on some systems it is a stub that asks to install a package
            continue
    return None


def _fetched(kind: BrowserType, **options: Any) -> Browser:
    install = [sys.executable, "-m", "playwright", "install", kind.name]
    done = subprocess.run(install, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        return kind.launch(**options)
    except Error as error:
        pytest.fail(f"No {kind.name} is installed and none could be fetched:\n{done.stdout[-2000:]}\n{error}")


@pytest.fixture(scope="session")
def bare_home() -> Iterator[str]:
    """The address of a server of pages with a single element."""
    with bare_pages() as home:
        yield home


@pytest.fixture(scope="session")
def kept_tabs() -> dict[str, list[Page]]:
    """Pages that were left empty, by their browsers and their contexts' options. A new one costs a process, and a new
    context fetches and compiles every script anew."""
    return collections.defaultdict(list)


@pytest.fixture
def new_page(browser: Browser, bare_home: str, kept_tabs: dict[str, list[Page]]) -> Iterator[Callable[..., Page]]:
    """Opens an empty page that remembers nothing, in a window of its own; no error may reach its console.

    heard: what is called for events of the page. watches: runs are played to this reader. script: runs before those of
    each page; such a window is closed in the end, as a script that was added stays. options: further ones of the
    browser's context.
    """
    taken, mishaps = [], []
    watching = {
        "pageerror": lambda error: mishaps.append(f"error: {error}"),
        "console": lambda message: _note(message.type, message.text, mishaps),
    }

    def open_page(
        viewport=WINDOW,
        color_scheme="light",
        reduced_motion="no-preference",
        heard=(),
        watches=False,
        script="",
        **options,
    ) -> Page:
        kept = None if script else kept_tabs[json.dumps([browser.browser_type.name, watches, options], sort_keys=True)]
        page = kept.pop() if kept else _new_tab(browser, options, watches)
        if script:
            page.add_init_script(script)
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion)
        hearing = watching | dict(heard)
        for event, hear in hearing.items():
            page.on(event, hear)
        taken.append((page, hearing, kept))
        return page

    yield open_page
    for page, hearing, kept in taken:
        if kept is None:
            page.context.close()
        elif not page.is_closed():
            page.unroute_all()
            page.evaluate(FORGETS)
            for event, hear in hearing.items():
                page.remove_listener(event, hear)
            page.goto(bare_home + EMPTY)
            page.mouse.move(0, 0)
            kept.append(page)
    assert mishaps == []


def _new_tab(browser: Browser, options: dict, watches: bool) -> Page:
    context = browser.new_context(**options)
    if not watches:
        context.add_init_script(SKIPS)
    context.set_default_timeout(1000 * PATIENCE)
    return context.new_page()


@pytest.fixture
def visit(new_page: Callable[..., Page], page_url: str) -> Iterator[Callable[..., Page]]:
    """Opens the app as a new visitor; keyword arguments but the language ("" or "de") go to the browser's context.

    At the end of the test no visitor may have seen an error in the console, or a request that left this machine.
    """
    elsewhere, homes = [], (page_url, page_url.replace("127.0.0.1", NETWORK_NAME))

    def open_page(language: str = "", **options) -> Page:
        heard = {"request": lambda request: _note_request(request.url, homes, elsewhere)}
        page = new_page(heard=heard, **options)
        page.goto(page_url + language)
        # And drawn: until then nothing on the page can be pressed, and a place that a test sets by script is lost.
        page.wait_for_function(f"() => {VIEW}?.recorded && {VIEW}.view.drawn === {VIEW}.rounds.length")
        page.locator("#go").wait_for()
        return page

    yield open_page
    assert elsewhere == []


def _note(kind: str, text: str, mishaps: list[str]) -> None:
    if kind == "error" and not any(one in text for one in (REFUSED, NOT_LENT, *LEFT)):
        mishaps.append(f"console: {text}")


def _note_request(url: str, homes: tuple[str, ...], elsewhere: list[str]) -> None:
    if not url.startswith((*homes, "data:", "blob:", "about:")):
        elsewhere.append(url)


@pytest.fixture
def page(visit: Callable[..., Page]) -> Page:
    """The app in a window of 1280 by 900."""
    return visit()


@pytest.fixture
def alone(new_page: Callable[..., Page], bare_home: str) -> Callable[..., Page]:
    """Opens an element alone, outside Gradio; keyword arguments go to the browser's context."""

    def open_page(name: str, language: str = "en", **options) -> Page:
        page = new_page(**{"viewport": {"width": 1100, "height": 900}} | options)
        show_alone(page, bare_home, name, language, dark=options.get("color_scheme") == "dark")
        return page

    return open_page


@pytest.fixture
def show(alone: Callable[..., Page]) -> Callable[..., Page]:
    """Opens the live view alone and gives it a run."""

    def open_page(run: Run, rule: str = "token", language: str = "en", **options) -> Page:
        page = alone("run", language, **options)
        feed(page, run, rule)
        return page

    return open_page
