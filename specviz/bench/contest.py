"""Ways to decode, beside each other: what a contestant is, and what several repeats of it came to.

Everything is measured. The contestants take turns within a repeat, so a machine that slows down slows all of them,
and a speedup is a ratio within a repeat.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specviz.records.metrics import Tally
from specviz.records.settings import RunSettings
from specviz.theory.formulas import expected_tokens

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to decode.

    mode: ``plain`` or a drafter's name. num_draft_tokens: γ. branches, exit_layer: see `DraftParams`; None is the
    drafter's default. rule: how drafts are judged, ``auto`` or a name from `RULES`. engine: ``specviz`` or
    ``transformers``.
    """

    mode: str
    num_draft_tokens: int | None = None
    branches: int | None = None
    rule: str = "auto"
    exit_layer: int | None = None
    engine: str = "specviz"

    @property
    def title(self) -> str:
        """In a few words, what was left to its default left out: ``draft_model γ=4 ×3`` has three branches."""
        parts = [
            self.engine if self.engine != "specviz" else "",
            self.mode,
            f"γ={self.num_draft_tokens}" if self.num_draft_tokens is not None else "",
            "" if self.branches is None else "chain" if self.branches == 1 else f"×{self.branches}",
            f"layer {self.exit_layer}" if self.exit_layer is not None else "",
            self.rule if self.rule != "auto" else "",
        ]
        return " ".join(part for part in parts if part)

    def applied(self, settings: RunSettings) -> RunSettings:
        """These settings with the contestant's own way to draft and to judge; drafting never stops early."""
        own = {
            "drafter": self.mode,
            "num_draft_tokens": self.num_draft_tokens or 1,
            "branches": self.branches,
            "exit_layer": self.exit_layer,
            "confidence": 0.0,
            "rule": self.rule,
        }
        return RunSettings.of(settings.flat() | own)


@dataclass(frozen=True, slots=True)
class Standing:
    """What several repeats of one contestant came to, beside plain decoding in the same repeats.

    tokens_per_second: median over repeats, by wall time, the prompt's reading included. spread: its least and most.
    speedup_measured: median over repeats of the ratio to plain within a repeat. speedup_spread: its least and most.

    The rest is over all repeats together; None where it does not apply.
    acceptance_rate: accepted / judged draft tokens, α. acceptance_length: tokens per target pass.
    cost_coefficient: seconds of one draft step / seconds of one target pass of the plain run, c. A step is one level of
        the draft, whether a token or several siblings: all seconds of drafting over the levels drafted.
    speedup_formula: what α, c and the lengths drafted promise, for chains only; see `formula_speedup`.
    overhead_share: part of the rounds' time outside the models' forward passes. phase_share: parts of the rounds' time
        by name, ``draft``, ``verify`` and ``rest``.
    drafted_per_round, levels_per_round: mean number of draft tokens, and mean depth of the draft.
    distance: mean total variation from the target under a lossy rule, see `Round`; None if lossless.
    """

    tokens_per_second: float
    spread: tuple[float, float]
    speedup_measured: float | None = None
    speedup_spread: tuple[float, float] | None = None
    acceptance_rate: float | None = None
    acceptance_length: float | None = None
    cost_coefficient: float | None = None
    speedup_formula: float | None = None
    overhead_share: float | None = None
    phase_share: dict[str, float] | None = None
    drafted_per_round: float | None = None
    levels_per_round: float | None = None
    distance: float | None = None


def standing(own: Sequence[Tally], plain: Sequence[Tally]) -> Standing:
    """The figures of a contestant's repeats, one tally each, beside those of plain decoding in the same repeats.

    own: at least one, each with at least one round. plain: in the order of `own`; it may be ahead of it, and is empty
    where there is nothing to compare with, as for plain decoding itself.
    """
    timed = pace([counts.tokens_per_second for counts in own], [counts.tokens_per_second for counts in plain])
    rounds, seconds = _total(own, "rounds"), _total(own, "seconds")
    drafted, judged, accepted = (_total(own, name) for name in ("drafted", "judged", "accepted"))
    alpha = accepted / judged if judged else None
    depths = sum((counts.rounds_by_depth for counts in own), Counter())
    cost = _cost_coefficient(own, plain)
    distances = _total(own, "measured_distances")
    return replace(
        timed,
        acceptance_rate=alpha,
        acceptance_length=1 + accepted / rounds,
        cost_coefficient=cost,
        speedup_formula=None if cost is None or alpha is None or _trees(own) else formula_speedup(alpha, cost, depths),
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


def pace(own: Sequence[float], plain: Sequence[float]) -> Standing:
    """What speeds alone say, in tokens per second, one a repeat: all there is of an engine that records no rounds.

    own, plain: as for `standing`.
    """
    ratios = [fast / slow for fast, slow in zip(own, plain)]
    return Standing(
        tokens_per_second=statistics.median(own),
        spread=(min(own), max(own)),
        speedup_measured=statistics.median(ratios) if ratios else None,
        speedup_spread=(min(ratios), max(ratios)) if ratios else None,
    )


def formula_speedup(alpha: float, cost: float, rounds_by_depth: Counter[int]) -> float:
    """Leviathan et al. 2023, Thm 3.8, for drafts of several lengths: mean of expected tokens / (mean γ · c + 1).

    rounds_by_depth: how many rounds drafted so many tokens. A drafter that finds nothing, or the end of a text, makes
    drafts shorter than γ; where none is shorter, this is the theorem as it stands.
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


def _trees(tallies: Sequence[Tally]) -> bool:
    return any(counts.drafted_trees for counts in tallies)


def _total(tallies: Sequence[Tally], name: str) -> float:
    return sum(getattr(counts, name) for counts in tallies)
