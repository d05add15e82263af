"""The engine's loop without what is shown of it: the same drafter, target passes, coins and rule, no Round.

What the benchmark measures tracing against. It draws the same coins in the same order, so its tokens are those of
`engine.rounds` at every temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.bench.bare_loop import Unwatched
from specviz.decoding.coins import Coins
from specviz.decoding.engine import judge, kept_rows, make_drafter, most_draft_tokens
from specviz.decoding.request import Request
from specviz.drafters.base import Drafter, Verdict
from specviz.passes.cached_model import CachedModel, reader
from specviz.rules.draft import Decision, Draft, TargetRows
from specviz.rules.sampling import Warper


@dataclass(frozen=True, slots=True)
class Judged:
    """A decision on the host. path: indices of kept draft tokens. tokens: those tokens, then the next one."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    choices: tuple[int, ...]


@torch.inference_mode()
def decode(request: Request) -> list[int]:
    """The new tokens of a checked request, up to an end token. Stop strings are text, and here is none."""
    warper, text, made = Warper(request.sampling), list(request.prompt.ids), []
    target = reader(request.pair.target, Unwatched(request.pair.device), request.passes.get("target"))
    drafter = make_drafter(request, warper, target) if request.drafter else None
    coins = Coins(request.seed, most_draft_tokens(request) if drafter else 0, request.pair.device)
    _prefill(target, drafter, text)
    while len(made) < request.max_new_tokens:
        committed, budget = len(text), min(request.num_draft_tokens, request.max_new_tokens - len(made) - 1)
        uniforms = coins.flip()
        draft = drafter.propose(text, budget, uniforms.draft) if budget else Draft.copied((), target.device)
        rows = TargetRows.of(target.verify(text, draft.tokens, draft.parents), warper)
        judged = _fetch(draft, judge(request.rule, draft, rows, uniforms), rows)
        target.keep(committed, judged.path)
        if budget:
            features = kept_rows(target.features, len(draft.parents), judged.path)
            drafter.observe(Verdict(committed, judged.path, judged.tokens[-1], judged.choices, features))
        for token in judged.tokens:
            made.append(token)
            if token in request.pair.eos_ids:
                return made
        text += judged.tokens
    return made


def _prefill(target: CachedModel, drafter: Drafter | None, text: Sequence[int]) -> None:
    if drafter is None:
        target.prefill(text)
        return
    target.feature_layers = drafter.feature_layers
    target.prefill(text)
    drafter.prefill(text, target.features)


def _fetch(draft: Draft, decision: Decision, rows: TargetRows) -> Judged:
    """One transfer to the host."""
    n = len(draft.parents)
    choices: Tensor = rows.raw.argmax(-1) if rows.choices is None else rows.choices
    parts = [draft.tokens, decision.kept[:n].long(), choices, decision.next_token.reshape(1)]
    host = torch.cat(parts).tolist()
    path = tuple(index for index in range(n) if host[n + index])
    return Judged(path, (*(host[index] for index in path), host[-1]), tuple(host[2 * n : -1]))
