"""What the page costs: the same run with and without a browser that watches it: ``python -m tools.page_cost``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from specviz.records.prompts import PRESETS
from specviz.records.settings import RunSettings, SamplingParams
from specviz.records.words import words
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName, PairStore
from specviz.ui.orders import Order
from specviz.ui.page import build, launch
from specviz.ui.runner import Runner
from tools.chromium import browser

REPEATS = 5
SETTINGS = RunSettings(PRESETS[0].prompt, sampling=SamplingParams(temperature=0.8), max_new_tokens=256)
ORDER = Order(PairName(), SETTINGS)


def measure_page(deployment: Deployment, say: Callable[[str], None]) -> dict[str, Any]:
    """Tokens per second of one order, watched by a headless browser and unwatched, in turn, on prepared passes.

    Wall time in the engine's thread, from the first prefill to the last round handed over.
    """
    store = PairStore(deployment)
    runner = Runner(store, deployment)
    page = launch(build(runner), prevent_thread_lock=True, quiet=True)
    speeds: dict[str, list[float]] = {"alone": [], "watched": []}
    try:
        store.preparer.start()
        store.preparer.wait_for(store.home)
        with browser() as chromium:
            tab = chromium.new_page(viewport={"width": 1280, "height": 900})
            for repeat in range(REPEATS + 1):  # the first one warms everything up
                order = ORDER.but(seed=repeat)
                tab.goto("about:blank")
                alone = _tokens(runner, order) / runner.last_seconds
                watched = watched_tokens(tab, page.local_url, order) / runner.last_seconds
                if repeat:
                    speeds["alone"].append(alone)
                    speeds["watched"].append(watched)
                    say(f"page: {alone:.0f} tokens/s alone, {watched:.0f} watched")
    finally:
        page.close()
        store.preparer.close()
    return {
        "tokens_per_second_alone": statistics.median(speeds["alone"]),
        "tokens_per_second_watched": statistics.median(speeds["watched"]),
        "ratio": statistics.median(watched / alone for alone, watched in zip(*speeds.values())),
        "repeats": REPEATS,
    }


def _tokens(runner: Runner, order: Order) -> int:
    return sum(len(one.emitted) for batch in runner.batches(order) for one in batch)


def watched_tokens(tab: Any, url: str, order: Order) -> int:
    """Presses the button as a visitor would and waits for the end of the run."""
    say = words()
    tab.goto(url)
    tab.get_by_label(say("page.measured")).uncheck()
    tab.get_by_role("button", name=say("controls.more")).click()
    for name in ("max_new_tokens", "seed"):
        tab.get_by_label(say(f"controls.{name}")).first.fill(str(getattr(order.settings, name)))
        tab.get_by_label(say(f"controls.{name}")).first.press("Tab")
    # Let the page settle: what is measured is watching, not loading.
    time.sleep(2)
    tab.locator("#go").click()
    view = "document.querySelector('specviz-run')"
    # Until the visitor's own run is over: the page opens with a recorded one.
    tab.wait_for_function(f"{view}.state === 'finished' && !{view}.recorded", timeout=120_000)
    # And its stream with it: whoever leaves before breaks it off.
    tab.locator("#go:enabled").wait_for()
    tokens = tab.evaluate(f"{view}.figures.tokens")
    # Or the next visit would open with this run, as after a reload.
    tab.evaluate("() => sessionStorage.clear()")
    return tokens


if __name__ == "__main__":
    print(measure_page(Deployment.from_environment(), print))
