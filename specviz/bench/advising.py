"""Does it pay here: every drafter there is in turn with plain decoding, then the fastest again, on the user's own work.

It times a few tokens first, estimates how long the rest will take, and scales it to the time available. A shorter
trial of the same kind finds the drafter to start with, where none was named.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specviz.bench.contest import Contest, runs_in_turn
from specviz.bench.contestants import Contestant, Event, Progress, TimedRun
from specviz.bench.contesting import Failures, entry_of, measure_contest, plain_request, shortened
from specviz.bench.pass_times import measure_batches
from specviz.bench.turns import WARM_UP_TOKENS, Amount
from specviz.decoding.engine import pending_rounds
from specviz.decoding.request import Request
from specviz.drafters.registry import named_for, worth_trying
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import Trial
from specviz.records.errors import SpecvizError
from specviz.records.prompts import CHAT_PRESETS, PRESETS, TEMPERATURE
from specviz.records.settings import AUTO, PLAIN
from specviz.theory.roofline import BatchTimes

#: Seconds that advice takes unless more is allowed, and the share of it in which all compete for the final.
SECONDS, FIRST_SHARE = 60.0, 0.5

#: New tokens of each run: the most, if there is time, and the fewest, since the first ones say little.
MOST_TOKENS, LEAST_TOKENS = 128, 24

#: New tokens of the two runs by which the time of a run is estimated; the first warms it up.
TIMED_TOKENS = 4

#: The share of a stage after which its own pace is known.
SETTLED = 0.1

#: Contestants of the final, and its most repeats.
FINALISTS, REPEATS = 3, 4

#: Seconds that the passes over many requests take, twice.
LOAD_SECONDS = 2.0

#: New tokens of each text of the trial after loading, its most repeats and its seconds, warming up aside; and the most
#: seconds that one text of each may take: a visitor may be waiting.
TRIAL_TOKENS, TRIAL_REPEATS, TRIAL_SECONDS, MOST_TRIAL_SECONDS = 32, 4, 4.0, 12.0

#: The only draft length of each drafter where there is no time for several.
ONLY_GAMMA = 4


def contest_of(requests: Sequence[Request], domains: Sequence[str], contestants: Sequence[Contestant]) -> Contest:
    """The contest that hears `advise` or `measure_all`. requests: plain decoding of each prompt, checked. domains: of
    each. contestants: plain decoding first."""
    return Contest([entry_of(contestant, requests[0]) for contestant in contestants], domains)


def require_chains(contestants: Sequence[Contestant]) -> None:
    """Raises SpecvizError (field ``target``) where nothing competes with plain decoding."""
    if len(contestants) < 2:
        raise SpecvizError("This pair has nothing that could draft.", "target")


def advise(
    requests: Sequence[Request], contestants: Sequence[Contestant], seconds: float = SECONDS
) -> Iterator[Event | None]:
    """Measures; its progress is that of the whole advice. None in between, where it can be ended. As `contest_of`."""
    ends, failures = time.perf_counter() + seconds, Failures()
    contest = contest_of(requests, [""] * len(requests), contestants)
    token_seconds, reading = yield from _pace(requests)
    tokens, worth = requests[0].settings.max_new_tokens, seconds / token_seconds
    first = _fitting(dict(enumerate(contestants[1:], start=1)), tokens, len(requests), FIRST_SHARE * worth, reading)
    total_cost = first.cost() + (1 - FIRST_SHARE) * worth
    clock = _Clock(token_seconds, total_cost, ends)
    for event in _measured(first, requests, contestants[0], failures, clock, FIRST_SHARE * seconds):
        contest.hear(event)
        yield event
    speeds = {
        number: row.speedup_measured for number, row in enumerate(contest.rows(over=True)) if row.speedup_measured
    }
    fastest = sorted(speeds, key=lambda number: -speeds[number])[:FINALISTS]
    left = ends - time.perf_counter()
    rest = left / token_seconds
    final = _fitting({number: contestants[number] for number in fastest}, tokens, len(requests), rest, reading)
    if not fastest or final.cost() > rest:
        return  # where many are slower than plain decoding, the first stage takes longer than planned
    final = replace(final, place=1, repeats=min(REPEATS, int(rest / final.cost())))
    yield from _measured(final, requests, contestants[0], failures, clock.after(first.cost(), final.cost()), left)


def measure_all(requests: Sequence[Request], contestants: Sequence[Contestant]) -> Iterator[Event | None]:
    """All contestants on all prompts, once each, however long it takes; events as of `advise`."""
    token_seconds, reading = yield from _pace(requests)
    drafting = dict(enumerate(contestants[1:], start=1))
    stage = _Stage(drafting, requests[0].settings.max_new_tokens, range(len(requests)), reading)
    yield from _measured(stage, requests, contestants[0], Failures(), _Clock(token_seconds, stage.cost()))


def load_times(pair: ModelPair) -> Iterator[BatchTimes | None]:
    """Passes over many requests, for `load_of`; None in between. None at all where memory does not hold them."""
    measured = []
    with contextlib.suppress(SpecvizError):
        for times in measure_batches(pair, budget=LOAD_SECONDS):
            measured = [times]
            yield None
    yield from measured


def try_drafters(pair: ModelPair, halt: threading.Event) -> None:
    """Puts into `pair.passes.trials` how each drafter that is `worth_trying` did on the page's first prompt, with the
    settings with which the page begins.

    Nothing where something was named to draft with, where passes take so long that a trial would, or were not timed, or
    once `halt` is set. A drafter that fails is left out.
    """
    names = worth_trying(pair)
    texts = (1 + len(names)) * (WARM_UP_TOKENS + TRIAL_TOKENS)
    if named_for(pair) or pair.passes.seconds_by_width.get(1, math.inf) * texts > MOST_TRIAL_SECONDS:
        return
    preset, *_ = CHAT_PRESETS if pair.has_chat_template else PRESETS
    contestants = [Contestant.of(name, AUTO) for name in (PLAIN, *names)]
    try:
        plain = plain_request(pair, preset, TEMPERATURE, TRIAL_TOKENS)
        contest = Contest([entry_of(contestant, plain) for contestant in contestants], [""])
    except SpecvizError:
        return  # the context has no room for this prompt
    for event in measure_contest([plain], contestants, Amount(TRIAL_TOKENS, TRIAL_REPEATS, TRIAL_SECONDS, whole=False)):
        contest.hear(event)
        if halt.is_set():
            return
    rows = [row for row in contest.rows()[1:] if row.title not in contest.failed]
    pair.passes.trials = {
        row.mode: Trial(row.ratio, row.acceptance_length) for row in rows if row.ratio and row.acceptance_length
    }


@dataclass(frozen=True)
class _Stage:
    """Which contestants run how far on which prompts."""

    drafting: Mapping[int, Contestant]  # all but plain decoding, by number
    tokens: int
    prompts: Sequence[int]
    reading: float  # time of reading a prompt, see `_pace`
    repeats: int = 1
    place: int = 0  # 1: the final

    @property
    def runs(self) -> int:
        """How many are timed."""
        served = sum(rival.served is not None for rival in self.drafting.values())
        return self.repeats * len(self.prompts) * runs_in_turn(1 + len(self.drafting), served)

    def cost(self) -> float:
        """In tokens of plain decoding, as if nothing were gained; warming up once on each prompt included."""
        return self.cost_of(self.runs, self.runs / self.repeats)

    def cost_of(self, runs: float, warm_ups: float) -> float:
        warming = min(WARM_UP_TOKENS, self.tokens) + self.reading
        return runs * (self.tokens + self.reading) + warm_ups * warming


@dataclass
class _Clock:
    """How far all measuring is, and how long the rest will take at the pace so far. Costs are in tokens of plain
    decoding; drafters may be slower, so it is their own pace that counts."""

    pace: float  # seconds of such a token; at first as timed
    total: float
    ends: float = 0.0  # when a final will be over, where one is to follow
    before: float = 0.0  # the cost of what is over
    began: float | None = None
    done: float = 0.0  # of this stage

    def at(self, done: float, cost: float) -> tuple[float, float]:
        """The share of everything that is done, and the seconds that are left. done, cost: of this stage."""
        now = time.perf_counter()
        self.began = now if self.began is None else self.began
        self.done = max(self.done, done)
        pace = (now - self.began) / max(self.done, SETTLED * cost)
        self.pace = pace if self.done > SETTLED * cost else max(self.pace, pace)
        left = max((cost - self.done) * self.pace, self.ends - now, 0.0)
        return min(1.0, (self.before + self.done) / self.total), left

    def after(self, before: float, final: float) -> _Clock:
        return _Clock(self.pace, before + final, before=before)


def _fitting(drafting: Mapping[int, Contestant], tokens: int, prompts: int, worth: float, reading: float) -> _Stage:
    """A stage that fits into `worth` tokens of plain decoding: all, or one γ a drafter; on fewer prompts; shorter."""
    runs, around = runs_in_turn(1 + len(drafting)), WARM_UP_TOKENS + 2 * reading
    chosen = {number: rival for number, rival in drafting.items() if rival.num_draft_tokens == ONLY_GAMMA}
    if chosen and worth < runs * (LEAST_TOKENS + around):
        drafting, runs = chosen, runs_in_turn(1 + len(chosen))
    most = min(tokens, MOST_TOKENS)
    # Several prompts rather than one long text: they differ more from each other than parts of a text do.
    prompts_read = max(1, min(prompts, int(worth / (runs * (min(most, 2 * LEAST_TOKENS) + around)))))
    length = max(min(most, LEAST_TOKENS), min(most, int(worth / (runs * prompts_read) - around)))
    return _Stage(drafting, length, [round(place * prompts / prompts_read) for place in range(prompts_read)], reading)


def _measured(
    stage: _Stage,
    requests: Sequence[Request],
    plain: Contestant,
    failures: Failures,
    clock: _Clock,
    budget: float = math.inf,
) -> Iterator[Event | None]:
    """One stage. budget: seconds, warming up aside; texts are cut where they end."""
    numbers, begun = [0, *stage.drafting], dict[int, float]()  # begun: the share of each run that is not over
    runs = warmed = 0

    def progress(event: Progress) -> Progress:
        if event.tokens:
            begun[event.number] = min(1.0, event.tokens / stage.tokens)
        made = runs + sum(begun.values())
        done = stage.cost_of(made, max(warmed, made / stage.repeats))
        fraction, left = clock.at(min(done, stage.cost()), stage.cost())
        return replace(event, number=numbers[event.number], fraction=fraction, seconds_left=left)

    yield progress(Progress(0, warming=True))
    prompts = (shortened(requests[number], stage.tokens) for number in stage.prompts)
    amount = Amount(stage.tokens, stage.repeats, budget / len(stage.prompts), whole=budget == math.inf)
    for event in measure_contest(prompts, [plain, *stage.drafting.values()], amount, failures):
        if isinstance(event, TimedRun):
            runs += 1
            begun.pop(event.number, None)
            prompt = stage.prompts[event.prompt]
            yield replace(event, number=numbers[event.number], prompt=prompt, stage=stage.place)
            yield progress(Progress(event.number))
        else:
            warmed += isinstance(event, Progress) and event.warming
            yield progress(event) if isinstance(event, Progress) else event


def _pace(requests: Sequence[Request]) -> Generator[None, None, tuple[float, float]]:
    """Seconds that a token takes in plain decoding, and the mean time of reading a prompt, in such tokens."""
    first, *_ = requests
    for _ in range(2):
        step_seconds, began = [], time.perf_counter()
        for round_ in pending_rounds(shortened(first, TIMED_TOKENS)):
            step_seconds.append(time.perf_counter() - began - round_.apart)
            yield None
            began = time.perf_counter()
    token_seconds = min(step_seconds)
    longer = sum(len(request.prompt.ids) for request in requests) / len(requests) / len(first.prompt.ids)
    return token_seconds, longer * (step_seconds[0] / token_seconds - 1)
