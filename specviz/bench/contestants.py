"""Ways to decode: a contestant, its timed runs, and the figures that several of them come to. Loads no torch.

Everything is measured. Contestants take turns (`specviz.bench.turns`), so a machine that slows down slows all of them,
and a speedup is the ratio of their times over the same parts of a text. All of these are plain values, which cross
process borders.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from specviz.records.metrics import Tally, tally
from specviz.records.runs import Round
from specviz.records.settings import PLAIN, DraftParams, RunSettings
from specviz.records.stopwatch import BUSY
from specviz.theory.formulas import expected_tokens
from specviz.theory.statistics import Ratio, TurnPair, ratio_of

#: Receives lines of progress while something is measured.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to decode. Hashable: results are kept by contestant."""

    mode: str  # "plain" or a drafter's name
    num_draft_tokens: int | str | None = None  # γ, or `AUTO`; None for plain decoding
    branches: int | None = None  # see `DraftParams`; None is the drafter's default
    rule: str = "auto"  # how drafts are judged: "auto" or a name from `RULES`
    exit_layer: int | None = None  # see `DraftParams`; None is the drafter's default
    bits: int | None = None  # the same
    engine: str = "specviz"  # or "transformers": see `specviz.bench.lanes`

    def applied(self, settings: RunSettings) -> RunSettings:
        """The settings of a run in which this contestant decodes; coins set by hand are another run's."""
        return replace(
            settings,
            drafter=None if self.mode == PLAIN else self.mode,
            num_draft_tokens=self.num_draft_tokens or 1,
            drafting=DraftParams(self.branches, exit_layer=self.exit_layer, bits=self.bits),
            rule=self.rule,
            coins="",
        )

    @property
    def title(self) -> str:
        """A short name without the defaults: ``draft_model γ=4 ×3`` has three branches."""
        parts = [
            self.engine if self.engine != "specviz" else "",
            self.mode,
            f"γ={self.num_draft_tokens}" if self.num_draft_tokens is not None else "",
            "" if self.branches is None else "chain" if self.branches == 1 else f"×{self.branches}",
            f"layer {self.exit_layer}" if self.exit_layer is not None else "",
            f"{self.bits} bits" if self.bits is not None else "",
            self.rule if self.rule != "auto" else "",
        ]
        return " ".join(part for part in parts if part)


# Turns and runs


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one of several runs is."""

    number: int  # of the contestant; 0 is plain decoding
    group: int = 0  # see `TimedRun`
    repeat: int = 0
    tokens: int = 0  # new ones so far
    warming: bool = False  # only to warm it up
    fraction: float = 0.0  # done: of all repeats, or of the time available, whichever is further


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
    group: Hashable  # the runs that took turns: one run of plain decoding in each group
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
    """True if something else wanted the processor during these runs."""
    seconds = sum(run.seconds for run in runs)
    return sum(turn.others for run in runs for turn in run.turns) > BUSY * seconds


def speedup_of(own: Sequence[TimedRun], plain: Sequence[TimedRun]) -> Ratio | None:
    """How many times as fast as plain decoding in the same repeats; None before both have taken a turn.

    Where all produced the same tokens, as greedy decoding does, repeats of a part differ by the machine alone.
    """
    runs = (*own, *plain)
    longest = max((run.token_ids for run in runs), key=len, default=())
    alike = all(run.token_ids == longest[: len(run.token_ids)] for run in runs)
    return ratio_of(list(_pairs(own, plain, alike)))


def _pairs(own: Sequence[TimedRun], plain: Sequence[TimedRun], alike: bool) -> Iterator[TurnPair]:
    """Place by place. A round may produce more than a part, and the next turn then nothing: the other contestant's turn
    there counts all the same, or reading the prompt would weigh more in its time."""
    counterpart = {(run.group, run.repeat): run for run in plain}
    for run in own:
        base = counterpart.get((run.group, run.repeat))
        if base is not None:
            ours, theirs = ({turn.place: turn for turn in each.turns} for each in (run, base))
            ends = max(ours, default=-1), max(theirs, default=-1)
            # Of texts that differ, one may go on after the other has ended.
            for place in range(1 + (max(ends) if alike else min(ends))):
                one, other = (each.get(place, Turn(place, 0, 0.0)) for each in (ours, theirs))
                stratum = place if alike else None
                yield TurnPair(one.tokens, one.seconds, other.tokens, other.seconds, stratum)


# Figures


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a contestant's repeats, compared with plain decoding in turn; None where one does not apply."""

    tokens_per_second: float  # by wall time, reading the prompt included; the median over repeats
    spread: tuple[float, float]  # slowest and fastest repeat
    speedup_measured: float | None = None  # ratio to plain decoding, all turns together (`speedup_of`)
    speedup_interval: tuple[float, float] | None = None  # its 90 % interval; None where there are too few turns
    acceptance_rate: float | None = None  # α: accepted / judged draft tokens
    acceptance_length: float | None = None  # tokens per target pass
    #: c: seconds of one draft step / seconds of one target pass in the plain run. A step is one level of the draft,
    #: whether it holds one token or several siblings.
    cost_coefficient: float | None = None
    speedup_formula: float | None = None  # by α, c and the lengths drafted; chains only, see `formula_speedup`
    overhead_share: float | None = None  # part of the rounds' time outside the models' forward passes
    phase_share: dict[str, float] | None = None  # parts of the rounds' time: "draft", "verify" and "rest"
    drafted_per_round: float | None = None  # mean number of draft tokens
    levels_per_round: float | None = None  # mean depth of the draft
    distance: float | None = None  # mean total variation from the target under a lossy rule, see `Round`

    @property
    def ratio(self) -> Ratio | None:
        """The measured speedup with its interval; None for plain decoding itself."""
        if self.speedup_measured is None:
            return None
        return Ratio(self.speedup_measured, *(self.speedup_interval or (None, None)))


@dataclass(frozen=True, slots=True)
class Forced:
    """Speculation at a forced acceptance rate against plain decoding, complete or in progress: see `bench.forced`."""

    pair: str  # its name, and the kind of its passes: figures of others are not comparable
    kind: str
    alpha: float  # asked for; `figures` has the measured one
    num_draft_tokens: int
    repeats: int
    figures: Figures | None  # without reading the prompt; None before the first of them
    fraction: float  # share of the measuring that is done


def figures_of(own: Sequence[TimedRun], plain: Sequence[TimedRun] = ()) -> Figures:
    """The figures of a contestant's repeats compared with those of plain decoding.

    own: at least one run, each with a turn. plain: the runs that it took turns with, in any order; empty where there
    is nothing to compare with, as for plain decoding itself.
    """
    speeds = [run.speed for run in own]
    ratio = speedup_of(own, plain) if plain else None
    found = Figures(
        tokens_per_second=statistics.median(speeds),
        spread=(min(speeds), max(speeds)),
        speedup_measured=None if ratio is None else ratio.value,
        speedup_interval=None if ratio is None or ratio.low is None else (ratio.low, ratio.high),
    )
    if not all(run.rounds for run in own):
        return found
    counts, base = (tally(one for run in runs for one in run.rounds) for runs in (own, plain))
    alpha, cost = counts.acceptance_rate, _cost_coefficient(counts, base)
    known = not (cost is None or alpha is None or counts.drafted_trees)
    return replace(
        found,
        acceptance_rate=alpha,
        acceptance_length=counts.acceptance_length,
        cost_coefficient=cost,
        speedup_formula=formula_speedup(alpha, cost, counts.rounds_by_depth) if known else None,
        overhead_share=counts.overhead_share,
        phase_share={
            "draft": counts.draft_seconds / counts.seconds,
            "verify": counts.verify_seconds / counts.seconds,
            "rest": counts.accept_seconds / counts.seconds,
        },
        drafted_per_round=counts.drafted / counts.rounds,
        levels_per_round=counts.levels / counts.rounds,
        distance=counts.distance,
    )


def formula_speedup(alpha: float, cost: float, rounds_by_depth: Counter[int]) -> float:
    """Leviathan et al. 2023, Thm 3.8, for drafts of several lengths: mean of expected tokens / (mean γ · c + 1).

    rounds_by_depth: draft length -> number of rounds. Drafts are shorter than γ where the drafter finds nothing or the
    text ends; where all are equally long this is the theorem as it stands.
    """
    rounds = sum(rounds_by_depth.values())
    tokens = sum(count * expected_tokens(alpha, depth) for depth, count in rounds_by_depth.items()) / rounds
    length = sum(count * depth for depth, count in rounds_by_depth.items()) / rounds
    return tokens / (length * cost + 1)


def _cost_coefficient(own: Tally, plain: Tally) -> float | None:
    if not own.levels or not plain.rounds:
        return None
    return (own.draft_seconds / own.levels) / (plain.verify_seconds / plain.rounds)
