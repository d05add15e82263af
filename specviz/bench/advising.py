"""Which drafter here: every one that is at hand in turn with plain decoding, then the fastest again, on one's own work.

It times a few tokens first, says how long the rest will take, and scales what it does to the time that it has.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from specviz.bench.contestants import Contestant
from specviz.bench.laps import Progress, TimedRun
from specviz.bench.turns import Plan, lane_of, runs_in_turn, take_turns
from specviz.bench.work import ALL, Work, WorkRow
from specviz.decoding.engine import unrecorded
from specviz.decoding.request import Request
from specviz.records.errors import SpecvizError

#: Seconds that advice takes unless more is allowed, and the share of it in which all compete for the final.
SECONDS, HEAT = 60.0, 0.5

#: New tokens of each run: so many if there is time, and never fewer than so many, since the first ones tell little.
MOST_TOKENS, LEAST_TOKENS = 128, 24

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


def advise(
    requests: Sequence[Request], domains: Sequence[str], contestants: Sequence[Contestant], seconds: float = SECONDS
) -> Iterator[Course | None]:
    """Measures, and tells how far it is; after each run with what it came to. None between, where it can be ended.

    requests: plain decoding of each prompt, checked. domains: of each. contestants: plain decoding first.
    """
    each = yield from token_seconds(requests[0])
    plain, *others = contestants
    tokens, worth = requests[0].settings.max_new_tokens, seconds / each
    heat = _fitting(others, tokens, len(requests), HEAT * worth)
    rest = (1 - HEAT) * worth
    yield Course(None, 0.0, each * (heat.cost() + rest))
    work = Work((plain, *heat.others), [domains[number] for number in heat.prompts])
    yield from _told(_measured(heat, requests, work), work, None, _Bill(heat, 0.0, rest, each))
    ranked = sorted((row for row in work.rows() if row.domain == ALL), key=lambda row: -row.speedup_measured)
    final = _fitting([row.contestant for row in ranked[:FINALISTS]], tokens, len(requests), rest)
    final = replace(final, repeats=max(1, min(REPEATS, int(rest / final.cost()))))
    second = Work((plain, *final.others), [domains[number] for number in final.prompts])
    bill = _Bill(final, heat.cost(), 0.0, each)
    yield from _told(_measured(final, requests, second), second, work, bill)


def work_on(
    requests: Sequence[Request], domains: Sequence[str], contestants: Sequence[Contestant]
) -> Iterator[Course | None]:
    """All contestants on all prompts, once each, however long it takes; told as by `advise`."""
    each = yield from token_seconds(requests[0])
    whole = _Heat(contestants[1:], requests[0].settings.max_new_tokens, range(len(requests)))
    yield Course(None, 0.0, each * whole.cost())
    work = Work(contestants, domains)
    yield from _told(_measured(whole, requests, work), work, None, _Bill(whole, 0.0, 0.0, each))


@dataclass(frozen=True)
class _Heat:
    """Who runs how far on which prompts."""

    others: Sequence[Contestant]
    tokens: int
    prompts: Sequence[int]
    repeats: int = 1

    def cost(self) -> float:
        """In tokens of plain decoding, as if nobody gained anything."""
        return self.repeats * len(self.prompts) * self.tokens * runs_in_turn(1 + len(self.others))


@dataclass(frozen=True)
class _Bill:
    """What a heat costs, beside what came before it and what is to follow; in tokens of plain decoding."""

    heat: _Heat
    before: float
    after: float
    token_seconds: float

    def course(self, contestant: Contestant, runs: int, rows: Sequence[WorkRow]) -> Course:
        """After so many runs of the heat."""
        done, whole = self.before + runs * self.heat.tokens, self.before + self.heat.cost() + self.after
        return Course(contestant, min(1.0, done / whole), max(0.0, whole - done) * self.token_seconds, tuple(rows))


def _fitting(others: Sequence[Contestant], tokens: int, prompts: int, worth: float) -> _Heat:
    """As much as fits into `worth` tokens of plain decoding: all, or one γ a drafter; on fewer prompts; shorter."""
    runs = runs_in_turn(1 + len(others))
    if worth < LEAST_TOKENS * runs and any(one.num_draft_tokens == ONLY_GAMMA for one in others):
        others = [one for one in others if one.num_draft_tokens == ONLY_GAMMA]
        runs = runs_in_turn(1 + len(others))
    most = min(tokens, MOST_TOKENS)
    # Rather several prompts than a long text: they differ more from one another than its parts do.
    met = max(1, min(prompts, int(worth / (runs * min(most, 2 * LEAST_TOKENS)))))
    length = max(min(most, LEAST_TOKENS), min(most, int(worth / (runs * met))))
    return _Heat(others, length, [round(place * prompts / met) for place in range(met)])


def _measured(heat: _Heat, requests: Sequence[Request], work: Work) -> Iterator[Progress | TimedRun | None]:
    plan = Plan(heat.tokens, heat.repeats)
    for place, number in enumerate(heat.prompts):
        request = requests[number]
        settings = replace(request.settings, max_new_tokens=min(heat.tokens, request.settings.max_new_tokens))
        lanes = [lane_of(request.but(one.applied(settings))) for one in work.contestants]
        for one in take_turns(lanes, plan):
            if isinstance(one, TimedRun):
                work.add(place, one)
            yield one


def token_seconds(request: Request) -> Generator[None, None, float]:
    """Seconds that a token takes in plain decoding, by a few; the first ones warm it up."""
    taken, began = [], time.perf_counter()
    for _ in unrecorded(replace(request, settings=replace(request.settings, max_new_tokens=8))):
        taken.append(time.perf_counter() - began)
        began = time.perf_counter()
        yield None
    return min(taken)


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
        yield bill.course(work.contestants[one.number], runs, _together(work, before) if over else ())


def _together(work: Work, before: Work | None) -> list[WorkRow]:
    rows = work.rows()
    met = {(row.domain, row.contestant) for row in rows}
    return rows + [row for row in (before.rows() if before else ()) if (row.domain, row.contestant) not in met]


def require_chains(contestants: Sequence[Contestant]) -> None:
    """Raises SpecvizError (field ``target``) where there is nobody to compete with plain decoding."""
    if len(contestants) < 2:
        raise SpecvizError("This pair brings nothing that could draft.", "target")
