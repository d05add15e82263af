"""Several ways to decode one prompt, measured in turn: the Compare tab's table."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from specviz.bench.contestants import Contestant, Standing, standing
from specviz.records.metrics import Tally, tally
from specviz.records.runs import Round
from specviz.records.stopwatch import undisturbed
from specviz.records.words import Words
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.ui.unwatched import Report, take_turns, warm_up_of
from specviz.views.whole_run import label

#: How many others follow a run of plain decoding before there is another: all their speedups rest on it, and a machine
#: changes its pace within seconds.
BESIDE_ONE = 8


def turns_of(contestants: Sequence[Contestant]) -> tuple[Contestant, ...]:
    """Who runs in a repeat, one after another. contestants: each once, plain decoding first."""
    plain, *others = contestants
    firsts = range(0, max(1, len(others)), BESIDE_ONE)
    return tuple(one for first in firsts for one in (plain, *others[first : first + BESIDE_ONE]))


@dataclass
class Contest:
    """The contestants take turns, several times over, plain decoding more often than others. `progress` runs them."""

    runner: Runner
    order: Order
    contestants: tuple[Contestant, ...]  # plain decoding first; branches and rules resolved
    repeats: int
    halt: threading.Event
    left_out: tuple[Contestant, ...] = ()  # asked for, but their rule cannot judge them, or would judge alike
    tallies: dict[Contestant, list[Tally]] = field(default_factory=dict)  # one a finished run
    disturbed: dict[Contestant, set[int]] = field(default_factory=dict)  # those in which others had the processor
    texts: dict[Contestant, list[Round]] = field(default_factory=dict)  # the rounds of the first repeat
    _seconds: dict[Contestant, float] = field(default_factory=dict)  # of the last repeat

    @property
    def turns(self) -> tuple[Contestant, ...]:
        """Who runs in each repeat, one after another."""
        return turns_of(self.contestants)

    def progress(self, say: Words) -> Iterator[tuple[str, float]]:
        """What is being done, and how far it is; once more after each run, when its figures are there."""
        plain = order_of(self.order, self.contestants[0])
        contestants = [one.applied(self.order.settings) for one in self.turns]
        made = [*map(warm_up_of, contestants), *contestants * self.repeats]
        work = self.runner.batches(plain, take_turns, contestants, self.repeats, others=made)
        for batch in closing(work, self.halt):
            for report in batch:
                yield self._heard(report, say)

    def standing(self, contestant: Contestant) -> Standing | None:
        """What the contestant's finished repeats come to; None before the first.

        A run that was disturbed, or beside one of plain decoding that was, does not count; if all were, there is no
        speedup.
        """
        own, plain = self.tallies.get(contestant), self.contestants[0]
        if not own:
            return None
        pairs = [(number, self._rival(contestant, number)) for number in range(len(own))]
        counting = [
            (number, rival)
            for number, rival in pairs
            if number not in self.disturbed.get(contestant, ()) and rival not in self.disturbed.get(plain, ())
        ]
        beside = [] if contestant == plain else [self.tallies[plain][rival] for _, rival in counting]
        return standing([own[number] for number, _ in counting] or own, beside)

    def _rival(self, contestant: Contestant, number: int) -> int:
        """Which run of plain decoding was the last one before a contestant's run `number`; its own is its own rival."""
        plain = self.contestants[0]
        if contestant == plain:
            return number
        before = self.turns[: self.turns.index(contestant)]
        return number * self.turns.count(plain) + before.count(plain) - 1

    def _heard(self, report: Report, say: Words) -> tuple[str, float]:
        count, runs = len(self.turns), self.repeats * len(self.turns)
        contestant = self.turns[report.run % count]
        name = title(contestant, say)
        if report.warming:
            return say("compare.warming_up", number=report.run + 1, of=count, what=name), 0.0
        what, done = say("compare.run", number=report.run + 1, of=runs, what=name), float(report.run)
        if report.rounds is None:
            done += report.tokens / self.order.settings.max_new_tokens
        else:
            tallies = self.tallies.setdefault(contestant, [])
            if not undisturbed([report.share], self.runner.deployment.least_share):
                self.disturbed.setdefault(contestant, set()).add(len(tallies))
            tallies.append(tally(report.rounds))
            self.texts.setdefault(contestant, report.rounds)
            self._seconds[contestant] = report.seconds
            done += 1
        return self._said(what, int(done), say), done / runs

    def _said(self, what: str, done: int, say: Words) -> str:
        """With about how long all but the first `done` runs will take, once every contestant has been timed."""
        if len(self._seconds) < len(self.contestants):
            return say("compare.running", what=what)
        runs = self.turns * self.repeats
        left = sum(self._seconds[contestant] for contestant in runs[done:])
        if left > 90:
            return say("compare.minutes_left", what=what, minutes=f"{left / 60:.0f}")
        return say("compare.seconds_left", what=what, seconds=f"{left:.0f}")


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
