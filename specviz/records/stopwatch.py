"""How much of the processors other programs use: beside them a speedup is known less precisely."""

from __future__ import annotations

import psutil

#: Processor seconds that others use in a second, above which a machine is called busy.
BUSY = 0.25


def others_seconds() -> float:
    """Processor time that all programs but this one have used since the machine started, in seconds, to a hundredth.

    A container may count its whole host: whoever shares that shares its caches and memory, too.
    """
    whole, own = psutil.cpu_times(), psutil.Process().cpu_times()
    return whole.user + whole.system + getattr(whole, "nice", 0.0) - own.user - own.system
