"""What comes of contestants taking turns: plain values, which cross process borders. Loads no torch."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from specviz.records.runs import Round
from specviz.records.stopwatch import BUSY
from specviz.theory.statistics import Ratio, TurnPair, ratio_of


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one of several runs is."""

    number: int  # of the contestant; 0 is plain decoding
    group: int = 0  # see `TimedRun`
    repeat: int = 0
    tokens: int = 0  # new ones so far
    warming: bool = False  # only to warm it up
    fraction: float = 0.0  # of all repeats, or of the time that there is, of which more is over


@dataclass(frozen=True, slots=True)
class Turn:
    """A part of a text, decoded by one contestant while the others stood still."""

    place: int  # which part
    tokens: int
    seconds: float
    others: float = 0.0  # processor seconds that other programs used meanwhile


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
    return sum(turn.others for run in runs for turn in run.turns) > BUSY * seconds


def speedup_of(own: Sequence[TimedRun], plain: Sequence[TimedRun]) -> Ratio | None:
    """How many times as fast as plain decoding in the same repeats; None before both have taken a turn.

    Where all brought the same tokens, as greedy decoding does, repeats of a part differ by the machine alone.
    """
    runs = (*own, *plain)
    longest = max((run.token_ids for run in runs), key=len, default=())
    alike = all(run.token_ids == longest[: len(run.token_ids)] for run in runs)
    return ratio_of(list(_pairs(own, plain, alike)))


def _pairs(own: Sequence[TimedRun], plain: Sequence[TimedRun], alike: bool) -> Iterator[TurnPair]:
    """Place by place. A round may bring more than a part, and the next turn then nothing: what the other one did there
    counts all the same, or reading the prompt would weigh more in its time."""
    beside = {(run.group, run.repeat): run for run in plain}
    for run in own:
        base = beside.get((run.group, run.repeat))
        if base is not None:
            ours, theirs = ({turn.place: turn for turn in each.turns} for each in (run, base))
            ends = max(ours, default=-1), max(theirs, default=-1)
            # Of texts that differ, one may go on after the other has ended.
            for place in range(1 + (max(ends) if alike else min(ends))):
                one, other = (each.get(place, Turn(place, 0, 0.0)) for each in (ours, theirs))
                stratum = place if alike else None
                yield TurnPair(one.tokens, one.seconds, other.tokens, other.seconds, stratum)
