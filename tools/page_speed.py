"""How fast the live view answers with a long run in it: `python -m tools.page_speed`.

Prints medians and worst cases of opening a run that was saved as a page, opening a trace, scrubbing through it, asking
about a token, pasting what a server says of many requests, and of the first round after a coin was set by hand. It
asserts nothing.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import specviz
from specviz.decoding.record import collect, vocabulary
from specviz.records.runs import Round, Run
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairStore
from specviz.ui.orders import Order
from specviz.ui.page import TABS, build, launch
from specviz.ui.runner import Runner
from tools.chromium import browser
from tools.page_cost import ORDER

ROUNDS = 2000
SCRUBS = 240
STEPS = 120
CLICKS = 40
REPEATS = 3
BRANCHES = 10
#: Requests that a server tells of, and the passes of each.
REQUESTS, PASSES = 1000, 64
#: ms after which the files of an opened trace have been written: they follow the view.
FILES = 5000

#: Waits for the file to be on the screen; the clock runs in the page: from the moment the trace is chosen, or, for a
#: saved page, from when the browser set out for it.
OPENED = """async ({count, page}) => {
  const began = page ? 0 : performance.now();
  const frame = () => new Promise(requestAnimationFrame);
  const view = () => document.querySelector('specviz-run');
  while (!(view()?.state === 'finished' && view().rounds.length === count
           && view().shadowRoot.querySelector('[part=view]').dataset.state === 'finished')) await frame();
  await frame();
  return performance.now() - began;
}"""

#: Moves the slider once a frame, by a drag (neighbouring places) or by leaps across the run; ms between frames.
SCRUB = """async ({moves, leaps}) => {
  const slider = document.querySelector('specviz-run').shadowRoot.querySelector('[part=scrub]');
  const frame = () => new Promise(requestAnimationFrame);
  const times = [];
  let last = await frame();
  for (let i = 0; i < moves; i += 1) {
    const share = leaps ? (i * 0.618034) % 1 : Math.abs(2 * i / moves - 1);
    slider.value = Math.round(share * slider.max);
    slider.dispatchEvent(new Event('input'));
    const now = await frame();
    times.push(now - last);
    last = now;
  }
  return times;
}"""

#: From each press to the frame that shows what it did, ms.
PRESSES = """async ({count, what}) => {
  const shadow = document.querySelector('specviz-run').shadowRoot;
  const frame = () => new Promise(requestAnimationFrame);
  const painted = async () => { await frame(); await new Promise(done => setTimeout(done)); };
  const times = [];
  for (let i = 0; i < count; i += 1) {
    const targets = [...shadow.querySelectorAll(what)].filter(node => node.checkVisibility({visibilityProperty: true}));
    const target = targets[i * 7 % targets.length];
    const began = performance.now();
    target.click();
    await painted();
    times.push(performance.now() - began);
  }
  return times;
}"""

IDLE = """async count => {
  const frame = () => new Promise(requestAnimationFrame);
  const times = [];
  let last = await frame();
  for (let i = 0; i < count; i += 1) { const now = await frame(); times.push(now - last); last = now; }
  return times;
}"""

#: From the paste to the frame with its figures, ms.
PASTED = """async text => {
  const view = document.querySelector('specviz-served');
  const frame = () => new Promise(requestAnimationFrame);
  view.shadowRoot.querySelector('details').open = true;
  view.state.figures = null;
  const clipboardData = new DataTransfer();
  clipboardData.setData('text', text);
  const began = performance.now();
  const paste = new ClipboardEvent('paste', {clipboardData, cancelable: true});
  view.shadowRoot.querySelector('textarea').dispatchEvent(paste);
  while (!view.state.figures) await frame();
  await frame();
  return performance.now() - began;
}"""


#: Turns a coin of the run on the screen, as the close-up does; ms until the first round of the run that branches off.
BRANCHED = """async coins => {
  const view = document.querySelector('specviz-run');
  const { run, start } = view.finished;
  const frame = () => new Promise(requestAnimationFrame);
  const began = performance.now();
  const detail = { settings: { ...start.share.settings, coins }, press: 'generate', measure: false };
  document.dispatchEvent(new CustomEvent('specviz-press', { detail }));
  while (view.view.run.key === run || !view.rounds.length) await frame();
  await frame();
  return performance.now() - began;
}"""


def long_run(runner: Runner, order: Order, count: int) -> Run:
    """A run of `count` rounds: the real ones of an order, repeated."""
    request = order.request(runner.store.get(order.pair), runner.deployment)
    real = [one for batch in runner.batches(order) for one in batch]
    # The last one was cut short by the stop, and a run has one stop.
    rounds = _repeated(real[:-1], count)
    return replace(
        collect(request, rounds),
        max_new_tokens=sum(len(one.emitted) for one in rounds),
        vocabulary=vocabulary(request.pair, real),
    )


def _repeated(rounds: Sequence[Round], count: int) -> list[Round]:
    return [replace(rounds[index % len(rounds)], index=index) for index in range(count)]


def measure(deployment: Deployment) -> list[str]:
    """One line a measurement."""
    runner = Runner(PairStore(deployment), deployment)
    page = launch(build(runner), prevent_thread_lock=True, quiet=True)
    try:
        with tempfile.TemporaryDirectory() as folder, browser() as chromium:
            path, saved = pathlib.Path(folder) / "long.json", pathlib.Path(folder) / "long.html"
            run = long_run(runner, ORDER, ROUNDS)
            run.save(path)
            saved.write_text(specviz.run_page(run), encoding="utf-8")
            tab = chromium.new_page(viewport={"width": 1280, "height": 900})
            alone = [_open_page(tab, saved, ROUNDS) for _ in range(REPEATS)]
            line = _line(f"open a saved page of {ROUNDS} rounds ({saved.stat().st_size / 1e6:.1f} MB)", alone)
            return [line, *_measured(tab, page.local_url, path, len(run.rounds)), _branched(tab, page.local_url)]
    finally:
        page.close()


def _measured(tab: Any, url: str, path: pathlib.Path, rounds: int) -> list[str]:
    size = path.stat().st_size / 1e6
    opening = [_open(tab, url, path, rounds) for _ in range(REPEATS)]
    tab.wait_for_timeout(FILES)
    calls: list[str] = []
    tab.on("request", lambda request: _asks_of_the_run(request) and calls.append(request.url))
    lines = [_line(f"open a trace of {rounds} rounds ({size:.0f} MB)", opening)]
    lines.append(_line("between frames, nothing moving", tab.evaluate(IDLE, 60)))
    for name, leaps in (("a drag", False), ("leaps", True)):
        times = tab.evaluate(SCRUB, {"moves": SCRUBS, "leaps": leaps})
        lines.append(_line(f"between frames, scrubbing by {name}", times))
    for name, what, count in (
        ("a step forward", "[part=forward]", STEPS),
        ("a token, close up", ".list .chip", CLICKS),
        ("a token of the text", ".text .t", CLICKS),
    ):
        lines.append(_line(f"from a press to its frame: {name}", tab.evaluate(PRESSES, {"count": count, "what": what})))
    lines.append(f"{'calls to the server meanwhile':<58}{len(calls):>8}")
    return [*lines, _pasted(tab)]


def _pasted(tab: Any) -> str:
    """Opens the tab of a server's own numbers and pastes requests with all their passes."""
    tab.get_by_role("tab").nth(list(TABS).index("why")).click()
    tab.wait_for_function("() => document.querySelector('specviz-served')?.built")
    kept = [place % 5 for place in range(PASSES)]
    one = {"per_step_accepted": kept, "per_step_drafted": [4] * PASSES, "num_spec_tokens": 4}
    text = "\n".join(json.dumps({"id": str(number), "metrics": one}) for number in range(REQUESTS))
    times = [tab.evaluate(PASTED, text) for _ in range(REPEATS)]
    return _line(f"paste {REQUESTS} requests of a server ({len(text) / 1e6:.1f} MB)", times)


def _asks_of_the_run(request: Any) -> bool:
    """An idle page asks every few seconds what the models are at work on, and nothing else."""
    return "gradio_api" in request.url and "in_line" not in (request.post_data or "")


def _branched(tab: Any, url: str) -> str:
    """Every branch is one of the branch before it."""
    tab.goto(url)
    tab.locator("#measured input").uncheck()
    tab.locator("#go").click()
    tab.locator("#stop").wait_for()
    times = []
    for u in range(BRANCHES):
        tab.locator("#go").wait_for()
        times.append(tab.evaluate(BRANCHED, f"2.1={u / BRANCHES}"))
    return _line("from a coin set by hand to the first round of its branch", times)


def _open(tab: Any, url: str, path: pathlib.Path, rounds: int) -> float:
    tab.goto(url)
    tab.wait_for_function("() => document.querySelector('specviz-run')?.built")
    tab.wait_for_load_state("networkidle")
    tab.locator("input[type=file][accept='.json']").set_input_files(path)
    return tab.evaluate(OPENED, {"count": rounds, "page": False})


def _open_page(tab: Any, path: pathlib.Path, rounds: int) -> float:
    tab.goto(path.as_uri(), wait_until="commit")
    return tab.evaluate(OPENED, {"count": rounds, "page": True})


def _line(what: str, times: list[float]) -> str:
    ordered = sorted(times)
    near_worst = ordered[int(0.95 * (len(ordered) - 1))]
    return f"{what:<58}{statistics.median(times):8.1f} ms   95 %: {near_worst:6.1f}   worst: {ordered[-1]:6.1f}"


if __name__ == "__main__":
    print("\n".join(measure(Deployment.from_environment())))
