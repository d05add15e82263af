"""Drafting ahead of the host: after a text on the device, of which the host does not know the last round yet.

A draft is a function of tensors here, so that it can be recorded. What it reads and writes are the buffers of recorded
passes; nothing in it belongs to a run, since recordings outlive runs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from specviz.drafters.growing import Growing, Level
from specviz.parts.dflash import DFlashHead
from specviz.parts.medusa import MedusaModel
from specviz.passes.cuda_graphs import GraphedPasses
from specviz.rules.draft import Draft
from specviz.rules.sampling import fit_width

#: Rows of logits [k, any width] for what follows each token of a level, which is sent once it is chosen.
Rows = Generator[Tensor, Level, None]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceText:
    """A text of which the device alone knows the end."""

    ids: Tensor  # [most] int64: its tokens, then whatever was there
    length: Tensor  # [1] int64, how many tokens it has
    read: Tensor  # [1] int64, how many places the drafter has read
    features: Tensor | None  # [most, width], the target's hidden states by place (`Drafter.feature_layers`)

    def states(self, places: Tensor) -> Tensor:
        """Those of the places [n], [n, width]."""
        assert self.features is not None, "the drafter reads no hidden states"
        return self.features.index_select(0, places)


@dataclass(frozen=True, kw_only=True, eq=False)
class DraftAhead(ABC):
    """Drafts on the device, one round after the other.

    It begins by reading the text's last tokens, always the same number: reading a token once more changes nothing, and
    places past the text's end go to the buffers' spare place.
    """

    #: Rows of a head belong to the text's second token and those after it.
    shift: ClassVar[int] = 0

    passes: GraphedPasses  # that it drafts with
    growing: Growing  # how rows become tokens
    vocab_size: int  # the width of the target's logits
    sources: tuple[str, ...]  # by depth, see `Draft`; may be empty
    unread: int  # how many of the text's tokens it reads; no more may be unread
    deepest: float = math.inf  # it drafts no deeper
    limit: float = math.inf  # nor tokens at this place or later ones
    shares: bool = False  # whether it reads the target's own rows, so that nothing but the last token is ever unread

    def draft(self, text: DeviceText, depth: int, uniforms: Tensor) -> Draft:
        """What follows the text, `depth` ≥ 1 levels. uniforms: float64, at least one for each token."""
        levels, made = self.levels(text, depth), self.growing.begun(depth, text.length.device)
        row = next(levels)
        while True:
            level = made.add(fit_width(row, self.vocab_size).float(), uniforms)
            if level is None:
                return made.draft(uniforms, self.sources)
            row = levels.send(level)

    @abstractmethod
    def levels(self, text: DeviceText, depth: int) -> Rows:
        """The rows of one level after another, `depth` of them."""

    def note_read(self, text: DeviceText) -> None:  # noqa: B027, models find what is unread by themselves
        """Takes down how far it has read, before the text goes on. Drafting itself changes nothing that drafting begins
        with, so a draft can be made twice."""

    def read_after(self, length: int, kept: int, depth: int) -> int:
        """How many places it has read, once `kept` tokens were kept of a draft after `length` tokens of text."""
        return length + min(kept, depth - 1)

    @abstractmethod
    def keep(self, start: Tensor, path: Tensor) -> None:
        """Moves what it has read of a tree's kept tokens to where the text goes on. start: [1] int64; path: [depth]
        int64, the tokens that were kept, then any."""

    @property
    def beyond(self) -> int:
        """How many places after the text it writes to, if that is more than a draft has tokens."""
        return 0

    @property
    def rows(self) -> Sequence[Tensor]:
        """Of keys and values, that its passes work on."""
        return self.passes.static.own_rows(self.passes.kept.tensors)

    @property
    def cells(self) -> Tensor:
        """[room] int64, all places."""
        return self.passes.kept.cells

    def first(self, text: DeviceText) -> tuple[Tensor, Tensor]:
        """The first place that it reads, and the one after the text's last: [1] int64 each."""
        return (text.length - self.unread).clamp_min(0), text.length

    def text_part(self, text: DeviceText) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The text's last tokens and their places, [unread] int64; which of them is the last, and the place after it,
        [1] int64."""
        start, end = self.first(text)
        places = start + torch.arange(self.unread, device=start.device)
        tokens = text.ids.index_select(0, places + self.shift)
        return tokens, places.where(places < end, self.passes.kept.room - 1), end - 1 - start, end

    def visible(self, where: Tensor) -> Tensor:
        """[n, room] bool: each token sees the places before its own, and that."""
        return where.unsqueeze(-1) >= self.cells


class ModelAhead(DraftAhead):
    """A model reads its own tokens, level by level. A draft model reads the text's last two tokens: it never read the
    last one of a draft that was accepted whole. A target's first layers read one."""

    def levels(self, text: DeviceText, depth: int) -> Rows:
        tokens, where, last, end = self.text_part(text)
        outputs = self.passes.static(tokens, where, where, self.visible(where), *self.inputs(text), *self.rows)
        logits, *states = [output.index_select(0, last) for output in outputs]
        for step in range(depth - 1):
            level, position = (yield logits[-self.growing.branches :]), end + step
            if level.ancestors is None:
                given = level.tokens, position, position, self.visible(position), *states
                logits, *states = self.passes.static(*given, *self.rows)
                continue
            read = [state.index_select(0, level.rows) for state in states]
            where = end + torch.arange(level.first, level.first + len(level.tokens), device=end.device)
            seen = branches_see(self.cells, end, level.ancestors)
            given = level.tokens, position.expand_as(where), where, seen
            logits, *more = self.passes.static(*given, *read, *self.rows)
            states = [torch.cat(both) for both in zip(states, more)]
        yield logits[-self.growing.branches :]

    def inputs(self, text: DeviceText) -> tuple[Tensor, ...]:
        """What else is read with the text's last tokens."""
        return ()

    def keep(self, start: Tensor, path: Tensor) -> None:
        if not self.shares:
            move(self.rows, start, path)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadAhead(ModelAhead):
    """A head that continues the target's hidden states. Every round it reads the tokens that the last one committed,
    with the states that the target has computed for them."""

    shift: ClassVar[int] = 1
    fuse: Callable[[Tensor], Tensor]

    def first(self, text: DeviceText) -> tuple[Tensor, Tensor]:
        return text.read, text.length - 1

    def note_read(self, text: DeviceText) -> None:
        text.read.copy_(text.length - 1)

    def read_after(self, length: int, kept: int, depth: int) -> int:
        return length - 1

    def keep(self, start: Tensor, path: Tensor) -> None:
        """Nothing to do: it reads the kept tokens once more, with the target's states."""

    def inputs(self, text: DeviceText, *more: Tensor) -> tuple[Tensor, ...]:
        """more: further hidden states to be fused."""
        return (self.fuse(torch.cat([self.states(text), *more])).to(self.passes.static.dtype),)

    def states(self, text: DeviceText) -> Tensor:
        """The target's, of the text's last tokens: [unread, width]."""
        return text.states(text.read + torch.arange(self.unread, device=text.read.device))


@dataclass(frozen=True, kw_only=True, eq=False)
class StateAhead(DraftAhead):
    """Heads that guess all depths from the target's last hidden state, and read nothing else."""

    model: MedusaModel

    def levels(self, text: DeviceText, depth: int) -> Rows:
        last, state = text.length - 1, text.states(text.length - 2)
        rows = self.model(input_ids=text.ids.index_select(0, last)[None], features=state[None]).logits[0]
        for row in rows[:depth].split(1):  # noqa: UP028, it is sent to
            yield row

    def read_after(self, length: int, kept: int, depth: int) -> int:
        return length - 1

    def keep(self, start: Tensor, path: Tensor) -> None:
        """Nothing to do: it has read nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MasksAhead(HeadAhead):
    """A head that fills in masks after the text, all in the pass that reads the text's last tokens."""

    mask: tuple[int, Tensor]  # its id, and the hidden state in place of the target's, [1, width]

    @property
    def beyond(self) -> int:
        return int(self.deepest)

    def levels(self, text: DeviceText, depth: int) -> Rows:
        tokens, where, last, end = self.text_part(text)
        masks = torch.arange(depth - 1, device=end.device)
        where = torch.cat([where, end + masks])
        tokens = torch.cat([tokens, torch.full_like(masks, self.mask[0])])
        inputs = self.inputs(text, self.mask[1].expand(depth - 1, -1))
        logits, *_ = self.passes.static(tokens, where, where, self.visible(where), *inputs, *self.rows)
        for row in logits.index_select(0, torch.cat([last, self.unread + masks])).split(1):  # noqa: UP028, it is sent to
            yield row


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockAhead(HeadAhead):
    """A block of masks that see each other and the text; `head` may correct its rows from left to right."""

    head: DFlashHead
    corrects: bool  # its rows depend on the tokens before them

    @property
    def beyond(self) -> int:
        return self.head.sizes.block_size

    def levels(self, text: DeviceText, depth: int) -> Rows:
        rows, hidden, last = self._block(text)
        if not self.corrects:
            for row in self.head.for_target(rows[:depth]).split(1):
                yield row
            return
        memory, tokens = self.head.first_memory(last, hidden), last
        skipped = len(hidden) - len(rows)
        for step in range(depth):
            row, after = self.head.corrected(step, rows[step], tokens, hidden[skipped + step], memory)
            level = yield self.head.for_target(row)
            tokens, memory = level.tokens, after.index_select(0, level.places)

    def _block(self, text: DeviceText) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [slots that draft, rows] and hidden states [slots, d] of the block, and the text's last token, [1]."""
        (tokens, where, _, end), sizes = self.text_part(text), self.head.sizes
        slots = torch.arange(sizes.block_size, device=end.device)
        last = text.ids.index_select(0, end)
        where = torch.cat([where, end + slots])
        inputs = functional.pad(self.states(text), (0, 0, 0, len(slots))).to(self.passes.static.dtype)
        given = torch.cat([tokens, last, torch.full_like(slots[1:], sizes.mask_id)]), where, where
        logits, hidden = self.passes.static(*given, self.visible(where), inputs, *self.rows)
        return logits[0 if sizes.predicts_next else 1 :], hidden.to(self.head.dtype), last


def branches_see(cells: Tensor, end: Tensor, ancestors: Tensor) -> Tensor:
    """[k, room] bool: each of a tree's tokens sees the text, which ends before the place `end` [1], and its own branch.

    cells: [room] int64, all places. ancestors: [k, n] bool; the tree's n tokens follow the text.
    """
    places = end + torch.arange(ancestors.shape[1], device=end.device)
    return (cells < end).expand(len(ancestors), -1).clone().index_copy_(1, places, ancestors)


def move(rows: Sequence[Tensor], start: Tensor, path: Tensor) -> None:
    """Copies rows from where a draft's tokens are to where a text goes on. start: [1] int64, the place of its first
    token; path: [depth] int64, tokens of the draft."""
    places = start + torch.arange(len(path), device=path.device)
    for each in rows:
        each.index_copy_(2, places, each.index_select(2, start + path))
