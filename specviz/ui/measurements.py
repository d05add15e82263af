"""Plain and speculative decoding measured: in turn, warm, on a device and a page at rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from specviz.bench.contest import Contestant, Standing, standing
from specviz.decoding import engine
from specviz.records.metrics import Tally, tally
from specviz.records.runs import Round, Run
from specviz.records.words import Words
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.ui.ways import PLAIN, label

#: New tokens of the runs that warm both paths up before anything is timed.
WARM_UP_TOKENS = 16
#: How often a run and its plain rival are measured, unless that would take longer than so many seconds.
PAIRS = 3
MOST_SECONDS = 3.0
#: Seconds between two reports: the page has next to nothing to draw while it is being measured.
REPORT_EVERY = 0.5


@dataclass
class Duel:
    """An order and the plain decoding of the same; `progress` runs both, then the runs are there.

    Short runs are measured several times, and the pair whose speedup is the median counts: a single one may meet the
    moment in which another program wanted the processor.
    """

    runner: Runner
    order: Order
    halt: threading.Event
    plain_rounds: list[Round] = field(default_factory=list)
    fast_rounds: list[Round] = field(default_factory=list)

    def progress(self, say: Words) -> Iterator[tuple[str, float]]:
        """What is being done, and how far it is. At once, each run would slow the other down: they take turns."""
        plain_order, wanted = replace(self.order, drafter=None), self.order.max_new_tokens
        yield say("common.warming_up"), 0.0
        for order in (plain_order, self.order):
            short = replace(order, max_new_tokens=min(WARM_UP_TOKENS, wanted))
            for _ in closing(self.runner.batches(short), self.halt):
                pass
        pairs, began = [], time.monotonic()
        while len(pairs) < PAIRS and not self.halt.is_set():
            if pairs and (time.monotonic() - began) * PAIRS / len(pairs) > MOST_SECONDS:
                break
            plain_rounds, fast_rounds = [], []
            yield from self._run(plain_order, plain_rounds, say("race.running_plain"))
            yield from self._run(self.order, fast_rounds, say("race.running_speculative"))
            pairs.append((plain_rounds, fast_rounds))
        pairs.sort(key=_time_saved)
        # Of two, the one that promises less.
        self.plain_rounds, self.fast_rounds = pairs[(len(pairs) - 1) // 2] if pairs else ([], [])

    def _run(self, order: Order, rounds: list[Round], what: str) -> Iterator[tuple[str, float]]:
        yield what, 0.0
        told, done = time.monotonic(), 0
        for batch in closing(self.runner.batches(order), self.halt):
            rounds += batch
            done += sum(len(one.emitted) for one in batch)
            if time.monotonic() - told > REPORT_EVERY:
                yield what, done / order.max_new_tokens
                told = time.monotonic()

    def runs(self, request: engine.Request) -> tuple[Run, Run] | None:
        """Both runs, plain first; None if they were halted. `request` is the checked order."""
        if self.halt.is_set():
            return None
        plain_request = replace(request, drafter=None, num_draft_tokens=0)
        return engine.collect(plain_request, self.plain_rounds), engine.collect(request, self.fast_rounds)


def _time_saved(pair: tuple[list[Round], list[Round]]) -> float:
    """How many times as long the first one took; the texts, and so the tokens, are the same in all pairs."""
    plain, fast = map(tally, pair)
    return (plain.prefill + plain.seconds) / (fast.prefill + fast.seconds) if fast.rounds else 0.0


@dataclass
class Contest:
    """Several ways to decode one prompt, each run in turn, several times; plain decoding comes first every time.

    contestants: plain decoding first, branches and rules resolved. `progress` runs them; what is finished is in
    `tallies`, a tally a repeat, and in `texts`, the rounds of the first repeat.
    """

    runner: Runner
    order: Order
    contestants: tuple[Contestant, ...]
    repeats: int
    halt: threading.Event
    tallies: dict[Contestant, list[Tally]] = field(default_factory=dict)
    texts: dict[Contestant, list[Round]] = field(default_factory=dict)
    _seconds: dict[Contestant, float] = field(default_factory=dict)

    def progress(self, say: Words) -> Iterator[tuple[str, float]]:
        """What is being done, and how far it is; once more after each run, when its figures are there."""
        yield from self._warm_up(say)
        for repeat in range(self.repeats):
            for place, contestant in enumerate(self.contestants):
                yield from self._run(repeat, place, contestant, say)
                if self.halt.is_set():
                    return

    def standing(self, contestant: Contestant) -> Standing | None:
        """What the contestant's finished repeats came to; None before the first."""
        own = self.tallies.get(contestant)
        beside = () if contestant.mode == PLAIN else self.tallies.get(self.contestants[0], ())
        return standing(own, beside) if own else None

    def _warm_up(self, say: Words) -> Iterator[tuple[str, float]]:
        for number, contestant in enumerate(self.contestants, start=1):
            of = len(self.contestants)
            yield say("compare.warming_up", number=number, of=of, what=title(contestant, say)), 0.0
            order = order_of(self.order, contestant)
            short = replace(order, max_new_tokens=min(WARM_UP_TOKENS, order.max_new_tokens))
            for _ in closing(self.runner.batches(short), self.halt):
                pass
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
                yield self._said(what, done, say), (done + tokens / self.order.max_new_tokens) / runs
        if rounds and rounds[-1].stop_reason is not None:
            self.tallies.setdefault(contestant, []).append(tally(rounds))
            self.texts.setdefault(contestant, rounds)
            self._seconds[contestant] = self.runner.last_seconds
            yield self._said(what, done + 1, say), (done + 1) / runs

    def _said(self, what: str, done: int, say: Words) -> str:
        """With about how long the runs after the first `done` will take, once every contestant was timed."""
        if len(self._seconds) < len(self.contestants):
            return say("compare.running", what=what)
        runs = [*self.contestants] * self.repeats
        left = sum(self._seconds[contestant] for contestant in runs[done:])
        if left > 90:
            return say("compare.minutes_left", what=what, minutes=f"{left / 60:.0f}")
        return say("compare.seconds_left", what=what, seconds=f"{left:.0f}")


def order_of(order: Order, contestant: Contestant, repeat: int = 0) -> Order:
    """`order` as a contestant runs it. Each repeat has the next seed: one sampled text alone may be a lucky one."""
    return replace(
        order,
        drafter=None if contestant.mode == PLAIN else contestant.mode,
        num_draft_tokens=contestant.num_draft_tokens or 1,
        branches=contestant.branches,
        exit_layer=contestant.exit_layer,
        confidence=0.0,
        rule=contestant.rule,
        seed=order.seed + repeat,
    )


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
