"""What the tests of the page share: the real app in its own process, and a real browser."""

from __future__ import annotations

import contextlib
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
from elements import show_alone
from playwright.sync_api import Browser, BrowserType, Error, Page, Playwright, expect, sync_playwright

from specviz.records.runs import Run

ROOT = pathlib.Path(__file__).parent.parent

#: Seconds the app may take to answer, and Playwright's steps to happen: generous, only a hang should reach them.
PATIENCE = 60

BROWSERS = ("chromium", "google-chrome", "chromium-browser")
BROWSER_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
#: Nothing outside this machine is found; a route that asks Playwright about every request would slow each page down.
BROWSER_OPTIONS += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]

#: How the browser reports that Gradio refused a control's value: the sentence beside the control is what counts.
REFUSED = "the server responded with a status of 422"

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
    """The address of the app of a checkout while it runs; it writes its log, and what it keeps, into `folder`."""
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
    for path in filter(None, map(shutil.which, BROWSERS)):
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


@pytest.fixture
def visit(browser: Browser, page_url: str) -> Iterator[Callable[..., Page]]:
    """Opens the app as a new visitor; keyword arguments go to the browser's context.

    At the end of the test no visitor may have seen an error in the console, or a request that left this machine.
    """
    contexts, mishaps = [], []

    def open_page(**options) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        contexts.append(context)
        context.set_default_timeout(1000 * PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: mishaps.append(f"error: {error}"))
        page.on("console", lambda message: _note(message.type, message.text, mishaps))
        page.on("request", lambda request: _note_request(request.url, page_url, mishaps))
        page.goto(page_url)
        page.wait_for_function(f"() => {VIEW}?.recorded")
        page.locator("#go").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert mishaps == []


def _note(kind: str, text: str, mishaps: list[str]) -> None:
    if kind == "error" and REFUSED not in text:
        mishaps.append(f"console: {text}")


def _note_request(url: str, home: str, mishaps: list[str]) -> None:
    if not url.startswith((home, "data:", "blob:", "about:")):
        mishaps.append(f"request to elsewhere: {url}")


@pytest.fixture
def page(visit: Callable[..., Page]) -> Page:
    """The app in a window of 1280 by 900."""
    return visit()


@pytest.fixture
def show(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens the live view alone, outside Gradio, and gives it a run; no error may reach the console."""
    contexts, mishaps = [], []

    def open_page(run: Run, rule: str = "token", language: str = "en", **options) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 900}} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: mishaps.append(str(error)))
        page.on("console", lambda message: _note(message.type, message.text, mishaps))
        show_alone(page, "run", language, dark=options.get("color_scheme") == "dark")
        feed(page, run, rule)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert mishaps == []
