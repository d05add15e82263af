"""How long something took, and how much of the processors other programs used meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import psutil

#: Processor seconds that others use in a second, above which a machine is called busy.
BUSY = 0.25


def others_seconds() -> float:
    """Processor time that all programs but this one have used since the machine started, in seconds.

    A container may count its whole host: whoever shares that shares its caches and memory, too.
    """
    whole, own = psutil.cpu_times(), psutil.Process().cpu_times()
    return whole.user + whole.system + getattr(whole, "nice", 0.0) - own.user - own.system


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Runs from when it is made."""

    others_began: float = field(default_factory=others_seconds)
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return time.perf_counter() - self.began

    @property
    def others(self) -> float:
        """Processor seconds that other programs have used meanwhile, to some hundredths."""
        return max(0.0, others_seconds() - self.others_began)
