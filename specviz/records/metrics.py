"""From rounds to the numbers that people compare, each defined once, here; and two runs of a prompt side by side."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

from specviz.records.runs import Round, Run
from specviz.records.trees import depths_of


@dataclass(slots=True)
class Tally:
    """Running counts over rounds; `add` takes the same time however many came before."""

    rounds: int = 0
    drafted: int = 0  # draft tokens proposed
    judged: int = 0  # those the verdict looked at
    accepted: int = 0  # those it accepted
    tokens: int = 0  # emitted, after truncation
    #: The same by draft position, first position first. A position never drafted or never reached is unobserved, not
    #: rejected.
    judged_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    rounds_by_depth: Counter[int] = field(default_factory=Counter)  # depth drafted -> rounds; 0 is a plain step
    prefill: float = 0.0  # seconds of reading the prompt
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    accept_seconds: float = 0.0
    seconds: float = 0.0  # of all rounds, without the prefill
    model_seconds: float = 0.0  # the part inside forward passes
    distance_sum: float = 0.0  # of `Round.distance`, over the rounds that have one
    measured_distances: int = 0  # how many do
    reach_sum: float = 0.0  # of `Candidates.reach`, over the rows that judged a draft token and have one
    measured_reaches: int = 0  # how many do

    def add(self, round_: Round) -> None:
        self.rounds += 1
        self.tokens += len(round_.emitted)
        self.drafted += len(round_.drafted)
        depths = draft_depths(round_)
        self.rounds_by_depth[max(depths, default=-1) + 1] += 1
        for token, depth in zip(round_.drafted, depths):
            while len(self.judged_at) <= depth:
                self.judged_at.append(0)
                self.accepted_at.append(0)
            self.judged_at[depth] += token.outcome != "discarded"
            self.accepted_at[depth] += token.outcome == "accepted"
        self.judged += round_.judged
        self.accepted += round_.accepted
        if round_.seconds is not None:
            self.prefill += round_.seconds.prefill
            self.draft_seconds += round_.seconds.draft
            self.verify_seconds += round_.seconds.verify
            self.accept_seconds += round_.seconds.accept
            self.seconds += round_.seconds.total
            self.model_seconds += round_.seconds.models
        if round_.distance is not None:
            self.distance_sum += round_.distance
            self.measured_distances += 1
        judging = {token.parent + 1 for token in round_.drafted if token.outcome != "discarded"}
        reaches = [row.reach for place, row in enumerate(round_.top) if place in judging and row.reach is not None]
        self.reach_sum += sum(reaches)
        self.measured_reaches += len(reaches)

    @property
    def acceptance_rate(self) -> float | None:
        """α: accepted / judged draft tokens; None before any was judged."""
        return self.accepted / self.judged if self.judged else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per target pass, 1 + accepted / rounds: counts the recovered or bonus token, ignores truncation."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    @property
    def levels(self) -> int:
        """Depths drafted, summed over all rounds: each is one draft step. A chain has one token per level."""
        return sum(depth * rounds for depth, rounds in self.rounds_by_depth.items())

    @property
    def drafted_trees(self) -> bool:
        """True if any round drafted siblings."""
        return self.drafted > self.levels

    @property
    def distance(self) -> float | None:
        """Mean total variation from the target under a lossy rule (see `Round`); None under lossless ones."""
        return self.distance_sum / self.measured_distances if self.measured_distances else None

    @property
    def reach(self) -> float | None:
        """Mean share of the target's probability that a smaller draft vocabulary reaches: in a chain α is at most that,
        on average. None where the vocabulary is whole."""
        return self.reach_sum / self.measured_reaches if self.measured_reaches else None

    @property
    def tokens_per_second(self) -> float | None:
        """Emitted tokens over all time spent on them, reading the prompt included."""
        return self.tokens / (self.prefill + self.seconds) if self.seconds else None

    @property
    def overhead_share(self) -> float | None:
        """The share of the rounds' time outside the models' forward passes."""
        return 1 - self.model_seconds / self.seconds if self.seconds else None

    def include(self, other: "Tally") -> None:
        """Adds the counts of other rounds."""
        for entry in fields(self):
            own, others = getattr(self, entry.name), getattr(other, entry.name)
            lists = isinstance(own, list)
            sums = [sum(pair) for pair in zip_longest(own, others, fillvalue=0)] if lists else own + others
            setattr(self, entry.name, sums)

    def conditional_position_rates(self) -> list[float | None]:
        """Acceptance by draft position given that the verdict got there: accepted at i / judged at i."""
        return [accepted / judged if judged else None for accepted, judged in zip(self.accepted_at, self.judged_at)]


def tally(rounds: Iterable[Round]) -> Tally:
    """The counts of a whole run."""
    counts = Tally()
    for round_ in rounds:
        counts.add(round_)
    return counts


def total(counts: Iterable[Tally]) -> Tally:
    """The counts of several runs together."""
    together = Tally()
    for one in counts:
        together.include(one)
    return together


#: Passes of a run take about equally long; where their mean is this many times their median, some were held up.
UNEVEN = 1.5


def uneven(seconds: Sequence[float]) -> bool:
    """Whether some of these passes were held up so much that their mean says little."""
    return bool(seconds) and statistics.mean(seconds) > UNEVEN * statistics.median(seconds)


def emission_times(rounds: Sequence[Round]) -> list[float]:
    """When each round's tokens were ready, in seconds from the start of the run, prompt included."""
    times, now = [], 0.0
    for round_ in rounds:
        now += round_.seconds.prefill + round_.seconds.total if round_.seconds else 0.0
        times.append(now)
    return times


def draft_depths(round_: Round) -> list[int]:
    """The draft position of each draft token, 0 for those that continue the committed text."""
    return depths_of([token.parent for token in round_.drafted])


# Two runs of one prompt

#: In half precision neighbouring values of a likely token's logit lie 0.06 to 0.12 apart: closer calls can flip. In
#: float32, another order of sums changes a log probability by less than the second.
NEAR_TIE, FLOAT32_TIE = 0.25, 1e-3


def tolerance(dtype: str) -> float:
    """How far apart two log probabilities of the target may lie in this precision, and rounding decide between them."""
    return FLOAT32_TIE if dtype == "float32" else NEAR_TIE


def compare(plain: Run, speculative: Run) -> dict[str, Any]:
    """The outcome of a race.

    speedup: the ratio of tokens per second, both measured. identical: True if the texts are the same; None for sampled
    runs, which use their coins differently. parting: where greedy texts diverge, else None.
    """
    greedy = plain.sampling.greedy
    position = first_difference(plain.token_ids, speculative.token_ids) if greedy else None
    return {
        "speedup": speedup(plain, speculative),
        "greedy": greedy,
        "identical": position is None if greedy else None,
        "parting": None if position is None else _parting(plain, speculative, position),
    }


def speedup(plain: Run, speculative: Run) -> float | None:
    """Tokens per second of the speculative run over those of the plain one; None while either has no round."""
    fast, slow = tally(speculative.rounds).tokens_per_second, tally(plain.rounds).tokens_per_second
    return fast / slow if fast and slow else None


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first position where tokens differ, or the end of the shorter list; None if both are the same."""
    if list(left) == list(right):
        return None
    common = min(len(left), len(right))
    return next((place for place in range(common) if left[place] != right[place]), common)


def margin(plain: Run, position: int) -> float | None:
    """log p(best) − log p(second) in the plain run's target pass at a position; None beyond its end."""
    if position >= len(plain.rounds):
        return None
    (_, best), *less_likely = plain.rounds[position].top[0].p_raw
    if not less_likely:
        return None
    # The second best may have underflowed to 0.
    return math.log(best / less_likely[0][1]) if less_likely[0][1] else math.inf


def _parting(plain: Run, speculative: Run, position: int) -> dict[str, Any]:
    """Where two texts diverge, and how close the target's best two tokens were there.

    margin: in the plain run's target pass, which both runs share up to rounding.
    """
    return {
        "position": position,
        "plain": _token(plain, position),
        "speculative": _token(speculative, position),
        "margin": margin(plain, position),
        "half_precision": plain.pair.dtype != "float32",
    }


def _token(run: Run, position: int) -> str:
    """The token's text; empty if the run had ended."""
    return run.vocabulary.get(run.token_ids[position], "") if position < len(run.token_ids) else ""
