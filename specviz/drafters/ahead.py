"""Drafting ahead of the host: after a text on the device, of which the host does not know the last round yet.

A draft is a function of tensors here, so that it can be recorded. What it reads and writes are the buffers of recorded
passes; nothing in it belongs to a run, since recordings outlive runs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from specviz.parts.dflash import DFlashHead
from specviz.passes.chains import Made
from specviz.passes.cuda_graphs import GraphedPasses, draft_chain
from specviz.rules.draft import Draft, chain
from specviz.rules.sampling import draw, first_largest, fit_width


@dataclass(frozen=True, slots=True, eq=False)
class DeviceText:
    """A text of which the device alone knows the end."""

    ids: Tensor  # [most] int64: its tokens, then whatever was there
    length: Tensor  # [1] int64, how many tokens it has
    read: Tensor  # [1] int64, how many places the drafter has read
    features: Tensor | None  # [most, width], the target's hidden states by place (`Drafter.feature_layers`)


@dataclass(frozen=True, kw_only=True, eq=False)
class DraftAhead(ABC):
    """Drafts chains on the device, one round after the other.

    It begins by reading the text's last tokens, always the same number: reading a token once more changes nothing, and
    places past the text's end go to the buffers' spare place.
    """

    #: Rows of a head belong to the text's second token and those after it.
    shift: ClassVar[int] = 0

    passes: GraphedPasses  # that it drafts with
    temperature: float  # 0 takes the likeliest tokens
    changes_logits: bool  # whether q is anything but the logits' own softmax
    sources: tuple[str, ...]  # by depth, see `Draft`
    unread: int  # how many of the text's tokens it reads; no more may be unread
    deepest: float = math.inf  # it drafts no deeper
    limit: float = math.inf  # nor tokens at this place or later ones
    shares: bool = False  # whether it reads the target's own rows, so that nothing but the last token is ever unread

    def draft(self, text: DeviceText, depth: int, uniforms: Tensor) -> Draft:
        """A chain of `depth` ≥ 1 tokens after the text. uniforms: float64, at least one for each."""
        made = self.made(text, depth, uniforms)
        own_softmax = made.probs is not None and not self.changes_logits
        return made.as_draft(uniforms, own_softmax, self.sources[:depth])

    def read_after(self, length: int, kept: int, depth: int) -> int:
        """How many places it has read, once `kept` tokens were kept of a draft after `length` tokens of text."""
        return length + min(kept, depth - 1)

    @abstractmethod
    def made(self, text: DeviceText, depth: int, uniforms: Tensor) -> Made:
        """The tokens of the draft and what they were chosen from."""

    @property
    def beyond(self) -> int:
        """How many places after the text it writes to, if that is more than a draft has tokens."""
        return 0

    @property
    def rows(self) -> Sequence[Tensor]:
        """Of keys and values, that its passes work on."""
        return self.passes.static.own_rows(self.passes.kept.tensors)

    def first(self, text: DeviceText) -> tuple[Tensor, Tensor]:
        """The first place that it reads, and the one after the text's last: [1] int64 each."""
        return (text.length - self.unread).clamp_min(0), text.length

    def text_part(self, text: DeviceText) -> tuple[list[Tensor], Tensor, Tensor]:
        """The arguments of a pass over the text's last tokens, as far as `where`; which of them is the last, [1]; and
        the place after it, [1]."""
        start, end = self.first(text)
        places = start + torch.arange(self.unread, device=start.device)
        tokens = text.ids.index_select(0, places + self.shift)
        where = places.where(places < end, self.passes.kept.room - 1)
        return [tokens, where, where], end - 1 - start, end

    def visible(self, where: Tensor) -> Tensor:
        """[n, room] bool: each token sees the places before its own, and that."""
        return where.unsqueeze(-1) >= torch.arange(self.passes.kept.room, device=where.device)


class ModelAhead(DraftAhead):
    """A model draws or chooses token by token. A draft model reads the last two: it never read the last one of a draft
    that was accepted whole. A target's first layers read one."""

    def made(self, text: DeviceText, depth: int, uniforms: Tensor) -> Made:
        read, last, end = self.text_part(text)
        return self.chained([*read, self.visible(read[-1])], last, end, depth, uniforms)

    def chained(self, read: Sequence[Tensor], last: Tensor, end: Tensor, depth: int, uniforms: Tensor) -> Made:
        places = end + torch.arange(depth - 1, device=end.device)
        made = draft_chain(self.passes.static, read, last, places, uniforms[:depth], self.temperature, self.rows)
        tokens, logits, *probs = made
        return Made(tokens, chain(depth), logits, probs[0] if probs else None)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadAhead(ModelAhead):
    """A head that continues the target's hidden states. Every round it reads the tokens that the last one committed,
    with the states that the target has computed for them."""

    shift: ClassVar[int] = 1
    fuse: Callable[[Tensor], Tensor]

    def first(self, text: DeviceText) -> tuple[Tensor, Tensor]:
        return text.read, text.length - 1

    def read_after(self, length: int, kept: int, depth: int) -> int:
        return length - 1

    def made(self, text: DeviceText, depth: int, uniforms: Tensor) -> Made:
        read, last, end = self.text_part(text)
        fused = self.fused(text)
        made = self.chained([*read, self.visible(read[-1]), fused], last, end, depth, uniforms)
        text.read.copy_(end)
        return made

    def fused(self, text: DeviceText, *more: Tensor) -> Tensor:
        """What the head reads with the text's last tokens, and with `more` hidden states."""
        return self.fuse(torch.cat([self.states(text), *more])).to(self.passes.static.dtype)

    def states(self, text: DeviceText) -> Tensor:
        """The target's, of the text's last tokens: [unread, width]."""
        return text.features.index_select(0, text.read + torch.arange(self.unread, device=text.read.device))


@dataclass(frozen=True, kw_only=True, eq=False)
class MasksAhead(HeadAhead):
    """A head that fills in masks after the text, all in the pass that reads the text's last tokens."""

    mask: tuple[int, Tensor]  # its id, and the hidden state in place of the target's, [1, width]
    vocab_size: int  # the width of the target's logits

    def made(self, text: DeviceText, depth: int, uniforms: Tensor) -> Made:
        (tokens, where, _), last, end = self.text_part(text)
        masks = torch.arange(depth - 1, device=end.device)
        where = torch.cat([where, end + masks])
        tokens = torch.cat([tokens, torch.full_like(masks, self.mask[0])])
        features = self.fused(text, self.mask[1].expand(depth - 1, -1))
        logits, *_ = self.passes.static(tokens, where, where, self.visible(where), features, *self.rows)
        text.read.copy_(end)
        rows = logits.index_select(0, torch.cat([last, self.unread + masks]))
        return self.chosen(fit_width(rows, self.vocab_size).float(), uniforms)

    def chosen(self, rows: Tensor, uniforms: Tensor) -> Made:
        """The draft that has these rows, [depth, vocab]."""
        parents = chain(len(rows))
        if not self.temperature:
            return Made(first_largest(rows), parents, rows, None)
        probs = (rows if self.temperature == 1 else rows / self.temperature).softmax(-1)
        return Made(draw(probs, uniforms[: len(rows)].unsqueeze(-1)), parents, rows, probs)


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockAhead(MasksAhead):
    """A block of masks that see each other and the text; `head` may correct its rows from left to right."""

    head: DFlashHead
    corrects: bool  # its rows depend on the tokens before them

    @property
    def beyond(self) -> int:
        return self.head.sizes.block_size

    def made(self, text: DeviceText, depth: int, uniforms: Tensor) -> Made:
        (tokens, where, _), _, end = self.text_part(text)
        sizes = self.head.sizes
        slots = torch.arange(sizes.block_size, device=end.device)
        last = text.ids.index_select(0, end)
        block = torch.cat([last, torch.full_like(slots[1:], sizes.mask_id)])
        where = torch.cat([where, end + slots])
        inputs = functional.pad(self.states(text), (0, 0, 0, len(slots))).to(self.passes.static.dtype)
        given = torch.cat([tokens, block]), where, where, self.visible(where), inputs
        logits, hidden = self.passes.static(*given, *self.rows)
        text.read.copy_(end)
        first = 0 if sizes.predicts_next else 1
        if not self.corrects:
            rows = self.head.for_target(logits[first:][:depth])
            return self.chosen(fit_width(rows, self.vocab_size).float(), uniforms)
        return self.corrected(logits[first:], hidden.to(self.head.dtype), first, last, depth, uniforms)

    def corrected(self, rows: Tensor, hidden: Tensor, first: int, last: Tensor, depth: int, uniforms: Tensor) -> Made:
        """Row after row, each by the tokens drafted before it."""
        memory, token, made = self.head.first_memory(last, hidden), last, []
        for step in range(depth):
            row, memory = self.head.corrected(step, rows[step], token, hidden[first + step], memory)
            row = fit_width(self.head.for_target(row), self.vocab_size).float()
            made.append(self.chosen(row, uniforms[step : step + 1]))
            token = made[-1].tokens
        tokens, logits = torch.cat([one.tokens for one in made]), torch.cat([one.logits for one in made])
        probs = torch.cat([one.probs for one in made]) if self.temperature else None
        return Made(tokens, chain(depth), logits, probs)
