"""T(K): how long passes over K tokens of a pair's models take, beside what the machine could do at best.

All widths of both models take turns, so that a busy moment falls on all of them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from specviz.bench.machine_limits import (
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
from specviz.passes.devices import home_of
from specviz.passes.static_passes import kind_of
from specviz.theory.roofline import Curve, Limits, PassTimes, Point

#: Tokens a pass: powers of two, what γ = 2 to 5, 8 and 16 verify, and some between.
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 32, 64)

#: Cached tokens before each pass; with the widest pass still within what the embedded pair was trained on.
CONTEXT = 128

#: Repeats of everything, and the seconds after which no further one begins.
REPEATS, BUDGET = 25, 4.0


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
        timers = {role: PassTimer(model, widths, context, fast.get(role)) for role, model in models.items()}
        peak = peak_rate(pair.dtype, pair.device)
        start = PassTimes(
            target=pair.target_name,
            draft=pair.draft_name,
            context=context,
            device=str(pair.device),
            dtype=dtype_name(pair.dtype),
            kind=kind_of(fast),
            threads=torch.get_num_threads() if pair.device.type == "cpu" else None,
            curves=tuple(_curve(role, timer, peak) for role, timer in timers.items()),
            fraction=0.0,
        )
        yield start
        yield from _filled(start, timers, repeats, budget)


def _curve(role: str, timer: PassTimer, peak: float) -> Curve:
    bandwidth = read_bandwidth(weight_share(timer), home_of(timer.model))
    return Curve(role, model_size(timer), Limits(bandwidth, peak))


def _filled(start: PassTimes, timers: dict[str, PassTimer], repeats: int, budget: float) -> Iterator[PassTimes]:
    """`start` with one more pass timed in each: all widths of all models take turns."""
    turns = [(role, width) for width in timers["target"].widths for role in timers]
    taken: dict[tuple[str, int], list[float]] = {turn: [] for turn in turns}
    began = time.perf_counter()
    for repeat in range(repeats):
        if repeat and time.perf_counter() - began > budget:
            break
        for place, (role, width) in enumerate(up_and_down(turns, repeat)):
            taken[role, width].append(timers[role].seconds(width))
            yield _snapshot(start, taken, _share(repeat + (place + 1) / len(turns), repeats, began, budget))
    yield _snapshot(start, taken, 1.0)


def _share(done: float, repeats: int, began: float, budget: float) -> float:
    """The share of the work done: by repeats or, after the first one, by time, whichever ends it sooner."""
    by_time = (time.perf_counter() - began) / budget if done > 1 else 0.0
    return min(1.0, max(done / repeats, by_time))


def _snapshot(start: PassTimes, taken: dict[tuple[str, int], list[float]], fraction: float) -> PassTimes:
    def points(of: str) -> tuple[Point, ...]:
        return tuple(_point(width, seconds) for (role, width), seconds in taken.items() if role == of and seconds)

    curves = tuple(replace(curve, points=points(curve.role)) for curve in start.curves)
    return replace(start, curves=curves, fraction=fraction)


def _point(width: int, seconds: list[float]) -> Point:
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else 3 * seconds
    return Point(width, middle, low, high, len(seconds))
