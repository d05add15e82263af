"""Speculative decoding: draft, verify in one pass, keep what the rule accepts, repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from specviz.decoding.continuation import Continuation
from specviz.decoding.decoder import decoder_of
from specviz.decoding.judging import Judge
from specviz.decoding.request import Request
from specviz.decoding.round_record import Unrecorded
from specviz.decoding.round_times import length_of
from specviz.drafters.base import DraftContext, Drafter
from specviz.models.refusals import refusing_out_of_memory
from specviz.passes.devices import Mark, Stopwatch
from specviz.passes.static_passes import between_rounds
from specviz.records.errors import SpecvizError
from specviz.records.runs import Round, Seconds

Made = TypeVar("Made", Round, Unrecorded)


@torch.inference_mode()
def _decoded(
    request: Request, build: Callable[[DraftContext], Drafter] | None = None, judge: Judge | None = None
) -> Iterator[Unrecorded]:
    """The loop: wraps clock and text around the decoder's rounds."""
    decoder, text = decoder_of(request, length_of(request), judge=judge, build=build), Continuation(request)
    clock = decoder.target.stopwatch
    start = clock.mark()
    decoder.prefill(text.committed)
    prefill = _since(clock, start)

    while text.stop_reason is None:
        between_rounds(request.passes)
        began = time.perf_counter()
        choice = decoder.length.choose()
        judged = decoder.round(text.committed, min(choice.depth, text.room))
        emitted, pieces = text.extend(judged)
        yield text.round(judged, choice, emitted, pieces, _seconds(clock, began, decoder.marks, prefill))
        prefill = 0.0


def rounds(
    request: Request, build: Callable[[DraftContext], Drafter] | None = None, judge: Judge | None = None
) -> Iterator[Round]:
    """The rounds of a checked request. Raises SpecvizError (field ``max_new_tokens``) if memory runs out.

    build: makes the caller's own drafter, which must draft no deeper than the request's, whose size was checked.
    judge: see `decoder_of`.
    """
    return _guarded(request, (one.record() for one in _decoded(request, build, judge)))


def unrecorded(request: Request, build: Callable[[DraftContext], Drafter] | None = None) -> Iterator[Unrecorded]:
    """The same before their records are made, so that these can be left to a time that nobody measures."""
    return _guarded(request, _decoded(request, build))


def _guarded(request: Request, made: Iterator[Made]) -> Iterator[Made]:
    tokens = len(request.prompt.ids)

    def too_long() -> SpecvizError:
        return SpecvizError(
            "The device ran out of memory at {tokens} tokens: ask for fewer new tokens, shorten the prompt or load "
            "smaller models.",
            "max_new_tokens",
            tokens=f"{tokens:,}",
        )

    with refusing_out_of_memory(too_long):
        for one in made:
            tokens += len(one.emitted)
            yield one


def _since(clock: Stopwatch, start: Mark) -> float:
    """Seconds since a mark, once the device is done; resets the time counted as spent in models."""
    end = clock.mark()
    clock.synchronize()
    clock.forget_spans()
    return clock.between(start, end)


def _seconds(clock: Stopwatch, began: float, marks: tuple[Mark, Mark, Mark], prefill: float) -> Seconds:
    """A round's times; its one transfer to the host has made all marks readable."""
    start, drafted, verified = marks
    total = time.perf_counter() - began
    draft, verify = clock.between(start, drafted), clock.between(drafted, verified)
    return Seconds(draft, verify, total - draft - verify, total, clock.take_spans(), prefill)
