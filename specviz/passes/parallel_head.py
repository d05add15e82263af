"""A trained part that drafts all depths in one pass: masks stand where its tokens will be."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.passes.trained_heads import EPSILON, EagleCache, EagleConfig, hidden_size_of, load, matrices, normalised

#: What the rows of a pass gather by attention, [..., heads, head_dim], given their queries [..., heads, head_dim] and
#: their keys and values [..., 2, heads, head_dim].
Attend = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ParallelConfig:
    """Sizes of a parallel head."""

    hidden_size: int  # d, the target's
    num_attention_heads: int
    intermediate_size: int
    feature_layers: tuple[int, ...]  # the hidden states that text rows are made from
    depths: int = 8  # the most tokens of a draft: one row of the text, and masks
    applications: int = 2  # how often the layer is applied
    rope_theta: float = 10_000.0  # of rotary positions

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def of(cls, target: PreTrainedModel) -> ParallelConfig:
        """Sizes that suit this target. Raises SpecvizError (field ``drafter``) if none do."""
        like = EagleConfig.of(target)
        inner = -(-4 * hidden_size_of(target) // (3 * 64)) * 64
        return cls(like.hidden_size, like.num_attention_heads, inner, like.feature_layers)


class ParallelHead(nn.Module):
    """One small transformer layer, applied several times, over rows of text and of masks.

    A text's row t takes the target's features of token t and the embedding e of token t + 1, as in EAGLE, and predicts
    token t + 2. After the last one come masks, one for each further depth, which see the text's rows and the masks
    before them. Mask k predicts the token k after that of the last row, without knowing what the others say. So one
    pass gives all depths (PARD, arXiv 2504.18583; P-EAGLE, arXiv 2602.01469; DFlash, arXiv 2602.06036).

        x = e + U [norm(e); norm(f_1); norm(f_2); ...] + m_k, with e and f of the last row for masks, k = 0 for text
        repeatedly: x += attention(norm(x)), x += MLP(norm(x));  logits = output head(w · norm(x))

    A row sees none that come later, unlike the blocks of DFlash: those would only be masks, which say nothing. So a
    row is the same however deep the draft is, and a text's row can be read in the pass that drafts after it and stays.

    In those papers masks have nothing of the text in them; here, as in Medusa, they begin with what the last row knows,
    or else attention would first have to learn to look there. All applications share their weights (ALBERT, arXiv
    1909.11942): reading weights is what a draft's time goes to.
    """

    kind: ClassVar[str] = "parallel"

    def __init__(self, config: ParallelConfig):
        super().__init__()
        self.config = config
        self.feature_layers = config.feature_layers
        d, inner = config.hidden_size, config.intermediate_size
        self.marks = nn.Embedding(config.depths, d)  # m_k
        # Far enough apart to tell the depths from each other, or else what one learns spoils the next.
        nn.init.normal_(self.marks.weight, std=0.5)
        self.entry = matrices(d, (1 + len(config.feature_layers)) * d, std=0)
        self.qkv = matrices(3, d, d, std=d**-0.5)
        self.out = matrices(d, d, std=0)
        self.gate_up = matrices(2, inner, d, std=d**-0.5)
        self.down = matrices(d, inner, std=0)
        self.scale = nn.Parameter(torch.ones(d))

    def enter(self, features: Tensor, token_embeddings: Tensor) -> Tensor:
        """x [..., d] of a text's rows, from the target's hidden states of the `feature_layers`, [..., layers · d], and
        its embeddings [..., d] of the tokens that follow; but for m_k."""
        parts = torch.cat([token_embeddings, features], -1).unflatten(-1, (-1, self.config.hidden_size))
        return token_embeddings + self.product(normalised(parts).flatten(-2), "entry")

    def forward(self, state: Tensor, turns: Tensor, attends: Sequence[Attend]) -> Tensor:
        """x [..., d] at the end. turns: `rotation` of the rows' positions. attends: one for each application."""
        for attend in attends:
            state = self.finish(state, attend(*self.project(state, turns)))
        return state

    def project(self, state: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [..., heads, head_dim] and keys with values [..., 2, heads, head_dim]."""
        heads, width = self.config.num_attention_heads, self.config.head_dim
        joined = self.product(normalised(state), "qkv").unflatten(-1, (3, heads, width))
        cos, sin = turns[..., None, None, :, :].unbind(-2)
        turned = joined[..., :2, :, :]
        turned = turned * cos + turned.roll(width // 2, -1) * sin
        return turned[..., 0, :, :], torch.stack([turned[..., 1, :, :], joined[..., 2, :, :]], -3)

    def finish(self, state: Tensor, attended: Tensor) -> Tensor:
        """x [..., d] after one application, from x before it and what attention gathered, [..., heads, head_dim]."""
        state = state + self.product(attended.flatten(-2), "out")
        gate, up = self.product(normalised(state), "gate_up").chunk(2, -1)
        return state + self.product(functional.silu(gate) * up, "down")

    def product(self, x: Tensor, name: str) -> Tensor:
        """x [..., inputs] times the matrix of this name, [..., outputs]; several ones give their outputs in turn."""
        return functional.linear(x, self.matrix(name))

    def matrix(self, name: str) -> Tensor:
        """[outputs, inputs]; several matrices one below the other."""
        return getattr(self, name).flatten(0, -2)

    def normed(self, hidden: Tensor) -> Tensor:
        """What goes into the target's output head, [..., d]."""
        return functional.rms_norm(hidden, (self.config.hidden_size,), self.scale, EPSILON)


class ParallelReader:
    """A parallel head reading one text, run eagerly. length: rows held, none of them a mask's."""

    def __init__(self, head: ParallelHead, target: PreTrainedModel):
        self.head = head
        self.target = target
        self.rows = [EagleCache(head) for _ in range(head.config.applications)]
        self.length = 0

    def read(self, features: Tensor, tokens: Tensor, depths: int) -> Tensor:
        """Reads the text's new rows and drafts in the same pass: logits [depths, vocab] of what follows.

        features: [n, layers · d], the target's hidden states. tokens: [n] int64, each following its feature's token.
        """
        head, device = self.head, features.device
        embeddings = self.target.get_input_embeddings()(tokens).to(device)
        entered, marks = head.enter(features, embeddings), head.marks.weight[:depths]
        state = torch.cat([entered + marks[0], entered[-1] + marks[1:]])
        for rows in self.rows:
            rows.reserve(len(state))
        turns = self.rows[0].rotation(torch.arange(self.length, self.length + len(state), device=device))
        hidden = head(state, turns, [rows.attend for rows in self.rows])[-depths:]
        self.length += len(tokens)
        for rows in self.rows:
            rows.rewind(self.length)
        return self.target.get_output_embeddings()(head.normed(hidden)).to(device)


def load_parallel(folder: str | os.PathLike[str], target: PreTrainedModel) -> ParallelHead:
    """The parallel head from `folder`; as `load_medusa` in all else."""
    return load(ParallelHead, ParallelConfig, pathlib.Path(folder), target)
