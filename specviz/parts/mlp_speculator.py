"""MLP speculators (Wertheimer et al., arXiv 2404.19124; ibm-ai-platform/…-accelerator): a head for each depth, which
reads the state of the head before and the token that it led to.

Names of weights and settings are those of foundation-model-stack's checkpoints.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.parts.formats import PartFiles
from specviz.parts.heads import EPSILON, MedusaConfig, normalised
from specviz.parts.published import PublishedPart, filled, same_target
from specviz.records.words import Sentence

#: Weights of later heads where all share them: some files repeat them.
_COPY = re.compile(r"(emb|ln|head)\.[1-9]|proj\.([2-9]|\d\d)")


@dataclasses.dataclass(frozen=True)
class SpeculatorConfig(MedusaConfig):
    """Sizes of an MLP speculator."""

    inner_size: int  # of the states between its heads
    vocab_size: int
    scaled: bool  # whether the target's hidden state is normed first
    tied: bool  # whether heads share their weights, apart from the first one's way in


class _Norm(nn.RMSNorm):
    """RMS norm with a shift after the scale."""

    def __init__(self, width: int):
        super().__init__(width, EPSILON)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, state: Tensor) -> Tensor:
        return super().forward(state) + self.bias


class MlpSpeculator(PublishedPart):
    """Heads k = 1..K with states s_k, s_0 being the target's last hidden state (normed and divided by √2 if `scaled`),
    and x_k the tokens from the one on that was drawn from it:

        s_k = GELU(norm_k(P_k s_{k-1} + β/α · E_k[x_k])),  α = 2^(-1/2K),  β = √((1 - α²) · inner size / 2)

    of which the output matrix of head k makes the logits of x_{k+1}. By the last head, the target's state makes up half
    of the sum (fms-extras, ``models/speculator.py``).
    """

    kind: ClassVar[str] = "medusa"
    method: ClassVar[str] = "MLP speculator"

    def __init__(self, sizes: SpeculatorConfig):
        super().__init__()
        self.sizes = sizes
        self.feature_layers = sizes.feature_layers
        inner, heads = sizes.inner_size, sizes.num_heads
        own, ways = (1, min(2, heads)) if sizes.tied else (heads, heads)
        self.emb = nn.ModuleList([nn.Embedding(sizes.vocab_size, inner) for _ in range(own)])
        self.proj = nn.ModuleList(
            [nn.Linear(inner if way else sizes.hidden_size, inner, bias=False) for way in range(ways)]
        )
        self.ln = nn.ModuleList([_Norm(inner) for _ in range(own)])
        self.head = nn.ModuleList([nn.Linear(inner, sizes.vocab_size, bias=False) for _ in range(own)])
        alpha = 0.5 ** (0.5 / heads)
        self.share = math.sqrt((1 - alpha**2) * inner / 2) / alpha  # β/α

    def enter(self, features: Tensor) -> Tensor:
        """s_0, [n, d], of the target's last hidden states [n, d]."""
        return normalised(features) / math.sqrt(2) if self.sizes.scaled else features

    def read(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The states [n, inner] of the head at this depth, counted from 0, and its logits [n, vocab].

        states: [n, width] of the head before. tokens: [n] int64, those drawn from it.
        """
        emb, proj, norm, head = (
            every[min(depth, len(every) - 1)] for every in (self.emb, self.proj, self.ln, self.head)
        )
        states = functional.gelu(norm(proj(states) + self.share * emb(tokens)))
        return states, head(states)

    def reading(self) -> dict[str, Any]:
        return super().reading() | {"normed_first": self.sizes.scaled}

    def other_readings(self) -> dict[Sentence, PublishedPart]:
        """And with the target's state the other way: normed, or as it is."""
        other = copy.copy(self)
        other.sizes = dataclasses.replace(self.sizes, scaled=not self.sizes.scaled)
        normed, as_they_are = Sentence("hidden states normed first"), Sentence("hidden states not normed first")
        return super().other_readings() | {as_they_are if self.sizes.scaled else normed: other}


def load_mlp_speculator(files: PartFiles, target: PreTrainedModel) -> MlpSpeculator:
    """The speculator in a folder, in evaluation mode, on the target's device and in its dtype.

    Raises SpecvizError (field ``draft``) if it is damaged, or was made for another target.
    """
    config = target.config.get_text_config()
    width, vocabulary = files.setting("emb_dim", "hidden_size"), files.setting("vocab_size")
    same_target(files, target, hidden_size=width, vocab_size=vocabulary)
    sizes = SpeculatorConfig(
        hidden_size=config.hidden_size,
        num_heads=files.setting("n_predict", default=3),
        feature_layers=(config.num_hidden_layers,),
        inner_size=files.setting("inner_dim") or config.hidden_size,
        vocab_size=config.vocab_size,
        scaled=files.setting("scale_input", default=False),
        tied=files.setting("tie_weights", default=False),
    )

    def own_name(name: str) -> str | None:
        own = name.removeprefix("speculator.")
        return None if sizes.tied and _COPY.match(own) else own

    with torch.device("meta"):
        part = MlpSpeculator(sizes)
    return filled(part, files, target, own_name)
