"""Drafting ahead of the host: after a text on the device whose last round the host does not know yet.

A draft is a function of tensors here, so it can be recorded. It reads and writes the buffers of recorded passes;
nothing in it belongs to a run, since recordings outlive runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from specviz.drafters.growing import Growing, Grown, GrownLevel
from specviz.parts.head_passes import HeadModel
from specviz.parts.reading import Rows, TrainedPart, parent_states
from specviz.passes.cuda_graphs import GraphedPasses
from specviz.passes.kernels.chains import Gain
from specviz.rules.draft import Draft
from specviz.rules.sampling import fit_width


@dataclass(frozen=True, slots=True, eq=False)
class DeviceText:
    """A text of which the device alone knows the end."""

    ids: Tensor  # [most] int64: its tokens, then whatever was there
    length: Tensor  # [1] int64, how many tokens it has
    read: Tensor  # [1] int64, how many places the drafter has read
    features: Tensor | None  # [most, width], the target's hidden states by place (`Drafter.feature_layers`)

    def states(self, places: Tensor) -> Tensor:
        """[n, width], the target's hidden states at these places [n]."""
        assert self.features is not None
        return self.features.index_select(0, places)


@dataclass(frozen=True, kw_only=True, eq=False)
class DraftAhead:
    """Drafts on the device, one round after the other; by default with a model, which reads its own tokens.

    It begins by reading the text's last tokens, always the same number: reading a token once more changes nothing, and
    places past the text's end go to the buffers' spare place. A draft model reads two, as it never read the last one of
    a draft that was accepted whole; a target's first layers one.
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
        levels = self.rows_by_level(DeviceReading(self, text), depth)
        grown = Grown(self.growing, depth, text.length.device)
        first = self._fit(next(levels))
        level = grown.add(first[:1], uniforms)
        for step in range(1, depth):
            rows = first[step : step + 1] if len(first) > 1 else self._fit(levels.send(level))
            level = grown.add(rows, uniforms)
        return grown.draft(uniforms, self.sources)

    def _fit(self, rows: Tensor) -> Tensor:
        return fit_width(rows, self.vocab_size).float()

    def rows_by_level(self, reading: DeviceReading, depth: int) -> Rows[GrownLevel]:
        """The rows of one level after another."""
        rows = reading.text()
        while True:
            rows = reading.level((yield rows))

    def inputs(self, states: Tensor) -> tuple[Tensor, ...]:
        """What is read with tokens besides them. states: [n, d], as `DeviceReading.states`."""
        return ()

    def text_inputs(self, text: DeviceText, masks: int, features: Tensor | None) -> tuple[Tensor, ...]:
        """The same with the text's last tokens and masks after them, which have these features or zeros."""
        return ()

    def note_read(self, text: DeviceText) -> None:
        """Notes how far it has read, before the text grows; models find what is unread by themselves. Drafting
        itself changes nothing that drafting begins with, so a draft can be made twice."""

    def read_after(self, length: int, accepted: int, depth: int) -> int:
        """How many places it has read after `length` tokens of text and a draft of which `accepted` were accepted."""
        return length + min(accepted, depth - 1)

    def move_accepted(self, start: Tensor, path: Tensor) -> None:
        """Moves what it has read of a tree's accepted tokens to the text's end. start: [1] int64; path: [depth]
        int64, the accepted tokens, then any."""
        if not self.shares:
            move(self.kv, start, path)

    @property
    def extra_places(self) -> int:
        """How many places after the text it writes to, if that is more than a draft has tokens."""
        return 0

    @property
    def kv(self) -> Sequence[Tensor]:
        """The keys and values that its passes work on."""
        return self.passes.static.kv_in_use(self.passes.kept_buffers.tensors)

    @property
    def cells(self) -> Tensor:
        """[room] int64, all places."""
        return self.passes.kept_buffers.cells

    def first(self, text: DeviceText) -> tuple[Tensor, Tensor]:
        """The first place that it reads, and the one after the text's last: [1] int64 each."""
        return (text.length - self.unread).clamp_min(0), text.length

    def visible(self, where: Tensor) -> Tensor:
        """[n, room] bool: each token sees the places before its own, and that."""
        return where.unsqueeze(-1) >= self.cells


@dataclass(frozen=True, kw_only=True, eq=False)
class MasksAhead(DraftAhead):
    """A draft model that fills in masks after the text, all in the pass that reads the text's last tokens."""

    mask: int  # its id

    def rows_by_level(self, reading: DeviceReading, depth: int) -> Rows[GrownLevel]:
        yield reading.text(reading.last.new_full((depth - 1,), self.mask))

    def read_after(self, length: int, accepted: int, depth: int) -> int:
        return length

    def move_accepted(self, start: Tensor, path: Tensor) -> None:
        """Nothing to do: it has read nothing of the draft."""

    @property
    def extra_places(self) -> int:
        return int(self.deepest)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadAhead(DraftAhead):
    """A trained part that continues the target's hidden states. Every round it reads the tokens that the last one
    committed, with the states that the target has computed for them."""

    shift: ClassVar[int] = 1
    part: TrainedPart
    model: HeadModel  # with the part, or its first head
    fuse: Callable[[Tensor], Tensor]  # `TrainedPart.fuse`

    def rows_by_level(self, reading: DeviceReading, depth: int) -> Rows[GrownLevel]:
        return self.part.rows_by_level(reading, depth)

    def inputs(self, states: Tensor) -> tuple[Tensor, ...]:
        return (states,)

    def text_inputs(self, text: DeviceText, masks: int, features: Tensor | None) -> tuple[Tensor, ...]:
        states = text.states(text.read + torch.arange(self.unread, device=text.read.device))
        states = functional.pad(states, (0, 0, 0, masks)) if features is None else torch.cat([states, features])
        return (self.fuse(states).to(self.passes.static.dtype),)

    def first(self, text: DeviceText) -> tuple[Tensor, Tensor]:
        return text.read, text.length - 1

    def note_read(self, text: DeviceText) -> None:
        text.read.copy_(text.length - 1)

    def read_after(self, length: int, accepted: int, depth: int) -> int:
        return length - 1

    def move_accepted(self, start: Tensor, path: Tensor) -> None:
        """Nothing to do: it reads the accepted tokens once more, with the target's states."""

    @property
    def extra_places(self) -> int:
        return self.part.masks


class DeviceReading:
    """The passes of one draft on a device (`specviz.parts.reading.Reading`)."""

    foresees = False  # no draft ends early there
    gains_width: int | None = None  # parts add their gains themselves
    gain: Gain | None = None
    forecast: Tensor | None = None

    def __init__(self, ahead: DraftAhead, text: DeviceText):
        self.ahead, self.on_device = ahead, text
        self.start, self.end = ahead.first(text)
        self.states = torch.empty(0)

    @property
    def last(self) -> Tensor:
        return self.on_device.ids.index_select(0, self.on_device.length - 1)

    @property
    def last_state(self) -> Tensor:
        return self.on_device.states(self.on_device.length - 2)

    def span(self) -> AbstractContextManager[object]:
        return nullcontext()

    def text(self, masks: Tensor | None = None, features: Tensor | None = None) -> Tensor:
        ahead, device, count = self.ahead, self.start.device, 0 if masks is None else len(masks)
        places = self.start + torch.arange(ahead.unread, device=device)
        tokens = self.on_device.ids.index_select(0, places + ahead.shift)
        where = places.where(places < self.end, ahead.passes.kept_buffers.room - 1)
        wanted = self.end - 1 - self.start
        if masks is not None:
            after = torch.arange(count, device=device)
            tokens, where = torch.cat([tokens, masks]), torch.cat([where, self.end + after])
            wanted = torch.cat([wanted, ahead.unread + after])
        inputs = ahead.text_inputs(self.on_device, count, features)
        rows, self.states = self._pass(tokens, where, where, ahead.visible(where), inputs)
        if len(rows) == count:  # the part makes none of the text
            return rows
        self.states = self.states.index_select(0, wanted)
        return rows.index_select(0, wanted)

    def level(self, level: GrownLevel) -> Tensor:
        ahead, place = self.ahead, self.end + level.first // self.ahead.growing.branches
        if level.rows is None:
            inputs = ahead.inputs(self.states)
            rows, self.states = self._pass(level.tokens, place, place, ahead.visible(place), inputs)
            return rows
        where = self.end + torch.arange(level.first, level.first + len(level.tokens), device=self.end.device)
        seen = branches_see(ahead.cells, self.end, level.ancestors)
        inputs = ahead.inputs(parent_states(self.states, level))
        rows, new_states = self._pass(level.tokens, place.expand_as(where), where, seen, inputs)
        self.states = torch.cat([self.states, new_states])
        return rows

    def _pass(
        self, tokens: Tensor, positions: Tensor, where: Tensor, visible: Tensor, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """Rows and states, which are empty where a pass returns none."""
        rows, *states = self.ahead.passes.static(tokens, positions, where, visible, *inputs, *self.ahead.kv)
        return rows, states[0] if states else rows[:, :0]

    def head_rows(self, tokens: Tensor, states: Tensor, rows_wanted: int, head: int = 0) -> tuple[Tensor, Tensor]:
        assert isinstance(self.ahead, HeadAhead)
        rows = self.ahead.model(input_ids=tokens[None], features=states[None]).logits[0]
        return rows[-rows_wanted:], states


def branches_see(cells: Tensor, end: Tensor, ancestors: Tensor) -> Tensor:
    """[k, room] bool: each of a tree's tokens sees the text, which ends before the place `end` [1], and its own branch.

    cells: [room] int64, all places. ancestors: [k, n] bool; the tree's n tokens follow the text.
    """
    places = end + torch.arange(ancestors.shape[1], device=end.device)
    return (cells < end).expand(len(ancestors), -1).clone().index_copy_(1, places, ancestors)


def move(rows: Sequence[Tensor], start: Tensor, path: Tensor) -> None:
    """Copies rows from the places of a draft's tokens to the text's end. start: [1] int64, the place of its first
    token; path: [depth] int64, tokens of the draft."""
    places = start + torch.arange(len(path), device=path.device)
    for tensor in rows:
        tensor.index_copy_(2, places, tensor.index_select(2, start + path))
