"""The duration of passes: T(K) over K tokens of one text, and T(B, K) over K tokens of each of B requests.

All passes take turns, so that a busy moment falls on all of them alike. For T(B, K) the models are called operation by
operation, since prepared passes read one text: both sides of a speedup alike.
"""

import functools
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specviz.bench.machine import (
    model_size,
    models_of,
    no_memory,
    peak_rate,
    read_bandwidth,
    weight_share,
    within_positions,
)
from specviz.models.pair import ModelPair
from specviz.models.pass_timer import PassTimer, up_and_down
from specviz.models.placement import dtype_name
from specviz.models.refusals import refusing_out_of_memory
from specviz.passes.devices import home_of, synchronise
from specviz.passes.fast_passes import kind_of
from specviz.passes.roles import TARGET, Role
from specviz.passes.states import KeptStates, crop_rows, has_states, record_windows
from specviz.theory.roofline import BatchPoint, BatchTimes, Curve, Limits, PassTimes, Point

#: Tokens a pass: powers of two, the widths that γ = 2 to 5, 8 and 16 verify, and some between.
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 32, 64)

#: Cached tokens before each pass; with the widest pass still within the embedded pair's training length.
CONTEXT = 128

#: Repeats of everything, and the seconds after which no further one begins.
REPEATS, BUDGET = 25, 4.0

#: Of T(B, K): requests at once, tokens of each in a pass (plain decoding and γ = 1, 2, 4, 8, 16), repeats and seconds.
BATCHES, BATCH_WIDTHS = (1, 2, 4, 8, 16, 32), (1, 2, 3, 5, 9, 17)
BATCH_REPEATS, BATCH_BUDGET = 15, 6.0

Key = TypeVar("Key", bound=Hashable)


def in_turn(
    passes: Mapping[Key, Callable[[], float]], repeats: int, budget: float
) -> Iterator[tuple[dict[Key, list[float]], float]]:
    """All passes in turn, up and down: after each one the seconds of every pass so far, and the share that is done.

    No further repeat begins after `budget` seconds, but there is at least one.
    """
    seconds: dict[Key, list[float]] = {key: [] for key in passes}
    began = time.perf_counter()
    for repeat in range(repeats):
        if repeat and time.perf_counter() - began > budget:
            break
        for place, key in enumerate(up_and_down(list(passes), repeat), start=1):
            seconds[key].append(passes[key]())
            repeats_done = repeat + place / len(passes)
            # By repeats or, after the first one, by time, whichever ends it sooner.
            by_time = (time.perf_counter() - began) / budget if repeats_done > 1 else 0.0
            yield seconds, min(1.0, max(repeats_done / repeats, by_time))
    yield seconds, 1.0


def _setup(pair: ModelPair, context: int, kind: str) -> dict[str, Any]:
    """The fields of `Setup`."""
    return {
        "target": pair.target_name,
        "draft": pair.draft_name,
        "context": context,
        "device": str(pair.device),
        "dtype": dtype_name(pair.dtype),
        "kind": kind,
        "threads": pair.passes.most_threads,
    }


# One text


def measure_passes(
    pair: ModelPair,
    widths: Sequence[int] = WIDTHS,
    context: int = CONTEXT,
    repeats: int = REPEATS,
    budget: float = BUDGET,
) -> Iterator[PassTimes]:
    """T(K) of target and draft model after `context` cached tokens as it fills in: yields after every pass.

    The passes are those that a run would make now: the pair's prepared ones, where it has any. Widths that would fill
    more than half of a model's positions are left out, and both models have the same context. A pair so slow that
    `budget` seconds are over gets fewer than `repeats` repeats, but at least one. Raises SpecvizError (field
    ``target``) where the device's memory does not hold a pass.
    """
    models = models_of(pair)
    widths, context = within_positions(models.values(), widths, context)
    with refusing_out_of_memory(no_memory):
        fast = dict(pair.passes.fast)
        timers = {role: PassTimer(model, widths, context, fast.get(Role(role))) for role, model in models.items()}
        peak = peak_rate(pair.dtype, pair.device)
        curves = tuple(
            Curve(role, model_size(timer), Limits(read_bandwidth(weight_share(timer), home_of(timer.model)), peak))
            for role, timer in timers.items()
        )
        start = PassTimes(**_setup(pair, context, kind_of(fast)), curves=curves, fraction=0.0)
        yield start
        shapes = [(role, width) for width in timers["target"].widths for role in timers]
        passes = {(role, width): functools.partial(timers[role].seconds, width) for role, width in shapes}
        for seconds, fraction in in_turn(passes, repeats, budget):
            yield replace(start, curves=tuple(_filled(curve, seconds) for curve in start.curves), fraction=fraction)


def _filled(curve: Curve, seconds_by_pass: Mapping[tuple[str, int], list[float]]) -> Curve:
    widths = {width: seconds for (role, width), seconds in seconds_by_pass.items() if role == curve.role and seconds}
    return replace(curve, points=tuple(_point(width, seconds) for width, seconds in widths.items()))


def _point(width: int, seconds: list[float]) -> Point:
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else 3 * seconds
    return Point(width, middle, low, high, len(seconds))


# Many requests


class RequestBatch:
    """`requests` texts of `context` tokens in one cache, each with rows of its own; the tokens are arbitrary."""

    @torch.inference_mode()
    def __init__(self, model: PreTrainedModel, requests: int, context: int):
        self.model, self.requests = model, requests
        self.device = home_of(model)
        self.cache = DynamicCache(config=model.config)
        record_windows(self.cache)
        read = requests if has_states(self.cache) else 1  # transformers repeats keys and values only
        self.read(torch.ones(read, context, dtype=torch.long, device=self.device))
        # A sliding window keeps spare rows until it is told that the pass is over.
        crop_rows(self.cache, 0)
        if read < requests:
            self.cache.batch_repeat_interleave(requests)
        self.states = KeptStates(self.cache, context)

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
        crop_rows(self.cache, width)
        self.states.put_back()
        return seconds


def measure_batches(
    pair: ModelPair,
    batches: Sequence[int] = BATCHES,
    widths: Sequence[int] = BATCH_WIDTHS,
    context: int = CONTEXT,
    repeats: int = BATCH_REPEATS,
    budget: float = BATCH_BUDGET,
) -> Iterator[BatchTimes]:
    """T(B, K) of the target and T(B, 1) of the draft model as they fill in: yields after every pass.

    Each pass is run once to warm up, the smallest first: when that has taken `budget` seconds, larger ones are left
    out. All others then take turns. Raises SpecvizError (field ``target``) where the device's memory does not hold one.
    """
    models = {role: _model_of_passes(pair, role) for role in models_of(pair)}
    widths, context = within_positions(models_of(pair).values(), widths, context)
    prepared = pair.passes.fast.get(TARGET)
    kind = "kernels" if prepared and prepared.static.few_rows else "plain"
    start = BatchTimes(**_setup(pair, context, kind), batches=tuple(batches), points=(), fraction=0.0)
    yield start
    shapes = [("target", requests, width) for requests in batches for width in widths]
    shapes += [("draft", requests, 1) for requests in batches if "draft" in models]
    passes: dict[tuple[str, int, int], Callable[[], float]] = {}
    warm: dict[tuple[str, int], RequestBatch] = {}
    with refusing_out_of_memory(no_memory):
        began = time.perf_counter()
        for role, requests, width in sorted(shapes, key=lambda shape: shape[1] * shape[2]):
            if passes and time.perf_counter() - began > budget:
                break
            if (role, requests) not in warm:
                warm[role, requests] = RequestBatch(models[role], requests, context)
            passes[role, requests, width] = functools.partial(warm[role, requests].seconds, width)
            passes[role, requests, width]()
            yield start
        for seconds, fraction in in_turn(passes, repeats, budget):
            points = [BatchPoint(*key, statistics.median(times), len(times)) for key, times in seconds.items() if times]
            yield replace(start, points=tuple(points), fraction=fraction)


def _model_of_passes(pair: ModelPair, role: str) -> PreTrainedModel:
    """The model in the form in which prepared passes multiply, if there are any."""
    prepared = pair.passes.fast.get(Role(role))
    return prepared.static.model if prepared else models_of(pair)[role]
