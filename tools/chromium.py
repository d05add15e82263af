"""A headless browser, for measuring and photographing the page; the tests have one of their own."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

#: What a browser is installed as. The one without windows takes a sixth less of the processor.
INSTALLED = ("chromium-headless-shell", "chromium", "google-chrome", "chromium-browser")

NO_BROWSER = "This needs a browser: pip install playwright, then playwright install chromium."


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium, an installed one or Playwright's own. Ends the command where there is none."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise SystemExit(NO_BROWSER) from error
    installed = next(filter(None, map(shutil.which, INSTALLED)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox", "--disable-gpu"])
        except Error as error:
            raise SystemExit(NO_BROWSER) from error
        yield browser
        browser.close()
