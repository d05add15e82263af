"""What grows with what: a token's and a round's time with the text, with the rounds before it, with the draft.

Time may grow with the text's length, because a pass reads its keys and values. It must not grow with the number of
rounds, nor must memory: so many rounds are made in runs of bounded length, and apart from them one run to the end.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from specviz.bench.machine import resident_mb
from specviz.bench.sections import Ageing, ContextPoint, GammaPoint, Growth, RoundsPoint
from specviz.decoding import engine
from specviz.drafters import DraftModel, PromptLookup
from specviz.models.pair import ModelPair
from specviz.records.metrics import tally
from specviz.records.presets import PRESETS
from specviz.records.runs import Round
from specviz.records.settings import SamplingParams

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """How far it goes.

    contexts: lengths of text, as far as the pair reads. longest: at this many tokens every text ends, sooner where the
    pair's context does; that end is measured too. rounds: where to look up. gammas: draft lengths. run_tokens: of a
    run of bounded length. context_tokens: made at each length of text.
    """

    contexts: Sequence[int] = (64, 128, 256, 512, 1024, 2048)
    longest: int = 4096
    rounds: Sequence[int] = (100, 200, 500, 1000, 2000, 5000)
    gammas: Sequence[int] = (1, 2, 4, 8, 16, 32)
    num_draft_tokens: int = 4
    run_tokens: int = 128
    context_tokens: int = 32
    repeats: int = 3

    def end(self, pair: ModelPair) -> int:
        return min(self.longest, pair.context_length or self.longest)


PLAN = GrowthPlan()


def measure_growth(pair: ModelPair, say: Say = lambda line: None, plan: GrowthPlan = PLAN) -> Growth:
    """The whole plan, with the draft model where there is one. What visitors wait is for `visitors`."""
    drafter = PromptLookup.name if pair.draft is None else DraftModel.name
    order = engine.prepare(
        pair,
        PRESETS[0].prompt,
        drafter=drafter,
        num_draft_tokens=plan.num_draft_tokens,
        sampling=SamplingParams(temperature=0),
        max_new_tokens=plan.run_tokens,
    )
    # Warm before anything is looked at.
    list(engine.rounds(order))
    say("growth: time by length of text")
    contexts = _contexts(order, plan)
    say(f"growth: {plan.rounds[-1]:,} rounds in runs of {plan.run_tokens} tokens")
    rounds, many_runs = _many_runs(order, plan)
    say("growth: one run to the end of the context")
    long_run = _long_run(order, plan)
    say("growth: draft lengths")
    gammas = _gammas(order, plan)
    return Growth(drafter, plan.num_draft_tokens, contexts, rounds, many_runs, long_run, gammas)


def _contexts(order: engine.Request, plan: GrowthPlan) -> list[ContextPoint]:
    """All lengths take turns, plain and speculative."""
    last = plan.end(order.pair) - plan.context_tokens
    lengths = [*(length for length in plan.contexts if length < last), last]
    text = _endless_text(order.pair, last)
    taken: dict[tuple[int, str | None], list[float]] = {}
    for _ in range(plan.repeats):
        for length, drafter in itertools.product(lengths, (None, order.drafter)):
            there = replace(_drafted_by(order, drafter), max_new_tokens=plan.context_tokens)
            there = replace(there, prompt=order.pair.encode(text[:length]))
            taken.setdefault((length, drafter), []).extend(_whole_rounds(engine.rounds(there)))
    return [
        ContextPoint(length, *(statistics.median(taken[length, drafter]) for drafter in (None, order.drafter)))
        for length in lengths
    ]


def _drafted_by(order: engine.Request, drafter: str | None) -> engine.Request:
    return order if drafter else replace(order, drafter=None, num_draft_tokens=0)


def _endless_text(pair: ModelPair, length: int) -> list[int]:
    """So many token ids of real text: the presets, again and again."""
    once = [token for preset in PRESETS for token in pair.encode(preset.prompt).ids]
    return list(itertools.islice(itertools.cycle(once), length))


def _whole_rounds(rounds: Iterator[Round]) -> list[float]:
    """Seconds of the rounds with the longest drafts: the last ones of a run are cut short."""
    done = list(rounds)
    most = max(len(one.drafted) for one in done)
    return [one.seconds.total for one in done if len(one.drafted) == most]


def _many_runs(order: engine.Request, plan: GrowthPlan) -> tuple[list[RoundsPoint], Ageing]:
    """Sampled runs of one prompt, a seed each, one after the other in this process; nothing of them is kept."""
    points, seconds, start = [], [], resident_mb()
    for seed in itertools.count():
        sampled = replace(order, sampling=SamplingParams(temperature=1), seed=seed)
        for one in engine.rounds(sampled):
            seconds.append(one.seconds.total)
            if len(seconds) in plan.rounds:
                before = points[-1].rounds if points else 0
                points.append(RoundsPoint(len(seconds), statistics.median(seconds[before:]), resident_mb()))
        if len(seconds) >= plan.rounds[-1]:
            return points, Ageing.of(seconds, start, resident_mb())


def _long_run(order: engine.Request, plan: GrowthPlan) -> Ageing:
    """One run from the prompt to the end of the context; no token ends the text before."""
    endless = replace(order.pair, eos_ids=frozenset())
    room, start = plan.end(order.pair) - len(order.prompt.ids), resident_mb()
    rounds = engine.rounds(replace(order, pair=endless, max_new_tokens=room))
    return Ageing.of([one.seconds.total for one in rounds], start, resident_mb())


def _gammas(order: engine.Request, plan: GrowthPlan) -> list[GammaPoint]:
    taken: dict[int, list[Round]] = {gamma: [] for gamma in plan.gammas}
    for _ in range(plan.repeats):
        for gamma in plan.gammas:
            taken[gamma] += engine.rounds(replace(order, num_draft_tokens=gamma))
    return [_gamma_point(gamma, done) for gamma, done in taken.items()]


def _gamma_point(gamma: int, done: Sequence[Round]) -> GammaPoint:
    counts = tally(done)
    seconds = statistics.median(one.seconds.total for one in done)
    return GammaPoint(gamma, seconds, counts.tokens_per_second, counts.acceptance_length)
