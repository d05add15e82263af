"""Which drafter here: every one available in turn with plain decoding, then the fastest again, on one's own work.

It times a few tokens first, estimates how long the rest will take, and scales it to the time available.
"""

import functools
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from specviz.bench.advice import ALL, Work, WorkRow
from specviz.bench.contestants import Contestant, TimedRun
from specviz.bench.lanes import Failures, request_of
from specviz.bench.turns import WARM_UP_TOKENS, Lane, Plan, lane_of, on_each_prompt, runs_in_turn
from specviz.decoding.engine import pending_rounds
from specviz.decoding.request import Request
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence

#: Seconds that advice takes unless more is allowed, and the share of it in which all compete for the final.
SECONDS, HEAT = 60.0, 0.5

#: New tokens of each run: the most, if there is time, and the fewest, since the first ones say little.
MOST_TOKENS, LEAST_TOKENS = 128, 24

#: New tokens of the two runs by which the time of a run is estimated; the first warms it up.
TIMED_TOKENS = 4

#: Contestants of the final, and its most repeats.
FINALISTS, REPEATS = 3, 4

#: The only draft length of each drafter where there is no time for several.
ONLY_GAMMA = 4


@dataclass(frozen=True, slots=True)
class Course:
    """How far the measuring is, and its figures so far."""

    contestant: Contestant | None  # which is running; None before any is
    fraction: float  # done
    seconds_left: float
    rows: tuple[WorkRow, ...] = ()  # of all contestants measured, the final's in the place of the heat's
    failed: tuple[tuple[str, SpecvizError | Sentence], ...] = ()  # those that failed so far, by title, and why


def advise(
    requests: Sequence[Request], domains: Sequence[str], contestants: Sequence[Contestant], seconds: float = SECONDS
) -> Iterator[Course | None]:
    """Measures and reports how far it is; after each run with the figures so far. None in between, where it can be
    ended.

    requests: plain decoding of each prompt, checked. domains: of each. contestants: plain decoding first.
    """
    began, failures = time.perf_counter(), Failures()
    each, reading = yield from _pace(requests)
    _, *others = contestants
    tokens, worth = requests[0].settings.max_new_tokens, seconds / each
    heat = _fitting(others, tokens, len(requests), HEAT * worth, reading)
    rest = (1 - HEAT) * worth
    yield Course(None, 0.0, each * (heat.cost() + rest))
    work = yield from _measured(heat, requests, domains, contestants[0], failures, each, after=rest)
    ranked = sorted((row for row in work.rows() if row.domain == ALL), key=lambda row: -row.speedup_measured)
    rest = (seconds - (time.perf_counter() - began)) / each
    final = _fitting([row.contestant for row in ranked[:FINALISTS]], tokens, len(requests), rest, reading)
    if not ranked or final.cost() > rest:
        return  # where many are slower than plain decoding, the heat takes longer than planned
    final = replace(final, repeats=min(REPEATS, int(rest / final.cost())))
    yield from _measured(final, requests, domains, contestants[0], failures, each, heat.cost(), earlier=work)


def work_on(
    requests: Sequence[Request], domains: Sequence[str], contestants: Sequence[Contestant]
) -> Iterator[Course | None]:
    """All contestants on all prompts, once each, however long it takes; reported as by `advise`."""
    each, reading = yield from _pace(requests)
    whole = _Heat(contestants[1:], requests[0].settings.max_new_tokens, range(len(requests)), reading)
    yield Course(None, 0.0, each * whole.cost())
    yield from _measured(whole, requests, domains, contestants[0], Failures(), each)


@dataclass(frozen=True)
class _Heat:
    """Which contestants run how far on which prompts."""

    others: Sequence[Contestant]
    tokens: int
    prompts: Sequence[int]
    reading: float  # time of reading a prompt, see `_pace`
    repeats: int = 1

    @property
    def runs(self) -> int:
        """How many are timed."""
        return self.repeats * len(self.prompts) * runs_in_turn(1 + len(self.others))

    def cost(self) -> float:
        """In tokens of plain decoding, as if nothing were gained; warming up once on each prompt included."""
        warming = min(WARM_UP_TOKENS, self.tokens) + self.reading
        return self.runs * (self.tokens + self.reading + warming / self.repeats)


def _fitting(others: Sequence[Contestant], tokens: int, prompts: int, worth: float, reading: float) -> _Heat:
    """A heat that fits into `worth` tokens of plain decoding: all, or one γ a drafter; on fewer prompts; shorter."""
    runs, around = runs_in_turn(1 + len(others)), WARM_UP_TOKENS + 2 * reading
    if worth < runs * (LEAST_TOKENS + around) and any(one.num_draft_tokens == ONLY_GAMMA for one in others):
        others = [one for one in others if one.num_draft_tokens == ONLY_GAMMA]
        runs = runs_in_turn(1 + len(others))
    most = min(tokens, MOST_TOKENS)
    # Several prompts rather than one long text: they differ more from each other than parts of a text do.
    met = max(1, min(prompts, int(worth / (runs * (min(most, 2 * LEAST_TOKENS) + around)))))
    length = max(min(most, LEAST_TOKENS), min(most, int(worth / (runs * met) - around)))
    return _Heat(others, length, [round(place * prompts / met) for place in range(met)], reading)


def _measured(
    heat: _Heat,
    requests: Sequence[Request],
    domains: Sequence[str],
    plain: Contestant,
    failures: Failures,
    token_seconds: float,
    before: float = 0.0,
    after: float = 0.0,
    earlier: Work | None = None,
) -> Generator[Course | None, None, Work]:
    """One heat. before, after: the time of earlier and later measuring, in tokens of plain decoding. earlier:
    an earlier heat, for the rows that this one does not measure again. Returns its work."""
    work = Work((plain, *heat.others), [domains[number] for number in heat.prompts], failures.reasons)

    def lanes(request: Request) -> list[Lane]:
        settings = replace(request.settings, max_new_tokens=min(heat.tokens, request.settings.max_new_tokens))
        short = replace(request, settings=settings)
        return [
            failures.caught(one, functools.partial(lambda one: lane_of(request_of(one, short)), one))
            for one in work.contestants
        ]

    runs, cost = 0, heat.cost()
    whole = before + cost + after
    own = (lanes(requests[number]) for number in heat.prompts)
    for one in on_each_prompt(own, Plan(heat.tokens, heat.repeats)):
        if one is None:
            yield None
            continue
        if over := isinstance(one, TimedRun):
            work.add(one)
            runs += 1
        done = before + cost * runs / heat.runs
        yield Course(
            contestant=work.contestants[one.number],
            fraction=min(1.0, done / whole),
            seconds_left=max(0.0, whole - done) * token_seconds,
            rows=tuple(_together(work, earlier)) if over else (),
            failed=tuple(failures.reasons.items()),
        )
    return work


def _together(work: Work, earlier: Work | None) -> list[WorkRow]:
    rows = work.rows()
    met = {(row.domain, row.contestant) for row in rows}
    return rows + [row for row in (earlier.rows() if earlier else ()) if (row.domain, row.contestant) not in met]


def _pace(requests: Sequence[Request]) -> Generator[None, None, tuple[float, float]]:
    """Seconds that a token takes in plain decoding, and the mean time of reading a prompt, in such tokens."""
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


def require_chains(contestants: Sequence[Contestant]) -> None:
    """Raises SpecvizError (field ``target``) where nothing competes with plain decoding."""
    if len(contestants) < 2:
        raise SpecvizError("This pair has nothing that could draft.", "target")
