"""Runs for the page: the engine works in a thread of its own and hands over its results in batches."""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import gradio as gr

from specviz.records.errors import SpecvizError, first_line
from specviz.records.settings import RunSettings
from specviz.ui import device
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName, PairStore
from specviz.ui.lending import CHECKING_SECONDS, on_gpu, refusal, seconds_for, start_seconds, time_is_up
from specviz.ui.line import Line
from specviz.ui.orders import Order

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair


#: Seconds between batches: ten updates a second.
INTERVAL = 0.1

#: Seconds that timing a lent GPU's passes may take.
TIMING = 0.5

Item = TypeVar("Item")
Batches = Generator[list[Item], None, None]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a piece of work ended. Plain, because an exception that crosses a process border loses all but its name."""

    seconds: float  # it took, in the engine's thread
    error: SpecvizError | None
    passes: Mapping[int, float] = field(default_factory=dict)  # the target's, where a lent GPU showed them


class Runner:
    """Carries out work on the pairs of a store, one piece at a time.

    Results come in batches; closing their iterator ends the work within a round or a pass. One press of a
    button is one piece: where a pair's GPU is lent by the call, each piece asks for one. Arguments and results cross a
    process border there: they are plain, and `work` is a module's function.
    """

    def __init__(self, store: PairStore, deployment: Deployment):
        self.store = store
        self.deployment = deployment
        self.line = Line(deployment.queue_size)
        self._on_lent_gpu = on_gpu(self._carry_out, device.begin_thread)
        #: Wall seconds of the last piece of work in the engine's thread, for the benchmark of the page.
        self.last_seconds = 0.0

    def batches(
        self,
        order: Order | PairName,
        work: Callable[..., Iterator[Item | None]] | None = None,
        *arguments: Any,
        extra_runs: Sequence[RunSettings] = (),
        extra_seconds: float = 0.0,
    ) -> Batches[Item]:
        """The results of `work(request, *arguments)` for a checked order, or of `work(pair, *arguments)` for a pair.

        By default the rounds of the order's run. Where work yields None, nothing is handed over: it can be ended
        there. A batch, even an empty one, comes at least every `INTERVAL`, so that it can. extra_runs, extra_seconds:
        made besides the order's own, spent besides them; a lent GPU is asked for by all of them. Raises SpecvizError,
        whatever goes wrong.
        """
        pair, subject = self._checked(order)  # before a GPU is asked for
        carry_out, seconds = self._carry_out, 0
        if pair.lent:
            carry_out, seconds = self._on_lent_gpu, _seconds(pair, order, subject, extra_runs, extra_seconds)
        # The work may happen in another process; its errors are raised in this one.
        with contextlib.closing(carry_out(order, work, arguments, seconds)) as results:
            try:
                for batch in results:
                    if not isinstance(batch, Ended):
                        yield batch
                        continue
                    self.last_seconds = batch.seconds
                    pair.passes.seconds_by_width |= batch.passes
                    if batch.error is not None:
                        raise batch.error
            except gr.Error as error:  # the platform refuses, in a toast of its own
                raise refusal(error) from error

    def _carry_out(
        self,
        order: Order | PairName,
        work: Callable[..., Iterator[Item | None]] | None,
        arguments: Sequence[Any],
        seconds: int,
    ) -> Generator[list[Item] | Ended, None, None]:
        pair, subject = self._checked(order)
        from specviz.decoding.engine import rounds  # only now: loading the pair has imported torch

        results: queue.SimpleQueue[Item | Ended] = queue.SimpleQueue()
        halt = threading.Event()
        start: Callable[[], Any] = functools.partial(_on_its_threads, pair, work or rounds, subject, *arguments)
        if pair.lent:
            start = functools.partial(_after_timing, pair, start)
        working = device.thread.submit(_hand_over, start, results, halt)
        try:
            batches: Iterator[list[Item] | Ended] = _in_batches(results)
            yield from batches if not pair.lent else _while_lent(batches, pair, seconds)
        finally:
            halt.set()
            working.result()

    def _checked(self, order: Order | PairName) -> tuple[ModelPair, Any]:
        """The pair, and the first argument of the work."""
        if isinstance(order, PairName):
            return (pair := self.store.get(order)), pair
        pair = self.store.get(order.pair)
        return pair, order.request(pair, self.deployment)


def _seconds(
    pair: ModelPair, order: Order | PairName, subject: Any, extra_runs: Sequence[RunSettings], extra_seconds: float
) -> int:
    """For how long to ask for a GPU; see `Runner.batches`."""
    if isinstance(order, PairName):
        return seconds_for(pair, 0, [], CHECKING_SECONDS)
    return seconds_for(pair, len(subject.prompt.ids), [order.settings, *extra_runs], TIMING + extra_seconds)


def _after_timing(pair: ModelPair, start: Callable[[], Item]) -> Item:
    """What `start()` returns. A lent GPU's passes are timed by the first call, so that later ones ask for less."""
    from specviz.models.pass_timer import SHOWN_WIDTHS, time_passes

    if not pair.passes.seconds_by_width:
        pair.passes.seconds_by_width = time_passes(pair.target, SHOWN_WIDTHS, budget=TIMING)
    return start()


def _while_lent(batches: Iterator[list[Item] | Ended], pair: ModelPair, seconds: float) -> Iterator[list[Item] | Ended]:
    """The batches until the seconds that were asked for are over: the platform would end the process."""
    end = time.monotonic() + seconds - start_seconds(pair)
    for batch in batches:
        yield replace(batch, passes=pair.passes.seconds_by_width) if isinstance(batch, Ended) else batch
        if time.monotonic() > end and not isinstance(batch, Ended):
            yield Ended(seconds, time_is_up(seconds))
            return


def beside_the_line(start: Callable[[], Iterator[Item]]) -> Batches[Item]:
    """The results of `start()`, in batches as of `Runner.batches`: work without models and processor waits for
    nobody. It has a thread of its own and ends, once the batches are closed, with its next result."""
    results: queue.SimpleQueue[Item | Ended] = queue.SimpleQueue()
    halt = threading.Event()
    threading.Thread(target=_hand_over, args=(start, results, halt), daemon=True).start()
    try:
        batches: Iterator[list[Item] | Ended] = _in_batches(results)
        for batch in batches:
            if not isinstance(batch, Ended):
                yield batch
            elif batch.error is not None:
                raise batch.error
    finally:
        halt.set()


def _on_its_threads(pair: ModelPair, work: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
    pair.passes.use_threads()
    return work(*arguments)


def _hand_over(start: Callable[[], Any], results: queue.SimpleQueue[Any], halt: threading.Event) -> None:
    """Puts each item into the queue, then how it ended."""
    began, error = time.perf_counter(), None
    try:
        with contextlib.closing(start()) as items:
            for item in items:
                if item is not None:
                    results.put(item)
                if halt.is_set() or device.ending.is_set():
                    break
    except SpecvizError as refusal:
        error = refusal
    except Exception as failure:
        if not halt.is_set():  # what it worked with may be closed by then
            logging.getLogger(__name__).exception("Engine work failed")
        reason = {"kind": type(failure).__name__, "reason": first_line(failure)}
        error = SpecvizError(
            "This failed: {reason} ({kind}). Try again, or ask for less; the log has the details.", **reason
        )
    results.put(Ended(time.perf_counter() - began, error))


def _in_batches(results: queue.SimpleQueue[Any]) -> Iterator[list[Item] | Ended]:
    batch: list[Any] = []
    while not (batch and isinstance(batch[-1], Ended)):
        batch, due = [], time.monotonic() + INTERVAL
        with contextlib.suppress(queue.Empty):
            batch.append(results.get(timeout=INTERVAL))
            while True:
                batch.append(results.get_nowait())
        yield [item for item in batch if not isinstance(item, Ended)]
        time.sleep(max(0.0, due - time.monotonic()))
    yield batch[-1]


def closing(batches: Batches[Item], halt: threading.Event) -> Iterator[list[Item]]:
    """The batches that hold something until `halt` is set; closes their source in any case, which frees the device."""
    try:
        for batch in batches:
            if batch:
                yield batch
            if halt.is_set():
                return
    finally:
        batches.close()
