"""What limits a run: where its time and its draft tokens went, and which single change the formula favours.

Figures in, findings out, no words. Everything is measured except the forecasts in `changes`.
"""

from dataclasses import dataclass

from specviz.records.metrics import Tally
from specviz.theory.formulas import expected_tokens
from specviz.theory.roofline import Curve

#: The draft lengths a change may propose: those the page offers.
GAMMAS = range(1, 17)

#: A change must promise at least this factor to be suggested.
_WORTH_SAYING = 1.02


@dataclass(frozen=True, slots=True)
class RunFigures:
    """A speculative run as the diagnosis reads it. Seconds are means over the rounds."""

    num_draft_tokens: int  # γ asked for
    depth: float  # mean depth really drafted
    chain: bool  # whether the closed form applies: chains, judged token by token
    alpha: float  # accepted / judged
    tokens_per_pass: float  # 1 + accepted / rounds
    draft: float  # seconds of a round, by phase
    verify: float
    rest: float
    one: float  # seconds of a plain step: its target pass, and everything else
    one_rest: float
    #: Where the plain step was timed: in a ``plain`` run or, failing that, as the run's own verification (``round``).
    #: Never in another measurement: the machine may have been slower then.
    one_source: str
    speedup: float | None = None  # over plain decoding; None if not measured
    at_once: bool = False  # whether all tokens of a draft come from one pass, and deeper ones are guessed worse

    @property
    def seconds(self) -> float:
        """Seconds of a round."""
        return self.draft + self.verify + self.rest

    @property
    def cost_coefficient(self) -> float:
        """c: one draft step / one target pass over one token."""
        return self.draft / self.depth / self.one


@dataclass(frozen=True, slots=True)
class Step:
    """The speedup that is left once this cause is counted in."""

    #: ``ideal`` (γ + 1 tokens for the time of a plain step), ``short`` (drafts shorter than γ), ``refused``, ``draft``,
    #: ``verify`` (the pass over the draft compared with a pass over one token) or ``rest``.
    cause: str
    speedup: float


@dataclass(frozen=True, slots=True)
class Change:
    """One thing changed, and the speedup the formula then predicts."""

    what: str  # ``gamma``, ``cost`` or ``alpha``
    value: float  # the new γ, c or α
    speedup: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings. The formula's are None or empty where the closed form does not apply."""

    steps: tuple[Step, ...]  # from the ideal down to what the run's parts add up to
    limit: str  # the cause without which the run would be fastest
    gain: float  # the factor it would gain
    speedup: float  # measured, or else what the parts add up to
    formula: float | None  # expected tokens / (γc + V)
    with_passes: bool  # whether V is the measured T(γ+1)/T(1), else 1
    changes: tuple[Change, ...]  # those that help, best first
    best_gamma: int | None  # the γ the formula favours
    best_formula: float | None  # and its speedup

    @property
    def pays(self) -> bool:
        return self.speedup > 1


def run_figures(
    counts: Tally,
    num_draft_tokens: int,
    *,
    rule: str = "token",
    plain: Tally | None = None,
    speedup: float | None = None,
    at_once: bool = False,
) -> RunFigures | None:
    """The figures of a run; None if no draft token was judged.

    plain: plain decoding of the same prompt, timed in turn with it. at_once: see `RunFigures`.
    """
    if counts.acceptance_rate is None or counts.acceptance_length is None:
        return None
    rounds = counts.rounds
    if plain is not None and plain.rounds:
        step_seconds, rest, source = plain.verify_seconds / plain.rounds, plain.accept_seconds / plain.rounds, "plain"
    else:
        step_seconds, rest, source = counts.verify_seconds / rounds, 0.0, "round"
    return RunFigures(
        num_draft_tokens=num_draft_tokens,
        depth=counts.levels / rounds,
        chain=not counts.drafted_trees and rule == "token",
        alpha=counts.acceptance_rate,
        tokens_per_pass=counts.acceptance_length,
        draft=counts.draft_seconds / rounds,
        verify=counts.verify_seconds / rounds,
        rest=counts.accept_seconds / rounds,
        one=step_seconds,
        one_rest=rest,
        one_source=source,
        speedup=speedup,
        at_once=at_once,
    )


def diagnose(run: RunFigures, target: Curve | None = None) -> Diagnosis:
    """What limits `run`. target: T(K) of its target, so that forecasts count verification at its measured cost, of as
    many tokens as were measured."""
    if target is not None and target.ratio(run.num_draft_tokens + 1) is None:
        target = None  # not measured as far
    gammas = [gamma for gamma in GAMMAS if target is None or target.ratio(gamma + 1) is not None]
    steps = _steps(run)
    gains = _gains(run)
    limit = max(gains, key=gains.__getitem__)
    # Drafts made at once have no price a token, nor one α for all depths.
    forecasts = run.chain and not run.at_once and run.depth > 0.9 * run.num_draft_tokens
    formula = _formula(run.alpha, run.num_draft_tokens, run.cost_coefficient, target) if forecasts else None
    best = max(gammas, key=lambda gamma: _formula(run.alpha, gamma, run.cost_coefficient, target))
    return Diagnosis(
        steps=steps,
        limit=limit,
        gain=gains[limit],
        speedup=steps[-1].speedup if run.speedup is None else run.speedup,
        formula=formula,
        with_passes=target is not None,
        changes=() if formula is None else _changes(run, formula, best, target),
        best_gamma=best if forecasts else None,
        best_formula=_formula(run.alpha, best, run.cost_coefficient, target) if forecasts else None,
    )


def _steps(run: RunFigures) -> tuple[Step, ...]:
    plain, tokens = run.one + run.one_rest, run.tokens_per_pass
    drafted = plain + run.draft
    verified = drafted + run.verify - run.one
    return (
        Step("ideal", run.num_draft_tokens + 1),
        Step("short", run.depth + 1),
        Step("refused", tokens),
        Step("draft", tokens * plain / drafted),
        Step("verify", tokens * plain / verified),
        Step("rest", tokens * plain / run.seconds),
    )


def _gains(run: RunFigures) -> dict[str, float]:
    """By cause, the factor by which the run would be faster without it, all else being equal."""
    extra = {
        "draft": run.draft,
        "verify": max(0.0, run.verify - run.one),
        "rest": max(0.0, run.rest - run.one_rest),
    }
    return {
        "short": (run.num_draft_tokens + 1) / (run.depth + 1),
        "refused": (run.depth + 1) / run.tokens_per_pass,
        **{cause: run.seconds / (run.seconds - seconds) for cause, seconds in extra.items()},
    }


def _formula(alpha: float, gamma: int, cost: float, target: Curve | None) -> float:
    """tokens / (γc + V): Leviathan et al. 2023, Thm 3.8, with the measured T(γ+1)/T(1) in place of its 1."""
    measured = target.ratio(gamma + 1) if target is not None else None
    return expected_tokens(alpha, gamma) / (gamma * cost + (1.0 if measured is None else measured))


def _changes(run: RunFigures, formula: float, best: int, target: Curve | None) -> tuple[Change, ...]:
    alpha, gamma, cost = run.alpha, run.num_draft_tokens, run.cost_coefficient
    better = (1 + alpha) / 2
    changes = [
        Change("gamma", best, _formula(alpha, best, cost, target)),
        Change("cost", cost / 2, _formula(alpha, gamma, cost / 2, target)),
        Change("alpha", better, _formula(better, gamma, cost, target)),
    ]
    worth = [change for change in changes if change.speedup > _WORTH_SAYING * formula]
    return tuple(sorted(worth, key=lambda change: -change.speedup))
