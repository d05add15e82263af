"""Ways to decode side by side: what a contestant is, and what several of its repeats come to.

Everything is measured. Contestants take turns (`specviz.bench.turns`), so a machine that slows down slows all of them,
and a speedup is the ratio of their times over the same parts of a text.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specviz.bench.laps import TimedRun, speedup_of
from specviz.records.metrics import Tally, tally
from specviz.records.settings import PLAIN, DraftParams, RunSettings
from specviz.theory.formulas import expected_tokens
from specviz.theory.statistics import Ratio

#: Hears lines of progress while something is measured.
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
    engine: str = "specviz"  # or "bare", "transformers": see `timed_runs`

    def applied(self, settings: RunSettings) -> RunSettings:
        """The settings of a run in which this contestant decodes."""
        return replace(
            settings,
            drafter=None if self.mode == PLAIN else self.mode,
            num_draft_tokens=self.num_draft_tokens or 1,
            drafting=DraftParams(self.branches, exit_layer=self.exit_layer, bits=self.bits),
            rule=self.rule,
        )

    @property
    def title(self) -> str:
        """A short name without what is left to its default: ``draft_model γ=4 ×3`` has three branches."""
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


@dataclass(frozen=True, slots=True)
class Standing:
    """What a contestant's repeats come to, compared with plain decoding in turn; None where it does not apply."""

    tokens_per_second: float  # by wall time, reading the prompt included; the median over repeats
    spread: tuple[float, float]  # slowest and fastest repeat
    speedup_measured: float | None = None  # ratio to plain decoding, all turns together (`speedup_of`)
    speedup_interval: tuple[float, float] | None = None  # in which it lies, 90 %; None where that cannot be told
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
    """Speculation at a forced acceptance rate beside plain decoding, complete or being measured: see `bench.forced`."""

    pair: str  # its name, and what ran its passes: figures of others do not stand beside these
    kind: str
    alpha: float  # asked for; `figures` has what came of it
    num_draft_tokens: int
    repeats: int
    figures: Standing | None  # reading the prompt left out; None before the first of them
    fraction: float  # share of the measuring that is done


def standing(own: Sequence[TimedRun], plain: Sequence[TimedRun] = ()) -> Standing:
    """The figures of a contestant's repeats beside those of plain decoding.

    own: at least one run, each with a turn. plain: the runs that it took turns with, in any order; empty where there
    is nothing to compare with, as for plain decoding itself.
    """
    speeds = [run.speed for run in own]
    ratio = speedup_of(own, plain) if plain else None
    found = Standing(
        tokens_per_second=statistics.median(speeds),
        spread=(min(speeds), max(speeds)),
        speedup_measured=None if ratio is None else ratio.value,
        speedup_interval=None if ratio is None or ratio.low is None else (ratio.low, ratio.high),
    )
    if not all(run.rounds for run in own):
        return found
    return _counted(found, [tally(run.rounds) for run in own], [tally(run.rounds) for run in plain])


def _counted(found: Standing, own: Sequence[Tally], plain: Sequence[Tally]) -> Standing:
    """With what rounds tell beside the time that they took, over all repeats together."""
    rounds, seconds = _total(own, "rounds"), _total(own, "seconds")
    drafted, judged, accepted = (_total(own, name) for name in ("drafted", "judged", "accepted"))
    alpha = accepted / judged if judged else None
    depths = sum((counts.rounds_by_depth for counts in own), Counter())
    cost = _cost_coefficient(own, plain)
    distances = _total(own, "measured_distances")
    trees = any(counts.drafted_trees for counts in own)
    return replace(
        found,
        acceptance_rate=alpha,
        acceptance_length=1 + accepted / rounds,
        cost_coefficient=cost,
        speedup_formula=None if cost is None or alpha is None or trees else formula_speedup(alpha, cost, depths),
        overhead_share=1 - _total(own, "model_seconds") / seconds,
        phase_share={
            "draft": _total(own, "draft_seconds") / seconds,
            "verify": _total(own, "verify_seconds") / seconds,
            "rest": _total(own, "accept_seconds") / seconds,
        },
        drafted_per_round=drafted / rounds,
        levels_per_round=_total(own, "levels") / rounds,
        distance=_total(own, "distance_sum") / distances if distances else None,
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


def _cost_coefficient(own: Sequence[Tally], plain: Sequence[Tally]) -> float | None:
    levels, passes = _total(own, "levels"), _total(plain, "rounds")
    if not levels or not passes:
        return None
    return (_total(own, "draft_seconds") / levels) / (_total(plain, "verify_seconds") / passes)


def _total(tallies: Sequence[Tally], name: str) -> float:
    return sum(getattr(counts, name) for counts in tallies)
