"""Time, measured around work that has finished: the host's clock on a CPU, events in the stream on CUDA."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

Mark = float | torch.cuda.Event


class Stopwatch:
    """Marks moments without waiting for the device; reads them once the caller has synchronised.

    On CUDA a host clock around an asynchronous launch measures the launch, so marks are events recorded in the stream.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.spans: list[tuple[Mark, Mark]] = []

    def mark(self) -> Mark:
        """This moment in the device's order of work."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    @staticmethod
    def between(start: Mark, end: Mark) -> float:
        """Seconds from one mark to the other; on CUDA both must have been reached."""
        if isinstance(start, float):
            return end - start
        return start.elapsed_time(end) / 1000

    @contextlib.contextmanager
    def span(self) -> Iterator[None]:
        """Counts the work inside as time in a model's forward pass."""
        start = self.mark()
        yield
        self.spans.append((start, self.mark()))

    def take_spans(self) -> float:
        """Seconds spent inside spans since the last call."""
        seconds = sum(self.between(start, end) for start, end in self.spans)
        self.spans.clear()
        return seconds

    def synchronize(self) -> None:
        """Waits until the device has finished what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
