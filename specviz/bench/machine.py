"""The machine that measures: its facts, its load, and the best that it can do."""

import datetime
import itertools
import os
import pathlib
import platform
import statistics
from collections.abc import Iterable, Sequence

import psutil
import torch
import transformers
from transformers import PreTrainedModel

from specviz.models import memory_share
from specviz.models.memory_share import fastest, looked_up, stored_bytes, weights_read
from specviz.models.pair import ModelPair
from specviz.models.pass_timer import PassTimer
from specviz.models.placement import dtype_name, free_memory
from specviz.passes.devices import devices_of
from specviz.passes.experts import experts_of, noting_choices
from specviz.passes.kernels.kernel_library import MARCH
from specviz.passes.positions import position_limit
from specviz.records.errors import SpecvizError
from specviz.theory.roofline import Experts, ModelSize

Facts = dict[str, str | int | float | None]

#: How Linux chooses the processor's clock.
GOVERNOR = pathlib.Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def describe_machine(pair: ModelPair) -> Facts:
    """The machine at the start of a benchmark; None for facts that this system does not report."""
    # Some systems do not report it, and psutil says so in more than one way.
    clock = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return {
        "processor": _processor(),
        "march": MARCH,  # what our kernels were built for
        "cores": len(_affinity()),  # available to this process
        "affinity": as_ranges(_affinity()),
        "threads": pair.passes.most_threads or torch.get_num_threads(),  # at most; set once, when the pair is prepared
        "megahertz": round(clock.current) if clock else None,  # of the processor's clock now
        "governor": GOVERNOR.read_text("utf-8").strip() if GOVERNOR.is_file() else None,
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "device": torch.cuda.get_device_name(pair.device) if pair.device.type == "cuda" else "cpu",
        "cuda": torch.cuda.is_available(),
        "dtype": dtype_name(pair.dtype),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": datetime.date.today().isoformat(),
        "load_average_start": load_average(),
        "load_average_end": None,
    }


def name_of(device: torch.device) -> str:
    """The name of a GPU or, on a CPU, of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


def load_average() -> float:
    """Processes that wanted a core, over the last minute."""
    return round(psutil.getloadavg()[0], 2)


def peak_mb(device: torch.device) -> float:
    """Peak memory of this process so far; on CUDA of the device."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    memory = psutil.Process().memory_info()
    # Windows has a name of its own for the peak; Linux and macOS keep it in the resource usage.
    if hasattr(memory, "peak_wset"):
        return memory.peak_wset / 2**20
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)


def as_ranges(numbers: Sequence[int]) -> str:
    """``"0-3,8"`` for 0, 1, 2, 3, 8, as `taskset` reads it."""
    # Within a run of neighbours, number less place stays the same.
    runs = itertools.groupby(enumerate(sorted(numbers)), key=lambda entry: entry[1] - entry[0])
    ranges = [[number for _, number in run] for _, run in runs]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ranges)


def _affinity() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _processor() -> str:
    """Its name; on Linux only the kernel knows."""
    cpu_info = pathlib.Path("/proc/cpuinfo")
    if cpu_info.is_file():
        for line in cpu_info.read_text("utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# Limits

#: Larger than any processor's cache: reading a larger buffer is not slower.
BUFFER_BYTES = 2**31

#: Rows and columns of the matrices whose product is timed for the peak rate, by type of device.
PEAK_SIDE = {"cpu": 1024, "cuda": 4096}

#: Rows of a narrow product: those of the widest pass that is timed. It comes first, for a square one can take seconds.
_NARROW = 64

#: A dtype whose narrow product is slower than the best by more than this factor is not the one with the peak rate.
_FAR_SLOWER = 4


def models_of(pair: ModelPair) -> dict[str, PreTrainedModel]:
    """The pair's models by role; a pair may have no draft model."""
    return {"target": pair.target} | ({"draft": pair.draft} if pair.draft is not None else {})


def within_positions(models: Iterable[PreTrainedModel], widths: Sequence[int], context: int) -> tuple[list[int], int]:
    """Widths of passes that fill no more than half of the models' positions, and a context that leaves them room."""
    room = min(filter(None, map(position_limit, models)), default=2 * max(*widths, context))
    fitting = [width for width in widths if width <= max(1, room // 2)]
    return fitting, max(1, min(context, room - max(fitting)))


def no_memory() -> SpecvizError:
    return SpecvizError(
        "There is not enough memory to time passes over many tokens: load a smaller pair on the Models tab.", "target"
    )


def weight_share(timer: PassTimer) -> int:
    """Bytes of weights that a pass reads on each device of a model: a spread model's devices hold a share each."""
    return model_size(timer).weight_bytes // len(devices_of(timer.model))


def model_size(timer: PassTimer) -> ModelSize:
    """The bytes and operations of this model's passes, counted on the model and its cache."""
    model = timer.model
    # Layers that share another's keys and values have none of their own.
    rows, states = [part for part in timer.reader.kv() if part is not None], timer.reader.states()
    positions = statistics.mean(part.shape[-2] for part in rows) if rows else timer.context
    cached = sum(part.numel() * part.element_size() for part in rows)
    config = model.config.get_text_config()
    heads = config.num_attention_heads if rows else 1
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    attending = len(rows) // 2 if states else config.num_hidden_layers
    return ModelSize(
        parameters=model.num_parameters() - sum(part.numel() for part in looked_up(model)),
        # With the states, which every pass reads whole too.
        weight_bytes=stored_bytes(weights_read(model if timer.passes is None else timer.passes.static.model) + states),
        position_bytes=cached / positions,
        positions=positions,
        attention_width=attending * heads * head_size,
        experts=_experts(timer),
    )


def _experts(timer: PassTimer) -> Experts | None:
    """What passes of these widths read of a mixture of experts; None of a dense model, and where prepared passes run
    past the model itself."""
    layers, read, chosen = experts_of(timer.model), dict[int, float](), 0
    for width in timer.widths if layers else ():
        with noting_choices(timer.model) as choices:
            timer.seconds(width)
        if choices:
            read[width] = statistics.mean(choice.unique().numel() for choice in choices)
            chosen = choices[0].shape[-1]
    if not read:
        return None
    weights = [weight for part in layers for weight in part.parameters(recurse=False)]
    number = len(weights[0])
    parameters, size = sum(weight.numel() for weight in weights), stored_bytes(weights)
    return Experts(number, chosen, parameters // number, size // number, read)


def read_bandwidth(size: int, device: torch.device) -> float:
    """Bytes a second, reading a buffer over and over. size: of the weights that it stands for."""
    return memory_share.read_bandwidth(buffer_bytes(size, device), device)


def buffer_bytes(size: int, device: torch.device) -> int:
    """As many bytes as the weights: those of a small model may lie in the processor's cache, where passes read them.

    But not more than can matter, and a copy of the buffer must leave the device half of what is free.
    """
    return max(4, min(size, BUFFER_BYTES, free_memory(device) // 4))


def peak_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of the fastest matrix product found: narrow or square, in `dtype` or, on a CPU, in float32.

    A CPU without instructions for a dtype multiplies in it by detours that passes need not take: compiled ones widen
    their weights instead, and are faster than such a product.
    """
    dtypes = {dtype, torch.float32} if device.type == "cpu" else {dtype}
    narrow = {candidate: _product_rate(_NARROW, candidate, device) for candidate in dtypes}
    best = max(narrow.values())
    worth = [candidate for candidate, rate in narrow.items() if _FAR_SLOWER * rate > best]
    return max(best, *(_product_rate(PEAK_SIDE[device.type], candidate, device) for candidate in worth))


def _product_rate(rows: int, dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of a product of `rows` rows with a square matrix, 2 · rows · n² operations."""
    side = PEAK_SIDE[device.type]
    inputs, weights = (torch.ones(count, side, dtype=dtype, device=device) for count in (rows, side))
    return 2 * rows * side**2 / fastest(lambda: torch.nn.functional.linear(inputs, weights), device)
