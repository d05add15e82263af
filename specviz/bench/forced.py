"""What it would take: the pair's own passes, with drafts that are right as often as asked.

An oracle (see there) speaks in the draft model's place, which makes all of its passes. So the seconds are real at any
acceptance rate; the drafts are not the draft model's.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from specviz.bench import oracle
from specviz.bench.contestants import PLAIN, Contestant, Forced, standing
from specviz.bench.timed_runs import Workload, rounds_of
from specviz.drafters import DraftModel
from specviz.models.pair import ModelPair
from specviz.passes.static_passes import kind_of
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally, tally
from specviz.records.presets import PRESETS
from specviz.records.runs import Round
from specviz.records.settings import DraftParams, SamplingParams, check_gamma
from specviz.records.stopwatch import LEAST_SHARE, Stopwatch, nothing_known, undisturbed

#: New tokens of each run.
TOKENS = 96

#: Repeats of plain decoding and the oracle in turn, and the seconds after which no further one begins.
REPEATS, BUDGET = 7, 8.0


def measure_forced(
    pair: ModelPair,
    alpha: float,
    num_draft_tokens: int,
    least_share: float = LEAST_SHARE,
    tokens: int = TOKENS,
    repeats: int = REPEATS,
    budget: float = BUDGET,
) -> Iterator[Forced | None]:
    """Greedy runs of a story, each with coins of its own: yields after every repeat, and None between, to be ended.

    Where rounding leads the text away from what the oracle was told, only the rounds before that count; and none for
    whose whole draft the limit of tokens left no room. Repeats in which either run had a processor for less than
    `least_share` of its time do not count.
    Raises SpecvizError: field ``alpha`` or ``num_draft_tokens`` for what is out of range, ``drafter`` for a pair whose
    draft model is missing or counts in other tokens, ``measured`` where no repeat counts.
    """
    oracle.check(alpha, SamplingParams(temperature=0.0))
    check_gamma(num_draft_tokens)
    _check_draft(pair)
    workload = Workload.of(pair, PRESETS[0], temperature=0.0, max_new_tokens=tokens)
    # What warms plain decoding up is the answer that the oracle is told.
    answer = yield from _finished(rounds_of(Contestant(PLAIN), workload))
    known = [token for one in answer for token in one.emitted]
    drafts = Contestant(DraftModel.name, num_draft_tokens)
    yield from _finished(rounds_of(drafts, workload, oracle.oracle(known, alpha, seed=0)))
    found = Forced(pair.name, kind_of(pair.passes.fast), alpha, num_draft_tokens, 0, None, 0.0)
    own: list[Tally] = []
    plain: list[Tally] = []
    began = time.perf_counter()
    for repeat in range(repeats):
        if repeat and time.perf_counter() - began > budget:
            break
        slow, slow_share = yield from _timed(rounds_of(Contestant(PLAIN), workload), pair)
        speaks = oracle.oracle(known, alpha, seed=repeat)
        fast, fast_share = yield from _timed(rounds_of(drafts, workload, speaks), pair)
        if undisturbed([slow_share, fast_share], least_share):
            plain.append(_counts(slow))
            own.append(_counts(_as_asked(fast, known, num_draft_tokens)))
        figures = standing(own, plain) if own else None
        found = replace(found, repeats=len(own), figures=figures, fraction=(repeat + 1) / repeats)
        yield found
    if found.figures is None:
        raise nothing_known()
    yield replace(found, fraction=1.0)


def _check_draft(pair: ModelPair) -> None:
    DraftModel.check(pair, DraftParams(branches=1))
    if pair.translation is not None:
        raise SpecvizError(
            "The draft model of this pair counts in other tokens than the target: an oracle cannot speak for it.",
            "drafter",
        )


def _finished(run: Iterator[Round]) -> Generator[None, None, list[Round]]:
    """The rounds of a run, once it is over."""
    done = []
    for one in run:
        done.append(one)
        yield None
    return done


def _timed(run: Iterator[Round], pair: ModelPair) -> Generator[None, None, tuple[list[Round], float | None]]:
    """The same, and the part of its time in which it had a processor."""
    watch = Stopwatch()
    done = yield from _finished(run)
    return done, watch.share(pair.device.type)


def _as_asked(done: list[Round], known: Sequence[int], gamma: int) -> list[Round]:
    """The rounds that drafted in full and wrote what the oracle knew, or the first one."""
    place, kept = 0, []
    for one in done:
        told = tuple(known[place : place + len(one.emitted)]) == one.emitted
        if not told or len(one.drafted) < gamma:
            break
        kept.append(one)
        place += len(one.emitted)
    return kept or done[:1]


def _counts(done: list[Round]) -> Tally:
    return replace(tally(done), prefill=0.0)
