"""A headless browser, for measuring the page and for drawing figures; the tests have one of their own."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

from specviz.records.errors import SpecvizError

#: What a browser is installed as. The one without windows takes a sixth less of the processor.
INSTALLED = ("chromium-headless-shell", "chromium", "google-chrome", "chromium-browser")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium, an installed one or Playwright's own. Raises SpecvizError where there is none."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise _no_browser() from error
    installed = next(filter(None, map(shutil.which, INSTALLED)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox", "--disable-gpu"])
        except Error as error:
            raise _no_browser() from error
        yield browser
        browser.close()


def _no_browser() -> SpecvizError:
    return SpecvizError(
        "Measuring the page, or drawing PNG or SVG, needs a browser: pip install playwright, then playwright install "
        "chromium.",
        "page",
    )
