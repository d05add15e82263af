"""How long something took, and how often something else took the processor away meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

try:
    import resource
except ImportError:  # Windows keeps no such count
    resource = None

#: Interruptions a second of the thread that decodes, above which a machine is called busy: at rest there are next to
#: none, and beside a program that wants the same processor there are thirty and more.
BUSY = 10.0


def interruptions() -> int:
    """How often the calling thread has lost its processor to another one; 0 where the system does not count it."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_nivcsw


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Runs from when it is made, in the thread that decodes."""

    interrupted: int = field(default_factory=interruptions)
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return time.perf_counter() - self.began

    @property
    def interruptions(self) -> int:
        """So far."""
        return interruptions() - self.interrupted
