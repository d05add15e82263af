"""Runs for the page: the engine works in its own thread and hands rounds over in batches."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from specviz.bench.pass_times import measure_passes
from specviz.decoding import engine
from specviz.decoding.lossless import LAB_RULES, GreedyToken, Law, Sample, examine
from specviz.models.pair import ModelPair
from specviz.records.runs import Round
from specviz.theory.roofline import PassTimes
from specviz.ui import device
from specviz.ui.deployment import Settings
from specviz.ui.orders import Order, PairName, PairStore
from specviz.ui.trials import Trial, trial_request

#: Seconds between batches: ten updates a second.
INTERVAL = 0.1
Item = TypeVar("Item")


class Runner:
    """Carries out orders on the pairs of a store.

    batches(order): the rounds of a run as they come, several at a time. replays(order, rule): the same of
    `engine.replay`, in pairs: each round of the order, and what another rule makes of its draft and its coins.
    passes(name): what `measure_passes` finds of a pair, as it fills in. trials(order, trial): what `lossless.examine`
    finds. Closing any of these iterators ends the work within a round or a pass.
    """

    def __init__(self, store: PairStore, settings: Settings):
        self.store = store
        self.settings = settings
        self.batches = device.on_gpu(self._batches)
        self.replays = device.on_gpu(self._replays)
        self.passes = device.on_gpu(self._passes)
        self.trials = device.on_gpu(self._trials)
        #: Wall seconds of the last run in the engine's thread, for the benchmark of the page.
        self.last_seconds = 0.0

    def _batches(self, order: Order) -> Iterator[list[Round]]:
        request = self._request(order)
        yield from self._carry_out(request.pair, lambda: engine.rounds(request))

    def _replays(self, order: Order, rule: str) -> Iterator[list[tuple[Round, Round]]]:
        request = self._request(order)
        yield from self._carry_out(request.pair, lambda: engine.replay(request, rule))

    def _passes(self, name: PairName) -> Iterator[list[PassTimes]]:
        pair = self.store.get(name)
        yield from self._carry_out(pair, lambda: measure_passes(pair))

    def _trials(self, order: Order, trial: Trial) -> Iterator[list[Law | Sample | GreedyToken]]:
        request = trial_request(self.store.get(order.pair), order, trial, self.settings)
        yield from self._carry_out(request.pair, lambda: examine(request, LAB_RULES[trial.rule], int(trial.runs)))

    def _request(self, order: Order) -> engine.Request:
        return order.request(self.store.get(order.pair), self.settings)

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
    """Puts each item into the queue, then None, or the exception that ended the run; returns the seconds it took."""
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
    """The batches up to the moment `halt` is set; closes their source, which frees the device, in any case."""
    try:
        for batch in batches:
            yield batch
            if halt.is_set():
                return
    finally:
        batches.close()
