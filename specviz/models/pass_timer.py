"""How long a pass takes: timed to show T(K), and to choose a number of threads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

import torch
from transformers import PreTrainedModel

from specviz.models.pair import position_limit
from specviz.passes.cached_model import reader
from specviz.passes.clock import Stopwatch, synchronise
from specviz.passes.several_devices import agreed, home_of
from specviz.passes.static_passes import FastPasses

#: Tokens per pass for which T(K) is measured and shown.
SHOWN_WIDTHS = (1, 2, 5, 9)

#: The widths that decide between numbers of threads: a plain step, and a target pass over four draft tokens.
_TIMED_WIDTHS = (1, 5)

#: What torch starts with: the number of cores, or OMP_NUM_THREADS.
_ALL_THREADS = torch.get_num_threads()

#: Fewer threads are preferred if they are slower by no more than this factor.
_ABOUT_AS_FAST = 1.25

#: A larger model has work enough for every thread. Not decided by the clock: on a busy machine everything is slow.
_SMALL_BYTES = 512 << 20


def settle_threads(model: PreTrainedModel) -> int:
    """Sets torch to the fewest threads with which this model's passes are about as fast as they get; returns how many.

    A small model's pass spends its time between operations, where more threads only wait for each other, and wait
    long whenever another program wants a core: with all cores in use, one busy program has made compiled passes a
    hundred times slower. So a small model leaves a core free; a large one keeps all threads.
    """
    every = int(agreed(_ALL_THREADS, model))
    torch.set_num_threads(every)
    if every == 1 or sum(weight.numel() * weight.element_size() for weight in model.parameters()) > _SMALL_BYTES:
        return every
    choices = sorted({*(2**power for power in range((every - 1).bit_length())), every - 1})
    if len(choices) == 1:
        torch.set_num_threads(choices[0])
        return choices[0]
    seconds = dict.fromkeys(choices, float("inf"))
    for _ in range(2):
        for threads in choices:
            torch.set_num_threads(threads)
            seconds[threads] = min(seconds[threads], sum(time_passes(model, _TIMED_WIDTHS, repeats=5).values()))
    best = min(seconds.values())
    threads = next(threads for threads in choices if seconds[threads] <= _ABOUT_AS_FAST * best)
    torch.set_num_threads(threads)
    return threads


class PassTimer:
    """Times one model's forward passes after `context` cached tokens, having run each width once to warm up.

    The tokens are arbitrary: a dense model takes the same time for any. A context that leaves no room for the widest
    pass is shortened. passes: those prepared for the model, to time them instead of its own.
    """

    def __init__(
        self, model: PreTrainedModel, widths: Iterable[int], context: int = 64, passes: FastPasses | None = None
    ):
        self.model = model
        self.widths = sorted(set(widths))
        positions = position_limit(model)
        self.context = context if positions is None else max(1, min(context, positions - self.widths[-1]))
        self.reader = reader(model, Stopwatch(home_of(model)), passes)
        self._pass(self.context, keep=1)
        for width in self.widths:
            self.seconds(width)
        if passes is not None:
            # Recorded before they are timed, as in a run.
            passes.between_rounds(meetings=1)

    def seconds(self, width: int) -> float:
        """Wall seconds of one finished pass over so many tokens, as in a run; leaves the cache as it was."""
        return self._pass(width, keep=width)

    @torch.inference_mode()
    def _pass(self, width: int, keep: int) -> float:
        ids = torch.ones(width, dtype=torch.long, device=self.reader.device)
        synchronise(self.reader.device)
        start = time.perf_counter()
        self.reader.forward(ids, keep)
        synchronise(self.reader.device)
        seconds = time.perf_counter() - start
        # Needed even when nothing is removed: a sliding window keeps spare rows until it is told.
        self.reader.rewind(self.context)
        self.reader.stopwatch.forget_spans()
        return seconds


def time_passes(
    model: PreTrainedModel,
    widths: Iterable[int],
    context: int = 64,
    repeats: int = 7,
    budget: float = 1.0,
    passes: FastPasses | None = None,
) -> dict[int, float]:
    """Median seconds of one forward pass over K tokens, for each K in `widths`, after `context` cached tokens.

    Warm and synchronised (`PassTimer`). The widths take turns, so that a busy moment hits all of them. A model so slow
    that `budget` seconds run out gets fewer than `repeats` measurements, but at least one. Processes that share the
    model all return what the leader measured.
    """
    timer = PassTimer(model, widths, context, passes)
    measured: dict[int, list[float]] = {width: [] for width in timer.widths}
    end = time.perf_counter() + budget
    for repeat in range(repeats):
        if repeat and _is_over(end, model):
            break
        for width in timer.widths:
            measured[width].append(timer.seconds(width))
    return {width: agreed(statistics.median(times), model) for width, times in measured.items()}


def _is_over(end: float, model: PreTrainedModel) -> bool:
    return bool(agreed(time.perf_counter() > end, model))
