"""Where a model runs, on one device or several, and how finished work on a device is timed.

A spread model's layers run in turn, and accelerate moves what flows through them between devices.
"""

from __future__ import annotations

import time
from typing import TypeAlias

import torch
from transformers import PreTrainedModel


def is_spread(model: PreTrainedModel) -> bool:
    """True if the model's layers lie on several devices, or partly in main memory or on disk."""
    return hasattr(model, "_hf_hook")


def home_of(model: PreTrainedModel) -> torch.device:
    """The device where a model takes its tokens, and where its logits and everything small belong."""
    # The first parameters of a spread model may lie on disk, where no tensor can be made.
    return torch.device(model._hf_hook.execution_device) if is_spread(model) else model.device


def devices_of(model: PreTrainedModel) -> list[str]:
    """Where a model lies, in the order of its layers: ``["cuda:0", "cuda:1", "cpu", "disk"]``."""
    if not is_spread(model):
        return [str(model.device)]
    places = dict.fromkeys(model.hf_device_map.values())
    return [f"cuda:{place}" if isinstance(place, int) else str(place) for place in places]


Mark: TypeAlias = float | torch.cuda.Event


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
    def wait_for(mark: Mark) -> None:
        """Waits until the device has come to this moment, whatever it was given since."""
        if not isinstance(mark, float):
            mark.synchronize()

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
