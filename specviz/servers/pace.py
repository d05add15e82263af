"""How fast a server was, as plain values, and how much it is asked at most to find out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specviz.records.errors import SpecvizError
from specviz.records.prompts import Preset
from specviz.records.settings import is_number, is_whole
from specviz.records.words import Sentence
from specviz.servers.connection import MOST_AT_ONCE
from specviz.servers.turns import Timed
from specviz.theory.statistics import Ratio, alike

#: Requests at a time.
LOADS = (1, 2, 4, 8, 16)

#: Turns of each way at each load: the most, and as many as an interval needs. The time available decides.
MOST_TURNS, LEAST_TURNS = 6, 3

#: Answers in a turn for each request at a time, so that all but the last ones are made under the whole load.
ANSWERS_EACH = 2

#: Prompts on which each way is warmed up, and the new tokens of these answers.
WARM_UP_PROMPTS, WARM_UP_TOKENS = 6, 24

#: The most prompts, and the most new tokens of an answer.
MOST_PROMPTS, MOST_TOKENS = 100, 1024

#: Seconds after which nothing counts any more, unless something else is asked for.
SECONDS = 60.0

ALL = "all"


@dataclass(frozen=True, slots=True)
class Pace:
    """A server at one load, one depth and on the prompts of one domain, against itself without speculation."""

    load: int  # requests at a time
    depth: int | None  # asked for by request; None: as the server is set up
    domain: str  # `ALL`, or that of its prompts
    measured: Timed
    plain: Timed | None = None
    speedup: Ratio | None = None


@dataclass(frozen=True, slots=True)
class Most:
    """What is asked of a server at most."""

    requests: int
    tokens: int
    seconds: float  # after which nothing counts any more; answers that were asked for by then are still made


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured so far; `dataclasses.asdict` makes it ready for JSON."""

    url: str
    engine: str
    version: str | None
    model: str | None
    prompts: int
    tokens: int  # asked for with every request
    temperature: float
    slots: int | None  # requests that the server answers at once
    most: Most
    #: Plain decoding is the same server's, asked by request; another server's; or there is none, see `remarks`.
    against: Literal["request", "server"] | None = None
    plain_url: str | None = None
    by_load: tuple[Pace, ...] = ()
    by_depth: tuple[Pace, ...] = ()  # one request at a time, only depths that were honoured
    by_domain: tuple[Pace, ...] = ()  # one request at a time, where there are several domains
    stops_paying_at: int | None = None  # the first load at which the speedup's interval lies below 1
    remarks: tuple[Sentence, ...] = ()  # why something was not measured, or is not what it seems
    requests: int = 0  # answered so far
    fraction: float = 0.0  # of the requests, or of the time, whichever is further
    over: bool = False

    @property
    def compared(self) -> int:
        """At how many loads there is a speedup, known or not."""
        return sum(pace.speedup is not None for pace in self.by_load)

    @property
    def gains(self) -> list[tuple[int, float]]:
        """The speedups by load as far as they are known; of the further ones only those that differ from the first by
        more than chance."""
        known = [(pace.load, pace.speedup) for pace in self.by_load if pace.speedup and pace.speedup.known]
        return [(load, one.value) for load, one in known if one is known[0][1] or not alike(one, known[0][1])]


def most_of(
    prompts: Sequence[Preset],
    tokens: int = 64,
    loads: Sequence[int] = LOADS,
    depths: Sequence[int] = (),
    budget: float = SECONDS,
) -> Most:
    """What `measure_speed` asks of a server and of a second one together, said before it begins.

    Raises SpecvizError (field ``prompts``, ``tokens``, ``loads``, ``depths`` or ``budget``) for what cannot be asked.
    """
    _check(prompts, tokens, loads, depths, budget)
    ways = dict.fromkeys(loads, 2) | {1: 2 + len(depths)}  # which take turns at each load
    warm_ups = ways[1] * min(len(prompts), WARM_UP_PROMPTS) + 2 * sum(load for load in ways if load > 1)
    answers = sum(ways[load] * most_turns(load, len(prompts)) * answers_in_turn(load) for load in ways)
    return Most(warm_ups + answers, warm_ups * WARM_UP_TOKENS + answers * tokens, budget)


def _check(prompts: Sequence[Preset], tokens: int, loads: Sequence[int], depths: Sequence[int], budget: float) -> None:
    listed = isinstance(prompts, (list, tuple)) and all(isinstance(prompt, Preset) for prompt in prompts)
    if not listed or not 1 <= len(prompts) <= MOST_PROMPTS or any(prompt.messages for prompt in prompts):
        raise SpecvizError(
            "Speed is measured on 1 to {most} prompts that are texts; not every server knows conversations.",
            "prompts",
            most=MOST_PROMPTS,
        )
    for name, values, highest in (
        ("tokens", (tokens,), MOST_TOKENS),
        ("loads", loads, MOST_AT_ONCE),
        ("depths", depths, MOST_AT_ONCE),
    ):
        if not isinstance(values, (list, tuple)) or not all(
            is_whole(value) and 1 <= value <= highest for value in values
        ):
            raise SpecvizError("Enter whole numbers from 1 to {most}.", name, most=highest)
    if not is_number(budget) or not 0 < budget < math.inf:
        raise SpecvizError("Enter a number of seconds above 0.", "budget")


def answers_in_turn(load: int) -> int:
    """The answers of a turn with so many requests at a time."""
    return 1 if load == 1 else ANSWERS_EACH * load


def most_turns(load: int, prompts: int) -> int:
    """The most turns of each way at a load; one request at a time is asked every prompt twice."""
    return max(MOST_TURNS, 2 * prompts) if load == 1 else MOST_TURNS
