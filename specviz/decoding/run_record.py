"""From rounds to the record of a whole run."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence

import torch
import transformers

from specviz.decoding.request import Request
from specviz.models.pair import ModelPair
from specviz.records.runs import Round, Run
from specviz.records.settings import AUTO


def collect(request: Request, done: Sequence[Round]) -> Run:
    """A Run from its rounds; one that did not reach its end counts as stopped."""
    pair, settings = request.pair, request.settings
    return Run(
        pair=pair.info(request.passes),
        drafter=settings.drafter,
        settings=request.drafter.settings(pair, settings.drafting),
        num_draft_tokens=AUTO if request.chooses_length else request.num_draft_tokens,
        sampling=settings.sampling,
        seed=settings.seed,
        max_new_tokens=settings.max_new_tokens,
        prompt=request.prompt,
        rounds=tuple(done),
        stop_reason=(done[-1].stop_reason if done else None) or "stopped",
        text="".join(piece for one in done for piece in one.pieces),
        token_ids=tuple(token for one in done for token in one.emitted),
        vocabulary=vocabulary(pair, done),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        rule=request.rule.name,
        coins=settings.coins,
    )


def vocabulary(pair: ModelPair, done: Iterable[Round]) -> dict[int, str]:
    """The text of every token id that the rounds mention."""
    ids = set()
    for one in done:
        ids.update(token.id for token in one.drafted)
        ids.add(one.next.id)
        ids.update(token for token, _, _ in one.next.line)
        for row in one.top:
            for listed in (row.p_raw, row.q_raw, row.p, row.q, row.residual):
                ids.update(token for token, _ in listed)
    return {token: pair.texts.chip(token) for token in sorted(ids)}
