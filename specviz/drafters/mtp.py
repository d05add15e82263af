"""Drafting with the target's own multi-token-prediction modules, each a token further ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from specviz.drafters.base import DraftContext
from specviz.drafters.eagle import Eagle
from specviz.models.pair import ModelPair
from specviz.passes.cached_model import tree_view
from specviz.passes.mtp_layers import ModuleReader, MtpModules
from specviz.passes.static_eagle import EagleReader, StaticEagleReader
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft, Verdict, tree_shape
from specviz.rules.transfer import to_device


class Mtp(Eagle):
    """Module k predicts the k-th token ahead from the states of module k − 1, of the target for the first.

    DeepSeek-V3, arXiv 2412.19437, sec. 2.2, eq. 21 to 23: they are trained with the target and shipped with it. Deeper
    drafts go on with the last module, run again on its own states: with one alone, or with an MTP head trained
    afterwards, that is EAGLE's loop. Each has a cache of its own and reads the text too, beginning one token further on
    than the one before. What a round read of its draft is dropped, as with EAGLE.
    """

    name: ClassVar[str] = "mtp"

    def __init__(self, context: DraftContext):
        super().__init__(context)
        depths = range(2, self.head.num_modules + 1)
        self.readers = [self.reader, *(ModuleReader(self.head, depth) for depth in depths)]
        self.held = [0] * len(self.readers)  # rows of the text in each
        # What each is to read the text's next tokens beside: states of the depth before, the last one for a token that
        # is yet to come.
        self.beside: list[list[Tensor]] = [[] for _ in self.readers]
        self.step = 0
        self.committed: Sequence[int] = ()
        self.drafted: list[Tensor] = []

    def reader_of(self, context: DraftContext) -> EagleReader | StaticEagleReader | ModuleReader:
        return ModuleReader(self.head, depth=1) if isinstance(self.head, MtpModules) else super().reader_of(context)

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"modules": pair.parts[cls.name].num_modules}

    def source(self, depth: int) -> str:
        modules = len(self.readers)
        return super().source(depth) if modules == 1 else f"module {min(depth + 1, modules)}"

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        draft = super().propose(committed, budget, uniforms)
        if self.in_one_call:
            self.features, self.held = None, [self.text_rows]
        return draft

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        # So that every module has a row of the text: its first is that of the token as far on as it looks.
        if len(committed) <= len(self.readers):
            return None
        self.committed, self.drafted, self.step = committed, [], 1
        self.reader = self.readers[0]
        row = super().first_row(committed)
        if row is not None:
            self.features = None
            self._note_text()
        return row

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        self.step += 1
        if self.step > len(self.readers):
            return super().next_rows(tokens, parents)
        self.drafted.append(tokens)
        with self.stopwatch.span():
            return self._read_on(len(tokens), parents)

    def _read_on(self, keep: int, parents: tuple[int, ...]) -> Tensor:
        """The next module reads the text's new tokens and all draft tokens so far; logits [keep, vocab] of the last."""
        index = self.step - 1
        self.reader = self.readers[index]
        tokens = to_device(self.committed[self.reader.length + self.step :], self.states.device)
        beside, shape = torch.cat(self.beside[index]), tree_shape(parents, tokens.device)
        features = torch.cat([beside[:-1], self.states.index_select(0, shape.rows + self.last)])
        self.beside[index] = [beside[-1:]]
        self.text_rows, self.last = self.reader.length + len(tokens), len(tokens) - 1
        view = tree_view(parents, self.reader.length, len(tokens)) if self.width > 1 else ()
        visible, positions = [to_device(one, tokens.device) for one in view] or (None, None)
        every = torch.cat([tokens, *self.drafted])
        logits, self.states = self.reader.read(features, every, keep, positions, visible)
        self._note_text()
        return logits

    def _note_text(self) -> None:
        """Keeps what the module at work has read of the text, and its states there for the next one."""
        self.held[self.step - 1] = self.text_rows
        if self.step < len(self.readers):
            self.beside[self.step].append(self.states[: self.last + 1])

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        for reader, length in zip(self.readers, self.held):
            reader.rewind(length)
        self.watch(committed, verdict, features)
