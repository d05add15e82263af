"""Several ways to decode one prompt, measured in turn: the Compare tab's table."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from specviz.bench.contestants import Contestant, Standing, standing
from specviz.records.metrics import Tally, tally
from specviz.records.runs import Round
from specviz.records.settings import PLAIN
from specviz.records.words import Words
from specviz.ui.duel import REPORT_EVERY, warm_up
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.ui.ways import label


@dataclass
class Contest:
    """The contestants take turns, several times over; plain decoding comes first every time. `progress` runs them."""

    runner: Runner
    order: Order
    contestants: tuple[Contestant, ...]  # plain decoding first; branches and rules resolved
    repeats: int
    halt: threading.Event
    tallies: dict[Contestant, list[Tally]] = field(default_factory=dict)  # one a finished repeat
    texts: dict[Contestant, list[Round]] = field(default_factory=dict)  # the rounds of the first repeat
    _seconds: dict[Contestant, float] = field(default_factory=dict)  # of the last repeat

    def progress(self, say: Words) -> Iterator[tuple[str, float]]:
        """What is being done, and how far it is; once more after each run, when its figures are there."""
        yield from self._warm_up(say)
        for repeat in range(self.repeats):
            for place, contestant in enumerate(self.contestants):
                yield from self._run(repeat, place, contestant, say)
                if self.halt.is_set():
                    return

    def standing(self, contestant: Contestant) -> Standing | None:
        """What the contestant's finished repeats come to; None before the first."""
        own = self.tallies.get(contestant)
        beside = () if contestant.mode == PLAIN else self.tallies.get(self.contestants[0], ())
        return standing(own, beside) if own else None

    def _warm_up(self, say: Words) -> Iterator[tuple[str, float]]:
        for number, contestant in enumerate(self.contestants, start=1):
            of = len(self.contestants)
            yield say("compare.warming_up", number=number, of=of, what=title(contestant, say)), 0.0
            warm_up(self.runner, order_of(self.order, contestant), self.halt)
            if self.halt.is_set():
                return

    def _run(self, repeat: int, place: int, contestant: Contestant, say: Words) -> Iterator[tuple[str, float]]:
        done, runs = repeat * len(self.contestants) + place, self.repeats * len(self.contestants)
        what = say("compare.run", number=done + 1, of=runs, what=title(contestant, say))
        yield self._said(what, done, say), done / runs
        rounds, tokens, told = [], 0, time.monotonic()
        for batch in closing(self.runner.batches(order_of(self.order, contestant, repeat)), self.halt):
            rounds += batch
            tokens += sum(len(one.emitted) for one in batch)
            if time.monotonic() - told > REPORT_EVERY:
                told = time.monotonic()
                yield self._said(what, done, say), (done + tokens / self.order.settings.max_new_tokens) / runs
        if rounds and rounds[-1].stop_reason is not None:
            self.tallies.setdefault(contestant, []).append(tally(rounds))
            self.texts.setdefault(contestant, rounds)
            self._seconds[contestant] = self.runner.last_seconds
            yield self._said(what, done + 1, say), (done + 1) / runs

    def _said(self, what: str, done: int, say: Words) -> str:
        """With about how long all but the first `done` runs will take, once every contestant has been timed."""
        if len(self._seconds) < len(self.contestants):
            return say("compare.running", what=what)
        runs = [*self.contestants] * self.repeats
        left = sum(self._seconds[contestant] for contestant in runs[done:])
        if left > 90:
            return say("compare.minutes_left", what=what, minutes=f"{left / 60:.0f}")
        return say("compare.seconds_left", what=what, seconds=f"{left:.0f}")


def order_of(order: Order, contestant: Contestant, repeat: int = 0) -> Order:
    """`order` as a contestant runs it. Each repeat has the next seed: a single sampled text may be a lucky one."""
    return replace(order, settings=contestant.applied(order.settings)).but(seed=order.settings.seed + repeat)


def title(contestant: Contestant, say: Words) -> str:
    """A contestant in words, with what differs from a chain judged token by token."""
    parts = [label(contestant.mode, say)]
    if contestant.num_draft_tokens is not None:
        parts.append(f"γ = {contestant.num_draft_tokens}")
    if contestant.branches not in (None, 1):
        parts.append(say("generate.branches", count=contestant.branches))
    if contestant.rule in ("block", "typical"):
        parts.append(say(f"ways.rule_{contestant.rule}"))
    return ", ".join(parts)
