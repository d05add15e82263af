"""Times passes over K tokens of a pair's models, and what the machine could do at best: the cost of verifying.

All of it takes turns within one press, so that a busy moment falls on everything alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from specviz.bench.sections import Limit
from specviz.models.pair import ModelPair, position_limit
from specviz.models.pass_timer import PassTimer
from specviz.models.placement import dtype_name
from specviz.models.refusals import refusing_out_of_memory
from specviz.passes.clock import synchronise
from specviz.passes.several_devices import devices_of, home_of
from specviz.passes.static_passes import kind_of
from specviz.records.errors import SpecvizError
from specviz.theory.roofline import Curve, Limits, ModelSize, PassTimes, Point

#: Tokens a pass: powers of two, what γ = 2 to 5, 8 and 16 verify, and some between.
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 32, 64)

#: Cached tokens before each pass: with the widest one it stays within what the embedded pair was trained on.
CONTEXT = 128

#: Repeats of everything, and the seconds after which no further one is begun.
REPEATS, BUDGET = 25, 4.0

#: Rows and columns of the matrices whose product is timed for the peak rate.
PEAK_SIDE = {"cpu": 1024, "cuda": 4096}


def measure_passes(
    pair: ModelPair,
    widths: Sequence[int] = WIDTHS,
    context: int = CONTEXT,
    repeats: int = REPEATS,
    budget: float = BUDGET,
) -> Iterator[PassTimes]:
    """T(K) of target and draft model after `context` cached tokens, as it fills in: once a pass, complete at the end.

    The passes are those that a run takes now: the pair's prepared ones, where it has some. A width that would fill
    more than half of a model's positions is left out, and the context is the same for both. A pair so slow that
    `budget` seconds are over gets fewer than `repeats` repeats, but at least one. Raises SpecvizError where the
    device's memory does not hold a pass.
    """
    models = {"target": pair.target} | ({"draft": pair.draft} if pair.draft is not None else {})
    room = min(filter(None, map(position_limit, models.values())), default=2 * max(*widths, context))
    widths = [width for width in widths if width <= max(1, room // 2)]
    context = max(1, min(context, room - max(widths)))
    with refusing_out_of_memory(_no_memory):
        fast = dict(pair.passes.fast)
        timers = {role: PassTimer(model, widths, context, fast.get(role)) for role, model in models.items()}
        peak = peak_rate(pair.dtype, pair.device)
        curves = {role: _curve(role, timer, peak) for role, timer in timers.items()}
        start = PassTimes(
            target=pair.target_name,
            draft=pair.draft_name,
            context=context,
            device=str(pair.device),
            dtype=dtype_name(pair.dtype),
            kind=kind_of(fast),
            threads=torch.get_num_threads() if pair.device.type == "cpu" else None,
            curves=tuple(curves.values()),
            fraction=0.0,
        )
        yield start
        yield from _filled(start, timers, repeats, budget)


def measure_limits(pair: ModelPair, context: int, repeats: int = REPEATS) -> list[Limit]:
    """A pass over one token after `context` cached ones, of target and draft model in turn, beside its limit.

    The passes are those that runs take. A context too long for a model is shortened. Raises SpecvizError where the
    device's memory does not hold it.
    """
    models = {"target": pair.target} | ({"draft": pair.draft} if pair.draft is not None else {})
    with refusing_out_of_memory(_no_memory):
        timers = {role: PassTimer(model, (1,), context, pair.passes.fast.get(role)) for role, model in models.items()}
        seconds: dict[str, list[float]] = {role: [] for role in timers}
        for _ in range(repeats):
            for role, timer in timers.items():
                seconds[role].append(timer.seconds(1))
        return [_limit(role, timer, statistics.median(seconds[role])) for role, timer in timers.items()]


def _limit(role: str, timer: PassTimer, pass_seconds: float) -> Limit:
    size, device = model_size(timer), home_of(timer.model)
    # Of a spread model each device holds its share.
    share = size.weight_bytes // len(devices_of(timer.model))
    return Limit(
        role=role,
        context=timer.context,
        weight_bytes=size.weight_bytes,
        cache_bytes=round(size.position_bytes * size.positions),
        copy_bandwidth=copy_bandwidth(share, device),
        read_bandwidth=read_bandwidth(share, device),
        pass_seconds=pass_seconds,
    )


def _no_memory() -> SpecvizError:
    return SpecvizError(
        "There is not enough memory to time passes over many tokens: load a smaller pair on the Models tab.", "target"
    )


def _curve(role: str, timer: PassTimer, peak: float) -> Curve:
    size = model_size(timer)
    # Of a spread model each device reads its share.
    share = size.weight_bytes // len(devices_of(timer.model))
    return Curve(role, size, Limits(read_bandwidth(share, home_of(timer.model)), peak))


def _filled(start: PassTimes, timers: dict[str, PassTimer], repeats: int, budget: float) -> Iterator[PassTimes]:
    """`start` with one more pass timed in each: all widths of all models take turns."""
    turns = [(role, width) for width in timers["target"].widths for role in timers]
    taken: dict[tuple[str, int], list[float]] = {turn: [] for turn in turns}
    began = time.perf_counter()
    for repeat in range(repeats):
        if repeat and time.perf_counter() - began > budget:
            break
        for place, (role, width) in enumerate(turns):
            taken[role, width].append(timers[role].seconds(width))
            yield _snapshot(start, taken, _share(repeat + (place + 1) / len(turns), repeats, began, budget))
    yield _snapshot(start, taken, 1.0)


def _share(done: float, repeats: int, began: float, budget: float) -> float:
    """How far it is: by the repeats, or after the first one by the time, whichever ends it sooner."""
    by_time = (time.perf_counter() - began) / budget if done > 1 else 0.0
    return min(1.0, max(done / repeats, by_time))


def _snapshot(start: PassTimes, taken: dict[tuple[str, int], list[float]], fraction: float) -> PassTimes:
    curves = [
        replace(
            curve,
            points=tuple(
                _point(width, seconds) for (role, width), seconds in taken.items() if role == curve.role and seconds
            ),
        )
        for curve in start.curves
    ]
    return replace(start, curves=tuple(curves), fraction=fraction)


def _point(width: int, seconds: list[float]) -> Point:
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else 3 * seconds
    return Point(width, middle, low, high, len(seconds))


def model_size(timer: PassTimer) -> ModelSize:
    """What passes of this timer's model move and compute, counted on the model and its cache."""
    model = timer.model
    # Layers that share another's rows have none of their own.
    rows = [part for part in timer.reader.rows() if part is not None]
    positions = statistics.mean(part.shape[-2] for part in rows)
    cached = sum(part.numel() * part.element_size() for part in rows)
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    looked_up = _looked_up(model)
    return ModelSize(
        parameters=model.num_parameters() - sum(part.numel() for part in looked_up),
        weight_bytes=_bytes(model.parameters()) - _bytes(looked_up),
        position_bytes=cached / positions,
        positions=positions,
        attention_width=config.num_hidden_layers * heads * head_size,
    )


def _looked_up(model: PreTrainedModel) -> list[torch.Tensor]:
    """Tables of which a pass reads a row for each token: embeddings, unless they are the output head too."""
    head = model.get_output_embeddings()
    tables = [module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    return [table for table in tables if head is None or table is not head.weight]


def _bytes(parts) -> int:
    return sum(stored.numel() * stored.element_size() for part in parts for stored in _stored(part))


def _stored(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a tensor keeps its values in: itself, or for a quantised one the packed values and their scales."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [stored for name in names for stored in _stored(getattr(tensor, name))]


def read_bandwidth(size: int, device: torch.device) -> float:
    """Bytes a second of reading a buffer of `size` bytes, again and again, by summing it up.

    The buffer is as large as the weights, because a small model's weights may lie in the processor's cache, and then
    a pass reads them from there as well.
    """
    buffer = torch.ones(max(1, size // 4), dtype=torch.float32, device=device)
    return buffer.numel() * 4 / _fastest(buffer.sum, device)


def copy_bandwidth(size: int, device: torch.device) -> float:
    """Bytes a second, read and written ones together, of copying a buffer of `size` bytes again and again.

    What a machine is usually said to move; with torch's threads as they are set.
    """
    source, copy = (torch.ones(max(1, size // 4), dtype=torch.float32, device=device) for _ in range(2))
    return 2 * source.numel() * 4 / _fastest(lambda: copy.copy_(source), device)


def peak_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of a large matrix product, 2 · n³ operations."""
    side = PEAK_SIDE[device.type]
    one, other = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    return 2 * side**3 / _fastest(lambda: one @ other, device)


def _fastest(work: Callable[[], object], device: torch.device, repeats: int = 8) -> float:
    """Seconds of the quickest of some repeats, after a warm-up: what the machine can do at best."""
    work()
    seconds = []
    for _ in range(repeats):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
