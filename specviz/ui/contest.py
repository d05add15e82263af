"""Several ways to decode one prompt, measured in turn: the Compare tab's table."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specviz.bench.contestants import Contestant, Standing, standing
from specviz.bench.laps import Progress, TimedRun, busy
from specviz.records.settings import RunSettings
from specviz.records.words import Words
from specviz.ui import engine
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.views.whole_run import label

if TYPE_CHECKING:
    from specviz.decoding.request import Request


@dataclass
class Contest:
    """The contestants take turns, several times over. `progress` runs them."""

    runner: Runner
    order: Order
    contestants: tuple[Contestant, ...]  # plain decoding first; branches and rules resolved
    repeats: int
    halt: threading.Event
    left_out: tuple[Contestant, ...] = ()  # asked for, but their rule cannot judge them, or would judge alike
    runs: dict[Contestant, list[TimedRun]] = field(default_factory=dict)  # those that are over

    def progress(self, say: Words) -> Iterator[tuple[str, float]]:
        """What is being done, and how far it is; once more after each run, when its figures are there."""
        plain = order_of(self.order, self.contestants[0])
        settings = [one.applied(self.order.settings) for one in self.contestants]
        work = self.runner.batches(plain, in_turn, settings, self.repeats, others=settings * self.repeats)
        for batch in closing(work, self.halt):
            for one in batch:
                yield self._heard(one, say)

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
        return self.repeats * engine.runs_in_turn(len(self.contestants))

    @property
    def busy(self) -> bool:
        """Whether something else wanted the processor."""
        return busy([run for runs in self.runs.values() for run in runs])

    def _heard(self, one: Progress | TimedRun, say: Words) -> tuple[str, float]:
        contestant = self.contestants[one.number]
        if isinstance(one, TimedRun):
            self.runs.setdefault(contestant, []).append(one)
        done, name = self.finished / self.count, title(contestant, say)
        if isinstance(one, Progress) and one.warming:
            return say("compare.warming_up", number=one.number + 1, of=len(self.contestants), what=name), done
        what = say("compare.run", number=min(self.finished + 1, self.count), of=self.count, what=name)
        return self._said(what, say), done

    def _said(self, what: str, say: Words) -> str:
        """With about how long the rest will take, once a run of some contestants has been timed."""
        seconds = [run.seconds for runs in self.runs.values() for run in runs]
        if not seconds:
            return say("compare.running", what=what)
        left = (self.count - self.finished) * sum(seconds) / len(seconds)
        if left > 90:
            return say("compare.minutes_left", what=what, minutes=f"{left / 60:.0f}")
        return say("compare.seconds_left", what=what, seconds=f"{left:.0f}")


def in_turn(request: Request, contestants: Sequence[RunSettings], repeats: int) -> Iterator[Progress | TimedRun | None]:
    """The contestants' runs, plain decoding first among them; each repeat has the next seed."""
    lanes = [engine.lane_of(request.but(settings)) for settings in contestants]
    yield from engine.take_turns(lanes, engine.Plan(request.settings.max_new_tokens, repeats))


def order_of(order: Order, contestant: Contestant) -> Order:
    """`order` as a contestant runs it: coins set by hand are another run's."""
    return replace(order, settings=replace(contestant.applied(order.settings), coins=""))


def title(contestant: Contestant, say: Words) -> str:
    """A contestant in words, with what differs from a chain judged token by token."""
    parts = [label(contestant.mode, say)]
    if contestant.num_draft_tokens is not None:
        parts.append(f"γ = {contestant.num_draft_tokens}")
    if contestant.branches not in (None, 1):
        parts.append(say("generate.branches", n=contestant.branches))
    if contestant.rule not in ("auto", "token", "tree"):
        parts.append(say(f"ways.rule_{contestant.rule}"))
    return ", ".join(parts)
