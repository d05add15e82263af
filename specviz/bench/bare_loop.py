"""Greedy decoding as short as it gets, in the manner of gpt-fast's `generate.py`: passes, argmax, nothing kept.

The engine is measured against it: the same models through the same `CachedModel`, but no coins, no probabilities, no
records and no text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.models.pair import ModelPair
from specviz.passes.cached_model import CachedModel, reader
from specviz.passes.devices import Stopwatch
from specviz.passes.static_passes import between_rounds
from specviz.rules.draft import chain
from specviz.rules.sampling import fit_width, in_order


class Unwatched(Stopwatch):
    """A stopwatch that takes no times."""

    def span(self) -> contextlib.nullcontext:
        return contextlib.nullcontext()


def read_by(pair: ModelPair, role: str) -> CachedModel:
    """The pair's ``target`` or ``draft`` with the fast passes that the engine would use, and no clock."""
    return reader(getattr(pair, role), Unwatched(pair.device), pair.passes.fast.get(role))


@torch.inference_mode()
def plain(pair: ModelPair, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The target's greedy continuation of token ids up to an end token, one pass a token. Returns the new tokens."""
    target = read_by(pair, "target")
    text, made = list(prompt), []
    target.prefill(text)
    while len(made) < max_new_tokens and not pair.eos_ids.intersection(made[-1:]):
        between_rounds(pair.passes.fast)
        made.append(int(target.forward(target.unread(text), keep=1).argmax(-1)))
        target.rewind(len(text))
        text.append(made[-1])
    return made


@torch.inference_mode()
def draft_model(pair: ModelPair, prompt: Sequence[int], max_new_tokens: int, num_draft_tokens: int) -> list[int]:
    """The same continuation, drafted by the pair's draft model and verified by the target in one pass a round.

    Draft tokens stay on the device until they are judged: one transfer a round. The draft model reads the target's
    tokens, so there must be no translation between the two vocabularies.
    """
    target, draft = read_by(pair, "target"), read_by(pair, "draft")
    text, made = list(prompt), []
    target.prefill(text)
    draft.prefill(text)
    while len(made) < max_new_tokens and not pair.eos_ids.intersection(made[-1:]):
        between_rounds(pair.passes.fast)
        committed = len(text)
        drafted = _chain_of(pair, draft, text, min(num_draft_tokens, max_new_tokens - len(made) - 1))
        choices = target.verify(text, drafted, chain(len(drafted))).argmax(-1)
        agreed = (choices[: len(drafted)] == drafted).cumprod(0).sum(0, keepdim=True)
        *chosen, accepted = torch.cat([choices, agreed]).tolist()
        target.keep(committed, range(accepted))
        draft.rewind(min(draft.length, committed + accepted))
        # Accepted draft tokens are the target's own choices; its next choice is the bonus or the correction.
        new = _up_to_end(chosen[: accepted + 1], pair.eos_ids)
        made += new
        text += new
    return made


def _chain_of(pair: ModelPair, draft: CachedModel, text: Sequence[int], depth: int) -> Tensor:
    """The draft model's greedy continuation, [depth] int64 on the device."""
    tokens = torch.empty(0, dtype=torch.long, device=draft.device)
    # A padding id that only the target has is read as another one, as in `DraftModel`.
    unread = draft.unread(text).clamp_max(draft.model.get_input_embeddings().num_embeddings - 1)
    for _ in range(depth):
        row = draft.forward(unread, keep=1)
        row = row if pair.draft_columns is None else in_order(row, pair.draft_columns)
        unread = fit_width(row, pair.vocab_size).argmax(-1)
        tokens = torch.cat([tokens, unread])
    return tokens


def _up_to_end(tokens: list[int], eos_ids: frozenset[int]) -> list[int]:
    """The tokens up to and including the first end token."""
    ends = [place for place, token in enumerate(tokens) if token in eos_ids]
    return tokens[: ends[0] + 1] if ends else tokens
