"""Several ways to decode, measured in turn on one prompt or on several: the Compare tab's table."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specviz.bench.advice import Work, WorkRow
from specviz.bench.contestants import Contestant, Progress, Standing, TimedRun, busy, standing
from specviz.records.settings import RunSettings
from specviz.records.words import Said, said
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.views.run_messages import title

if TYPE_CHECKING:
    from specviz.decoding.request import Request


@dataclass
class Contest:
    """The contestants take turns, several times over, on each prompt. `progress` runs them."""

    runner: Runner
    orders: tuple[Order, ...]  # one a prompt, otherwise the same
    contestants: tuple[Contestant, ...]  # plain decoding first; branches and rules resolved
    repeats: int
    halt: threading.Event
    left_out: tuple[Contestant, ...] = ()  # asked for, but their rule cannot judge them, or would judge alike
    domains: tuple[str, ...] = ()  # of each prompt, where they are one's own
    #: Those that are over; their group is the number of the prompt, and whom they took turns with.
    runs: dict[Contestant, list[TimedRun]] = field(default_factory=dict)

    @property
    def order(self) -> Order:
        """The order on the first prompt."""
        return self.orders[0]

    def progress(self) -> Iterator[tuple[Said, float]]:
        """What is being done, and how far it is; once more after each run, when its figures are there."""
        plain = order_of(self.order, self.contestants[0])
        asked = [[order_of(order, one).settings for one in self.contestants] for order in self.orders]
        others = [one for settings in asked for one in settings] * self.repeats
        work = self.runner.batches(plain, in_turn, asked, self.repeats, others=others)
        for batch in closing(work, self.halt):
            for one in batch:
                yield self._heard(one)

    def standing(self, contestant: Contestant) -> Standing | None:
        """What the contestant's finished runs come to; None before the first."""
        own = self.runs.get(contestant)
        if not own:
            return None
        return standing(own, () if contestant == self.contestants[0] else self.runs[self.contestants[0]])

    @property
    def finished(self) -> int:
        """How many runs are over."""
        return sum(map(len, self.runs.values()))

    @property
    def count(self) -> int:
        """How many there will be."""
        from specviz.bench.turns import runs_in_turn

        return len(self.orders) * self.repeats * runs_in_turn(len(self.contestants))

    def work(self) -> list[WorkRow]:
        """On prompts of one's own, what the finished runs come to by domain; else nothing."""
        return Work(self.contestants, self.domains, runs=self.runs).rows() if self.domains else []

    def first_run(self, contestant: Contestant, prompt: int) -> TimedRun | None:
        """Its run on a prompt in the first repeat, once that is over."""
        own = (run for run in self.runs.get(contestant, ()) if run.group[0] == prompt and run.repeat == 0)
        return next(own, None)

    @property
    def busy(self) -> bool:
        """Whether something else wanted the processor."""
        return busy([run for runs in self.runs.values() for run in runs])

    def _heard(self, one: Progress | TimedRun) -> tuple[Said, float]:
        contestant = self.contestants[one.number]
        if isinstance(one, TimedRun):
            self.runs.setdefault(contestant, []).append(one)
        done, name = self.finished / self.count, title(contestant)
        if isinstance(one, Progress) and one.warming:
            return said("compare.warming_up", number=one.number + 1, of=len(self.contestants), what=name), done
        what = said("compare.run", done=self.finished, of=self.count, what=name)
        return self._with_time_left(what), done

    def _with_time_left(self, what: Said) -> Said:
        """With about how long the rest will take, once a run of some contestants has been timed."""
        seconds = [run.seconds for runs in self.runs.values() for run in runs]
        if not seconds:
            return said("compare.running", what=what)
        left = (self.count - self.finished) * sum(seconds) / len(seconds)
        if left > 90:
            return said("compare.minutes_left", what=what, minutes=left / 60)
        return said("compare.seconds_left", what=what, seconds=left)


def in_turn(
    request: Request, asked: Sequence[Sequence[RunSettings]], repeats: int
) -> Iterator[Progress | TimedRun | None]:
    """The contestants' runs, plain decoding first among them; each repeat has the next seed.

    asked: by prompt, the settings of all contestants.
    """
    from specviz.bench.turns import Plan, lane_of, on_each_prompt

    lanes = ([lane_of(request.but(settings)) for settings in contestants] for contestants in asked)
    return on_each_prompt(lanes, Plan(request.settings.max_new_tokens, repeats))


def order_of(order: Order, contestant: Contestant) -> Order:
    """`order` as a contestant runs it: coins set by hand are another run's."""
    return replace(order, settings=replace(contestant.applied(order.settings), coins=""))
