"""The seconds of a round by how deep it drafts: timed once for a pair and its settings, for γ = auto."""

import itertools
import statistics
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from specviz.decoding.decoder import decoder_of
from specviz.decoding.request import Request
from specviz.drafters.base import Drafter
from specviz.passes.devices import agreed
from specviz.passes.static_passes import between_rounds, kind_of
from specviz.rules.draft import Draft, Verdict, depth
from specviz.theory.draft_length import AdaptiveLength, DraftLength, FixedLength

#: The depths that are timed; those between are interpolated. Nearly all of the shallow ones: where kernels can take no
#: more rows at once, a pass's time makes a step.
DEPTHS = (0, 1, 2, 3, 4, 5, 6, 8, 16)

#: Tokens of the prompt that are read before them.
TEXT = 64

#: How often each depth is timed, and how many of those times only warm up: a graph is recorded at its second meeting.
REPEATS, WARM_UP = 9, 2

#: Rounds of the same depth in a row, as runs make them, of which the last counts: after wide passes a processor takes
#: longer for the next ones, too.
IN_A_ROW = 3

#: Seconds after which a slow pair is not timed again.
ENOUGH = 2.0


def length_of(request: Request) -> DraftLength:
    """Decides how deep each round of a request drafts."""
    if not request.chooses_length:
        return FixedLength(request.num_draft_tokens)
    return AdaptiveLength(round_seconds(request))


def round_seconds(request: Request) -> tuple[float, ...]:
    """Seconds of a round that drafts 0, 1, … deep, up to γ or as deep as the drafter ever does.

    Timed before the first such run on these passes and kept from then on: else one seed would give another text each
    time. Processes that share the target all go by the leader's clock.
    """
    key, known = _asked(request), request.pair.passes.round_seconds
    if key not in known:
        known[key] = _typical(_timed(request))
    return known[key]


def must_be_timed(request: Request) -> bool:
    """True if a request's run begins with timing its rounds."""
    return request.chooses_length and _asked(request) not in request.pair.passes.round_seconds


def _asked(request: Request) -> tuple[Hashable, ...]:
    """Everything that the seconds of a round depend on."""
    settings = request.settings
    drafting = (settings.drafter, settings.drafting, request.num_draft_tokens)
    return *drafting, settings.sampling, request.rule.name, kind_of(request.passes)


def _typical(turns: Sequence[dict[int, float]]) -> tuple[float, ...]:
    """Seconds of a round that drafts 0, 1, … deep, from turns: depth -> seconds of one round, plain rounds included."""
    depths = sorted(set().union(*turns))
    plain = statistics.median(turn[0] for turn in turns)
    # Against the plain round of the same turn: the machine's clock and its other work change from turn to turn.
    ratios = [statistics.median(turn[deep] / turn[0] for turn in turns if deep in turn) for deep in depths]
    return tuple((plain * np.interp(range(depths[-1] + 1), depths, ratios)).tolist())


@torch.inference_mode()
def _timed(request: Request) -> list[dict[int, float]]:
    """Several turns, each of one round of each depth: how deep it drafted -> its seconds."""
    # However unsure the drafter is of this text, its drafts are as deep as they are timed to be.
    settings = request.settings
    request = replace(request, settings=replace(settings, drafting=replace(settings.drafting, confidence=0.0)))
    target, end = request.pair.target, time.perf_counter() + ENOUGH
    for repeat in range(REPEATS):
        if repeat <= WARM_UP:
            turns = []
        turns.append({deep: agreed(seconds, target) for deep, seconds in _turn(request)})
        if agreed(time.perf_counter() > end, target):
            break
    return turns


def _turn(request: Request) -> Iterator[tuple[int, float]]:
    """One round of each depth that there is room for: how deep it drafted, and its seconds."""
    room = request.pair.context_length
    text = list(request.prompt.ids[-(TEXT if room is None else min(TEXT, max(1, room // 4))) :])
    decoder = decoder_of(
        request, FixedLength(request.num_draft_tokens), lambda context: _Whole(request.drafter(context))
    )
    decoder.prefill(text)
    # The first draft reads the whole text, where later ones read only new tokens: it does not count.
    in_turn = [(deep, place == IN_A_ROW) for deep in DEPTHS for place in range(1, IN_A_ROW + 1)]
    for deep, counts in [(1, False), *in_turn]:
        if deep > request.num_draft_tokens or (room is not None and len(text) + deep + 1 > room):
            return
        between_rounds(request.passes)
        start = time.perf_counter()
        verdict = decoder.round(text, deep)
        if counts:
            yield decoder.drafter.depth if deep else 0, time.perf_counter() - start
        text += verdict.tokens


class _Whole(Drafter):
    """A drafter whose drafts are as deep as asked for: where it finds nothing to copy, other tokens stand in."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
        self.feature_layers = drafter.feature_layers
        self.depth = 0  # of the last draft
        self.drafted = True  # False if tokens of the text stood in for that

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.drafter.prefill(prompt, features)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        draft = self.drafter.propose(committed, budget, uniforms)
        copied = draft.probs is None and draft.logits is None
        self.drafted = depth(draft.parents) == budget or not copied
        if not self.drafted:
            draft = Draft.copied(tuple(itertools.islice(itertools.cycle(committed), budget)), uniforms.device)
        self.depth = depth(draft.parents)
        return draft

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        hear = self.drafter.observe if self.drafted else self.drafter.watch
        hear(committed, verdict, features)

    def watch(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.drafter.watch(committed, verdict, features)
