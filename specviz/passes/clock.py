"""Measures time around finished work: with the host's clock on a CPU, with events in the stream on CUDA."""

from __future__ import annotations

import time

import torch

Mark = float | torch.cuda.Event


class Span:
    """Work between two marks. A class, because `contextlib.contextmanager` has several times the overhead."""

    def __init__(self, stopwatch: Stopwatch):
        self.stopwatch = stopwatch

    def __enter__(self) -> None:
        self.start = self.stopwatch.mark()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stopwatch.spans.append((self.start, self.stopwatch.mark()))


class Stopwatch:
    """Marks moments without waiting for the device; reads them once the caller has synchronised.

    On CUDA, where a host clock would only measure the launch, marks are events recorded in the stream.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.spans: list[tuple[Mark, Mark]] = []

    def mark(self) -> Mark:
        """This moment in the device's stream of work."""
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

    def span(self) -> Span:
        """A context whose work counts as time in a model's forward pass."""
        return Span(self)

    def take_spans(self) -> float:
        """Seconds spent inside spans since the last call."""
        seconds = sum(self.between(start, end) for start, end in self.spans)
        self.forget_spans()
        return seconds

    def forget_spans(self) -> None:
        """Drops the spans unread, so that nothing has to have finished."""
        self.spans.clear()

    def synchronize(self) -> None:
        """Waits until the device has finished what it was given."""
        synchronise(self.device)


def synchronise(device: torch.device) -> None:
    """Waits until the device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
