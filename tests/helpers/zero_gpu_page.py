"""The page on a ZeroGPU host, and a visitor: `python zero_gpu_page.py FILE` writes what it met there, as JSON."""

from __future__ import annotations

import _thread
import faulthandler
import json
import pathlib
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import zero_gpu_host  # noqa: F401  # before anything of the page, as app.py does it

from specviz.decoding.engine import rounds
from specviz.decoding.request import Request
from specviz.passes.reading_checks import reads_trees
from specviz.records.errors import SpecvizError
from specviz.records.settings import RunSettings, SamplingParams
from specviz.records.words import words
from specviz.ui import page
from specviz.ui import runner as runners_module
from specviz.ui.contest import ContestOptions
from specviz.ui.device import PairName
from specviz.ui.line import Visit
from specviz.ui.orders import Order
from specviz.ui.runner import Runner
from specviz.ui.runs import LiveRuns
from specviz.ui.tabs.compare import compare
from specviz.ui.tabs.generate import generate

ORDER = Order(PairName(), RunSettings("Once upon a time", sampling=SamplingParams(0), max_new_tokens=3))
#: Seconds.
HANGS_AFTER = 240
#: The emulation is slower than any GPU: its work does not end when the seconds are over that it asked for.
runners_module.start_seconds = lambda pair: -HANGS_AFTER
OPTIONS = ContestOptions(["prompt_lookup"], [2], [1], [], 1)


def refusing(request: Request) -> Iterator[Any]:
    yield from list(rounds(request))[:1]
    raise SpecvizError("There is no rule {name} to test.", "rule", name="'none'")


def failing(request: Request) -> Iterator[Any]:
    raise RuntimeError("no such luck")
    yield


def visit(runner: Runner) -> dict[str, Any]:
    say, runs, me = words("de"), LiveRuns(), Visit("me", threading.Event())
    found: dict[str, Any] = {
        "run": list(map(json.loads, generate(runner, runs, ORDER, True, me, say))),
        "trace": json.loads(runs.files_of(me).paths[0].read_text()),
        "compare": list(map(json.loads, compare(runner, ORDER.but(max_new_tokens=2), OPTIONS, me.halt, say.language))),
        "seconds": runner.last_seconds,
        "trees": reads_trees((pair := runner.store.get(PairName())).target),
        "unprepared": bool(runner.store.preparer.refusal(pair)),
    }
    for name, attempt in {
        "refused": lambda: list(runner.batches(ORDER, refusing)),
        "failed": lambda: list(runner.batches(ORDER, failing)),
        "empty": lambda: list(runner.batches(ORDER.but(prompt=""))),
        "loading": lambda: runner.store.get(PairName("another")),
    }.items():
        found[name] = refusal(attempt, say)
    if pair.lent:
        too_much = ORDER.but(max_new_tokens=1000, num_draft_tokens=16)
        found["too_much"] = refusal(lambda: list(runner.batches(too_much, extra_seconds=1000.0)), say)
    pair.passes.seconds_by_width = {1: 0.1}  # a busy machine's own would ask for more time than the visitor has left
    long, began = runner.batches(ORDER.but(max_new_tokens=300)), time.monotonic()
    next(batch for batch in long if batch)
    long.close()
    return found | {"stopped_after": time.monotonic() - began}


def refusal(attempt: Callable[[], object], say: Any) -> str:
    try:
        return f"nothing: {attempt()}"
    except SpecvizError as error:
        return say.error(error)


def main(file: pathlib.Path) -> None:
    runners: queue.SimpleQueue[Runner] = queue.SimpleQueue()
    build, launch = page.build, page.launch

    def visitor(runner: Runner) -> None:
        try:
            file.write_text(json.dumps(visit(runner)))
        finally:
            _thread.interrupt_main()  # the page has served its turn

    def built(runner: Runner) -> object:
        runners.put(runner)
        return build(runner)

    def launched(*arguments: Any, **options: Any) -> object:
        served = launch(*arguments, quiet=True, **options)
        threading.Thread(target=visitor, args=[runners.get()], daemon=True).start()
        return served

    page.build, page.launch = built, launched
    page.serve()


if __name__ == "__main__":
    # A page that hangs says where, before whoever waits for it loses patience.
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    # What a shell starts in the background ignores interrupts, and this page ends by one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(pathlib.Path(sys.argv[1]))
