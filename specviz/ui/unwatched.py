"""Runs that take turns while nobody watches: what is timed hands over next to nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specviz.records.runs import Round
from specviz.records.settings import RunSettings
from specviz.records.stopwatch import Stopwatch
from specviz.ui import engine

if TYPE_CHECKING:
    from specviz.decoding.request import Request

#: New tokens of the runs that warm everything up before anything is timed.
WARM_UP_TOKENS = 16

#: Seconds between two reports: the page has next to nothing to draw while it is being measured.
REPORT_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class Report:
    """How far one of several runs is."""

    run: int  # its number, from 0 up
    tokens: int = 0  # new ones so far
    rounds: list[Round] | None = None  # all of them, once it is over
    seconds: float = 0.0  # it took, once it is over
    share: float | None = None  # of these in which it had a processor, see `Stopwatch`
    warming: bool = False  # only to warm it up


def warm_up(request: Request, run: int) -> Iterator[Report | None]:
    """The first few tokens of a run, for nobody."""
    yield Report(run, warming=True)
    for _ in engine.unrecorded(replace(request, settings=warm_up_of(request.settings))):
        yield None


def warm_up_of(settings: RunSettings) -> RunSettings:
    return replace(settings, max_new_tokens=min(WARM_UP_TOKENS, settings.max_new_tokens))


def measure(request: Request, run: int) -> Iterator[Report | None]:
    """A run, with a report now and then and None between, where it can be ended."""
    yield Report(run)
    # Records are made once the clock has stopped.
    made, tokens, watch, told = engine.Ledger(), 0, Stopwatch(), 0.0
    for one in engine.unrecorded(request):
        made.add(one)
        tokens += len(one.emitted)
        if watch.seconds - told > REPORT_EVERY:
            told = watch.seconds
            yield Report(run, tokens)
        else:
            yield None
    seconds, share = watch.seconds, watch.share(request.pair.device.type)
    yield Report(run, tokens, made.rounds(), seconds, share)


def take_turns(request: Request, contestants: Sequence[RunSettings], repeats: int) -> Iterator[Report | None]:
    """All contestants, several times over, after a warm-up of each. Each repeat has the next seed: a single sampled
    text may be a lucky one."""
    requests = [request.but(settings) for settings in contestants]
    for number, one in enumerate(requests):
        yield from warm_up(one, number)
    for repeat in range(repeats):
        for number, one in enumerate(requests):
            settings = replace(one.settings, seed=one.settings.seed + repeat)
            yield from measure(replace(one, settings=settings), repeat * len(requests) + number)
