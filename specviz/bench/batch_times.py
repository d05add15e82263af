"""T(B, K): how long passes take that read K tokens of each of B requests, with keys and values of their own.

Prepared passes read one text, so these are called operation by operation: both sides of a speedup alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specviz.bench.machine_limits import models_of, no_memory, within_positions
from specviz.models.pair import ModelPair
from specviz.models.pass_timer import up_and_down
from specviz.models.placement import dtype_name
from specviz.models.refusals import refusing_out_of_memory
from specviz.passes.devices import home_of, synchronise
from specviz.theory.roofline import BatchPoint, BatchTimes

#: Requests at once, and tokens of each in a pass: plain decoding and γ = 1, 2, 4, 8, 16.
BATCHES, WIDTHS = (1, 2, 4, 8, 16, 32), (1, 2, 3, 5, 9, 17)

#: Cached tokens of each request before each pass.
CONTEXT = 128

#: Repeats of everything, and the seconds after which no further one begins.
REPEATS, BUDGET = 15, 6.0

#: A pass of one model: (role, requests, tokens of each).
Shape = tuple[str, int, int]


class RequestBatch:
    """`requests` texts of `context` tokens in one cache, each with rows of its own; the tokens are arbitrary."""

    @torch.inference_mode()
    def __init__(self, model: PreTrainedModel, requests: int, context: int):
        self.model, self.requests = model, requests
        self.device = home_of(model)
        self.cache = DynamicCache(config=model.config)
        # Otherwise sliding windows forget the rows that come back when a pass is forgotten.
        self.cache.activate_past_recording()
        self.read(torch.ones(1, context, dtype=torch.long, device=self.device))
        # A sliding window keeps spare rows until it is told that the pass is over.
        self.cache.crop(0)
        self.cache.batch_repeat_interleave(requests)

    @torch.inference_mode()
    def read(self, token_ids: Tensor) -> Tensor:
        """One pass over [requests, K] int64: logits [requests, K, vocab]."""
        return self.model(input_ids=token_ids, cache=self.cache, use_cache=True).logits

    def seconds(self, width: int) -> float:
        """Wall seconds of one finished pass over `width` tokens of each request; leaves the cache as it was."""
        ids = torch.ones(self.requests, width, dtype=torch.long, device=self.device)
        synchronise(self.device)
        start = time.perf_counter()
        self.read(ids)
        synchronise(self.device)
        seconds = time.perf_counter() - start
        self.cache.crop(-width)
        return seconds


def measure_batches(
    pair: ModelPair,
    batches: Sequence[int] = BATCHES,
    widths: Sequence[int] = WIDTHS,
    context: int = CONTEXT,
    repeats: int = REPEATS,
    budget: float = BUDGET,
) -> Iterator[BatchTimes]:
    """T(B, K) of the target and T(B, 1) of the draft model as they fill in: yields after every pass.

    Each pass is run once to warm up, the smallest first: when that has taken `budget` seconds, larger ones are left
    out. All others then take turns. Raises SpecvizError (field ``target``) where the device's memory does not hold one.
    """
    models = {role: _as_runs_have_it(pair, role) for role in models_of(pair)}
    widths, context = within_positions(models_of(pair).values(), widths, context)
    start = BatchTimes(
        target=pair.target_name,
        draft=pair.draft_name,
        context=context,
        device=str(pair.device),
        dtype=dtype_name(pair.dtype),
        kind=_kind(pair),
        threads=torch.get_num_threads() if pair.device.type == "cpu" else None,
        batches=tuple(batches),
        points=(),
        fraction=0.0,
    )
    yield start
    shapes = [("target", requests, width) for requests in batches for width in widths]
    shapes += [("draft", requests, 1) for requests in batches if "draft" in models]
    with refusing_out_of_memory(no_memory):
        yield from _Measuring(models, context, sorted(shapes, key=_tokens), repeats, budget).filling(start)


def _as_runs_have_it(pair: ModelPair, role: str) -> PreTrainedModel:
    """The model in the form in which prepared passes multiply, if there are any."""
    prepared = pair.passes.fast.get(role)
    return prepared.static.model if prepared else models_of(pair)[role]


def _kind(pair: ModelPair) -> str:
    prepared = pair.passes.fast.get("target")
    return "kernels" if prepared and prepared.static.few_rows else "plain"


def _tokens(shape: Shape) -> int:
    _, requests, width = shape
    return requests * width


@dataclass
class _Measuring:
    """The passes of these shapes, in turn."""

    models: dict[str, PreTrainedModel]
    context: int
    shapes: list[Shape]  # the smallest first
    repeats: int
    budget: float

    def filling(self, start: BatchTimes) -> Iterator[BatchTimes]:
        """`start` with one more pass in each; those that warm up only let time pass."""
        batches: dict[tuple[str, int], RequestBatch] = {}
        taken: dict[Shape, list[float]] = {}
        began = time.perf_counter()
        for role, requests, width in self.shapes:
            if taken and time.perf_counter() - began > self.budget:
                break
            if (role, requests) not in batches:
                batches[role, requests] = RequestBatch(self.models[role], requests, self.context)
            batches[role, requests].seconds(width)
            taken[role, requests, width] = []
            yield start
        began = time.perf_counter()
        for repeat in range(self.repeats):
            if repeat and time.perf_counter() - began > self.budget:
                break
            for role, requests, width in up_and_down(list(taken), repeat):
                taken[role, requests, width].append(batches[role, requests].seconds(width))
                yield _snapshot(start, taken, self._share(sum(map(len, taken.values())) / len(taken), began))
        yield _snapshot(start, taken, 1.0)

    def _share(self, done: float, began: float) -> float:
        """By repeats or, after the first one, by time, whichever ends it sooner."""
        by_time = (time.perf_counter() - began) / self.budget if done > 1 else 0.0
        return min(1.0, max(done / self.repeats, by_time))


def _snapshot(start: BatchTimes, taken: dict[Shape, list[float]], fraction: float) -> BatchTimes:
    points = (BatchPoint(*shape, statistics.median(times), len(times)) for shape, times in taken.items() if times)
    return replace(start, points=tuple(points), fraction=fraction)
