"""What comes of contestants taking turns: plain values, which cross process borders. Loads no torch."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from specviz.records.runs import Round
from specviz.records.stopwatch import BUSY
from specviz.theory.ratios import Ratio, TurnPair, ratio_of


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one of several runs is."""

    number: int  # of the contestant; 0 is plain decoding
    group: int = 0  # see `TimedRun`
    repeat: int = 0
    tokens: int = 0  # new ones so far
    warming: bool = False  # only to warm it up


@dataclass(frozen=True, slots=True)
class Turn:
    """A part of a text, decoded by one contestant while the others stood still."""

    place: int  # which part
    tokens: int
    seconds: float
    interruptions: int = 0  # how often the decoding thread lost its processor meanwhile


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One contestant's run, made in turns with the others'."""

    number: int  # as in `Progress`
    group: Hashable  # whom it took turns with: one run of plain decoding in each group
    repeat: int
    turns: tuple[Turn, ...]
    token_ids: tuple[int, ...]  # new ones
    rounds: tuple[Round, ...]  # empty where they are not the engine's
    finished: bool  # came to its own end

    @property
    def seconds(self) -> float:
        return sum(turn.seconds for turn in self.turns)

    @property
    def speed(self) -> float:
        """Tokens per second of wall time, reading the prompt included."""
        return len(self.token_ids) / self.seconds


def busy(runs: Sequence[TimedRun]) -> bool:
    """Whether something else wanted the processor that these runs were on."""
    seconds = sum(run.seconds for run in runs)
    return sum(turn.interruptions for run in runs for turn in run.turns) > BUSY * seconds


def speedup_of(own: Sequence[TimedRun], plain: Sequence[TimedRun]) -> Ratio | None:
    """How many times as fast as plain decoding in the same repeats; None before both have taken a turn.

    Where all brought the same tokens, as greedy decoding does, repeats of a part differ by the machine alone.
    """
    runs = (*own, *plain)
    longest = max((run.token_ids for run in runs), key=len, default=())
    alike = all(run.token_ids == longest[: len(run.token_ids)] for run in runs)
    return ratio_of(list(_pairs(own, plain, alike)))


def _pairs(own: Sequence[TimedRun], plain: Sequence[TimedRun], alike: bool) -> Iterator[TurnPair]:
    base = {(run.group, run.repeat, turn.place): turn for run in plain for turn in run.turns}
    for run in own:
        for turn in run.turns:
            beside = base.get((run.group, run.repeat, turn.place))
            if beside is not None:
                stratum = turn.place if alike else None
                yield TurnPair(turn.tokens, turn.seconds, beside.tokens, beside.seconds, stratum)
