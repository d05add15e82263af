"""DFlash2 drafters (z-lab): DFlash's blocks, in which neighbouring slots mix around attention and MLP, and whose tokens
are picked from a few candidates each, from left to right."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.parts.dspark import CorrectedHead, RowsAndMemory
from specviz.parts.part_files import PartFiles
from specviz.parts.published import Servers


class _Mixing(nn.Module):
    """Convolutions over a slot and those before it, before and after something else. A slot's kernels are those of all
    slots, and for each group of channels what its own state adds to them."""

    def __init__(self, d: int, taps: int, group: int):
        super().__init__()
        self.group = group
        self.base_kernel = nn.Parameter(torch.empty(2, taps, d))
        self.kernel_projection = nn.Linear(d, 2 * taps * (d // group), bias=False)

    def forward(self, x: Tensor, inner: Callable[[Tensor], Tensor]) -> Tensor:
        """x: [1, slots, d]."""
        added = self.kernel_projection(x).unflatten(-1, (*self.base_kernel.shape[:2], -1))
        before, after = (self.base_kernel + added.repeat_interleave(self.group, -1)).unbind(2)
        return self._mixed(inner(self._mixed(x, before)), after)

    def _mixed(self, x: Tensor, kernels: Tensor) -> Tensor:
        slots = x.shape[1]
        earlier = [functional.pad(x, (0, 0, back, 0))[:, :slots] for back in range(kernels.shape[2])]
        return (torch.stack(earlier, 2) * kernels).sum(2)


class _Selector(nn.Module):
    def __init__(self, vocab_size: int, rank: int, d: int):
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.hidden_projection = nn.Linear(d, rank, bias=False)


class DFlash2Head(CorrectedHead):
    """A row's likeliest tokens c are its candidates, and their logits gain (A[t] ⊙ P h) · B[c], t being the token
    before and h the row's hidden state; all others are out."""

    method: ClassVar[str] = "DFlash2"
    servers: ClassVar[Servers] = Servers()

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        super().__init__(files, target)
        names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        taps, group, rank, self.candidates = (files.needed(name) for name in names)
        d = self.config.hidden_size
        for layer in self.layers:
            layer.attention_conv, layer.mlp_conv = (_Mixing(d, taps, group) for _ in range(2))
        self.candidate_selector = _Selector(self.config.vocab_size, rank, d)

    def corrected(self, depth: int, logits: Tensor, tokens: Tensor, hidden: Tensor, memory: Tensor) -> RowsAndMemory:
        selector = self.candidate_selector
        likeliest, ids = logits.topk(min(self.candidates, len(logits)))
        before = selector.predecessor_codebook[tokens] * selector.hidden_projection(hidden)
        scores = likeliest + before @ selector.successor_codebook[ids].T
        out = logits.new_full((len(tokens), len(logits)), float("-inf"))
        return out.scatter(-1, ids.expand(len(tokens), -1), scores), memory
