"""Plain and speculative decoding of one order, measured: in turn, warm, on a device and a page at rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from specviz import engine
from specviz.records import Round, Run
from specviz.ui.orders import Order
from specviz.ui.stream import Runner, closing

#: New tokens of the runs that warm both paths up before anything is timed.
WARM_UP_TOKENS = 16
#: Seconds between two reports: the page has next to nothing to draw while it is being measured.
REPORT_EVERY = 0.5


@dataclass
class Duel:
    """An order and the plain decoding of the same; `progress` runs both, then the runs are there."""

    runner: Runner
    order: Order
    halt: threading.Event
    plain_rounds: list[Round] = field(default_factory=list)
    fast_rounds: list[Round] = field(default_factory=list)

    def progress(self) -> Iterator[tuple[str, float]]:
        """What is being done, and how far it is. At once, each run would slow the other down: they take turns."""
        plain_order, wanted = replace(self.order, drafter=None), self.order.max_new_tokens
        yield "Warming up …", 0.0
        for order in (plain_order, self.order):
            short = replace(order, max_new_tokens=min(WARM_UP_TOKENS, wanted))
            for _ in closing(self.runner.batches(short), self.halt):
                pass
        yield from self._run(plain_order, self.plain_rounds, "Running plain decoding …")
        yield from self._run(self.order, self.fast_rounds, "Running speculative decoding …")

    def _run(self, order: Order, rounds: list[Round], what: str) -> Iterator[tuple[str, float]]:
        yield what, 0.0
        told, done = time.monotonic(), 0
        for batch in closing(self.runner.batches(order), self.halt):
            rounds += batch
            done += sum(len(one.emitted) for one in batch)
            if time.monotonic() - told > REPORT_EVERY:
                yield what, done / order.max_new_tokens
                told = time.monotonic()

    def runs(self, request: engine.Request) -> tuple[Run, Run] | None:
        """Both runs, plain first; None if they were halted. `request` is the checked order."""
        if self.halt.is_set():
            return None
        plain_request = replace(request, drafter=None, num_draft_tokens=0)
        return engine.collect(plain_request, self.plain_rounds), engine.collect(request, self.fast_rounds)
