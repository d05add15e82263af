"""Drafting with a second, smaller model whose tokenizer differs from the target's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafters.base import DraftContext
from specviz.drafters.draft_model import DraftModel
from specviz.models.pair import logit_width
from specviz.models.vocabularies import Reader
from specviz.rules.draft import Verdict
from specviz.rules.sampling import in_order


class TranslatedDraftModel(DraftModel):
    """Draws draft tokens from the draft model's distribution over the tokens that it shares with the target.

    Token-level intersection: Timor et al. 2025, arXiv 2502.05202, Alg. 4. The draft's logits are reordered to the
    target's ids, with −∞ for tokens not shared; from there on it is a draft like any other. Tokens are drawn from the
    warped softmax of these logits, which is their q, so the output follows the target. `logits` are these too: q_raw
    is the draft's softmax over the shared tokens.

    The draft reads the text in its own tokens (see `Reader`). How well they fit affects how much is accepted, never
    the output's distribution. It drafts nothing while the last token has left no trace there, or once its own context
    is full.
    """

    def __init__(self, context: DraftContext):
        super().__init__(context)
        draft = context.pair.draft
        self.translation = context.pair.translation
        self.reader = Reader(self.translation, ())
        width = logit_width(draft)
        draft_ids, target_ids = torch.tensor(self.translation.pairs, device=self.model.device).T
        both = (draft_ids < min(width, self.known_ids)) & (target_ids < self.vocab_size)
        # Target id -> draft id; one past the draft's logits for tokens not shared.
        self.draft_of = torch.full((self.vocab_size,), width, device=self.model.device)
        self.draft_of[target_ids[both]] = draft_ids[both]
        self.in_one_call = False  # that would take the draft's ids for the target's, where there are as many

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.reader = Reader(self.translation, prompt)
        if self.room(prompt) > 0:
            self.model.prefill(self.known(self.reader.ids[: self.reader.settled]))

    def room(self, committed: Sequence[int]) -> float:
        self.reader.follow(committed)
        return super().room(self.reader.ids)

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        unread = self.unread(self.reader.ids)
        return in_order(self.model.forward(unread, keep=1), self.draft_of) if len(unread) else None

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        # Only what was drawn from no numbers is not shared, and will be refused for that.
        known = self.draft_of[tokens].clamp_max(self.known_ids - 1)
        return in_order(self.model.extend(known, parents), self.draft_of)

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        read, settled = len(self.reader.ids), self.reader.settled
        fed = self.model.length - read
        if read > settled:
            # Tokens of an unfinished character will be read again, and so must everything drafted after them.
            self.model.rewind(min(settled, self.model.length))
        else:
            self.model.keep(min(read, self.model.length), [index for index in verdict.path if index < fed])
