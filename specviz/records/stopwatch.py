"""Disturbances of timed work: other programs, which make a speedup less precise, and Python's garbage collector."""

import contextlib
import gc
from collections.abc import Iterator

import psutil

#: Processor seconds that others use in a second, above which a machine is called busy.
BUSY = 0.25


def others_seconds() -> float:
    """Processor time that all programs but this one have used since the machine started, in seconds, to a hundredth.

    A container may count its whole host: all who share it share its caches and memory, too.
    """
    machine, process = psutil.cpu_times(), psutil.Process().cpu_times()
    return machine.user + machine.system + getattr(machine, "nice", 0.0) - process.user - process.system


@contextlib.contextmanager
def garbage_collector_off() -> Iterator[None]:
    """Python's garbage collector is off inside; afterwards it is as before."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
