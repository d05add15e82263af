"""Which drafter here: every one that is at hand in turn with plain decoding, then the fastest again, on one's own work.

It times a few tokens first, says how long the rest will take, and scales what it does to the time that it has.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from specviz.bench.contestants import Contestant
from specviz.bench.failures import Failures
from specviz.bench.laps import Progress, TimedRun
from specviz.bench.turns import WARM_UP_TOKENS, Lane, Plan, lane_of, on_each_prompt, runs_in_turn
from specviz.bench.work import ALL, Work, WorkRow
from specviz.decoding.engine import pending_rounds
from specviz.decoding.request import Request
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence

#: Seconds that advice takes unless more is allowed, and the share of it in which all compete for the final.
SECONDS, HEAT = 60.0, 0.5

#: New tokens of each run: so many if there is time, and never fewer than so many, since the first ones tell little.
MOST_TOKENS, LEAST_TOKENS = 128, 24

#: New tokens of the two runs by which it is known beforehand what a run takes; the first warms it up.
TIMED_TOKENS = 4

#: How many meet again, and how often at most.
FINALISTS, REPEATS = 3, 4

#: The draft length at which all drafters are tried where there is no time for several.
ONLY_GAMMA = 4


@dataclass(frozen=True, slots=True)
class Course:
    """How far the measuring is, and what it has come to."""

    contestant: Contestant | None  # which is running; None before any is
    fraction: float  # of all that is to be done
    seconds_left: float
    rows: tuple[WorkRow, ...] = ()  # of all that was measured, the final's in the place of the heat's
    failed: tuple[tuple[str, SpecvizError | Sentence], ...] = ()  # who failed so far, by title, and why


def advise(
    requests: Sequence[Request], domains: Sequence[str], contestants: Sequence[Contestant], seconds: float = SECONDS
) -> Iterator[Course | None]:
    """Measures, and tells how far it is; after each run with what it came to. None between, where it can be ended.

    requests: plain decoding of each prompt, checked. domains: of each. contestants: plain decoding first.
    """
    began, failures = time.perf_counter(), Failures()
    each, reading = yield from _pace(requests)
    plain, *others = contestants
    tokens, worth = requests[0].settings.max_new_tokens, seconds / each
    heat = _fitting(others, tokens, len(requests), HEAT * worth, reading)
    rest = (1 - HEAT) * worth
    yield Course(None, 0.0, each * (heat.cost() + rest))
    work = Work((plain, *heat.others), [domains[number] for number in heat.prompts], failures.reasons)
    yield from _told(_measured(heat, requests, work, failures), work, None, _Bill(heat, 0.0, rest, each))
    ranked = sorted((row for row in work.rows() if row.domain == ALL), key=lambda row: -row.speedup_measured)
    rest = (seconds - (time.perf_counter() - began)) / each
    final = _fitting([row.contestant for row in ranked[:FINALISTS]], tokens, len(requests), rest, reading)
    if not ranked or final.cost() > rest:
        return  # where many are slower than plain decoding, the heat takes longer than it was to
    final = replace(final, repeats=min(REPEATS, int(rest / final.cost())))
    second = Work((plain, *final.others), [domains[number] for number in final.prompts], failures.reasons)
    bill = _Bill(final, heat.cost(), 0.0, each)
    yield from _told(_measured(final, requests, second, failures), second, work, bill)


def work_on(
    requests: Sequence[Request], domains: Sequence[str], contestants: Sequence[Contestant]
) -> Iterator[Course | None]:
    """All contestants on all prompts, once each, however long it takes; told as by `advise`."""
    each, reading = yield from _pace(requests)
    whole = _Heat(contestants[1:], requests[0].settings.max_new_tokens, range(len(requests)), reading)
    yield Course(None, 0.0, each * whole.cost())
    failures = Failures()
    work = Work(contestants, domains, failures.reasons)
    yield from _told(_measured(whole, requests, work, failures), work, None, _Bill(whole, 0.0, 0.0, each))


@dataclass(frozen=True)
class _Heat:
    """Who runs how far on which prompts."""

    others: Sequence[Contestant]
    tokens: int
    prompts: Sequence[int]
    reading: float  # what reading a prompt takes, as below
    repeats: int = 1

    @property
    def runs(self) -> int:
        """How many are timed."""
        return self.repeats * len(self.prompts) * runs_in_turn(1 + len(self.others))

    def cost(self) -> float:
        """In tokens of plain decoding, as if nobody gained anything; warming up once on each prompt included."""
        warming = min(WARM_UP_TOKENS, self.tokens) + self.reading
        return self.runs * (self.tokens + self.reading + warming / self.repeats)


@dataclass(frozen=True)
class _Bill:
    """What a heat costs, beside what came before it and what is to follow; in tokens of plain decoding."""

    heat: _Heat
    before: float
    after: float
    token_seconds: float

    def course(self, contestant: Contestant, runs: int, rows: Sequence[WorkRow]) -> Course:
        """After so many runs of the heat."""
        cost = self.heat.cost()
        done, whole = self.before + cost * runs / self.heat.runs, self.before + cost + self.after
        return Course(contestant, min(1.0, done / whole), max(0.0, whole - done) * self.token_seconds, tuple(rows))


def _fitting(others: Sequence[Contestant], tokens: int, prompts: int, worth: float, reading: float) -> _Heat:
    """As much as fits into `worth` tokens of plain decoding: all, or one γ a drafter; on fewer prompts; shorter."""
    runs, around = runs_in_turn(1 + len(others)), WARM_UP_TOKENS + 2 * reading
    if worth < runs * (LEAST_TOKENS + around) and any(one.num_draft_tokens == ONLY_GAMMA for one in others):
        others = [one for one in others if one.num_draft_tokens == ONLY_GAMMA]
        runs = runs_in_turn(1 + len(others))
    most = min(tokens, MOST_TOKENS)
    # Rather several prompts than a long text: they differ more from one another than its parts do.
    met = max(1, min(prompts, int(worth / (runs * (min(most, 2 * LEAST_TOKENS) + around)))))
    length = max(min(most, LEAST_TOKENS), min(most, int(worth / (runs * met) - around)))
    return _Heat(others, length, [round(place * prompts / met) for place in range(met)], reading)


def _measured(
    heat: _Heat, requests: Sequence[Request], work: Work, failures: Failures
) -> Iterator[Progress | TimedRun | None]:
    def lanes(request: Request) -> list[Lane]:
        settings = replace(request.settings, max_new_tokens=min(heat.tokens, request.settings.max_new_tokens))

        def lane(contestant: Contestant) -> Lane:
            return lane_of(request.but(contestant.applied(settings)))

        return [failures.caught(one, functools.partial(lane, one)) for one in work.contestants]

    own = (lanes(requests[number]) for number in heat.prompts)
    for one in on_each_prompt(own, Plan(heat.tokens, heat.repeats)):
        if isinstance(one, TimedRun):
            work.add(one)
        yield one


def _pace(requests: Sequence[Request]) -> Generator[None, None, tuple[float, float]]:
    """Seconds that a token takes in plain decoding, and as how many of them it takes to read a prompt, on average."""
    first, *_ = requests
    few = replace(
        first, settings=replace(first.settings, max_new_tokens=min(TIMED_TOKENS, first.settings.max_new_tokens))
    )
    for _ in range(2):
        taken, began = [], time.perf_counter()
        for _ in pending_rounds(few):
            taken.append(time.perf_counter() - began)
            yield None
            began = time.perf_counter()
    each = min(taken)
    longer = sum(len(request.prompt.ids) for request in requests) / len(requests) / len(first.prompt.ids)
    return each, longer * (taken[0] / each - 1)


def _told(
    made: Iterator[Progress | TimedRun | None], work: Work, before: Work | None, bill: _Bill
) -> Iterator[Course | None]:
    """How far it is while a heat is measured. before: what was measured earlier, for what the heat does not repeat."""
    runs = 0
    for one in made:
        if one is None:
            yield None
            continue
        over = isinstance(one, TimedRun)
        runs += over
        course = bill.course(work.contestants[one.number], runs, _together(work, before) if over else ())
        yield replace(course, failed=tuple(work.failed.items()))


def _together(work: Work, before: Work | None) -> list[WorkRow]:
    rows = work.rows()
    met = {(row.domain, row.contestant) for row in rows}
    return rows + [row for row in (before.rows() if before else ()) if (row.domain, row.contestant) not in met]


def require_chains(contestants: Sequence[Contestant]) -> None:
    """Raises SpecvizError (field ``target``) where there is nobody to compete with plain decoding."""
    if len(contestants) < 2:
        raise SpecvizError("This pair brings nothing that could draft.", "target")
