"""Runs for the page: the engine works in a thread of its own and hands over its results in batches."""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import gradio as gr

from specviz.records.errors import SpecvizError, first_line
from specviz.records.settings import RunSettings
from specviz.ui import device
from specviz.ui.deployment import Deployment
from specviz.ui.line import Line
from specviz.ui.orders import LEAST_SECONDS, Order, seconds_for
from specviz.ui.pairs import PairName, PairStore

if TYPE_CHECKING:
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair

#: Seconds between batches: ten updates a second.
INTERVAL = 0.1

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a piece of work ended. A value: of an exception that crosses a process border only the name arrives."""

    seconds: float  # it took, in the engine's thread
    error: SpecvizError | None


class Runner:
    """Carries out work on the pairs of a store, one piece at a time.

    Results come in batches; closing their iterator ends the work within a round or a pass. One press of a
    button is one piece: where a GPU is lent by the call, each piece asks for one. Arguments and results cross a process
    border there: they are plain, and `work` is a module's function.
    """

    def __init__(self, store: PairStore, deployment: Deployment):
        self.store = store
        self.deployment = deployment
        self.line = Line(deployment.queue_size)
        self._on_device = device.on_gpu(self._carry_out, self._seconds)
        #: Wall seconds of the last piece of work in the engine's thread, for the benchmark of the page.
        self.last_seconds = 0.0

    def batches(
        self,
        asked: Order | PairName,
        work: Callable[..., Iterator[Item | None]] | None = None,
        *arguments: Any,
        others: Sequence[RunSettings] = (),
    ) -> Iterator[list[Item]]:
        """The results of `work(request, *arguments)` for a checked order, or of `work(pair, *arguments)` for a pair.

        By default the rounds of the order's run. Where work yields None, nothing is handed over: it can be ended
        there. A batch, even an empty one, comes at least every `INTERVAL`, so that it can. others: the runs made
        besides the order's own, by which a lent GPU is asked for. Raises SpecvizError, whatever goes wrong.
        """
        # The work may happen in another process; its errors are raised in this one.
        with contextlib.closing(self._on_device(asked, work, arguments, others)) as made:
            try:
                for batch in made:
                    if not isinstance(batch, Ended):
                        yield batch
                        continue
                    self.last_seconds = batch.seconds
                    if batch.error is not None:
                        raise batch.error
            except gr.Error as error:  # the platform refuses, in a toast of its own
                raise SpecvizError("No GPU for this: {reason}", reason=str(error.message)) from error

    def _carry_out(
        self,
        asked: Order | PairName,
        work: Callable[..., Iterator[Item | None]] | None,
        arguments: Sequence[Any],
        _: Any,
    ) -> Iterator[list[Item] | Ended]:
        pair, given = self._checked(asked)
        from specviz.decoding.engine import rounds  # only now: loading the pair has imported torch

        made: queue.SimpleQueue[Item | Ended] = queue.SimpleQueue()
        halt = threading.Event()
        start = functools.partial(work or rounds, given, *arguments)
        working = device.thread.submit(_hand_over, pair.passes.threads, start, made, halt)
        try:
            yield from _in_batches(made)
        finally:
            halt.set()
            working.result()

    def _seconds(self, asked: Order | PairName, _: Any, __: Any, others: Sequence[RunSettings]) -> int:
        """For how long to ask for a GPU. Orders that would be refused there are refused here, before one is lent."""
        pair, given = self._checked(asked)
        if isinstance(asked, PairName):
            return LEAST_SECONDS
        return seconds_for(pair, len(given.prompt.ids), [asked.settings, *others])

    def _checked(self, asked: Order | PairName) -> tuple[ModelPair, ModelPair | Request]:
        """The pair, and the first argument of the work."""
        if isinstance(asked, PairName):
            return (pair := self.store.get(asked)), pair
        pair = self.store.get(asked.pair)
        return pair, asked.request(pair, self.deployment)


def _hand_over(
    threads: int | None, start: Callable[[], Iterator[Item | None]], made: queue.SimpleQueue, halt: threading.Event
) -> None:
    """Puts each item into the queue, then how it ended."""
    import torch  # here, where a pair is: the page stands before torch is loaded

    if threads is not None:
        torch.set_num_threads(threads)
    began, error = time.perf_counter(), None
    try:
        with contextlib.closing(start()) as items:
            for one in items:
                if one is not None:
                    made.put(one)
                if halt.is_set() or device.ending.is_set():
                    break
    except SpecvizError as refusal:
        error = refusal
    except Exception as failure:
        logging.getLogger(__name__).exception("Engine work failed")
        reason = {"kind": type(failure).__name__, "reason": first_line(failure)}
        error = SpecvizError("This failed: {reason} ({kind}). Try again, or ask for less; the log says more.", **reason)
    made.put(Ended(time.perf_counter() - began, error))


def _in_batches(made: queue.SimpleQueue) -> Iterator[list[Item] | Ended]:
    batch: list = []
    while not (batch and isinstance(batch[-1], Ended)):
        batch, due = [], time.monotonic() + INTERVAL
        with contextlib.suppress(queue.Empty):
            batch.append(made.get(timeout=INTERVAL))
            while True:
                batch.append(made.get_nowait())
        yield [one for one in batch if not isinstance(one, Ended)]
        time.sleep(max(0.0, due - time.monotonic()))
    yield batch[-1]


def closing(batches: Iterator[list[Item]], halt: threading.Event) -> Iterator[list[Item]]:
    """The batches that hold something until `halt` is set; closes their source in any case, which frees the device."""
    try:
        for batch in batches:
            if batch:
                yield batch
            if halt.is_set():
                return
    finally:
        batches.close()
