"""A turn of a server's: some answers of one way to decode, so many at a time, on the clock."""

from __future__ import annotations

import concurrent.futures
import itertools
import statistics
import time
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from specviz.foreign.requests import ServedRequest
from specviz.servers.answers import Answer, Ask
from specviz.servers.counters import counted_between
from specviz.servers.engine import Engine

#: Seconds between two looks at answers that are awaited, where it can be ended.
LOOK_EVERY = 0.2


@dataclass(frozen=True, slots=True)
class Way:
    """A way to decode: a server, and the depth that it is asked for."""

    engine: Engine  # which leads to one server
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """Answers of one way."""

    prompts: tuple[int, ...]  # which ones its answers continue
    answers: tuple[Answer, ...]
    seconds: float  # from the first request to the last answer
    counted: ServedRequest | None  # what the server's counters grew by

    @property
    def tokens(self) -> int:
        return sum(answer.made or 0 for answer in self.answers)

    @property
    def drafted(self) -> int | None:
        ours = _sum(answer.drafted for answer in self.answers)
        return self.counted.drafted if ours is None and self.counted else ours

    @property
    def accepted(self) -> int | None:
        ours = _sum(answer.accepted for answer in self.answers)
        return self.counted.accepted if ours is None and self.counted else ours

    @property
    def passes(self) -> int | None:
        """By the answers or, unless others were answered meanwhile, by the server's counters."""
        if (passes := _sum(answer.passes for answer in self.answers)) is not None:
            return passes
        ours = _sum(answer.drafted for answer in self.answers)
        return self.counted.passes if self.counted and ours in (None, self.counted.drafted) else None


@dataclass(frozen=True, slots=True)
class Timed:
    """The answers of one way in all its turns; None where a server does not say."""

    requests: int
    tokens: int
    seconds: float  # of its turns
    tokens_per_second: float  # of all requests together
    tokens_per_second_each: float  # of a request, as its client sees it: the median
    tokens_per_second_served: float | None  # of a request by the server's own clock, without reading the prompt: all
    drafted: int | None
    accepted: int | None
    passes: int | None  # that verified a draft
    tokens_per_pass: float | None  # 1 + accepted / passes


def timed(turns: Sequence[Turn]) -> Timed:
    """What turns of one way come to; at least one."""
    answers = list(itertools.chain.from_iterable(turn.answers for turn in turns))
    tokens, seconds = sum(turn.tokens for turn in turns), sum(turn.seconds for turn in turns)
    served = [answer.pieces[-1].seconds or 0.0 for answer in answers]
    drafted, accepted, passes = (
        _sum(getattr(turn, name) for turn in turns) for name in ("drafted", "accepted", "passes")
    )
    return Timed(
        len(answers),
        tokens,
        seconds,
        tokens / seconds,
        statistics.median((answer.made or 0) / answer.seconds for answer in answers),
        tokens / sum(served) if all(served) else None,
        drafted,
        accepted,
        passes,
        1 + accepted / passes if passes and accepted is not None else None,
    )


def take_turn(
    way: Way, load: int, texts: Sequence[str], prompts: Sequence[int], ask: Ask, until: float
) -> Generator[int, None, Turn | None]:
    """Answers to these prompts, `load` at a time; yields how many came, now and then, and may be closed there.

    ask: how, but for the prompt, the depth, and the seed, which is the first one's. until: by `time.perf_counter`, when
    the answers are no longer awaited and there is no turn. Raises SpecvizError where the server refuses.
    """
    asks = [
        replace(ask, prompt=texts[prompt], seed=ask.seed + place, depth=way.depth)
        for place, prompt in enumerate(prompts)
    ]
    if time.perf_counter() > until:
        return None
    before, pool = way.engine.scrape(), ThreadPoolExecutor(load)
    try:
        began = time.perf_counter()
        coming = [pool.submit(_answered, way.engine, each) for each in asks]
        waiting = set(coming)
        while waiting:
            done, waiting = concurrent.futures.wait(waiting, LOOK_EVERY, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                future.result()  # which raises what the server refused
            if waiting and time.perf_counter() > until:
                return None
            yield len(done)
    finally:
        # Answers that are no longer awaited end by themselves.
        pool.shutdown(wait=False, cancel_futures=True)
    answers, ends = zip(*(future.result() for future in coming))
    return _complete(way, tuple(prompts), answers, max(ends) - began, before)


def one_answer(way: Way, ask: Ask) -> Turn:
    """A turn of a single answer, awaited."""
    before, began = way.engine.scrape(), time.perf_counter()
    answer = way.engine.answer(replace(ask, depth=way.depth))
    return _complete(way, (0,), (answer,), time.perf_counter() - began, before)


def _complete(
    way: Way, prompts: tuple[int, ...], answers: tuple[Answer, ...], seconds: float, before: str | None
) -> Turn:
    """before: the server's counters then."""
    complaint = way.engine.connection.complaint
    if any(answer.made is None for answer in answers):
        raise complaint("{server} does not say how many tokens it made, so its speed cannot be measured.")
    if not any(answer.made for answer in answers):
        raise complaint("{server} made no tokens, so its speed cannot be measured.")
    return Turn(prompts, answers, seconds, counted_between(before, way.engine.scrape()))


def _answered(engine: Engine, ask: Ask) -> tuple[Answer, float]:
    """The answer, and when it was there: whoever awaits it may look later."""
    return engine.answer(ask), time.perf_counter()


def _sum(counts: Iterable[int | None]) -> int | None:
    """None where one is not known."""
    counts = list(counts)
    return None if None in counts else sum(count or 0 for count in counts)
