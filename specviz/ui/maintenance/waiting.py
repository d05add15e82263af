"""What visitors wait: several press at once, and the page's one runner carries their orders out in turn."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from specviz.bench.growth import VisitorsPoint
from specviz.models.pair import ModelPair
from specviz.ui.deployment import Deployment
from specviz.ui.maintenance.page_cost import ORDER
from specviz.ui.orders import Order
from specviz.ui.pairs import PairStore
from specviz.ui.runner import Runner

#: Visitors at once; the last is the page's whole line unless its deployment say otherwise.
VISITORS = (1, 2, 4, 8, 16)
#: New tokens of each visitor's run.
TOKENS = 64


def measure_visitors(
    pair: ModelPair,
    deployment: Deployment,
    say: Callable[[str], None] = lambda line: None,
    visitors: Sequence[int] = VISITORS,
    tokens: int = TOKENS,
) -> list[VisitorsPoint]:
    """One point a number of visitors, as far as the deployment lets them wait.

    Through the page's `Runner`, on the pair that is loaded; no browser and no network, so what is measured is the line
    and not the way to it.
    """
    runner = Runner(PairStore(deployment, pair), deployment)
    order = ORDER.but(max_new_tokens=tokens)
    _visit(runner, order, threading.Barrier(1))
    points = []
    for count in visitors:
        if count <= deployment.queue_size:
            points.append(_pressed_at_once(runner, order, count))
            say(f"growth: {count} visitors at once")
    return points


def _pressed_at_once(runner: Runner, order: Order, count: int) -> VisitorsPoint:
    barrier = threading.Barrier(count)
    with ThreadPoolExecutor(count) as threads:
        orders = [order.but(seed=seed) for seed in range(count)]
        visits = list(threads.map(lambda one: _visit(runner, one, barrier), orders))
    firsts = [first - pressed for pressed, first, _, _ in visits]
    began, ended = min(pressed for pressed, *_ in visits), max(end for _, _, end, _ in visits)
    tokens = sum(tokens for *_, tokens in visits)
    return VisitorsPoint(count, statistics.median(firsts), max(firsts), tokens / (ended - began))


def _visit(runner: Runner, order: Order, barrier: threading.Barrier) -> tuple[float, float, float, int]:
    """One visitor's run: the moments of the press, of the first round and of the end, and the tokens of it."""
    barrier.wait()
    pressed, first, tokens = time.perf_counter(), None, 0
    for batch in runner.batches(order):
        first = first or time.perf_counter()
        tokens += sum(len(one.emitted) for one in batch)
    return pressed, first, time.perf_counter(), tokens
