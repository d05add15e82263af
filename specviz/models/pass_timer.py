"""How long a pass takes, timed to show T(K), and with how many threads."""

import math
import os
import pathlib
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from specviz.parts.published import logit_width
from specviz.passes.devices import Stopwatch, home_of, synchronise
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels import kernel_library
from specviz.passes.positions import position_limit
from specviz.passes.readers import new_cached_model

T = TypeVar("T")

#: Tokens per pass for which T(K) is measured and shown.
SHOWN_WIDTHS = (1, 2, 5, 9)

#: How much processor time a container may take, of which period, in microseconds (Linux, cgroup v2).
_QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")


def _within_quota(threads: int) -> int:
    """So many threads, or as many as may always run: a container that takes more stands still until its next period."""
    quota, period = _QUOTA.read_text("ascii").split() if _QUOTA.is_file() else ("max", "")
    return threads if quota == "max" else max(1, min(threads, int(quota) // int(period)))


def processors() -> int:
    """How many processors this process may use."""
    return _within_quota(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


#: torch's number at the start, which is that of the cores, or OMP_NUM_THREADS; or what a container's quota leaves.
_ALL_THREADS = _within_quota(torch.get_num_threads())

#: A larger model has work enough for every thread.
_SMALL_BYTES = 512 << 20

#: Of a small model's weights: with fewer to a thread, threads mostly wait for each other.
_BYTES_PER_THREAD = 32 << 20


#: Between the ids of neighbouring tokens: prime, and larger than most vocabularies' special tokens are many.
_STRIDE = 7919

#: The width of a pass that verifies a few draft tokens, what counts as hardly longer, and for how many seconds that
#: is tried; the share of its work by which a helper was there.
_VERIFIED, _HARDLY, _SETTLING, _HELPED = 5, 1.05, 0.6, 0.6


def settle_threads(model: PreTrainedModel) -> int:
    """Sets torch to the number of threads that suits this model's passes; returns it.

    In a small model's pass threads mostly wait for each other, and for long when another program wants a core: with all
    cores in use, one busy program has made compiled passes a hundred times slower. So a small model leaves a core free;
    a large one keeps all threads. Size decides, not the clock: sums round differently over other threads, and one seed
    must give one record at every start.
    """
    most = most_threads(model)
    threads = most if _size(model) > _SMALL_BYTES else max(1, min(_ALL_THREADS - 1, most))
    torch.set_num_threads(threads)
    return threads


def leave_a_core_free() -> None:
    """Sets torch to one thread less than it has, for work of many small operations: trials, weights that are packed.

    There the last thread gains little, and costs much beside a busy program: to try SmolLM2 on two busy cores took 56
    seconds with two threads, and 7 with one.
    """
    torch.set_num_threads(max(1, _ALL_THREADS - 1))


def most_threads(model: PreTrainedModel) -> int:
    """How many threads have work in this model's passes: all, or fewer for a small one."""
    size = _size(model)
    return _ALL_THREADS if size > _SMALL_BYTES else max(1, min(_ALL_THREADS, -(-size // _BYTES_PER_THREAD)))


def _size(model: PreTrainedModel) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def settle_kernel_threads(model: PreTrainedModel, passes: FastPasses) -> int:
    """Lets our kernels use the fewest threads with which prepared passes take hardly longer than with more; returns it.

    Such passes mostly read weights, and two processors that share a core or the way to memory read no faster than one.
    The fastest passes are compared, timed in turns: other programs make some slower, and from those the kernels
    keep away by themselves (crew.h). Where they left no core to try it, all threads may come. Results are the same bits
    with any number of threads.
    """
    counts = [most_threads(model)]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    if len(counts) == 1:
        return 1
    timer = PassTimer(model, (1, _VERIFIED), passes=passes)
    fastest = {(count, width): math.inf for count in counts for width in timer.widths}
    helped = dict.fromkeys(counts, 0.0)
    end = time.perf_counter() + _SETTLING
    while time.perf_counter() < end:
        for count in counts:
            kernel_library.use_threads(count)
            kernel_library.help_since()
            for width in (*timer.widths, *timer.widths):
                fastest[count, width] = min(fastest[count, width], timer.seconds(width))
            helped[count] = max(helped[count], kernel_library.help_since())
    kernel_library.use_threads(counts[0])
    if any(helped[count] < _HELPED * (1 - 1 / count) for count in counts):
        return counts[0]
    best = {width: min(fastest[count, width] for count in counts) for width in timer.widths}
    enough = [n for n in counts if all(fastest[n, width] <= _HARDLY * best[width] for width in best)]
    kernel_library.use_threads(fewest := min(enough, default=counts[0]))
    return fewest


class PassTimer:
    """Times one model's forward passes after `context` cached tokens, having run each width once to warm up.

    The tokens are arbitrary, and differ: of a mixture of experts a pass reads what any of them needs. A context that
    leaves no room for the widest pass is shortened, and widths for which the model has no positions are left out.
    passes: those prepared for the model, to time them instead of its own.
    """

    def __init__(
        self, model: PreTrainedModel, widths: Iterable[int], context: int = 64, passes: FastPasses | None = None
    ):
        self.model, self.passes = model, passes
        positions = position_limit(model)
        self.widths = sorted({width for width in widths if positions is None or width < positions})
        self.context = context if positions is None else max(1, min(context, positions - self.widths[-1]))
        self.reader = new_cached_model(model, Stopwatch(home_of(model)), passes)
        self._pass(self.context, rows_wanted=1)
        # Fast passes are met as often as a run's are before they are recorded; then it is the recorded ones that count.
        downwards = self.widths[::-1]  # so that what is timed first follows the narrowest
        for width in downwards if passes is None else 2 * downwards:
            self.seconds(width)
        if passes is not None:
            passes.between_rounds()

    def seconds(self, width: int) -> float:
        """Wall seconds of one finished pass over `width` tokens, as in a run; leaves the cache as it was."""
        return self._pass(width, rows_wanted=width)

    @torch.inference_mode()
    def _pass(self, width: int, rows_wanted: int) -> float:
        ids = _STRIDE * torch.arange(1, width + 1, device=self.reader.device) % logit_width(self.model)
        synchronise(self.reader.device)
        start = time.perf_counter()
        self.reader.forward(ids, rows_wanted)
        synchronise(self.reader.device)
        seconds = time.perf_counter() - start
        # Needed even when nothing is removed: a sliding window keeps spare rows until then.
        self.reader.rewind(self.context)
        self.reader.stopwatch.forget_spans()
        return seconds


def up_and_down(widths: Sequence[T], repeat: int) -> Sequence[T]:
    """The order of the widths in a repeat: upwards in the first, then back down, and so on.

    So each follows one of about its size: a single token right after a pass over 64 has taken up to half as long again.
    """
    return widths[::-1] if repeat % 2 else widths


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
    that `budget` seconds run out gets fewer than `repeats` measurements, but at least one.
    """
    timer = PassTimer(model, widths, context, passes)
    measured: dict[int, list[float]] = {width: [] for width in timer.widths}
    end = time.perf_counter() + budget
    for repeat in range(repeats):
        if repeat and time.perf_counter() > end:
            break
        for width in up_and_down(timer.widths, repeat):
            measured[width].append(timer.seconds(width))
    return {width: statistics.median(times) for width, times in measured.items()}
