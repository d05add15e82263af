"""What it would take: the pair's own passes, with drafts that are right as often as asked.

An oracle (see there) speaks in the draft model's place, which makes all of its passes. So the seconds are real at any
acceptance rate; the drafts are not the draft model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specviz.bench import oracle
from specviz.bench.contestants import PLAIN, Contestant, Forced, standing
from specviz.bench.laps import TimedRun
from specviz.bench.timed_runs import Workload, request_of
from specviz.bench.turns import Plan, lane_of, take_turns
from specviz.decoding.engine import pending_rounds
from specviz.decoding.record import PendingRound
from specviz.drafters.draft_model import DraftModel
from specviz.models.pair import ModelPair
from specviz.passes.static_passes import kind_of
from specviz.records.errors import SpecvizError
from specviz.records.presets import PRESETS
from specviz.records.settings import SETTINGS, DraftParams

#: New tokens of each run.
TOKENS = 96

#: Repeats of plain decoding and the oracle in turn, and the seconds after which no further one begins.
REPEATS, BUDGET = 7, 8.0


def measure_forced(
    pair: ModelPair,
    alpha: float,
    num_draft_tokens: int,
    tokens: int = TOKENS,
    repeats: int = REPEATS,
    budget: float = BUDGET,
) -> Iterator[Forced | None]:
    """Greedy runs of a story, each with coins of its own: yields after every repeat, and None between, to be ended.

    A run ends where rounding leads the text away from what the oracle was told, or where the limit of tokens leaves no
    room for a whole draft; reading the prompt does not count. Raises SpecvizError: field ``alpha`` or
    ``num_draft_tokens`` for what is out of range, ``drafter`` for a pair whose draft model is missing or counts in
    other tokens.
    """
    oracle.check(alpha)
    SETTINGS["num_draft_tokens"].check("num_draft_tokens", num_draft_tokens)
    _check_draft(pair)
    workload = Workload.of(pair, PRESETS[0], temperature=0.0, max_new_tokens=tokens)
    plain, known = request_of(Contestant(PLAIN), workload), []
    for one in pending_rounds(plain):
        known += one.emitted
        yield None
    drafts = request_of(Contestant(DraftModel.name, num_draft_tokens), workload)
    told = lane_of(drafts, lambda repeat: oracle.oracle(known, alpha, seed=repeat))
    asked = replace(told, start=lambda repeat: _as_asked(told.start(repeat), known, num_draft_tokens))
    found = Forced(pair.name, kind_of(pair.passes.fast), alpha, num_draft_tokens, 0, None, 0.0)
    made: dict[int, list[TimedRun]] = {0: [], 1: []}
    for one in take_turns([lane_of(plain), asked], Plan(tokens, repeats, budget, with_prompt=False)):
        if not isinstance(one, TimedRun):
            yield None
            continue
        made[one.number].append(one)
        if one.number:
            done = len(made[1])
            figures = standing(made[1], made[0])
            found = replace(found, repeats=done, figures=figures, fraction=done / repeats)
            yield found
    yield replace(found, fraction=1.0)


def _check_draft(pair: ModelPair) -> None:
    DraftModel.check(pair, DraftParams(branches=1))
    if pair.translation is not None:
        raise SpecvizError(
            "The draft model of this pair counts in other tokens than the target: an oracle cannot speak for it.",
            "drafter",
        )


def _as_asked(steps: Iterator[PendingRound], known: Sequence[int], gamma: int) -> Iterator[PendingRound]:
    """Rounds before the first that did not draft in full or left the text that the oracle knew; at least one."""
    place = 0
    for one in steps:
        told = tuple(known[place : place + len(one.emitted)]) == one.emitted
        asked = told and len(one.verdict.draft.parents) >= gamma
        if asked or not place:
            yield one
        if not asked:
            return
        place += len(one.emitted)
