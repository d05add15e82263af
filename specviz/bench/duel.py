"""A run and its plain rival in turn: the contest of two behind the race and the speedup of a single run.

Torch is loaded when something is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specviz.bench.contestants import Progress, TimedRun, busy, counts_of, speedup_of
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally, compare
from specviz.records.runs import Run, Speedup
from specviz.records.settings import RunSettings
from specviz.theory.statistics import Ratio

if TYPE_CHECKING:
    from specviz.decoding.request import Request

#: Repeats of both runs, of which only short texts need many; the seconds after which none begins, and the reach of the
#: interval at which it is enough.
REPEATS, BUDGET, PRECISE = 24, 6.0, 0.04

#: The budget where a GPU is lent: its seconds are counted, and they are the visitor's.
LENT_BUDGET = 3.0

#: Times the budget may be spent rather than giving no result.
PATIENCE = 2.0

#: Pairs of turns, of which an interval needs three.
LEAST_PAIRS = 3


@dataclass(frozen=True, slots=True)
class Duel:
    """Both contestants' runs, and the machine's name."""

    plain: list[TimedRun]
    fast: list[TimedRun]
    machine: str

    @property
    def ratio(self) -> Ratio:
        """How many times as fast, with an interval: there are turns enough for one, see `LEAST_PAIRS`."""
        ratio = speedup_of(self.fast, self.plain)
        assert ratio is not None, "both have taken turns"
        return ratio

    @property
    def busy(self) -> bool:
        """True if something else wanted the processor."""
        return busy((*self.plain, *self.fast))

    def shown(self, request: Request) -> tuple[TimedRun, TimedRun]:
        """The two runs of one repeat, plain first: the ordered seed's or, where nothing is drawn, those with the ratio
        nearest to that of all. request: the checked order."""
        pairs, ratio = list(zip(self.plain, self.fast)), self.ratio.value
        if not request.settings.sampling.greedy:
            return pairs[0]
        return min(pairs, key=lambda pair: abs(math.log(pair[1].speed / pair[0].speed / ratio)))

    def runs(self, request: Request) -> tuple[Run, Run]:
        """The same as records."""
        from specviz.decoding.record import collect

        plain, fast = self.shown(request)
        return collect(_plain(request), plain.rounds), collect(request, fast.rounds)

    def counts(self) -> tuple[Tally, Tally]:
        """Of plain decoding and of the run, over all repeats: the times of the parts of what `ratio` compares."""
        plain, fast = counts_of(self.plain), counts_of(self.fast)
        assert plain is not None and fast is not None, "both are the engine's"
        return plain, fast

    def speedup(self) -> Speedup:
        """Raises SpecvizError (field ``measured``) where the interval says nothing."""
        ratio = self.ratio
        if ratio.low is None or ratio.high is None:
            raise SpecvizError("The text was too short to time: ask for more new tokens.", "measured")
        if not ratio.known:
            raise SpecvizError(
                "The speedup's interval runs from {low}× to {high}×, too wide to say more. Another program may "
                "be busy: try again when the machine is idle.",
                "measured",
                low=round(ratio.low, 2),
                high=round(ratio.high, 2),
            )
        rate = sum(len(run.token_ids) for run in self.fast) / sum(run.seconds for run in self.fast)
        return Speedup(ratio.value, self.machine, ratio.low, ratio.high, self.busy, rate)

    def outcome(self, request: Request) -> dict[str, Any]:
        """How both compare, see `compare`. request: the checked order.

        speedup: by all turns, None where the interval says nothing; low and high: its ends; busy: whether something
        else wanted the processor meanwhile.
        """
        ratio = self.ratio
        figures = {"speedup": ratio.value if ratio.known else None, "low": ratio.low, "high": ratio.high}
        return compare(*self.runs(request)) | figures | {"busy": self.busy}


def duel(request: Request, whole: bool) -> Iterator[Progress | Duel | None]:
    """Measures both: how far it is, then the duel.

    whole: both come to their end, however long that takes; else a slow pair's texts are cut short.
    """
    from specviz.bench.machine import name_of
    from specviz.bench.turns import Amount, engine_stepper, take_turns

    tokens = request.settings.max_new_tokens
    budget = LENT_BUDGET if request.pair.lent else BUDGET
    amount = Amount(tokens, REPEATS, budget, whole, PRECISE, least=LEAST_PAIRS, patience=PATIENCE)
    runs: tuple[list[TimedRun], list[TimedRun]] = [], []
    for event in take_turns([engine_stepper(_plain(request)), engine_stepper(request)], amount):
        if isinstance(event, TimedRun):
            runs[event.number].append(event)
        else:
            yield event
    yield Duel(*runs, name_of(request.pair.device))


def _plain(request: Request) -> Request:
    return request.but(replace(request.settings, drafter=None, coins=""))


def runs_of(settings: RunSettings, whole: bool) -> list[RunSettings]:
    """The runs of a duel, for an estimate of its time: those that warm up and, if the duel is whole, one of each
    contestant; else the rest keeps to the budget."""
    from specviz.bench.turns import WARM_UP_TOKENS

    both = [replace(settings, drafter=None), settings]
    tokens = min(WARM_UP_TOKENS, settings.max_new_tokens)
    return [*(replace(run, max_new_tokens=tokens) for run in both), *(both if whole else [])]
