"""Ways to decode: a contestant, its timed runs, and the figures that several of them come to. Loads no torch.

Everything is measured. Contestants take turns (`specviz.bench.turns`), so a machine that slows down slows all of them,
and a speedup is the ratio of their times over the same parts of a text. All of these are plain values, which cross
process borders.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from specviz.bench.served import Served
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally, total
from specviz.records.runs import Round
from specviz.records.settings import DRAFTING, PLAIN, SETTINGS, RunSettings
from specviz.records.stopwatch import BUSY
from specviz.records.words import Sentence
from specviz.theory.formulas import expected_tokens
from specviz.theory.statistics import Ratio, TurnPair, ratio_of

#: The settings of a run that nobody has changed.
DEFAULTS = RunSettings("")

#: The drafters' parameters that a title names by name and value.
OTHERS = tuple(name for name in DRAFTING if name != "branches")

#: Receives lines of progress while something is measured.
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to decode: an engine, and the settings of a run. What it decodes is the contest's to say (`on`)."""

    settings: RunSettings
    engine: str = "specviz"  # or "transformers", or a server's: see `specviz.bench.contesting`
    label: str = ""  # what its title says of the text, where several are decoded
    served: Served | None = None  # the server that decodes

    @classmethod
    def of(
        cls,
        mode: str,
        num_draft_tokens: int | str | None = None,
        *,
        engine: str = "specviz",
        base: RunSettings = DEFAULTS,
        **settings: Any,
    ) -> Contestant:
        """A drafter's name or ``plain``, its γ, and further settings by their flat names; the others are those of
        `base`, but for coins set by hand, which are another run's."""
        if num_draft_tokens is not None:
            settings["num_draft_tokens"] = num_draft_tokens
        return cls(RunSettings.of(base.flat() | {"drafter": mode, "coins": ""} | settings), engine)

    @classmethod
    def by(cls, served: Served) -> Contestant:
        """A server, which decodes as it is set up."""
        return cls(replace(DEFAULTS, drafter=None), served.engine, served=served)

    def on(self, task: RunSettings) -> RunSettings:
        """The settings of its run on another prompt, whose sampling, length and seed are those of `task`."""
        values = {
            name: getattr(self.settings, name) for name in ("drafter", "num_draft_tokens", "drafting", "rule", "coins")
        }
        return replace(task, **values)

    @property
    def mode(self) -> str:
        """``plain`` or a drafter's name."""
        return self.served.mode if self.served else self.settings.drafter or PLAIN

    @property
    def num_draft_tokens(self) -> int | str | None:
        """γ, or `AUTO`; None for plain decoding, and where a server does not say."""
        if self.served is not None:
            return self.served.depth
        return None if self.settings.drafter is None else self.settings.num_draft_tokens

    @property
    def title(self) -> str:
        """A short name that says how it differs from the defaults: ``draft_model γ=4 ×3`` has three branches."""
        if self.served is not None:
            return " ".join(filter(None, (self.served.title, self.label)))
        parts = ["" if self.engine == "specviz" else self.engine, self.mode]
        if self.settings.drafter is not None:
            values, branches = asdict(self.settings.drafting), self.settings.drafting.branches
            parts += [
                f"γ={self.num_draft_tokens}",
                "" if branches is None else "chain" if branches == 1 else f"×{branches}",
                *(f"{name}={values[name]}" for name in OTHERS if values[name] != SETTINGS[name].default),
                "" if self.settings.rule == "auto" else self.settings.rule,
            ]
        return " ".join(filter(None, (*parts, self.label)))


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
    seconds_left: float | None = None  # about; None where nobody knows


@dataclass(frozen=True, slots=True)
class Turn:
    """A part of a text, decoded by one contestant while the others stood still."""

    place: int  # which part
    tokens: int
    seconds: float
    other_seconds: float = 0.0  # processor seconds that other programs used meanwhile


@dataclass(frozen=True, slots=True)
class Counted:
    """What a server counted in an answer."""

    passes: int  # that verified a draft
    accepted: int
    drafted: int | None


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One contestant's run, made in turns with the others'."""

    number: int  # as in `Progress`
    group: int  # those that took turns: plain decoding makes a run in each group
    repeat: int
    turns: tuple[Turn, ...]
    token_ids: tuple[int, ...]  # new ones
    counts: Tally | None  # of its rounds; None where they are not the engine's
    finished: bool  # came to its own end
    prompt: int = 0  # which of the contest's
    stage: int = 0  # 1: of a final, whose runs take the place of the contestant's earlier ones
    counted: Counted | None = None  # of a server's, if it counts
    rounds: tuple[Round, ...] = ()  # themselves, where somebody may want to see them

    @property
    def meeting(self) -> Hashable:
        """The same for all runs that took turns with each other."""
        return self.stage, self.prompt, self.group, self.repeat

    @property
    def seconds(self) -> float:
        return sum(turn.seconds for turn in self.turns)

    @property
    def speed(self) -> float:
        """Tokens per second of wall time, reading the prompt included."""
        return len(self.token_ids) / self.seconds


@dataclass(frozen=True, slots=True)
class Failed:
    """A contestant that failed, by its title, and why; the others go on."""

    title: str
    reason: SpecvizError | Sentence


#: What a contest hears while it goes on; None in between, where it can be ended.
Event = Progress | TimedRun | Failed


def counts_of(runs: Sequence[TimedRun]) -> Tally | None:
    """Of the rounds of all runs; None where some are not the engine's."""
    known = [run.counts for run in runs if run.counts is not None]
    return total(known) if len(known) == len(runs) else None


def busy(runs: Sequence[TimedRun]) -> bool:
    """True if something else wanted the processor during these runs."""
    seconds = sum(run.seconds for run in runs)
    return sum(turn.other_seconds for run in runs for turn in run.turns) > BUSY * seconds


def speedup_of(drafting: Sequence[TimedRun], plain: Sequence[TimedRun]) -> Ratio | None:
    """How many times as fast as plain decoding in the same repeats; None before both have taken a turn.

    Where all produced the same tokens, as greedy decoding does, repeats of a part differ by the machine alone.
    """
    runs = (*drafting, *plain)
    longest = max((run.token_ids for run in runs), key=len, default=())
    alike = all(run.token_ids == longest[: len(run.token_ids)] for run in runs)
    return ratio_of(list(_pairs(drafting, plain, alike)))


def _pairs(drafting: Sequence[TimedRun], plain: Sequence[TimedRun], alike: bool) -> Iterator[TurnPair]:
    """Place by place. A round may produce more than a part, and the next turn then nothing: the other contestant's turn
    there counts all the same, or reading the prompt would weigh more in its time."""
    plain_runs = {run.meeting: run for run in plain}
    for run in drafting:
        if run.meeting not in plain_runs:
            continue
        both = [{turn.place: turn for turn in side.turns} for side in (run, plain_runs[run.meeting])]
        ends = [max(turns, default=-1) for turns in both]
        # Of texts that differ, one may go on after the other has ended.
        for place in range(1 + (max(ends) if alike else min(ends))):
            fast, slow = (turns.get(place, Turn(place, 0, 0.0)) for turns in both)
            yield TurnPair(fast.tokens, fast.seconds, slow.tokens, slow.seconds, place if alike else None)


# Figures


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a contestant's repeats, compared with plain decoding in turn; None where one does not apply."""

    tokens_per_second: float | None = None  # by wall time, reading the prompt included; the median over repeats
    spread: tuple[float, float] | None = None  # slowest and fastest repeat
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
    alpha: float  # the forced one; `figures` has the measured one
    num_draft_tokens: int
    repeats: int
    figures: Figures | None  # without reading the prompt; None before the first of them
    fraction: float  # share of the measuring that is done


def figures_of(runs: Sequence[TimedRun], plain: Sequence[TimedRun] = ()) -> Figures:
    """The figures of a contestant's repeats compared with those of plain decoding.

    runs: at least one, each with a turn. plain: the runs that it took turns with, in any order; empty where there
    is nothing to compare with, as for plain decoding itself.
    """
    speeds = [run.speed for run in runs]
    ratio = speedup_of(runs, plain) if plain else None
    figures = Figures(
        tokens_per_second=statistics.median(speeds),
        spread=(min(speeds), max(speeds)),
        speedup_measured=None if ratio is None else ratio.value,
        speedup_interval=None if ratio is None else ratio.interval,
    )
    if (counts := counts_of(runs)) is None:
        return _with_counted(figures, [run.counted for run in runs])
    plain_counts = counts_of(plain)
    alpha, cost = counts.acceptance_rate, None
    if counts.levels and plain_counts is not None and plain_counts.rounds:
        cost = (counts.draft_seconds / counts.levels) / (plain_counts.verify_seconds / plain_counts.rounds)
    formula = None
    if cost is not None and alpha is not None and not counts.drafted_trees:
        formula = formula_speedup(alpha, cost, counts.rounds_by_depth)
    return replace(
        figures,
        acceptance_rate=alpha,
        acceptance_length=counts.acceptance_length,
        cost_coefficient=cost,
        speedup_formula=formula,
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


def _with_counted(figures: Figures, counts: Sequence[Counted | None]) -> Figures:
    """The figures with what a server counted in every run, if it did."""
    known = [count for count in counts if count is not None]
    passes, drafted = sum(count.passes for count in known), [count.drafted for count in known]
    if len(known) < len(counts) or not passes:
        return figures
    return replace(
        figures,
        acceptance_length=1 + sum(count.accepted for count in known) / passes,
        drafted_per_round=None if None in drafted else sum(count or 0 for count in drafted) / passes,
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
