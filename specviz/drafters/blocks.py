"""Drafting with blocks of masks that see each other and the text, all in one pass: DFlash; and corrected from left to
right: DSpark, Domino, DFlash2."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from specviz.drafters.ahead import BlockAhead, DraftAhead
from specviz.drafters.at_once import Masked
from specviz.drafters.base import DraftContext
from specviz.drafters.heads import Headed
from specviz.models.pair import ModelPair
from specviz.parts.dflash import BlockModel, read_block
from specviz.passes.cached_model import reader
from specviz.records.settings import DraftParams
from specviz.rules.draft import tree_shape
from specviz.rules.transfer import to_device


class Blocks(Masked, Headed):
    """Fills in a block of masks after the text from the target's hidden states.

    DFlash, Chen et al., arXiv 2602.06036.
    """

    corrects: ClassVar[bool] = False  # whether a row depends on the tokens before it

    def __init__(self, context: DraftContext):
        super().__init__(context)
        self.masks_alone = not self.head.sizes.predicts_next
        fast = context.passes.get(self.name)
        self.reader = reader(BlockModel(self.head, self.target), self.stopwatch, fast, (-1,))
        if fast is not None:
            self.head = fast.static.model.head  # the same, perhaps on the kernels
        self.dtype = self.head.dtype  # once: it asks all weights
        self.hidden: Tensor | None = None  # [slots, d] of this round's block

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"depths": cls.most_depths(pair)}

    @classmethod
    def most_depths(cls, pair: ModelPair) -> int:
        return pair.parts[cls.name].sizes.depths

    def base_rows(self, committed: Sequence[int], depths: int) -> Tensor | None:
        """[depths, rows] in the part's own vocabulary; None if there is nothing to go on yet."""
        if self.features is None:
            return None
        tokens = to_device(committed[self.reader.length + 1 :], self.features.device)
        logits = read_block(self.reader, self.features, tokens)
        self.hidden = self.reader.features.to(self.dtype)
        return logits[self.masks_alone :][:depths]

    def all_rows(self, committed: Sequence[int], depths: int) -> Tensor | None:
        rows = self.base_rows(committed, depths)
        return None if rows is None else self.head.for_target(rows)

    def ahead(self, deepest: int) -> DraftAhead | None:
        if not self.grows_on(self.reader):
            return None
        own = self._in_common(self.reader, deepest) | {"unread": deepest + 1, "fuse": self.head.fuse}
        return BlockAhead(**own, deepest=self.most, head=self.head, corrects=self.corrects)

    def read_text(self, tokens: Tensor, features: Tensor) -> None:
        read_block(self.reader, features, tokens)


class CorrectedBlocks(Blocks):
    """Fills in a block of masks, then corrects it from left to right: each row by the tokens drafted before its own.

    DSpark, arXiv 2607.05147; Domino, arXiv 2605.29707; DFlash2. A row is corrected before its token is drawn, so q is
    what that was drawn from. Where DSpark foresees how likely a row's token is to be kept, `DraftParams.confidence`
    ends the draft before the first one that is too unlikely. That depends on the tokens before, never on this one: to
    drop a token for what it became would change the distribution of the text (App. A).
    """

    corrects: ClassVar[bool] = True

    def __init__(self, context: DraftContext):
        super().__init__(context)
        self.spreads = False
        self.memory: Tensor | None = None  # [n, width], after each draft token; in a chain the last one's alone

    def source(self, depth: int) -> str:
        return f"slot {depth + 1}"

    def all_rows(self, committed: Sequence[int], depths: int) -> Tensor | None:
        return self.base_rows(committed, depths)

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        if super().first_row(committed) is None:
            return None
        last = to_device(committed[-1:], self.hidden.device)
        before = self.head.first_memory(last, self.hidden)
        self.memory = before[:0]
        return self._row(0, last, before)

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        if self.width == 1:
            return self._row(len(parents), tokens, self.memory)
        depth = int(tree_shape(parents, torch.device("cpu")).ancestors[-1].sum())
        places = tree_shape(parents, tokens.device).rows[-len(tokens) :]
        return self._row(depth, tokens, self.memory.index_select(0, places))

    def _row(self, depth: int, tokens: Tensor, memory: Tensor) -> Tensor:
        """Logits [k, vocab] at this depth after each of the tokens [k]."""
        with self.stopwatch.span():
            hidden = self.hidden[self.masks_alone + depth]
            logits, after = self.head.corrected(depth, self.rows[depth], tokens, hidden, memory)
            self.memory = after if self.width == 1 else torch.cat([self.memory, after])
            if self.confidence:
                self.sure = self.head.foreseen(tokens, hidden)
            return self.head.for_target(logits)
