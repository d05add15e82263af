"""Where models run and in what precision: devices, dtypes, the memory there is, and how long a pass takes.

Knows loaded models only, not where they come from.
"""

from __future__ import annotations

import gc
import pathlib
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import psutil
import torch
from transformers import PreTrainedModel

from specviz.passes.cached_model import reader
from specviz.passes.clock import Stopwatch
from specviz.passes.several_devices import agreed, home_of, join, least
from specviz.passes.static_passes import FastPasses
from specviz.passes.torchrun import count_here
from specviz.records.errors import SpecvizError

_CGROUP = pathlib.Path("/sys/fs/cgroup")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: The two widths that decide between dtypes: a plain step, and the target pass over four draft tokens.
TIMED_WIDTHS = (1, 5)

#: What torch starts with: the cores, or what OMP_NUM_THREADS says.
_ALL_THREADS = torch.get_num_threads()

#: Fewer threads are taken if they are no more than this factor slower.
_ABOUT_AS_FAST = 1.25

#: A model of more weights has work enough for every thread. The clock does not decide: on a busy machine all is slow.
_SMALL_BYTES = 512 << 20

#: Once this long has gone by, no further round of timing is begun.
_TIMING_SECONDS = 1.0


#: The part of a device's free memory that the weights of a spread model may fill; caches take theirs from the rest.
_FILLED = 0.9


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pair runs.

    device: of tokens, logits, the draft model and everything small. way: the target is there too (``"whole"``), its
    layers are ``"spread"`` over all devices, or each layer is ``"sharded"`` over processes, of which every one has a
    device of its own.
    """

    device: torch.device
    way: Literal["whole", "spread", "sharded"] = "whole"


def place_named(name: str | torch.device) -> Place:
    """The place of this name: ``spread``, ``parallel`` or a device as for `device_named`, which see for the errors.

    ``parallel`` waits for the other processes of this program (`specviz.passes.several_devices.join`).
    """
    if name == "spread":
        return Place(device_named("auto"), "spread")
    if name == "parallel":
        return Place(join(), "sharded")
    return Place(device_named(name))


def room_on_gpus() -> dict[int, int]:
    """By a GPU's number, how many bytes of weights it may still take."""
    return {gpu: int(_FILLED * free_memory(f"cuda:{gpu}")) for gpu in range(torch.cuda.device_count())}


def room_to_spread(place: Place, kept: int) -> dict[int | str, int]:
    """How many bytes of weights each GPU and main memory (``cpu``) may take, so that `kept` stay free on the place's
    own device. What does not fit is left on disk."""
    room = room_on_gpus() if place.device.type == "cuda" else {}
    room |= {"cpu": int(_FILLED * free_memory("cpu"))}
    home = "cpu" if place.device.type == "cpu" else place.device.index or 0
    return room | {home: max(0, room[home] - kept)}


def within_reach(name: str | torch.device) -> int:
    """Bytes that a pair loaded on the device of this name could take: with ``auto``, of all GPUs together."""
    if name == "auto" and torch.cuda.is_available():
        return sum(room_on_gpus().values()) if torch.cuda.device_count() > 1 else free_memory("cuda")
    if name == "spread":
        return sum(room_to_spread(Place(device_named("auto"), "spread"), kept=0).values())
    return free_memory(device_named(name))


def free_at(place: Place) -> int:
    """Bytes that a process can take on the place's own device: the least in any of several."""
    if place.way != "sharded":
        return free_memory(place.device)
    sharing = count_here() if place.device.type == "cpu" else 1
    return int(least(free_memory(place.device) / sharing, place.device))


def device_named(name: str | torch.device) -> torch.device:
    """The device of this name, or the best for auto. Raises SpecvizError (field ``device``) if it cannot be used."""
    # Not "mps" by itself, nor when asked for: exact draws need float64, which it does not have.
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise SpecvizError("{name} is no device: use auto, cpu, cuda or cuda:1.", "device", name=repr(name)) from error
    if device.type not in ("cpu", "cuda"):
        raise SpecvizError("specviz runs on cpu or cuda, not on {kind}: choose auto.", "device", kind=device.type)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SpecvizError("There is no CUDA device that this torch can use: choose cpu or auto.", "device")
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise SpecvizError(
                "There is no device {name}: this machine has {count}, counted from 0.",
                "device",
                name=device,
                count=count,
            )
    return device


def dtype_named(name: str | torch.dtype) -> torch.dtype | None:
    """The dtype of this name; None for auto. Raises SpecvizError (field ``dtype``) if it is none to run in."""
    if name == "auto":
        return None
    dtype = _DTYPES.get(str(name).removeprefix("torch."))
    if dtype is None:
        raise SpecvizError(
            "{name} is no dtype to run in: use auto, {names}.", "dtype", name=str(name), names=", ".join(_DTYPES)
        )
    return dtype


def half_precision(device: torch.device, checkpoint: torch.dtype | None) -> torch.dtype:
    """The half precision to run in: on a CPU the checkpoint's own, so that its weights are not rounded again."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.float16 if checkpoint == torch.float16 else torch.bfloat16


def multiplies_in(dtype: torch.dtype) -> bool:
    """Whether this CPU has instructions for products of bfloat16 numbers, and `dtype` is that.

    Then it is the faster one wherever passes are compiled: half the bytes, and no conversions. Passes that are not
    compiled would not show it, since they spend their time between operations.
    """
    return dtype == torch.bfloat16 and torch.cpu._is_avx512_bf16_supported()


def dtype_name(dtype: torch.dtype) -> str:
    """``"bfloat16"`` for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def free_memory(device: torch.device | str = "cpu") -> int:
    """Bytes that can still be taken on the device."""
    device = torch.device(device)
    if device.type != "cuda":
        return memory_at_hand()
    # What torch has reserved and does not use is free to us, though the driver counts it as taken.
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + idle


def memory_at_hand() -> int:
    """Bytes of main memory this process may still take: what the machine has free, or its container if that is less."""
    free = psutil.virtual_memory().available
    left_in_container = _container_bytes_left()
    return free if left_in_container is None else min(free, left_in_container)


def _container_bytes_left() -> int | None:
    """What a container's limit (cgroup v2) leaves; None where there is no limit. Hosted Spaces run under one."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        statistics = (_CGROUP / "memory.stat").read_text().split()
    except (OSError, ValueError):  # no such file, or the word "max"
        return None
    # Cached file pages count as used, yet are given back as soon as they are wanted.
    cached = dict(zip(statistics[::2], statistics[1::2])).get("inactive_file", "0")
    return max(limit - used + int(cached), 0)


def release_memory() -> None:
    """Hands back what nothing refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def time_in_turns(models: Sequence[PreTrainedModel], rounds: int = 3) -> dict[str, dict[int, float]]:
    """`time_passes` of one model after the other, again and again, so that a busy moment falls on each of them.

    The quietest round counts: other processes only ever add time. A slow model is timed in one round.
    """
    measured: dict[str, list[dict[int, float]]] = {dtype_name(model.dtype): [] for model in models}
    end = time.perf_counter() + _TIMING_SECONDS
    for done in range(rounds):
        if done and _is_over(end, models[0]):
            break
        for model in models:
            measured[dtype_name(model.dtype)].append(time_passes(model, TIMED_WIDTHS, repeats=3))
    return {
        name: {width: min(passes[width] for passes in taken) for width in TIMED_WIDTHS}
        for name, taken in measured.items()
    }


def settle_threads(model: PreTrainedModel) -> int:
    """Sets torch to the fewest threads with which this model's passes are about as fast as with any; returns them.

    A pass of a small model spends its time between operations, where more threads only wait for each other, and wait
    long whenever another program wants a core: with all cores taken, one other busy program has made compiled passes a
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
            seconds[threads] = min(seconds[threads], sum(time_passes(model, TIMED_WIDTHS, repeats=5).values()))
    best = min(seconds.values())
    threads = next(threads for threads in choices if seconds[threads] <= _ABOUT_AS_FAST * best)
    torch.set_num_threads(threads)
    return threads


class PassTimer:
    """Times one model's forward passes after `context` cached tokens, each width tried once before.

    The tokens are arbitrary: a dense model takes the same time for any. A context that leaves no room for the widest
    pass is shortened. passes: those prepared for the model, if these are to be timed.
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

    def seconds(self, width: int) -> float:
        """Wall seconds of one pass over so many tokens, as a run makes it, waited for; the cache is then as before."""
        return self._pass(width, keep=width)

    @torch.inference_mode()
    def _pass(self, width: int, keep: int) -> float:
        ids = torch.ones(width, dtype=torch.long, device=self.reader.device)
        synchronise(self.reader.device)
        start = time.perf_counter()
        self.reader.forward(ids, keep)
        synchronise(self.reader.device)
        seconds = time.perf_counter() - start
        # Due even when nothing is removed: a sliding window keeps more rows than it needs until it is told.
        self.reader.rewind(self.context)
        self.reader.stopwatch.take_spans()
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

    Warm and synchronised (`PassTimer`). The widths take turns, so that a busy moment falls on all of them; a model so
    slow that `budget` seconds are over gets fewer than `repeats` measurements, but at least one. Processes that share
    the model all return what the leader measured.
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


def synchronise(device: torch.device) -> None:
    """Waits until the device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def position_limit(model: PreTrainedModel) -> int | None:
    """Positions that the model can tell apart; None if unlimited."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return positions if positions and positions > 0 else None
