"""From rounds to the numbers people compare: each counted when it was decided, each defined here once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specviz.records import Round


@dataclass(slots=True)
class Tally:
    """Running counts over rounds; `add` costs the same however many came before.

    drafted, judged, accepted: draft tokens proposed, looked at by the verdict, kept by it.
    judged_at, accepted_at: the same by draft position, first position first. A position that was never drafted or
        never reached is unobserved, not rejected.
    tokens: emitted, after truncation. decided: accepted plus one a round, before truncation.
    seconds: of the rounds; prefill: of reading the prompt.
    """

    rounds: int = 0
    drafted: int = 0
    judged: int = 0
    accepted: int = 0
    tokens: int = 0
    judged_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    prefill: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    accept_seconds: float = 0.0
    seconds: float = 0.0
    model_seconds: float = 0.0

    def add(self, one: Round) -> None:
        self.rounds += 1
        self.tokens += len(one.emitted)
        self.drafted += len(one.drafted)
        depths = _depths(one)
        for token, depth in zip(one.drafted, depths):
            while len(self.judged_at) <= depth:
                self.judged_at.append(0)
                self.accepted_at.append(0)
            self.judged_at[depth] += token.outcome != "discarded"
            self.accepted_at[depth] += token.outcome == "accepted"
        self.judged += one.judged
        self.accepted += one.accepted
        self.prefill += one.seconds.prefill
        self.draft_seconds += one.seconds.draft
        self.verify_seconds += one.seconds.verify
        self.accept_seconds += one.seconds.accept
        self.seconds += one.seconds.total
        self.model_seconds += one.seconds.models

    @property
    def acceptance_rate(self) -> float | None:
        """α: accepted / judged draft tokens; None before any was judged."""
        return self.accepted / self.judged if self.judged else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per target pass, 1 + accepted / rounds: the recovered or bonus token counts, truncation does not."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Emitted tokens over all time spent on them, the prompt's reading included."""
        return self.tokens / (self.prefill + self.seconds) if self.rounds else None

    @property
    def overhead_share(self) -> float | None:
        """The part of the rounds' time outside the models' forward passes."""
        return 1 - self.model_seconds / self.seconds if self.rounds else None

    def position_rates(self) -> list[float]:
        """Acceptance by draft position: accepted at i / rounds. What vLLM and others report; falls with i."""
        return [accepted / self.rounds for accepted in self.accepted_at]

    def conditional_position_rates(self) -> list[float | None]:
        """Acceptance by draft position, given that the verdict got there: accepted at i / judged at i."""
        return [accepted / judged if judged else None for accepted, judged in zip(self.accepted_at, self.judged_at)]


def tally(rounds: Iterable[Round]) -> Tally:
    """The counts of a whole run."""
    counts = Tally()
    for one in rounds:
        counts.add(one)
    return counts


def running_acceptance(rounds: Sequence[Round]) -> list[float | None]:
    """α after each round, from the first round on; None until a token was judged."""
    rates, counts = [], Tally()
    for one in rounds:
        counts.add(one)
        rates.append(counts.acceptance_rate)
    return rates


def emission_times(rounds: Sequence[Round]) -> list[float]:
    """Seconds from the start of the run, prompt included, at which each round's tokens were there."""
    times, now = [], 0.0
    for one in rounds:
        now += one.seconds.prefill + one.seconds.total
        times.append(now)
    return times


def _depths(one: Round) -> list[int]:
    """Draft position of each draft token, 0 for those that continue the committed text."""
    depths: list[int] = []
    for token in one.drafted:
        depths.append(depths[token.parent] + 1 if token.parent >= 0 else 0)
    return depths
