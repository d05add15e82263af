"""What the tests of the page share: the real app in its own process, and a real browser."""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

# Two files run at a time, and the models are small: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from alone import VIEW, feed
from elements import EMPTY, bare_pages, show_alone
from playwright.sync_api import Browser, BrowserType, Error, Page, Playwright, expect, sync_playwright

from specviz.records.runs import Run
from tools.chromium import INSTALLED

ROOT = pathlib.Path(__file__).parent.parent

#: Seconds the app may take to answer, and Playwright's steps to happen: generous, only a hang should reach them.
PATIENCE = 60

#: The window of a desk.
WINDOW = {"width": 1280, "height": 900}

BROWSER_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
#: Nothing outside this machine is found; a route that asks Playwright about every request would slow each page down.
BROWSER_OPTIONS += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]

#: Scripts run once or a few times: to compile the busiest anew, and better, would not pay.
BROWSER_OPTIONS += ["--js-flags=--no-opt --no-maglev --single-threaded-gc"]

#: How the browser reports that Gradio refused a control's value: the sentence beside the control is what counts.
REFUSED = "the server responded with a status of 422"

#: The files that take longest, in the order in which they begin: one that began last would run alone at the end.
LONGEST = (
    *("passes/test_static_passes", "ui/test_page", "ui/test_accessibility", "ui/test_tour", "ui/test_compare_tab"),
    *("ui/test_lossless_tab", "ui/test_background", "ui/test_why_tab", "models/test_any_size", "ui/test_gallery"),
    *("decoding/test_lossless", "ui/test_beside", "records/test_links", "views/test_tree_view", "views/test_playback"),
    "views/test_predict",
    *("drafters/test_drafters", "views/test_inspector", "decoding/test_engine", "passes/test_compiler"),
)

_LOG = pytest.StashKey[pathlib.Path]()


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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


@contextlib.contextmanager
def running_app(root: pathlib.Path, folder: pathlib.Path) -> Iterator[str]:
    """The address of the app of a checkout while it runs; it writes its log, and what it keeps, into `folder`.

    It ends when it is asked to, and then leaves nothing of its own there.
    """
    port, log = _free_port(), folder / "app.log"
    environment = {
        "GRADIO_SERVER_NAME": "127.0.0.1",
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "HF_HUB_OFFLINE": "1",
        "SPECVIZ_DTYPE": "bfloat16",
        # Compiling takes a minute of both cores.
        "SPECVIZ_PASSES": "plain",
        "TMPDIR": str(folder),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPECVIZ_", "GRADIO_"))}
    with log.open("wb") as output:
        app = subprocess.Popen(
            [sys.executable, "app.py"], cwd=root, env=kept | environment, stdout=output, stderr=subprocess.STDOUT
        )
    url = f"http://127.0.0.1:{port}/"
    try:
        _wait_until_it_answers(app, url, log)
        yield url
        app.terminate()
        assert app.wait(PATIENCE) == 0 and not list(folder.glob("specviz-*")), log.read_text()[-4000:]
    finally:
        app.kill()
        app.wait()


def _wait_until_it_answers(app: subprocess.Popen, url: str, log: pathlib.Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if app.poll() is not None:
            pytest.fail(f"The app ended by itself:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    pytest.fail(f"The app does not answer:\n{log.read_text()}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first."""
    places = {name: place for place, name in enumerate(LONGEST)}
    folder = pathlib.Path(__file__).parent
    items.sort(key=lambda item: places.get(item.path.relative_to(folder).with_suffix("").as_posix(), len(places)))


def pytest_collection_finish() -> None:
    """What was imported stays, and need not be looked through for garbage again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure of a test that used the page shows what the app had to say."""
    report = (yield).get_result()
    log = item.config.stash.get(_LOG, None)
    if report.failed and log and "page_url" in item.fixturenames:
        report.sections.append(("The app's log", log.read_text(errors="replace")[-4000:]))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium: an installed one, or else Playwright's own. Having none is a failure."""
    expect.set_options(timeout=1000 * PATIENCE)
    with sync_playwright() as playwright:
        browser = _installed(playwright.chromium) or _fetched(playwright)
        yield browser
        browser.close()


def _installed(chromium: BrowserType) -> Browser | None:
    for path in filter(None, map(shutil.which, INSTALLED)):
        try:
            return chromium.launch(executable_path=path, args=BROWSER_OPTIONS)
        except Error:  # on some systems it is a stub that asks to install a package
            continue
    return None


def _fetched(playwright: Playwright) -> Browser:
    install = [sys.executable, "-m", "playwright", "install", "chromium"]
    done = subprocess.run(install, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        return playwright.chromium.launch(args=BROWSER_OPTIONS)
    except Error as error:
        pytest.fail(f"No Chromium is installed and none could be fetched:\n{done.stdout[-2000:]}\n{error}")


@pytest.fixture(scope="session")
def bare_home() -> Iterator[str]:
    """The address of a server of pages with a single element."""
    with bare_pages() as home:
        yield home


@pytest.fixture(scope="session")
def kept_tabs() -> dict[str, list[Page]]:
    """Pages that were left empty, by their contexts' options. A new one costs a process, and a new context fetches and
    compiles every script anew."""
    return collections.defaultdict(list)


@pytest.fixture
def new_page(browser: Browser, bare_home: str, kept_tabs: dict[str, list[Page]]) -> Iterator[Callable[..., Page]]:
    """Opens an empty page that remembers nothing, in a window of its own; no error may reach its console.

    heard: what is called for events of the page. options: further ones of the browser's context.
    """
    taken, mishaps = [], []
    watching = {
        "pageerror": lambda error: mishaps.append(f"error: {error}"),
        "console": lambda message: _note(message.type, message.text, mishaps),
    }

    def open_page(viewport=WINDOW, color_scheme="light", reduced_motion="no-preference", heard=(), **options) -> Page:
        kept = kept_tabs[json.dumps(options, sort_keys=True)]
        page = kept.pop() if kept else _new_tab(browser, options)
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion)
        hearing = watching | dict(heard)
        for event, hear in hearing.items():
            page.on(event, hear)
        taken.append((page, hearing, kept))
        return page

    yield open_page
    for page, hearing, kept in taken:
        if not page.is_closed():
            page.evaluate("() => sessionStorage.clear()")
            for event, hear in hearing.items():
                page.remove_listener(event, hear)
            page.goto(bare_home + EMPTY)
            page.mouse.move(0, 0)
            kept.append(page)
    assert mishaps == []


def _new_tab(browser: Browser, options: dict) -> Page:
    context = browser.new_context(**options)
    context.set_default_timeout(1000 * PATIENCE)
    return context.new_page()


@pytest.fixture
def visit(new_page: Callable[..., Page], page_url: str) -> Iterator[Callable[..., Page]]:
    """Opens the app as a new visitor; keyword arguments but the language ("" or "de") go to the browser's context.

    At the end of the test no visitor may have seen an error in the console, or a request that left this machine.
    """
    elsewhere = []

    def open_page(language: str = "", **options) -> Page:
        heard = {"request": lambda request: _note_request(request.url, page_url, elsewhere)}
        page = new_page(heard=heard, **options)
        page.goto(page_url + language)
        page.wait_for_function(f"() => {VIEW}?.recorded")
        page.locator("#go").wait_for()
        return page

    yield open_page
    assert elsewhere == []


def _note(kind: str, text: str, mishaps: list[str]) -> None:
    if kind == "error" and REFUSED not in text:
        mishaps.append(f"console: {text}")


def _note_request(url: str, home: str, elsewhere: list[str]) -> None:
    if not url.startswith((home, "data:", "blob:", "about:")):
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
