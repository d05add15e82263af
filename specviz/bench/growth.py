"""What grows with what: the time of a token and of a round with the text, with the rounds before, with the draft.

Time may grow with the text, because a pass reads its keys and values. Neither time nor memory may grow with the number
of rounds: so many rounds are made in runs of bounded length, and one run goes to the end of the context.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from specviz.bench.contestants import PLAIN, Contestant, Say
from specviz.bench.machine import resident_mb
from specviz.bench.timed_runs import Workload, rounds_of
from specviz.drafters import DraftModel, PromptLookup
from specviz.models.pair import ModelPair
from specviz.records.metrics import tally
from specviz.records.presets import PRESETS
from specviz.records.runs import Round


@dataclass(frozen=True, slots=True)
class ContextPoint:
    """After so many tokens of text."""

    context: int  # tokens
    plain_seconds: float  # of a plain token, median
    round_seconds: float  # of a round, median


@dataclass(frozen=True, slots=True)
class RoundsPoint:
    """After so many rounds in one process."""

    rounds: int
    round_seconds: float  # median since the point before
    resident_mb: float


@dataclass(frozen=True, slots=True)
class Ageing:
    """Whether rounds get slower, and what the process held before the first and after the last."""

    rounds: int
    first_tenth_seconds: float  # of a round, median
    last_tenth_seconds: float
    resident_mb_start: float
    resident_mb_end: float

    @classmethod
    def of(cls, seconds: Sequence[float], resident_mb_start: float, resident_mb_end: float) -> Ageing:
        """seconds: of every round, in order, at least one."""
        tenth = max(1, len(seconds) // 10)
        first, last = statistics.median(seconds[:tenth]), statistics.median(seconds[-tenth:])
        return cls(len(seconds), first, last, resident_mb_start, resident_mb_end)


@dataclass(frozen=True, slots=True)
class GammaPoint:
    """With one draft length."""

    num_draft_tokens: int
    round_seconds: float  # median
    tokens_per_second: float
    acceptance_length: float


@dataclass(frozen=True, slots=True)
class VisitorsPoint:
    """With so many visitors who press at once, each with a run of their own."""

    visitors: int
    first_round_seconds: float  # from the press to the first round, the median visitor's
    last_first_round_seconds: float  # the same, the last visitor's
    tokens_per_second: float  # of all together, from the press to the end of the last run


@dataclass(slots=True)
class Growth:
    """All with one drafter; greedy, except where many different runs are wanted."""

    drafter: str
    num_draft_tokens: int
    contexts: list[ContextPoint]  # with the length of the text
    rounds: list[RoundsPoint]  # with the number of rounds, in many runs of bounded length
    many_runs: Ageing  # of these: neither time nor memory should grow
    long_run: Ageing  # one run from a short text to the end of the context: both may grow
    gammas: list[GammaPoint]  # with the length of the draft
    visitors: list[VisitorsPoint] = field(default_factory=list)  # with the queue before the page's one runner


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """How far it goes."""

    contexts: Sequence[int] = (64, 128, 256, 512, 1024, 2048)  # lengths of text, as far as the pair reads
    longest: int = 4096  # tokens at which every text ends, unless the pair's context ends sooner; measured too
    rounds: Sequence[int] = (100, 200, 500, 1000, 2000, 5000)  # numbers of rounds after which to look
    gammas: Sequence[int] = (1, 2, 4, 8, 16, 32)
    num_draft_tokens: int = 4  # where no other is said
    run_tokens: int = 128  # new tokens of a run of bounded length
    context_tokens: int = 32  # new tokens at each length of text
    repeats: int = 3

    def end(self, pair: ModelPair) -> int:
        return min(self.longest, pair.context_length or self.longest)


PLAN = GrowthPlan()


def measure_growth(pair: ModelPair, say: Say = lambda line: None, plan: GrowthPlan = PLAN) -> Growth:
    """The whole plan, with the draft model where there is one. How long visitors wait is measured by the page."""
    contestant = Contestant(PromptLookup.name if pair.draft is None else DraftModel.name, plan.num_draft_tokens)
    workload = Workload.of(pair, PRESETS[0], temperature=0.0, max_new_tokens=plan.run_tokens)
    list(rounds_of(contestant, workload))  # warm before anything is timed
    say("growth: time by length of text")
    contexts = _contexts(contestant, workload, plan)
    say(f"growth: {plan.rounds[-1]:,} rounds in runs of {plan.run_tokens} tokens")
    rounds, many_runs = _many_runs(contestant, workload, plan.rounds)
    say("growth: one run to the end of the context")
    long_run = _long_run(contestant, workload, plan.end(pair))
    say("growth: draft lengths")
    gammas = _gammas(contestant, workload, plan)
    return Growth(contestant.mode, plan.num_draft_tokens, contexts, rounds, many_runs, long_run, gammas)


def _contexts(contestant: Contestant, workload: Workload, plan: GrowthPlan) -> list[ContextPoint]:
    """All lengths take turns, plain and speculative."""
    last = plan.end(workload.pair) - plan.context_tokens
    lengths = [*(length for length in plan.contexts if length < last), last]
    text = _endless_text(workload.pair, last)
    both = (Contestant(PLAIN), contestant)
    taken: dict[tuple[int, Contestant], list[float]] = {}
    for _ in range(plan.repeats):
        for length, one in itertools.product(lengths, both):
            there = replace(workload, prompt=text[:length], max_new_tokens=plan.context_tokens)
            taken.setdefault((length, one), []).extend(_whole_rounds(rounds_of(one, there)))
    return [ContextPoint(length, *(statistics.median(taken[length, one]) for one in both)) for length in lengths]


def _endless_text(pair: ModelPair, length: int) -> tuple[int, ...]:
    """So many token ids of real text: the presets, over and over."""
    once = [token for preset in PRESETS for token in pair.encode(preset.prompt).ids]
    return tuple(itertools.islice(itertools.cycle(once), length))


def _whole_rounds(rounds: Iterator[Round]) -> list[float]:
    """Seconds of the rounds with the longest drafts: the last ones of a run are cut short."""
    done = list(rounds)
    most = max(len(one.drafted) for one in done)
    return [one.seconds.total for one in done if len(one.drafted) == most]


def _many_runs(contestant: Contestant, workload: Workload, marks: Sequence[int]) -> tuple[list[RoundsPoint], Ageing]:
    """Sampled runs of one prompt, one seed after the other, in this process; nothing of them is kept."""
    points, seconds, start = [], [], resident_mb()
    for seed in itertools.count():
        for one in rounds_of(contestant, replace(workload, temperature=1.0, seed=seed)):
            seconds.append(one.seconds.total)
            if len(seconds) in marks:
                before = points[-1].rounds if points else 0
                points.append(RoundsPoint(len(seconds), statistics.median(seconds[before:]), resident_mb()))
        if len(seconds) >= marks[-1]:
            return points, Ageing.of(seconds, start, resident_mb())


def _long_run(contestant: Contestant, workload: Workload, end: int) -> Ageing:
    """One run from the prompt to the end of the context; no token ends the text sooner."""
    endless = replace(workload.pair, eos_ids=frozenset())
    there, start = replace(workload, pair=endless, max_new_tokens=end - len(workload.prompt)), resident_mb()
    return Ageing.of([one.seconds.total for one in rounds_of(contestant, there)], start, resident_mb())


def _gammas(contestant: Contestant, workload: Workload, plan: GrowthPlan) -> list[GammaPoint]:
    taken: dict[int, list[Round]] = {gamma: [] for gamma in plan.gammas}
    for _ in range(plan.repeats):
        for gamma in plan.gammas:
            taken[gamma] += rounds_of(replace(contestant, num_draft_tokens=gamma), workload)
    points = []
    for gamma, done in taken.items():
        counts, seconds = tally(done), statistics.median(one.seconds.total for one in done)
        points.append(GammaPoint(gamma, seconds, counts.tokens_per_second, counts.acceptance_length))
    return points
