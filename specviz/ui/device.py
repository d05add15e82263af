"""Where engine work happens: in one thread of this process, or on a GPU that the platform lends for a call."""

import contextlib
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from specviz.passes.processes import is_zero_gpu

with contextlib.suppress(ImportError):
    import spaces  # on every Gradio Space; where ZeroGPU is on, it gives a call its GPU

Function = TypeVar("Function", bound=Callable)
Made = TypeVar("Made")

#: The one thread of all engine work: one run at a time, and its pool of helper threads stays warm.
thread: ThreadPoolExecutor

#: Set once the page ends: work in progress, or waiting for its turn, stops within a round.
ending = threading.Event()


def _begin_thread() -> None:
    global thread
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")


_begin_thread()


def on_gpu(function: Function, seconds: Callable[..., int]) -> Function:
    """Gives each call a GPU where the platform lends them by the call. seconds: for how long, from its arguments."""
    if not is_zero_gpu():
        return function
    # The process of a call is forked: it has the executor without its thread, and would wait for that forever.
    os.register_at_fork(after_in_child=_begin_thread)
    return spaces.GPU(duration=seconds)(function)


def apart(work: Callable[[], Made]) -> Made:
    """Does a piece of work in a thread that ends with it, and with it the helper threads that it called up.

    With more helper threads than processors, OpenMP lets each sleep while it waits for the others, and waking makes a
    pass of two threads three times as slow; only the engine's thread may keep any. ZeroGPU emulates CUDA in the thread
    that asks, so work stays there.
    """
    if is_zero_gpu():
        return work()
    with ThreadPoolExecutor(max_workers=1) as own:
        return own.submit(contextvars.copy_context().run, work).result()


def between_runs(work: Callable[[], Made]) -> Made:
    """Does a piece of work in the engine's thread while no run is on; the next run waits for it."""
    return thread.submit(work).result()
