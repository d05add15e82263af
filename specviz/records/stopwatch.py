"""How long a run took, and for how much of that it had a processor: beside a busy core a speedup is not known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from specviz.records.errors import SpecvizError

#: Of its time: with less of it a run was held up by something else, and does not count.
LEAST_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Runs from when it is made, in the thread that decodes."""

    worked: float = field(default_factory=time.thread_time)
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return time.perf_counter() - self.began

    def share(self, device: str) -> float | None:
        """In which part of its time so far the thread had a processor. device: the type of the one that decodes.

        What other programs take away, and other threads of this one, is missing. None on a GPU, where nobody can tell.
        """
        return (time.thread_time() - self.worked) / self.seconds if device == "cpu" else None


def undisturbed(shares: Sequence[float | None], least_share: float) -> bool:
    """Whether all these runs had a processor for long enough, as far as anybody can tell."""
    return all(share is None or share >= least_share for share in shares)


def nothing_known() -> SpecvizError:
    """To raise where no run was undisturbed."""
    return SpecvizError(
        "Something else had the processor in every run, so no speedup is known. Once it rests, try again.", "measured"
    )
