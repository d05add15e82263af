"""How fast a server is, as its client sees it: in turns with the same server without speculation, one request at a time
and under load.

A turn is some answers of one way to decode, so many at a time: the next one is asked for as soon as one is there. The
ways take turns, every other time in the reverse order, so that whatever else the machine does affects all alike. An
answer's time includes reading its prompt, which the server has read before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from specviz.records.errors import SpecvizError
from specviz.records.prompts import CHAT_PRESETS, PRESETS, Preset
from specviz.records.words import Sentence
from specviz.servers.answers import Ask
from specviz.servers.engine import Asked, Engine
from specviz.servers.pace import (
    ALL,
    LEAST_TURNS,
    LOADS,
    SECONDS,
    WARM_UP_PROMPTS,
    WARM_UP_TOKENS,
    Most,
    Pace,
    Speed,
    answers_in_turn,
    most_of,
    most_turns,
)
from specviz.servers.turns import Turn, Way, take_turn, timed
from specviz.theory.statistics import TurnPair, ratio_of

#: Why there is no speedup.
SILENT = Sentence(
    "The server does not say what it drafts, so nobody knows whether it goes without when it is asked to."
)
NOTHING = Sentence("The server drafted nothing, so there is no speculation to measure.")
NOT_HONOURED = Sentence(
    "Asked to go without speculation, the server drafted all the same: for a speedup, name a second one without."
)
NOT_ASKED = Sentence(
    "No request can ask this engine to go without speculation: for a speedup, name a second server without it."
)
NO_DEPTHS = Sentence("No request can ask this engine for a draft length: only its own was measured.")


def measure_speed(
    server: Asked,
    *,
    plain: Asked | None = None,
    prompts: Sequence[Preset] = PRESETS,
    tokens: int = 64,
    loads: Sequence[int] = LOADS,
    depths: Sequence[int] = (),
    temperature: float = 0.0,
    budget: float = SECONDS,
) -> Iterator[Speed]:
    """What was measured so far, again and again, until all is or `budget` seconds are over; it may be closed anywhere.

    plain: the same model without speculation; None: the same server is asked to do without, if it does as it is told.
    depths: draft lengths to ask for by request, of which those are measured that the server honours. A server that
    refuses later requests ends it with a remark. Raises SpecvizError: as `most_of`; what a server raises before
    anything was measured, with the field ``plain`` for the second one, also if that speculates as well.
    """
    most = most_of(prompts, tokens, loads, depths, budget)
    loads = sorted({1, *loads})
    yield from _Measuring(server, plain, tuple(prompts), tokens, loads, tuple(depths), temperature, most).run()


@dataclass
class _Measuring:
    server: Asked
    other: Asked | None  # without speculation
    prompts: tuple[Preset, ...]
    tokens: int
    loads: Sequence[int]
    depths: tuple[int, ...]
    temperature: float
    most: Most
    began: float = field(default_factory=time.perf_counter)
    requests: int = 0
    remarks: list[Sentence] = field(default_factory=list)
    plain: Way | None = None
    honoured: list[Way] = field(default_factory=list)  # ways with a depth of their own
    #: Whole rounds of turns only: every way has as many.
    turns: dict[tuple[int, Way], list[Turn]] = field(default_factory=dict)
    speed: Speed = field(init=False)

    def run(self) -> Iterator[Speed]:
        about = self.server.about()
        facts = about.url, about.engine, about.version, about.model
        asked = len(self.prompts), self.tokens, self.temperature
        self.speed = Speed(*facts, *asked, about.slots, self.most)
        if about.slots is not None and max(self.loads) > about.slots:
            text = Sentence(
                "Of more requests at a time than {slots}, the server lets the others wait.", slots=about.slots
            )
            self.remarks.append(text)
        yield self._now()
        load = 1
        try:
            yield from self._look()
            for place, load in enumerate(self.loads):
                share = self._seconds_left / (len(self.loads) - place)
                if not (yield from self._measure(load, share)):
                    self.remarks.append(_time_over(load))
                    break
        except SpecvizError as error:
            if not self.turns:
                raise
            self.remarks.append(_ended(load, error))
        yield replace(self._so_far(), fraction=1.0, over=True)

    @property
    def _seconds_left(self) -> float:
        return self.most.seconds - (time.perf_counter() - self.began)

    # Looking whether the server does as it is told

    def _look(self) -> Iterator[Speed]:
        """Warms every way up, and finds out by what was drafted which requests are honoured."""
        usual = yield from self._warm_up(Way(self.server.engine))
        if usual is None:
            return
        if self.other is not None:
            try:
                yield from self._look_at(self.other.engine, usual)
            except SpecvizError as error:
                raise error.at("plain") from error
        elif usual.drafted is None:
            self.remarks.append(SILENT)
        elif not usual.drafted:
            self.remarks.append(NOTHING)
        elif not self.server.engine.takes_depth:
            self.remarks.append(NOT_ASKED)
        else:
            without = yield from self._warm_up(Way(self.server.engine, 0))
            if without is None:
                return
            if without.drafted == 0:
                self.plain, self.speed = Way(self.server.engine, 0), replace(self.speed, against="request")
            else:
                self.remarks.append(NOT_HONOURED)
        yield from self._look_for_depths(usual)

    def _look_at(self, other: Engine, usual: Turn) -> Iterator[Speed]:
        """The second server, whose greedy texts must be the same."""
        without = yield from self._warm_up(Way(other))
        if without is None:
            return
        if without.drafted:
            raise SpecvizError(
                "{server} speculates as well, so it says nothing about what speculation gains: name one without.",
                "plain",
                server=other.connection.address.shown,
            )
        differing = sum(answer.text != due.text for answer, due in zip(usual.answers, without.answers))
        if differing:
            text = Sentence(
                "Of {all} greedy texts {n} differ between the servers: by rounding, or it is not the same model.",
                all=len(usual.answers),
                n=differing,
            )
            self.remarks.append(text)
        self.plain = Way(other)
        self.speed = replace(self.speed, against="server", plain_url=other.connection.address.shown)

    def _look_for_depths(self, usual: Turn) -> Iterator[Speed]:
        if self.depths and not self.server.engine.takes_depth:
            self.remarks.append(NO_DEPTHS)
            return
        ignored = []
        for depth in self.depths:
            asked = yield from self._warm_up(Way(self.server.engine, depth))
            if asked is None:
                break
            if _honours(depth, asked, usual):
                self.honoured.append(Way(self.server.engine, depth))
            else:
                ignored.append(depth)
        if ignored:
            text = Sentence(
                "By what it counts, the server did not draft as deep as it was asked to: {depths}.",
                depths=", ".join(map(str, ignored)),
            )
            self.remarks.append(text)

    def _warm_up(self, way: Way, load: int = 1) -> Generator[Speed, None, Turn | None]:
        """Short greedy answers, so that the same way makes the same ones; not timed."""
        count = min(len(self.prompts), WARM_UP_PROMPTS) if load == 1 else load
        return (yield from self._turn(way, load, range(count), Ask("", WARM_UP_TOKENS)))

    # Measuring

    def _measure(self, load: int, share: float) -> Generator[Speed, None, bool]:
        """All ways in turns, as often as `share` seconds allow. False if the time is over."""
        ways = [
            Way(self.server.engine),
            *([] if self.plain is None else [self.plain]),
            *(self.honoured if load == 1 else ()),
        ]
        for way in ways if load > 1 else ():
            yield from self._warm_up(way, load)
        began, answers = time.perf_counter(), answers_in_turn(load)
        for turn in range(most_turns(load, len(self.prompts))):
            spent = time.perf_counter() - began
            if turn >= LEAST_TURNS and spent * (turn + 1) / turn > share:
                return True
            made: dict[Way, Turn] = {}
            for way in ways if turn % 2 == 0 else reversed(ways):
                ask = Ask("", self.tokens, self.temperature, turn * answers)
                taken = yield from self._turn(way, load, range(turn * answers, (turn + 1) * answers), ask)
                if taken is None:
                    return False
                made[way] = taken
            for way, taken in made.items():
                self.turns.setdefault((load, way), []).append(taken)
            self.speed = self._so_far()
            yield self.speed
        return True

    def _turn(self, way: Way, load: int, numbers: range, ask: Ask) -> Generator[Speed, None, Turn | None]:
        """Answers to the prompts with these numbers, which go round; None if the time is over before they are there."""
        texts, until = [prompt.prompt for prompt in self.prompts], self.began + self.most.seconds
        turn = take_turn(way, load, texts, [number % len(texts) for number in numbers], ask, until)
        try:
            while True:
                self.requests += next(turn)
                yield self._now()
        except StopIteration as end:
            return end.value
        finally:
            turn.close()

    # What it comes to

    def _now(self) -> Speed:
        share = max(self.requests / self.most.requests, 1 - self._seconds_left / self.most.seconds)
        return replace(self.speed, requests=self.requests, fraction=min(1.0, share), remarks=tuple(self.remarks))

    def _so_far(self) -> Speed:
        usual = Way(self.server.engine)
        by_load = tuple(self._pace(load, usual) for load in self.loads if (load, usual) in self.turns)
        by_depth = tuple(self._pace(1, way) for way in self.honoured if (1, way) in self.turns)
        domains = list(dict.fromkeys(map(_domain, self.prompts)))
        met = {_domain(self.prompts[prompt]) for turn in self.turns.get((1, usual), ()) for prompt in turn.prompts}
        by_domain = tuple(self._pace(1, usual, name) for name in domains if name in met) if len(domains) > 1 else ()
        below = (
            pace.load for pace in by_load if pace.speedup and pace.speedup.high is not None and pace.speedup.high < 1
        )
        return replace(
            self._now(), by_load=by_load, by_depth=by_depth, by_domain=by_domain, stops_paying_at=next(below, None)
        )

    def _pace(self, load: int, way: Way, domain: str = ALL) -> Pace:
        def of(way: Way) -> list[Turn]:
            among = (turn for turn in self.turns[load, way])
            return [turn for turn in among if domain in (ALL, _domain(self.prompts[turn.prompts[0]]))]

        turns = of(way)
        if self.plain is None:
            return Pace(load, way.depth, domain, timed(turns))
        plain = of(self.plain)
        # Greedily the same prompt is the same work; under load the prompts of turns differ.
        alike = load == 1 and self.temperature == 0
        pairs = [
            TurnPair(fast.tokens, fast.seconds, slow.tokens, slow.seconds, fast.prompts if alike else None)
            for fast, slow in zip(turns, plain)
        ]
        return Pace(load, way.depth, domain, timed(turns), timed(plain), ratio_of(pairs))


def _time_over(load: int) -> Sentence:
    if load == 1:
        return Sentence("The time was over at one request at a time.")
    return Sentence("The time was over at {load} requests at a time.", load=load)


def _ended(load: int, reason: SpecvizError) -> Sentence:
    if load == 1:
        return Sentence(
            "It ended at one request at a time; what was measured until then is valid. {reason}", reason=reason
        )
    return Sentence(
        "It ended at {load} requests at a time; what was measured until then is valid. {reason}",
        load=load,
        reason=reason,
    )


def _honours(depth: int, asked: Turn, usual: Turn) -> bool:
    """Whether the drafts were as long as asked for. As long as usual is no sign, unless that is what was asked for."""
    if not asked.passes or not usual.passes or not asked.drafted or not usual.drafted:
        return False
    length, usual_length = asked.drafted / asked.passes, usual.drafted / usual.passes
    return length <= depth and (length != usual_length or math.ceil(usual_length) == depth)


def _domain(prompt: Preset) -> str:
    """Under which results are reported: presets have names instead."""
    return prompt.domain or (prompt.name if prompt in (*PRESETS, *CHAT_PRESETS) else "")
