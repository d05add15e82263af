"""An EAGLE head reading one text, eagerly or over static buffers; and its pass as a function of tensors, for these.

What other heads over the target's features share with it is in `StaticHead`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.passes import kernel_library
from specviz.passes.few_rows import FewRows, WideEmbedding, attend
from specviz.passes.static_passes import WIDEST, FastPasses, Static, StaticPass, additive_mask
from specviz.passes.trained_heads import EPSILON, EagleCache, EagleHead, rotation


class FewRowsHead(EagleHead):
    """An EAGLE head whose products are made by our own kernels."""

    def __init__(self, head: EagleHead, few_rows: FewRows):
        nn.Module.__init__(self)  # none of the weights that a new head would have
        self.config = head.config
        self.feature_layers = head.feature_layers
        self.table = None if head.table is None else WideEmbedding(head.table)
        self.scale = nn.Parameter(head.scale.detach().float(), requires_grad=False)
        names = ["entry", "out", "gate_up", "down"]
        names += [name for name in ("table", "fusion") if getattr(head, name) is not None]
        self.products = nn.ModuleDict({name: few_rows.linear(head.matrix(name)) for name in names})

    def product(self, x: Tensor, name: str) -> Tensor:
        return self.products[name](x)

    def fuse(self, features: Tensor) -> Tensor:
        """By two functions of ours, since it runs outside the compiled pass: by torch's operations it takes as long as
        that does.
        """
        by_layer = features.float().unflatten(-1, (-1, self.config.feature_width))
        layers = kernel_library.normalised(by_layer, EPSILON).flatten(-2)
        return self.product(layers, "fusion") if "fusion" in self.products else layers


class StaticHead(Static):
    """One pass of a head with attention. Its rows are keys and values, of each time it attends in turn."""

    on_kernels: Callable[[nn.Module, FewRows], nn.Module]  # the head with its products made by our own kernels

    def __init__(self, head: nn.Module, target: StaticPass, attends: int, input_width: int):
        """target: by the kernels, if the head is to be. attends: how often in a pass."""
        super().__init__()
        # Not as its modules: they are on the same weights.
        self.__dict__ |= {"original": head, "target": target.original}
        self.few_rows = None if target.few_rows is None else target.few_rows.fitting(head)
        self.head = head if self.few_rows is None else self.on_kernels(head, self.few_rows)
        self.ends = nn.ModuleList([target.model.get_input_embeddings(), target.model.get_output_embeddings()])
        self.device, self.dtype = head.scale.device, head.scale.dtype
        self.inner_dtype = target.inner_dtype
        self.row_shapes = 2 * attends * [(head.config.num_attention_heads, head.config.head_dim)]
        self.input_widths = (input_width,)

    def __getstate__(self) -> dict[str, object]:
        # transformers puts hooks on models in use, which cannot be pickled.
        return {name: value for name, value in self.__dict__.items() if name not in ("original", "target")}

    def plain(self) -> StaticHead:
        return type(self)(self.original, StaticPass(self.target))

    def described(self) -> str:
        return f"{self.head.config} {self.target.config.to_json_string()} {self.dtype} {self.few_rows}"

    def get_input_embeddings(self) -> nn.Module:
        return self.ends[0]

    def get_output_embeddings(self) -> nn.Module:
        return self.ends[1]

    @property
    def vocab_size(self) -> int:
        return self.target.get_output_embeddings().weight.shape[0]

    def turns(self, positions: Tensor) -> Tensor:
        return rotation(positions, self.head.config).to(self.inner_dtype)

    def attend(
        self, rows: Sequence[Tensor], where: Tensor, visible: Tensor, queries: Tensor, keys_values: Tensor
    ) -> Tensor:
        """Writes keys and values [n, 2, heads, head_dim] to the rows; what queries [n, heads, head_dim] gather."""
        keys, values = rows
        # [n, 2, heads, head_dim] -> [1, heads, n, head_dim] each
        new_keys, new_values = keys_values.permute(1, 2, 0, 3)[:, None].unbind(0)
        keys.index_copy_(2, where, new_keys)
        values.index_copy_(2, where, new_values)
        queries = queries.transpose(0, 1)[None]
        if self.few_rows is None:
            seen = functional.scaled_dot_product_attention(queries, keys, values, visible[None, None])
            return seen[0].transpose(0, 1)
        mask = additive_mask(visible, self.inner_dtype)
        return attend(queries, keys, values, mask, self.head.config.head_dim**-0.5)[0]


class StaticEagle(StaticHead):
    """One pass of an EAGLE head. Its further input is fused features or its own states, [n, d]."""

    name = "EAGLE head"
    on_kernels = FewRowsHead

    def __init__(self, head: EagleHead, target: StaticPass):
        super().__init__(head, target, 1, head.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        return self.head.config.own_vocabulary or super().vocab_size

    def forward(
        self, token_ids: Tensor, positions: Tensor, where: Tensor, visible: Tensor, *others: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `EagleHead.forward`; returns logits [n, vocab] in float32 and hidden states [n, d]."""
        features, *rows = others
        embeddings = self.head.embed(token_ids, self)
        entered, queries, new = self.head.project(features.to(self.inner_dtype), embeddings, self.turns(positions))
        hidden = self.head.finish(entered, self.attend(rows, where, visible, queries, new))
        return self.head.logits(hidden, self).float(), hidden.to(self.dtype)


class EagleReader:
    """An EAGLE head reading one text, run eagerly. length: rows held."""

    chain_width: int | None = None  # see `CachedModel`

    def __init__(self, head: EagleHead, target: PreTrainedModel):
        self.head = head
        self.target = target
        self.rows = EagleCache(head)

    @property
    def length(self) -> int:
        return self.rows.length

    def fuse(self, features: Tensor) -> Tensor:
        """What the head reads beside tokens whose features the target has computed; see `EagleHead.fuse`."""
        return self.head.fuse(features)

    def read(
        self, features: Tensor, tokens: Tensor, keep: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits [keep, vocab] of the last tokens and hidden states [n, d] of all; see `EagleHead.forward`.

        tokens: [n] int64, each following its feature's token. positions: by default those after the rows held.
        """
        if positions is None:
            positions = torch.arange(self.length, self.length + len(tokens), device=tokens.device)
        states = self.head(features, self.head.embed(tokens, self.target), positions, self.rows, mask)
        return self.head.logits(states[-keep:], self.target), states

    def rewind(self, length: int) -> None:
        self.rows.rewind(length)


class StaticEagleReader:
    """The same over static buffers, with passes prepared for them."""

    def __init__(self, passes: FastPasses):
        self.passes = passes
        self.buffers = passes.buffers(self)
        self.length = 0

    def fuse(self, features: Tensor) -> Tensor:
        """As in `EagleReader`."""
        static = self.passes.static
        return static.head.fuse(features).to(static.dtype)

    def read(
        self, features: Tensor, tokens: Tensor, keep: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As in `EagleReader`."""
        logits, states = [], []
        for part, ids in zip(features.split(WIDEST), tokens.split(WIDEST)):
            where, visible = self.buffers.places(self.length, len(ids), mask)
            given = self.passes.run(
                ids, where if positions is None else positions, where, visible, part, *self.buffers.tensors
            )
            logits.append(given[0])
            states.append(given[1])
            self.length += len(ids)
        return torch.cat(logits)[-keep:], torch.cat(states)

    @property
    def chain_width(self) -> int | None:
        return self.passes.chain_width

    def draft(
        self, tokens: Tensor, steps: int, temperature: float, uniforms: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Reads at most WIDEST tokens beside their features, and drafts a chain after them; see `DraftChains.draft`."""
        length, self.length = self.length, self.length + tokens.shape[0] + steps - 1
        self.buffers.reserve(self.length)
        return self.passes.draft(tokens, length, self.buffers.tensors, steps, temperature, uniforms, features)

    def rewind(self, length: int) -> None:
        self.length = length
