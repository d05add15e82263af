"""The one way in which speed is measured: contestants take turns on the same text.

Each decodes a part of the text, a few hundred milliseconds' worth, then the next one decodes the same part, plain
decoding among them. So whatever else the machine does affects all of them alike, and the result is the ratio of
their times with its interval (`specviz.theory.statistics`). Race, Compare, the speedup after a run, advice, forced
acceptance, `check` and `bench` all measure here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from specviz.bench.contest import groups_of
from specviz.bench.contestants import Counted, Progress, TimedRun, Turn, speedup_of
from specviz.decoding.engine import pending_rounds
from specviz.decoding.record import Ledger, PendingRound
from specviz.decoding.request import Request
from specviz.drafters.base import DraftContext, Drafter
from specviz.passes.compiler import compilers_paused
from specviz.records.metrics import tally
from specviz.records.stopwatch import others_seconds
from specviz.theory.statistics import Ratio

#: New tokens of the runs that warm everything up before anything is timed, and the seconds after which that is enough;
#: the later half gives the time of a token.
WARM_UP_TOKENS, MOST_WARM_UP = 16, 3.0

#: Makes a run's drafter.
DrafterMaker = Callable[[DraftContext], Drafter]

#: Seconds of plain decoding in a turn, and the fewest turns into which a text is cut; and the fewest tokens of a turn,
#: since a round of speculation produces several at once.
TURN_SECONDS, LEAST_TURNS, LEAST_PART = 0.25, 8, 6

#: The fewest turns of a text that need not be whole.
LEAST_CUT = 4

#: Seconds between two reports: a page has next to nothing to draw while it is being measured.
REPORT_EVERY = 0.5


class Emits(Protocol):
    """A step of decoding: its new tokens."""

    @property
    def emitted(self) -> Sequence[int]: ...

    @property
    def apart(self) -> float:
        """Seconds of the step in which nothing of it was decoded; negative if some of it was decoded earlier."""


@dataclass(frozen=True, slots=True)
class WholeText:
    """All new tokens of a run at once: other engines do not hand them over one by one."""

    emitted: Sequence[int]
    apart: float = 0.0
    counted: Counted | None = None  # by a server


#: A run, step by step; closing it ends it.
Steps = Generator[Emits, None, None]


@dataclass(frozen=True)
class Stepper:
    """A contestant's runs: starts run number `repeat`, whose steps are decoded one by one as they are asked for."""

    start: Callable[[int], Steps]
    divisible: bool = True  # False: no other can decode between two of its steps, so a turn is a whole run
    warm: bool = False  # it has run before, and cannot be stopped after a few tokens
    #: By a server. It cannot stand still, so its turn is a whole text; if it is on this machine, what it uses of the
    #: processor is not somebody else's.
    served: bool = False


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured.

    No further repeat begins that would end after `budget` seconds, nor once all intervals reach no further than the
    share `precise` above their ratios; but everyone has at least `least` turns, as an interval needs. A first repeat
    that takes longer is cut short if the text need not be `whole`.
    """

    tokens: int  # new ones in each run
    repeats: int
    budget: float = float("inf")
    whole: bool = True
    precise: float = 0.0
    with_prompt: bool = True  # reading the prompt counts
    least: int = 0  # turns
    patience: float = 1.0  # times the budget may be spent while an interval says nothing


def engine_stepper(request: Request, make_drafter: Callable[[int], DrafterMaker] | None = None) -> Stepper:
    """The engine's run of a checked request. Each repeat has the next seed: one sampled text may be a lucky one.

    make_drafter: of each repeat, in place of the request's drafter, see `specviz.bench.forced`.
    """

    def start(repeat: int) -> Steps:
        settings = request.settings
        seeded = replace(request, settings=replace(settings, seed=settings.seed + repeat), passes=dict(request.passes))
        if request.grammar:
            seeded = replace(seeded, grammar=request.grammar.anew())
        yield from pending_rounds(seeded, make_drafter and make_drafter(repeat))

    # Where graphs were recorded there is one set of buffers for all texts.
    return Stepper(start, divisible=request.pair.device.type != "cuda")


def take_turns(steppers: Sequence[Stepper], amount: Amount) -> Iterator[Progress | TimedRun | None]:
    """All contestants, plain decoding first among `steppers`: progress, each run once it is over, and None in between,
    where it can be ended. A text may be cut short where the budget ends.

    Few take turns with one run of plain decoding, see `groups_of`.
    """
    groups = groups_of(len(steppers), sum(stepper.served for stepper in steppers))
    share = replace(amount, budget=amount.budget / len(groups))
    with compilers_paused():
        for number, members in enumerate(groups):
            yield from _Group(number, [(member, steppers[member]) for member in members], share).runs()


@dataclass
class _Group:
    """Plain decoding and those that take turns with it."""

    number: int
    steppers: Sequence[tuple[int, Stepper]]
    amount: Amount
    runs_done: list[TimedRun] = field(default_factory=list)

    def runs(self) -> Iterator[Progress | TimedRun | None]:
        amount = self.amount
        seconds: list[float] = []
        for member, stepper in self.steppers:
            if not stepper.warm:
                yield Progress(member, self.number, warming=True)
                seconds += [(yield from _warm_up(stepper, amount.tokens))]
        part = tokens = amount.tokens
        if all(stepper.divisible for _, stepper in self.steppers):
            part = max(LEAST_PART, min(round(TURN_SECONDS / seconds[0]), -(-amount.tokens // LEAST_TURNS)))
        elif not amount.whole:
            token_share = amount.budget / (LEAST_CUT * sum(seconds))
            part = tokens = int(min(amount.tokens, max(WARM_UP_TOKENS, token_share)))
        began = time.perf_counter()
        for repeat in range(amount.repeats):
            if repeat and (self._over_budget(repeat, time.perf_counter() - began) or self._precise()):
                return
            running = [
                _Run(stepper, (member, self.number, repeat), amount.with_prompt) for member, stepper in self.steppers
            ]
            for place, until in enumerate(range(part, tokens + part, part)):
                if not amount.whole and place >= LEAST_CUT and time.perf_counter() - began > amount.budget:
                    break
                for run in _in_order(running, place + repeat):
                    for event in run.turn(place, until, last=until >= tokens):
                        yield event and replace(event, fraction=self._over(repeat + until / tokens, began))
                if all(run.over for run in running):
                    break
            for run in running:
                self.runs_done.append(run.end())
                yield self.runs_done[-1]

    def _over(self, repeats: float, began: float) -> float:
        """The share that is done after `repeats` repeats, of all or of the budget, whichever is further."""
        spent = (time.perf_counter() - began) / self.amount.budget if self.amount.budget else 1.0
        return min(1.0, max(spent, repeats / self.amount.repeats))

    def _over_budget(self, repeats: int, seconds: float) -> bool:
        """True if there is no time for another repeat after `repeats` of them in so many seconds."""
        turns = [sum(len(run.turns) for run in self.runs_done if run.number == member) for member, _ in self.steppers]
        budget = self.amount.budget * (1.0 if all(ratio.known for ratio in self._ratios()) else self.amount.patience)
        return min(turns) >= self.amount.least and seconds * (repeats + 1) / repeats > budget

    def _precise(self) -> bool:
        """True if every interval is as narrow as asked."""
        reach, ratios = 1 + self.amount.precise, self._ratios()
        return reach > 1 and all(ratio.high is not None and ratio.high <= reach * ratio.value for ratio in ratios)

    def _ratios(self) -> list[Ratio]:
        """Everyone's speedup so far; contestants that failed have none."""
        plain = [run for run in self.runs_done if run.number == 0]
        drafting = {run.number for run in self.runs_done if run.number and run.turns}
        ratios = (speedup_of([run for run in self.runs_done if run.number == number], plain) for number in drafting)
        return [ratio for ratio in ratios if ratio is not None]


def _in_order(runs: Sequence[_Run], number: int) -> Sequence[_Run]:
    """Plain decoding in the middle, so that all are close to it. Every other time backwards, so that a machine that
    keeps slowing down does not always put the same contestants at a disadvantage."""
    plain, *drafting = runs
    middle = len(drafting) // 2
    order = [*drafting[:middle], plain, *drafting[middle:]]
    return order if number % 2 else order[::-1]


def _warm_up(stepper: Stepper, tokens: int) -> Generator[None, None, float]:
    """The first few tokens of a run, which do not count. Returns about how many seconds a further one takes."""
    tokens_made, wanted, steps = 0, min(WARM_UP_TOKENS, tokens), stepper.start(0)
    began = time.perf_counter()
    seconds = later_from = 0.0
    counted = 0
    for step in steps:
        tokens_made += len(step.emitted)
        began += step.apart
        seconds = time.perf_counter() - began
        if tokens_made <= wanted / 2:
            later_from, counted = seconds, tokens_made
        if tokens_made >= wanted or seconds > MOST_WARM_UP:
            break
        yield None
    steps.close()
    return max(1e-5, (seconds - later_from) / max(1, tokens_made - counted))


class _Run:
    """One run as far as it has come."""

    def __init__(self, stepper: Stepper, named: tuple[int, int, int], with_prompt: bool):
        self.named, (*_, repeat) = named, named  # of contestant, group and repeat
        self.with_prompt, self.served = with_prompt, stepper.served
        self.steps = stepper.start(repeat)
        self.turns: list[Turn] = []
        self.token_ids: list[int] = []
        self.ledger: Ledger | None = None  # where steps are rounds of the engine's
        self.counted: Counted | None = None
        self.over = False
        self.reported = time.perf_counter()

    def turn(self, place: int, until: int, last: bool) -> Iterator[Progress | None]:
        """Decodes on to `until` new tokens. Only its steps are on the clock, not the time between them."""
        before, seconds, other_seconds = len(self.token_ids), 0.0, others_seconds()
        while len(self.token_ids) < until and not self.over:
            began = time.perf_counter()
            step = next(self.steps, None)
            step_seconds = time.perf_counter() - began
            if step is None:
                self.over = True
            else:
                seconds += step_seconds - self._take(step)
            yield self._progress()
        if self.over or last:
            # Not only at the end of all: where graphs were recorded, the next run needs the buffers that this one has.
            self.steps.close()
        if len(self.token_ids) > before:
            other_seconds = 0.0 if self.served else max(0.0, others_seconds() - other_seconds)
            self.turns.append(Turn(place, len(self.token_ids) - before, seconds, other_seconds))

    def _take(self, step: Emits) -> float:
        """Keeps the results of a step. Returns its seconds that do not count."""
        self.token_ids += step.emitted
        if isinstance(step, WholeText):
            self.counted = step.counted
        if not isinstance(step, PendingRound):
            return step.apart
        self.ledger = self.ledger or Ledger()
        self.ledger.add(step)
        # Its next step would only find that out, on the clock.
        self.over = step.stop_reason is not None
        return step.apart + (0.0 if self.with_prompt else step.seconds.prefill)

    def _progress(self) -> Progress | None:
        if time.perf_counter() - self.reported < REPORT_EVERY:
            return None
        self.reported = time.perf_counter()
        return Progress(*self.named, len(self.token_ids))

    def end(self) -> TimedRun:
        self.steps.close()
        rounds = () if self.ledger is None else tuple(self.ledger.rounds())
        return TimedRun(
            *self.named,
            tuple(self.turns),
            tuple(self.token_ids),
            None if self.ledger is None else tally(rounds),
            self.over,
            counted=self.counted,
            rounds=rounds,
        )
