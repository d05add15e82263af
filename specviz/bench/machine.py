"""The machine a benchmark runs on: what it is, how much of it may be used, and whether others are using it too."""

from __future__ import annotations

import itertools
import os
import pathlib
import platform
from collections.abc import Sequence

import psutil
import torch
import transformers

from specviz.models.pair import ModelPair
from specviz.models.placement import dtype_name

Facts = dict[str, str | int | float | None]


def describe_machine(pair: ModelPair) -> Facts:
    """The machine at the start of a benchmark; None for what this system does not tell."""
    return {
        "processor": _processor(),
        "cores": len(_affinity()),  # that this process may use
        "affinity": as_ranges(_affinity()),
        "threads": torch.get_num_threads(),  # set once, when the pair is loaded
        "megahertz": _megahertz(),  # of the processor's clock now
        "governor": _governor(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "device": torch.cuda.get_device_name(pair.device) if pair.device.type == "cuda" else "cpu",
        "cuda": torch.cuda.is_available(),
        "dtype": dtype_name(pair.dtype),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "load_average_start": load_average(),
        "load_average_end": None,
    }


def name_of(device: torch.device) -> str:
    """What a GPU, or else the processor, calls itself."""
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


def resident_mb() -> float:
    """Memory this process holds now."""
    return psutil.Process().memory_info().rss / 2**20


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
    known = pathlib.Path("/proc/cpuinfo")
    if known.is_file():
        for line in known.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _megahertz() -> float | None:
    # Some systems do not tell, and psutil says so in more than one way.
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return round(frequency.current) if frequency else None


def _governor() -> str | None:
    known = pathlib.Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return known.read_text().strip() if known.is_file() else None
