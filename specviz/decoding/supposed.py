"""What if? A round whose draft is judged once more: a shorter one, at another temperature, with coins set by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specviz.decoding.decoder import Judge
from specviz.decoding.engine import pending_rounds
from specviz.decoding.record import PendingRound
from specviz.decoding.request import Request
from specviz.records.runs import Round, Seconds
from specviz.rules.draft import Draft, TargetRows, Uniforms
from specviz.rules.sampling import Warper


@dataclass(frozen=True, slots=True)
class Supposed:
    """What is supposed of a round; plain, because another process may work it out."""

    round: int
    tokens: Sequence[int]  # the run's up to the end of this round's draft, by which the run is known again
    gamma: int | None = None  # so many draft tokens at most; None: as it was, as below
    temperature: float | None = None
    coins: Mapping[str, float] = field(default_factory=dict)  # by draft token, counted from 0, or "next"


def suppose(request: Request, what: Supposed) -> Iterator[Round | None]:
    """Repeats a run up to a round, and yields that round as supposed; before it None after each round.

    Yields no round where that does not follow from the repeated run: it was another one here, nothing is drawn in it,
    its rule is lossy, or its draft is a tree, which another temperature would have drawn in another order.
    """
    if request.settings.sampling.greedy or not request.rule.lossless or request.chooses_length:
        return
    emitted: list[int] = []
    for pending in pending_rounds(request, details=True):
        if pending.index < what.round:
            emitted += pending.emitted
            yield None
            continue
        draft = pending.verdict.draft
        same = [*emitted, *draft.tokens.tolist()] == list(what.tokens)
        if same and (draft.is_chain or (what.gamma is None and what.temperature is None)):
            yield _judged_anew(request, pending, what)
        return


@torch.inference_mode()
def _judged_anew(request: Request, pending: PendingRound, what: Supposed) -> Round:
    rows, _, uniforms = pending.verdict.details()
    draft, unmasked, warper = pending.verdict.draft, pending.verdict.unmasked, request.warper
    if what.temperature is not None:
        warper = Warper(replace(request.settings.sampling, temperature=what.temperature))
        draft = _drawn_with(warper, draft)
    if what.gamma is not None:
        draft = _first_of(draft, what.gamma)
    first = slice(len(draft.parents) + 1)
    rows = TargetRows.of(rows.logits[first], warper)
    verdict = Judge(request.rule, warper).verdict_by_rows(draft, rows, _with_coins(uniforms, what.coins))
    verdict = replace(verdict, unmasked=None if unmasked is None else unmasked[first])
    judged = replace(pending, verdict=verdict, emitted=verdict.tokens, pieces=(), stop_reason=None, read_again=0)
    return replace(judged, seconds=Seconds(0.0, 0.0, 0.0, 0.0, 0.0), choice=None, fetch=None).record()


def _drawn_with(warper: Warper, draft: Draft) -> Draft:
    """The same tokens, with the q that they would have had; a point mass stays one."""
    if draft.probs is None:
        return draft
    logits = draft.probs.log() if draft.logits is None else draft.logits
    return replace(draft, probs=warper.probabilities(logits), logits=logits)


def _first_of(draft: Draft, most: int) -> Draft:
    def first(rows: Tensor | None) -> Tensor | None:
        return None if rows is None else rows[:most]

    return replace(
        draft,
        tokens=draft.tokens[:most],
        parents=draft.parents[:most],
        probs=first(draft.probs) if most else None,
        logits=first(draft.logits) if most else None,
        draws=first(draft.draws),
        sources=draft.sources[:most],
    )


def _with_coins(uniforms: Uniforms, coins: Mapping[str, float]) -> Uniforms:
    accept, following = uniforms.accept.clone(), uniforms.next
    for token, u in coins.items():
        coin = torch.tensor(u, dtype=torch.float32).to(following)  # as float32, like all coins
        if token == "next":
            following = coin
        elif token.isdecimal() and int(token) < len(accept):
            accept[int(token)] = coin
    return replace(uniforms, accept=accept, next=following)
