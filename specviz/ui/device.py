"""Where engine work happens: in one thread of this process, or on a GPU that the platform lends for a call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

try:
    import spaces  # only on a Space with ZeroGPU: gives a call its GPU
except ImportError:
    spaces = None

#: Seconds a ZeroGPU call may take.
GPU_SECONDS = 120

Function = TypeVar("Function", bound=Callable)
Made = TypeVar("Made")

#: The one thread of all engine work: one run at a time, and its pool of helper threads stays warm.
thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")


def on_gpu(function: Function) -> Function:
    """Gives each call a GPU where the platform lends them by the call."""
    return spaces.GPU(duration=GPU_SECONDS)(function) if spaces else function


def between_runs(work: Callable[[], Made]) -> Made:
    """Does a piece of work in the engine's thread while no run is on; the next run waits for it."""
    return thread.submit(work).result()
