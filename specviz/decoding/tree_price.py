"""Says before a run what its trees have to keep to be worth their passes: by passes timed and chains drafted here."""

import math
import statistics
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import replace

from specviz.decoding.request import Request
from specviz.passes.static_passes import kind_of
from specviz.records.runs import Seconds
from specviz.records.words import Sentence
from specviz.rules.draft import Verdict
from specviz.rules.exact import BLOCK, TOKEN
from specviz.theory.draft_length import interpolated

#: The last rounds of each depth that are kept, and how many of them are enough to say something.
KEPT, FEWEST = 256, 24

#: Of a 95 % interval, in standard errors.
_WIDE = 1.96


def note_chain(request: Request, verdict: Verdict, seconds: Seconds) -> None:
    """Keeps what a round has made that drafted a chain."""
    drafted = len(verdict.draft.parents)
    # Drafts that end where they are unsure, or where nothing can be copied, say little of other lengths.
    steady = request.drafter.narrows and not request.settings.drafting.confidence
    if steady and drafted and verdict.draft.is_chain and not seconds.prefill:
        rounds = request.pair.passes.chains.setdefault(_way(request, request.rule.name, drafted), deque(maxlen=KEPT))
        rounds.append((len(verdict.tokens), seconds.total))


def _way(request: Request, rule: str, depth: int) -> Hashable:
    """How a chain of this depth is drafted and judged."""
    settings = request.settings
    drafting = replace(settings.drafting, branches=1)
    return settings.drafter, drafting, settings.sampling, rule, depth, kind_of(request.passes)


def said_of_tree(request: Request) -> Sentence | None:
    """What trees of the requested depth and width have to make, with an interval; None where that is not known.

    Against chains no deeper than the tree that were drafted in the same way, else against plain decoding. A tree's
    round takes as much longer than a chain's as its target pass does, at least: its drafting and its judging are no
    shorter. So what it has to make is a lower bound.
    """
    depth, measured = request.num_draft_tokens, request.pair.passes.seconds_by_width
    unsteady = request.chooses_length or request.settings.drafting.confidence or not request.drafter.narrows
    if request.branches == 1 or unsteady or len(measured) < 2:
        return None
    wide, plain = interpolated(measured, (1 + request.largest_draft, 1))
    best = max(_asked_by_chains(request, wide), default=None)
    if best is None:
        return Sentence(
            "A pass over this tree takes as long as {times:.1f} plain steps here: with fewer tokens a pass, out of at "
            "most {most}, it loses time.",
            times=wide / plain,
            most=depth + 1,
        )
    needed, error, length, made = best
    return Sentence(
        "Chains of {length} made {made:.1f} tokens a pass here: to be worth as much, this tree has to make at least "
        "{needed:.1f} ({low:.1f} to {high:.1f}), out of at most {most}.",
        length=length,
        made=made,
        needed=needed,
        low=needed - error,
        high=needed + error,
        most=depth + 1,
    )


def _asked_by_chains(request: Request, wide: float) -> Iterator[tuple[float, float, int, float]]:
    """For chains of each depth known: what a tree has to make to be worth as much, half its interval's width, their
    depth and what they made. wide: seconds of the tree's target pass."""
    chains, measured = request.pair.passes.chains, request.pair.passes.seconds_by_width
    rules = (TOKEN.name, BLOCK.name) if request.rule.lossless else (request.rule.name,)
    for length in range(1, request.num_draft_tokens + 1):
        (narrow,) = interpolated(measured, [1 + length])
        for rule in rules:
            rounds = chains.get(_way(request, rule, length), ())
            if len(rounds) < FEWEST:
                continue
            made, seconds = zip(*rounds)
            taken, mean = statistics.median(seconds), statistics.mean(made)
            longer = (taken + max(0.0, wide - narrow)) / taken
            error = _WIDE * statistics.stdev(made) / math.sqrt(len(made))
            yield mean * longer, error * longer, length, mean
