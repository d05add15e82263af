"""A speculative run and plain decoding of the same, measured in turn: the race, and the speedup of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specviz.records.comparison import compare, speedup
from specviz.records.errors import SpecvizError
from specviz.records.metrics import tally
from specviz.records.runs import Round, Run, Speedup
from specviz.records.settings import RunSettings
from specviz.records.stopwatch import undisturbed
from specviz.records.words import Words
from specviz.ui import engine
from specviz.ui.unwatched import Report, measure, warm_up, warm_up_of

if TYPE_CHECKING:
    from specviz.decoding.request import Request

#: How many undisturbed pairs of a run and its plain rival are wanted, unless so many would take longer than so many
#: seconds, and how many are measured at most to find them.
PAIRS = 3
MOST_SECONDS = 3.0
MOST_PAIRS = 6


@dataclass(frozen=True, slots=True)
class Duel:
    """The rounds of both, and what made them."""

    plain: list[Round]
    fast: list[Round]
    machine: str
    share: float | None = None  # of the time, in which the less lucky of both had a processor; see `Report`
    least_share: float = 0.0  # below it the speedup is not known

    @property
    def undisturbed(self) -> bool:
        return undisturbed([self.share], self.least_share)

    @property
    def time_saved(self) -> float:
        """How many times as long the plain run took; the texts, and so the tokens, are the same in every duel."""
        plain, fast = tally(self.plain), tally(self.fast)
        return (plain.prefill + plain.seconds) / (fast.prefill + fast.seconds)

    def runs(self, request: Request) -> tuple[Run, Run]:
        """Both runs, plain first. request: the checked order."""
        return engine.collect(_plain(request), self.plain), engine.collect(request, self.fast)

    def speedup(self, request: Request) -> Speedup:
        """The measured one. request: the checked order.

        Raises SpecvizError (field ``measured``) where the processor was others' for too long.
        """
        if not self.undisturbed:
            raise SpecvizError(
                "Something else had the processor for {percent} % of the time. Once it rests, try again.",
                "measured",
                percent=self.percent,
            )
        return Speedup(speedup(*self.runs(request)), self.machine)

    @property
    def percent(self) -> int:
        """In how many percent of the time it had no processor."""
        return round(100 * (1 - self.share))

    def outcome(self, request: Request) -> dict[str, Any]:
        """How both runs compare, see `compare`. request: the checked order.

        disturbed: in how many percent of the time something else had the processor, where that is too many for the
        speedup to be known; else None.
        """
        outcome = compare(*self.runs(request)) | {"disturbed": None}
        return outcome if self.undisturbed else outcome | {"speedup": None, "disturbed": self.percent}


def duel(request: Request, least_share: float) -> Iterator[Report | Duel | None]:
    """Runs both: how far it is, then the duel that counts. They take turns: at once, each would slow the other down.

    Short runs are measured several times, and of the undisturbed pairs the one with the median speedup counts: a single
    one may fall into a moment in which another program wants the memory. least_share: see `Duel`.
    """
    sides = (_plain(request), request)
    for side, one in enumerate(sides):
        yield from warm_up(one, side)
    duels, began, machine = [], time.monotonic(), engine.name_of(request.pair.device)
    while sum(one.undisturbed for one in duels) < PAIRS and len(duels) < MOST_PAIRS:
        if duels and (time.monotonic() - began) * PAIRS / len(duels) > MOST_SECONDS:
            break
        done = []
        for side, one in enumerate(sides):
            for report in measure(one, side):
                if report is None or report.rounds is None:
                    yield report
                else:
                    done.append(report)
        share = min((one.share for one in done if one.share is not None), default=None)
        duels.append(Duel(*(one.rounds for one in done), machine, share, least_share))
    counting = [one for one in duels if one.undisturbed] or duels
    # Of two, the one that promises less.
    yield sorted(counting, key=lambda one: one.time_saved)[(len(counting) - 1) // 2]


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
