"""Which cached model reads a text: one with running states, one over static buffers, or the plain one."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specviz.passes.cached_model import CachedModel
from specviz.passes.cuda_graphs import GraphedPasses
from specviz.passes.devices import Stopwatch
from specviz.passes.fast_passes import FastPasses, KeyValueBuffers
from specviz.passes.kernels import operations
from specviz.passes.made_drafts import Choice, RawDraft
from specviz.passes.states import KeptStates, crop_rows, keeps_state, record_windows
from specviz.passes.static_passes import WIDEST


def new_cached_model(
    model: PreTrainedModel, stopwatch: Stopwatch, passes: FastPasses | None = None, feature_layers: tuple[int, ...] = ()
) -> CachedModel:
    """`model` with an empty cache; over static buffers if there are passes prepared for such buffers."""
    if passes is None:
        kind = StatefulModel if keeps_state(model) else CachedModel
        return kind(model, stopwatch, feature_layers)
    return StaticModel(model, stopwatch, passes, feature_layers)


class StatefulModel(CachedModel):
    """A `CachedModel` with a running state, which no rewind can take tokens out of.

    The states are saved before a pass that reads draft tokens. Where some of these are rejected, they are put back,
    keys and values go back to the same place, and the tokens that stay are unread once more: the next pass reads them
    again, together with the next draft. Of `features`, a token's row is left by the first pass over it alone.
    """

    #: How many tokens a pass reads again at most. More get a pass of their own, whose states then stay: otherwise each
    #: rejected draft would lengthen all later passes until a draft is accepted whole. On two random models of 30
    #: layers, 8, 16 and 32 took the same time for a text, 4 up to a tenth more and a pass of their own every time a
    #: fifth to a third.
    AGAIN = 16

    def __init__(self, model: PreTrainedModel, stopwatch: Stopwatch, feature_layers: tuple[int, ...] = ()):
        super().__init__(model, stopwatch, feature_layers)
        self.reads_chains_only = True
        self._saved: list[KeptStates] = []  # by length
        self._again = 0  # of the next tokens, how many have been read before
        # Not all of these models count by themselves how far a text has been read: Bamba begins at 0 in each pass.
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def _empty(self) -> None:
        self.cache = DynamicCache(config=self.model.config)
        record_windows(self.cache)

    def forward(
        self,
        token_ids: Tensor,
        rows_wanted: int,
        visible: Tensor | None = None,
        positions: Tensor | None = None,
        inputs: Tensor | None = None,
    ) -> Tensor:
        if not self._saved:
            self._saved.append(KeptStates(self.cache, self.length))
        return self._forward(token_ids, rows_wanted, inputs)

    def _forward(self, token_ids: Tensor, rows_wanted: int, inputs: Tensor | None = None) -> Tensor:
        """A pass without saving the states before it."""
        n = token_ids.shape[0]
        again = min(self._again, n)
        positions = torch.arange(self.length, self.length + n, device=self.device) if self._takes_positions else None
        logits = super().forward(token_ids, rows_wanted, None, positions, inputs)
        self._again -= again
        self.read_again += again
        if self.feature_layers:
            assert self.features is not None, "the pass has just left some"
            self.features = self.features[again:]
        return logits

    def verify(self, committed: Sequence[int], draft_tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        self.read_again = 0
        if not parents:
            self._saved.clear()
            return self._forward(self.unread(committed), rows_wanted=1)
        if self._again <= self.AGAIN:
            return super().verify(committed, draft_tokens, parents)
        self._saved.clear()
        self._forward(self.unread(committed[:-1]), rows_wanted=1)
        return super().verify(committed, draft_tokens, parents)

    def extend(self, tokens: Tensor, parents: tuple[int, ...], inputs: Tensor | None = None) -> Tensor:
        if len(parents) == tokens.shape[0]:  # all before them is text, and stays
            self._saved.append(KeptStates(self.cache, self.length))
        return super().extend(tokens, parents, inputs)

    def rewind(self, length: int) -> None:
        """Forgets all tokens after the first `length`. Fewer may be held then: see `unread`."""
        if length > self.length + self._again:
            raise ValueError(f"A text of {self.length + self._again} tokens cannot be rewound to {length}.")
        if length == self.length:
            self._saved.clear()
            if length:
                crop_rows(self.cache, 0)
            self._again = 0
            return
        while self._saved and self._saved[-1].length > length:
            self._saved.pop()
        if not self._saved:
            self._empty()
            self.length, self._again = 0, length
            return
        held = self._saved[-1].length
        self._saved[-1].put_back()
        crop_rows(self.cache, self.length - held)
        self.length, self._again = held, length - held
        if held == length:  # whoever shares the layers may read on before this one does
            self._saved.clear()


class StaticModel(CachedModel):
    """A `CachedModel` over static buffers, with passes prepared for such buffers."""

    def __init__(
        self,
        model: PreTrainedModel,
        stopwatch: Stopwatch,
        passes: FastPasses,
        feature_layers: tuple[int, ...] = (),
        buffers: KeyValueBuffers | None = None,
    ):
        """buffers: those that already hold the text. To ask the passes for some would empty theirs."""
        self.passes = passes
        self.buffers = passes.buffers(self) if buffers is None else buffers
        super().__init__(model, stopwatch, feature_layers)

    def _empty(self) -> None:
        """Nothing to do: the buffers are the cache."""

    def sharing_first_layers(self, model: PreTrainedModel, layers: int, passes: FastPasses | None) -> StaticModel:
        return StaticModel(model, self.stopwatch, passes or self.passes.first_layers(layers), buffers=self.buffers)

    @property
    def _tensors(self) -> Sequence[Tensor]:
        return self.passes.static.kv_in_use(self.buffers.tensors)

    def _read(
        self,
        token_ids: Tensor,
        rows_wanted: int,
        visible: Tensor | None,
        positions: Tensor | None,
        inputs: Tensor | None,
    ) -> Tensor:
        if token_ids.shape[0] <= WIDEST:
            logits, features = self._pass(token_ids, self.length, visible, positions, inputs)
        else:
            logits, features = self._read_in_parts(token_ids, rows_wanted, inputs)
        if self.feature_layers:
            self.features = features
        return logits

    def _read_in_parts(
        self, token_ids: Tensor, rows_wanted: int, inputs: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Reads a long prompt, for its last `rows_wanted` rows of logits."""
        length, rows, features = self.length, None, []
        parts = itertools.repeat(None) if inputs is None else inputs.split(WIDEST)
        for part, part_inputs in zip(token_ids.split(WIDEST), parts):
            logits, part_features = self._pass(part, length, None, None, part_inputs)
            rows = (logits if rows is None else torch.cat([rows, logits]))[-rows_wanted:]
            features.append(part_features)
            length += len(part)
        return rows, torch.cat(features) if self.feature_layers else None

    def _pass(
        self, token_ids: Tensor, length: int, visible: Tensor | None, positions: Tensor | None, inputs: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [n, vocab] and features [n, layers · d] of one pass over n tokens after `length` cached ones."""
        where, visible = self.buffers.places(length, token_ids.shape[0], visible)
        positions = where if positions is None else positions
        further = () if inputs is None else (inputs,)
        return self.passes.read(token_ids, positions, where, visible, self._tensors, self.feature_layers, further)

    @property
    def graphs(self) -> GraphedPasses | None:
        passes = self.passes
        return passes if isinstance(passes, GraphedPasses) and passes.works_on(self._tensors[0]) else None

    def draft_width(self, branches: int) -> int | None:
        return self.passes.chain_width if branches == 1 or self.passes.by_kernels else None

    def draft(
        self, unread: Tensor, levels: int, choice: Choice, uniforms: Tensor, inputs: Tensor | None = None
    ) -> RawDraft:
        assert self.passes.draft is not None, "there is no `draft_width`"
        text = self.length + unread.shape[0]
        self.buffers.reserve(text + (levels - 1) * choice.branches)
        with self.stopwatch.span():
            draft = self.passes.draft(unread, self.length, self._tensors, levels, choice, uniforms, inputs)
        self.length = text + draft.read
        return draft

    def _forget(self, count: int) -> None:
        """Nothing to do: what lies beyond `length` is never attended to, and gets overwritten."""

    def _move(self, start: int, origins: Tensor) -> None:
        if self.passes.by_kernels:
            return operations.move(self._tensors, start, origins)
        for part in self._tensors:
            part[:, :, start : start + len(origins)] = part.index_select(2, origins)

    def kv(self) -> list[Tensor]:
        return [part[:, :, : self.length] for part in self._tensors]

    def states(self) -> list[Tensor]:
        return []
