"""How soon after `python app.py` a visitor has something: `python -m tools.start_up`.

Prints the seconds until a recorded run can be played and until the pair is there, beside those of importing gradio in a
fresh interpreter, which no page made with it can go below. Both are taken in turn. It asserts nothing.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from specviz.records.assets import ASSETS
from tools.chromium import browser

REPEATS = 3

PLAYABLE = """() => document.querySelector('specviz-run')?.shadowRoot?.querySelector('[part=scrub]')
  && document.querySelector('specviz-run').recorded"""
PAIR = "() => document.querySelector('.sv-pair')?.innerText.trim().length > 0"


def main() -> None:
    imports, starts = [], []
    with browser() as chromium:
        for _ in range(REPEATS):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", "import gradio"], check=True)
            imports.append(time.perf_counter() - began)
            starts.append(_start(chromium))
    alone = statistics.median(imports)
    print(f"import gradio: {alone:.1f} s")
    for what, seconds in zip(("the server answers", "a recorded run can be played", "the pair is there"), zip(*starts)):
        print(f"{what}: {statistics.median(seconds):.1f} s, {statistics.median(seconds) / alone:.2f} times that")


def _start(chromium: Any) -> tuple[float, float, float]:
    """Seconds from the command to each of the three."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, environment = f"http://127.0.0.1:{port}/", os.environ | {"GRADIO_SERVER_PORT": str(port)}
    tab, began = chromium.new_page(), time.perf_counter()
    app = subprocess.Popen([sys.executable, "app.py"], cwd=ASSETS.parent, env=environment, stdout=subprocess.DEVNULL)
    try:
        while not _answers(url):
            time.sleep(0.02)
        moments = [time.perf_counter() - began]
        tab.goto(url)
        for condition in (PLAYABLE, PAIR):
            tab.wait_for_function(condition, timeout=120_000)
            moments.append(time.perf_counter() - began)
    finally:
        tab.close()
        app.kill()
        app.wait()
    return tuple(moments)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


if __name__ == "__main__":
    main()
