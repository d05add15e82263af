"""A speculative run and plain decoding of the same, measured in turn: the race, and the speedup of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specviz.records.comparison import speedup
from specviz.records.metrics import tally
from specviz.records.runs import Round, Run, Speedup
from specviz.records.settings import RunSettings
from specviz.records.words import Words
from specviz.ui import engine
from specviz.ui.unwatched import Report, measure, warm_up, warm_up_of

if TYPE_CHECKING:
    from specviz.decoding.request import Request

#: How often a run and its plain rival are measured, unless that would take longer than so many seconds.
PAIRS = 3
MOST_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Duel:
    """The rounds of both, and what made them."""

    plain: list[Round]
    fast: list[Round]
    machine: str

    @property
    def time_saved(self) -> float:
        """How many times as long the plain run took; the texts, and so the tokens, are the same in every duel."""
        plain, fast = tally(self.plain), tally(self.fast)
        return (plain.prefill + plain.seconds) / (fast.prefill + fast.seconds)

    def runs(self, request: Request) -> tuple[Run, Run]:
        """Both runs, plain first. request: the checked order."""
        return engine.collect(_plain(request), self.plain), engine.collect(request, self.fast)

    def speedup(self, request: Request) -> Speedup:
        """The measured one. request: the checked order."""
        return Speedup(speedup(*self.runs(request)), self.machine)


def duel(request: Request) -> Iterator[Report | Duel | None]:
    """Runs both: how far it is, then the duel that counts. They take turns: at once, each would slow the other down.

    Short runs are measured several times, and the pair with the median speedup counts: a single one may fall into a
    moment in which another program wants the processor.
    """
    sides = (_plain(request), request)
    for side, one in enumerate(sides):
        yield from warm_up(one, side)
    duels, began, machine = [], time.monotonic(), engine.name_of(request.pair.device)
    while len(duels) < PAIRS:
        if duels and (time.monotonic() - began) * PAIRS / len(duels) > MOST_SECONDS:
            break
        done = []
        for side, one in enumerate(sides):
            for report in measure(one, side):
                if report is None or report.rounds is None:
                    yield report
                else:
                    done.append(report.rounds)
        duels.append(Duel(*done, machine))
    # Of two, the one that promises less.
    yield sorted(duels, key=lambda one: one.time_saved)[(len(duels) - 1) // 2]


def _plain(request: Request) -> Request:
    return request.but(replace(request.settings, drafter=None, coins=""))


def runs_of(settings: RunSettings) -> list[RunSettings]:
    """The runs of a duel, for an estimate of its time."""
    both = [replace(settings, drafter=None), settings]
    return [*map(warm_up_of, both), *both]


def progress(report: Report, settings: RunSettings, say: Words) -> tuple[str, float]:
    """What is being done, and how far it is."""
    if report.warming:
        return say("common.warming_up"), 0.0
    what = say("race.running_speculative" if report.run else "race.running_plain")
    return what, report.tokens / settings.max_new_tokens
