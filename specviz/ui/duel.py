"""A speculative run and plain decoding of the same, measured in turn: the race, and the speedup of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specviz.records.metrics import tally
from specviz.records.runs import Round, Run
from specviz.records.settings import PLAIN
from specviz.records.words import Words
from specviz.ui import engine
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing

if TYPE_CHECKING:
    from specviz.decoding.request import Request

#: New tokens of the runs that warm everything up before anything is timed.
WARM_UP_TOKENS = 16

#: How often a run and its plain rival are measured, unless that would take longer than so many seconds.
PAIRS = 3
MOST_SECONDS = 3.0

#: Seconds between two reports: the page has next to nothing to draw while it is being measured.
REPORT_EVERY = 0.5


@dataclass
class Duel:
    """An order and plain decoding of the same; `progress` runs both, then the rounds are there.

    Short runs are measured several times, and the pair with the median speedup counts: a single one may fall into a
    moment in which another program wants the processor.
    """

    runner: Runner
    order: Order
    halt: threading.Event
    plain_rounds: list[Round] = field(default_factory=list)
    fast_rounds: list[Round] = field(default_factory=list)

    def progress(self, say: Words) -> Iterator[tuple[str, float]]:
        """What is being done, and how far it is. The runs take turns: at once, each would slow the other down."""
        plain_order = self.order.but(drafter=PLAIN)
        yield say("common.warming_up"), 0.0
        for order in (plain_order, self.order):
            warm_up(self.runner, order, self.halt)
        pairs, began = [], time.monotonic()
        while len(pairs) < PAIRS and not self.halt.is_set():
            if pairs and (time.monotonic() - began) * PAIRS / len(pairs) > MOST_SECONDS:
                break
            plain_rounds, fast_rounds = [], []
            yield from self._run(plain_order, plain_rounds, say("race.running_plain"))
            yield from self._run(self.order, fast_rounds, say("race.running_speculative"))
            pairs.append((plain_rounds, fast_rounds))
        pairs.sort(key=_time_saved)
        # Of two, the one that promises less.
        self.plain_rounds, self.fast_rounds = pairs[(len(pairs) - 1) // 2] if pairs else ([], [])

    def _run(self, order: Order, rounds: list[Round], what: str) -> Iterator[tuple[str, float]]:
        yield what, 0.0
        told, done = time.monotonic(), 0
        for batch in closing(self.runner.batches(order), self.halt):
            rounds += batch
            done += sum(len(one.emitted) for one in batch)
            if time.monotonic() - told > REPORT_EVERY:
                yield what, done / order.settings.max_new_tokens
                told = time.monotonic()

    def runs(self, request: Request) -> tuple[Run, Run] | None:
        """Both runs, plain first; None if they were halted. `request` is the checked order."""
        if self.halt.is_set():
            return None
        plain_request = replace(request, settings=replace(request.settings, drafter=None))
        return engine.collect(plain_request, self.plain_rounds), engine.collect(request, self.fast_rounds)


def warm_up(runner: Runner, order: Order, halt: threading.Event) -> None:
    """The order's first few tokens, for nobody."""
    short = order.but(max_new_tokens=min(WARM_UP_TOKENS, order.settings.max_new_tokens))
    for _ in closing(runner.batches(short), halt):
        pass


def _time_saved(pair: tuple[list[Round], list[Round]]) -> float:
    """How many times as long the plain run took; the texts, and so the tokens, are the same in all pairs."""
    plain, fast = map(tally, pair)
    return (plain.prefill + plain.seconds) / (fast.prefill + fast.seconds) if fast.rounds else 0.0
