"""A parallel head over static buffers: its pass as a function of tensors, and what reads a text with such passes."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from specviz.passes.few_rows import FewRows, WideEmbedding
from specviz.passes.parallel_head import ParallelHead
from specviz.passes.static_eagle import StaticHead
from specviz.passes.static_passes import WIDEST, FastPasses, StaticPass


class FewRowsParallelHead(ParallelHead):
    """A parallel head whose products are made by our own kernels."""

    def __init__(self, head: ParallelHead, few_rows: FewRows):
        nn.Module.__init__(self)  # none of the weights that a new head would have
        self.config = head.config
        self.feature_layers = head.feature_layers
        self.marks = WideEmbedding(head.marks)
        self.scale = nn.Parameter(head.scale.detach().float(), requires_grad=False)
        names = ("entry", "qkv", "out", "gate_up", "down")
        self.products = nn.ModuleDict({name: few_rows.linear(head.matrix(name)) for name in names})

    def product(self, x: Tensor, name: str) -> Tensor:
        return self.products[name](x)


class StaticParallel(StaticHead):
    """One pass of a parallel head. Its further input is the target's features, [n, layers · d].

    A mask has token and features of the text's last row, and its number times the vocabulary's size is added to the id.
    """

    name = "parallel head"
    on_kernels = FewRowsParallelHead

    def __init__(self, head: ParallelHead, target: StaticPass):
        config = head.config
        super().__init__(head, target, config.applications, len(config.feature_layers) * config.hidden_size)

    @property
    def vocabulary(self) -> int:
        return self.get_input_embeddings().weight.shape[0]

    def forward(
        self, token_ids: Tensor, positions: Tensor, where: Tensor, visible: Tensor, *others: Tensor
    ) -> tuple[Tensor]:
        """Logits [n, vocab] in float32."""
        features, *rows = others
        embeddings = self.get_input_embeddings()(token_ids % self.vocabulary)
        entered = self.head.enter(features.to(self.inner_dtype), embeddings)
        state = entered + self.head.marks(token_ids // self.vocabulary)
        pairs = zip(rows[::2], rows[1::2], strict=True)
        attends = [functools.partial(self.attend, pair, where, visible) for pair in pairs]
        hidden = self.head(state, self.turns(positions), attends)
        return (self.get_output_embeddings()(self.head.normed(hidden)).float(),)


class StaticParallelReader:
    """As `ParallelReader`, over static buffers, with passes prepared for them."""

    def __init__(self, passes: FastPasses):
        self.passes = passes
        self.buffers = passes.buffers(self)
        self.length = 0

    def read(self, features: Tensor, tokens: Tensor, depths: int) -> Tensor:
        """As in `ParallelReader`."""
        masks = tokens[-1] + self.passes.static.vocabulary * torch.arange(1, depths, device=tokens.device)
        features = torch.cat([features, features[-1:].expand(len(masks), -1)])
        logits, length = [], self.length
        for part, ids in zip(features.split(WIDEST), torch.cat([tokens, masks]).split(WIDEST)):
            where, visible = self.buffers.places(length, len(ids), None)
            logits.append(self.passes.run(ids, where, where, visible, part, *self.buffers.tensors)[0])
            length += len(ids)
        self.length += len(tokens)
        return torch.cat(logits)[-depths:]
