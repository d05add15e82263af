"""Takes the pictures of the README and of docs/ anew: ``python -m tools.pictures``.

Each is what a visitor finds after the presses below, in a window of 1280 pixels. On compiled passes, so that the
figures are those of a page that has been up for a minute; the machine must have nothing else to do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from specviz.records.assets import ASSETS
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairStore
from specviz.ui.page import build, launch
from specviz.ui.runner import Runner
from tools.chromium import browser

SCREENSHOTS = ASSETS / "screenshots"

WIDTH = 1280

#: ms that a measurement may take.
PATIENCE = 600_000


def _view(name: str) -> str:
    # Elements come with their tab's first message.
    return f"document.querySelector('specviz-{name}')?"


def _wait(tab: Any, condition: str) -> None:
    tab.wait_for_function(f"() => {condition}", timeout=PATIENCE)
    tab.locator("#go:enabled").wait_for(timeout=PATIENCE)


def _generate(tab: Any) -> None:
    run = _view("run")
    tab.locator("#go").click()
    _wait(tab, f"{run}.state === 'finished' && !{run}.recorded && {run}.figures.speedup")
    # The run is played first, at a reader's speed; its first round is the one to look at.
    tab.locator("specviz-run [part=to_end]").click()
    tab.locator("specviz-run [part=scrub]").fill("1")


def _present(tab: Any) -> None:
    """The first rejection of the recorded run that the page opens with."""
    tab.locator("specviz-run [part=play]").focus()
    tab.keyboard.press("Home")
    tab.keyboard.press("p")
    place = tab.locator("specviz-run [part=place]")
    while "rejected" not in place.inner_text():
        tab.keyboard.press("ArrowRight")


def _race(tab: Any) -> None:
    tab.locator("#start-race").click()
    _wait(tab, f"{_view('race')}.state === 'race'")
    tab.wait_for_function(f"() => {_view('race')}.lanes.every(lane => lane.done)", timeout=PATIENCE)


def _compare(tab: Any) -> None:
    tab.get_by_role("tab", name="Compare", exact=True).click()
    tab.locator("#start-compare").click()
    _wait(tab, f"{_view('compare')}.state === 'finished'")
    tab.locator("#start-compare").evaluate("node => node.scrollIntoView()")


def _why(tab: Any) -> None:
    tab.get_by_role("tab", name="Why it works", exact=True).click()
    tab.locator("#measure-passes").click()
    _wait(tab, f"{_view('why')}.state.measuring.passes.phase === 'finished'")


def _lossless(tab: Any) -> None:
    tab.get_by_role("tab", name="Lossless?", exact=True).click()
    tab.locator(".sv-lab-rules input[value=everything]").check()
    tab.locator("#start-lossless").click()
    _wait(tab, f"{_view('lossless')}.state === 'finished'")


#: Picture -> the window's height, and what is done before it is taken.
PICTURES: dict[str, tuple[int, Callable[[Any], None]]] = {
    "generate-light": (860, _generate),
    "present-light": (720, _present),
    "race-light": (1042, _race),
    "compare-light": (1404, _compare),
    "why-light": (1180, _why),
    "lossless-light": (1180, _lossless),
}


def main(names: list[str]) -> None:
    """Takes the pictures of these names."""
    deployment = Deployment.from_environment()
    store = PairStore(deployment)
    page = launch(build(Runner(store, deployment)), prevent_thread_lock=True, quiet=True)
    try:
        store.preparer.start()
        store.preparer.wait_for(store.starting_pair)
        with browser() as chromium:
            for name in names:
                height, prepare = PICTURES[name]
                tab = chromium.new_page(viewport={"width": WIDTH, "height": height})
                tab.goto(page.local_url)
                tab.wait_for_function(f"() => {_view('run')}.recorded")
                tab.locator("#go:enabled").wait_for()
                prepare(tab)
                tab.mouse.move(0, 0)
                tab.wait_for_timeout(1000)
                tab.screenshot(path=SCREENSHOTS / f"{name}.png")
                tab.close()
    finally:
        page.close()
        store.preparer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", default=[*PICTURES], help=f"of {', '.join(PICTURES)} (default: all)"
    )
    main(parser.parse_args().names)
