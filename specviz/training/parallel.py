"""The parallel head: many drafts in each block of text, all in one pass (arXiv 2602.06036)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from specviz.passes.parallel_head import ParallelConfig, ParallelHead
from specviz.passes.trained_heads import rotation
from specviz.training.head import HeadRecipe
from specviz.training.losses import agreement, distillation

#: Places in a block of text from which drafts are made, and the weight of each depth relative to the one before.
_ANCHORS = 32
_DECAY = 0.8


class ParallelRecipe(HeadRecipe):
    """0.5 · KL + TV to the frozen target's distribution at each depth, along the text.

    The first depth is learnt at every row of the text, the others after rows chosen anew in each step.
    """

    name = "parallel"
    head_class, config_class = ParallelHead, ParallelConfig

    def loss(self, ids: Tensor, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        anchors = torch.randperm(self._places(ids), generator=generator)[:_ANCHORS]
        weights = [_DECAY**k for k in range(self.student.config.depths)]
        terms = [distillation(*both) for both in self._drafts(ids, anchors.to(ids.device))]
        return sum(weight * term for weight, term in zip(weights, terms)) / sum(weights)

    def measure(self, ids: Tensor) -> dict[str, Tensor]:
        anchors = torch.arange(_ANCHORS, device=ids.device) * self._places(ids) // _ANCHORS
        return {f"depth {k + 1}": agreement(*both) for k, both in enumerate(self._drafts(ids, anchors))}

    def _places(self, ids: Tensor) -> int:
        """How many rows of the text are followed by a token for every depth."""
        return ids.shape[1] - self.student.config.depths

    def _drafts(self, ids: Tensor, anchors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The head's and the target's logits at each depth, [rows, m, vocab] each: at all rows of the text, then after
        the rows `anchors` [m]."""
        text, head = self.target.read(ids), self.student
        n, masks = ids.shape[1] - 1, head.config.depths - 1
        entered, marks = head.enter(text.features[:, :n], text.embeddings[:, 1:]), head.marks.weight
        # Each anchor's masks in turn, after the text's rows.
        blocks = (entered[:, anchors].unsqueeze(2) + marks[1:]).flatten(1, 2)
        steps = torch.arange(1, 1 + masks, device=ids.device)
        positions = torch.cat([torch.arange(n, device=ids.device), (anchors.unsqueeze(-1) + steps).flatten()])
        visible = seen(n, anchors, masks)

        def attend(queries: Tensor, keys_values: Tensor) -> Tensor:
            # [rows, heads, n, head_dim] each
            keys, values = keys_values.permute(2, 0, 3, 1, 4).unbind(0)
            gathered = functional.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, visible)
            return gathered.transpose(1, 2)

        turns = rotation(positions, head.config)
        hidden = head.normed(
            head(torch.cat([entered + marks[0], blocks], 1), turns, head.config.applications * [attend])
        )
        yield self.target.head(hidden[:, :n]), text.logits[:, 1:]
        drafted = hidden[:, n:].unflatten(1, (len(anchors), masks))
        for k in range(masks):
            yield self.target.head(drafted[:, :, k]), text.logits[:, anchors + 2 + k]


def seen(n: int, anchors: Tensor, masks: int) -> Tensor:
    """What each of n rows of text, and of the masks after each of the rows `anchors`, sees: square, bool.

    A row of text sees those up to itself; a mask those up to its anchor, the masks before it there, and itself.
    """
    block = torch.arange(len(anchors), device=anchors.device).repeat_interleave(masks)
    before = torch.arange(n, device=anchors.device)
    text = torch.cat([before, anchors[block]]).unsqueeze(-1) >= before
    own = (block.unsqueeze(-1) == block).tril()
    return torch.cat([text, torch.cat([own.new_zeros(n, len(block)), own])], -1)
