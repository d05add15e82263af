"""The Race tab: plain and speculative decoding of one prompt, measured in turn and replayed on one clock.

The same duel gives the speedup of a single run.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specviz.bench.contestants import Progress, TimedRun, busy, speedup_of
from specviz.records.errors import SpecvizError
from specviz.records.metrics import compare
from specviz.records.runs import Run, Speedup
from specviz.records.settings import RunSettings
from specviz.records.words import Said, said
from specviz.theory.statistics import Ratio
from specviz.ui.components import element_view
from specviz.ui.desk import Desk, Tab
from specviz.ui.downloads import result_page
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, Visit, closing
from specviz.views.pages import race_page
from specviz.views.run_messages import message, race_message, text_messages

if TYPE_CHECKING:
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair

#: Repeats of both runs, of which only short texts need many; the seconds after which none begins, and the reach of the
#: interval at which it is enough.
REPEATS, BUDGET, PRECISE = 24, 6.0, 0.04

#: Times the budget may be spent rather than giving no result.
PATIENCE = 2.0

#: Pairs of turns, of which an interval needs three.
LEAST_PAIRS = 3


def create_race_tab(desk: Desk) -> Tab:
    """Lays out the race; its button stands below the controls."""

    def stream(visit: Visit, order: Order) -> Iterator[str]:
        if page := (yield from race(desk.runner, order, visit.halt, desk.say.language)):
            desk.visitors.results[visit.session, "race"] = result_page("race", page)

    shown, view = (text_messages("phase"), text_messages("error")), element_view("race", desk.say)
    button, offer = desk.kept("race")
    return Tab([desk.ordered(desk.controls.race, view, stream, *shown, offered=[button], offer=offer)])


def race(runner: Runner, order: Order, halt: threading.Event, language: str) -> Generator[str, None, str | None]:
    """Messages for the race view: progress, then both lanes. Returns the race as a page in a file.

    Raises SpecvizError for a race that cannot be run, or not to its end.
    """
    yield _phase(said("common.preparing"), 0)
    request, done = race_request(runner.store.get(order.pair), order, runner), None
    for one in dueled(runner, order, halt):
        if isinstance(one, Duel):
            done = one
        else:
            yield _phase(*progress(one))
    if done is None:
        yield message("error", text=said("race.stopped"))
        return None
    runs, outcome = done.runs(request), done.outcome(request)
    yield race_message(*runs, outcome)
    return race_page(*runs, outcome, done.machine, language)


def _phase(text: Said, fraction: float) -> str:
    """A message of progress, with the fraction done (0 to 1)."""
    return message("phase", text=text, fraction=fraction)


def race_request(pair: ModelPair, order: Order, runner: Runner) -> Request:
    """The checked request of the speculative side. Raises SpecvizError with the control's name in `field`."""
    if order.settings.drafter is None:
        raise SpecvizError("A race needs a drafter: choose one to run against plain decoding.", "drafter")
    return order.request(pair, runner.deployment)


def dueled(runner: Runner, order: Order, halt: threading.Event) -> Iterator[Progress | Duel]:
    """Progress and, unless `halt` is set before, the finished duel."""
    made = runner.batches(order, duel, True, others=runs_of(order.settings))
    for batch in closing(made, halt):
        yield from batch


# The duel


@dataclass(frozen=True, slots=True)
class Duel:
    """Both contestants' runs, and the machine's name."""

    plain: list[TimedRun]
    fast: list[TimedRun]
    machine: str

    @property
    def ratio(self) -> Ratio:
        """How many times as fast, with an interval: there are turns enough for one, see `LEAST_PAIRS`."""
        return speedup_of(self.fast, self.plain)

    @property
    def busy(self) -> bool:
        """True if something else wanted the processor."""
        return busy((*self.plain, *self.fast))

    def shown(self, request: Request) -> tuple[TimedRun, TimedRun]:
        """The two runs of one repeat, plain first: the ordered seed's or, where nothing is drawn, those with the ratio
        nearest to that of all. request: the checked order."""
        pairs, whole = list(zip(self.plain, self.fast)), self.ratio.value
        if not request.settings.sampling.greedy:
            return pairs[0]
        return min(pairs, key=lambda pair: abs(math.log(pair[1].speed / pair[0].speed / whole)))

    def runs(self, request: Request) -> tuple[Run, Run]:
        """The same as records."""
        from specviz.decoding.record import collect

        plain, fast = self.shown(request)
        return collect(_plain(request), plain.rounds), collect(request, fast.rounds)

    def speedup(self) -> Speedup:
        """Raises SpecvizError (field ``measured``) where the interval says nothing."""
        ratio = self.ratio
        if ratio.low is None:
            raise SpecvizError("The text was too short to time: ask for more new tokens.", "measured")
        if not ratio.known:
            raise SpecvizError(
                "The speedup's interval runs from {low}× to {high}×, too wide to say more. Another program may "
                "be busy: try again when the machine is idle.",
                "measured",
                low=round(ratio.low, 2),
                high=round(ratio.high, 2),
            )
        return Speedup(ratio.value, self.machine, ratio.low, ratio.high, self.busy)

    def outcome(self, request: Request) -> dict[str, Any]:
        """How both compare, see `compare`. request: the checked order.

        speedup: by all turns, None where the interval says nothing; low and high: its ends; busy: whether something
        else wanted the processor meanwhile.
        """
        ratio = self.ratio
        known = {"speedup": ratio.value if ratio.known else None, "low": ratio.low, "high": ratio.high}
        return compare(*self.runs(request)) | known | {"busy": self.busy}


def duel(request: Request, whole: bool) -> Iterator[Progress | Duel | None]:
    """Measures both: how far it is, then the duel.

    whole: both come to their end, however long that takes; else a slow pair's texts are cut short.
    """
    from specviz.bench.machine import name_of
    from specviz.bench.turns import Plan, lane_of, take_turns

    plan = Plan(request.settings.max_new_tokens, REPEATS, BUDGET, whole, PRECISE, least=LEAST_PAIRS, patience=PATIENCE)
    done: tuple[list[TimedRun], list[TimedRun]] = [], []
    for one in take_turns([lane_of(_plain(request)), lane_of(request)], plan):
        if isinstance(one, TimedRun):
            done[one.number].append(one)
        else:
            yield one
    yield Duel(*done, name_of(request.pair.device))


def _plain(request: Request) -> Request:
    return request.but(replace(request.settings, drafter=None, coins=""))


def runs_of(settings: RunSettings) -> list[RunSettings]:
    """The runs of a duel, for an estimate of its time: a lent GPU's passes are over long before the budget is."""
    from specviz.bench.turns import WARM_UP_TOKENS

    both = [replace(settings, drafter=None), settings]
    few = [replace(one, max_new_tokens=min(WARM_UP_TOKENS, one.max_new_tokens)) for one in both]
    return [*few, *both]


def progress(one: Progress) -> tuple[Said, float]:
    """A line of progress and the share that is done."""
    if one.warming:
        return said("common.warming_up"), 0.0
    return said("common.in_turn", number=one.repeat + 1), one.fraction
