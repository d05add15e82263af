"""Runs for the page: the engine works in its own thread and hands rounds over in batches."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from specviz import engine
from specviz.records import Round
from specviz.ui.orders import Order, PairStore
from specviz.ui.settings import Settings

try:
    import spaces  # only on a Space with ZeroGPU: gives a call its GPU
except ImportError:
    spaces = None

#: Seconds between batches: ten updates a second.
INTERVAL = 0.1
#: Seconds a ZeroGPU call may take.
GPU_SECONDS = 120

Function = TypeVar("Function", bound=Callable)

#: All engine work happens in this one thread: one run at a time, and the thread's pool of helpers stays warm.
_device = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")


def on_gpu(function: Function) -> Function:
    """Gives each call a GPU where the platform lends them by the call."""
    return spaces.GPU(duration=GPU_SECONDS)(function) if spaces else function


class Runner:
    """Carries out orders on the pairs of a store."""

    def __init__(self, store: PairStore, settings: Settings):
        self.store = store
        self.settings = settings
        self.batches = on_gpu(self._batches)
        #: Wall seconds of the last run in the engine's thread, for the benchmark of the page.
        self.last_seconds = 0.0

    def _batches(self, order: Order) -> Iterator[list[Round]]:
        """The rounds of a run as they come, several at a time; closing the iterator ends the run within a round."""
        request = order.request(self.store.get(order.pair), self.settings)
        rounds: queue.SimpleQueue[Round | BaseException | None] = queue.SimpleQueue()
        halt = threading.Event()
        work = _device.submit(_hand_over, request, rounds, halt)
        try:
            yield from _in_batches(rounds)
        finally:
            halt.set()
            self.last_seconds = work.result()


def _hand_over(request: engine.Request, rounds: queue.SimpleQueue, halt: threading.Event) -> float:
    """Puts each round into the queue, then None, or the exception that ended the run; returns the seconds it took."""
    if request.pair.threads is not None:
        torch.set_num_threads(request.pair.threads)
    start = time.perf_counter()
    try:
        for one in engine.rounds(request):
            rounds.put(one)
            if halt.is_set():
                break
        rounds.put(None)
    except Exception as error:  # the reader raises it, in the thread that can show it
        rounds.put(error)
    return time.perf_counter() - start


def _in_batches(rounds: queue.SimpleQueue) -> Iterator[list[Round]]:
    while True:
        batch, last = [rounds.get()], time.monotonic()
        while batch[-1] is not None and not isinstance(batch[-1], BaseException):
            try:
                batch.append(rounds.get_nowait())
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


def closing(batches: Iterator[list[Round]], halt: threading.Event) -> Iterator[list[Round]]:
    """The batches up to the moment `halt` is set; closes their source, which frees the device, in any case."""
    try:
        for batch in batches:
            yield batch
            if halt.is_set():
                return
    finally:
        batches.close()
