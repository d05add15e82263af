"""Drafting with a second, smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from specviz.cache import CachedModel
from specviz.drafters.base import Draft, Verdict, chain
from specviz.sampling import Warper, draw, fit_width


class DraftModel:
    """Draws each draft token from the draft model, one after the other.

    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1 (M_q); Chen et al. 2023, arXiv 2302.01318.
    The tokens stay on the device from one step to the next: no step waits for the host.
    """

    name: ClassVar[str] = "draft_model"

    def __init__(self, model: CachedModel, warper: Warper, vocab_size: int):
        self.model = model
        self.warper = warper
        self.vocab_size = vocab_size
        self.known_ids = model.model.get_input_embeddings().num_embeddings
        self.settings: dict[str, int | float | str | bool] = {}

    def prefill(self, prompt: Sequence[int]) -> None:
        self.model.prefill(prompt)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        greedy = self.warper.params.greedy
        unread = self.model.unread(committed)
        if self.known_ids < self.vocab_size:
            # A padding id that only the target has: the drafter reads some other one. It costs a guess, never the law.
            unread = unread.clamp_max(self.known_ids - 1)
        tokens, logits, probs = [], [], []
        for u in uniforms[:budget].unbind():
            row = fit_width(self.model.forward(unread, keep=1), self.vocab_size).float()
            logits.append(row)
            if greedy:
                unread = row.argmax(-1)
            else:
                probs.append(self.warper.probabilities(row))
                unread = draw(probs[-1], u)
            tokens.append(unread)
        return Draft(
            tokens=torch.cat(tokens),
            parents=chain(budget),
            probs=None if greedy else torch.cat(probs),
            logits=torch.cat(logits) if self.warper.changes_logits else None,
            draws=None if greedy else uniforms[:budget],
        )

    def observe(self, verdict: Verdict) -> None:
        # The last draft token was never fed, so after a full acceptance there is nothing to forget.
        self.model.rewind(min(verdict.committed + len(verdict.path), self.model.length))
