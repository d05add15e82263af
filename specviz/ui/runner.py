"""Runs for the page: the engine works in a thread of its own and hands over what it makes in batches."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from specviz.ui import device, engine
from specviz.ui.deployment import Deployment
from specviz.ui.orders import Order
from specviz.ui.pairs import PairName, PairStore

if TYPE_CHECKING:
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair

#: Seconds between batches: ten updates a second.
INTERVAL = 0.1

Item = TypeVar("Item")


class Runner:
    """Carries out work on the pairs of a store, one piece at a time.

    What is worked on comes in batches; closing their iterator ends the work within a round or a pass. Arguments and
    results cross a process border where a GPU is lent by the call: they are plain, and `work` is a module's function.
    """

    def __init__(self, store: PairStore, deployment: Deployment):
        self.store = store
        self.deployment = deployment
        self.batches = device.on_gpu(self._batches)
        self.pair_batches = device.on_gpu(self._pair_batches)
        #: Wall seconds of the last run in the engine's thread, for the benchmark of the page.
        self.last_seconds = 0.0

    def _batches(
        self, order: Order, work: Callable[..., Iterator[Item]] | None = None, *arguments: Any
    ) -> Iterator[list[Item]]:
        """What `work(request, *arguments)` makes of the checked order: by default the rounds of its run."""
        request: Request = order.request(self.store.get(order.pair), self.deployment)
        yield from self._carry_out(request.pair, lambda: (work or engine.rounds)(request, *arguments))

    def _pair_batches(self, name: PairName, work: Callable[[ModelPair], Iterator[Item]]) -> Iterator[list[Item]]:
        """What `work(pair)` makes of a pair by itself."""
        pair = self.store.get(name)
        yield from self._carry_out(pair, lambda: work(pair))

    def _carry_out(self, pair: ModelPair, start: Callable[[], Iterator[Item]]) -> Iterator[list[Item]]:
        """What `start()` makes in the engine's thread, in batches."""
        made: queue.SimpleQueue[Item | BaseException | None] = queue.SimpleQueue()
        halt = threading.Event()
        work = device.thread.submit(_hand_over, pair.passes.threads, start, made, halt)
        try:
            yield from _in_batches(made)
        finally:
            halt.set()
            self.last_seconds = work.result()


def _hand_over(
    threads: int | None, start: Callable[[], Iterator[Item]], made: queue.SimpleQueue, halt: threading.Event
) -> float:
    """Puts each item into the queue, then None, or the exception that ended the work; returns the seconds it took."""
    import torch  # here, where a pair is: the page stands before torch is loaded

    if threads is not None:
        torch.set_num_threads(threads)
    began = time.perf_counter()
    try:
        for one in start():
            made.put(one)
            if halt.is_set():
                break
        made.put(None)
    except Exception as error:  # the reader raises it, in the thread that can show it
        made.put(error)
    return time.perf_counter() - began


def _in_batches(made: queue.SimpleQueue) -> Iterator[list]:
    while True:
        batch, last = [made.get()], time.monotonic()
        while batch[-1] is not None and not isinstance(batch[-1], BaseException):
            try:
                batch.append(made.get_nowait())
            except queue.Empty:
                break
        end = batch.pop() if batch[-1] is None or isinstance(batch[-1], BaseException) else ...
        if batch:
            yield batch
        if end is None:
            return
        if isinstance(end, BaseException):
            raise end
        time.sleep(max(0.0, INTERVAL - (time.monotonic() - last)))


def closing(batches: Iterator[list[Item]], halt: threading.Event) -> Iterator[list[Item]]:
    """The batches until `halt` is set; closes their source in any case, which frees the device."""
    try:
        for batch in batches:
            yield batch
            if halt.is_set():
                return
    finally:
        batches.close()
