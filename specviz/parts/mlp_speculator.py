"""MLP speculators (Wertheimer et al., arXiv 2404.19124; ibm-ai-platform/…-accelerator): a head for each depth, which
reads the state of the head before and the token that it led to.

Names of weights and settings are those of foundation-model-stack's checkpoints.
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.parts.part_files import PartFiles
from specviz.parts.published import PublishedPart, Servers, filled, same_target

#: Weights of later heads where all share them: some files repeat them.
_COPY = re.compile(r"(emb|ln|head)\.[1-9]|proj\.([2-9]|\d\d)")

_EPSILON = 1e-6


class MlpSpeculator(PublishedPart):
    """Heads k = 1..K with states s_k, s_0 being the target's last hidden state (normed and divided by √2 if `scaled`),
    and x_k the tokens from the one on that was drawn from it:

        s_k = GELU(norm_k(P_k s_{k-1} + β/α · E_k[x_k])),  α = 2^(-1/2K),  β = √((1 - α²) · inner size / 2)

    of which the output matrix of head k makes the logits of x_{k+1}. By the last head, the target's state makes up half
    of the sum (fms-extras, ``models/speculator.py``). If they are tied, heads share all weights but P_1.
    """

    kind: ClassVar[str] = "medusa"
    method: ClassVar[str] = "MLP speculator"
    servers: ClassVar[Servers] = Servers("mlp_speculator", model="SPECULATOR")

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        super().__init__()
        config, heads = target.config.get_text_config(), files.setting("n_predict", default=3)
        d, vocab, self.feature_layers = config.hidden_size, config.vocab_size, (config.num_hidden_layers,)
        self.num_heads = heads
        self.scaled, self.tied = (files.setting(name, default=False) for name in ("scale_input", "tie_weights"))
        inner, own = files.setting("inner_dim") or d, range(1 if self.tied else heads)
        widths = [d, *[inner] * (heads - 1)][: 2 if self.tied else heads]
        self.emb = nn.ModuleList([nn.Embedding(vocab, inner) for _ in own])
        self.proj = nn.ModuleList([nn.Linear(width, inner, bias=False) for width in widths])
        self.ln = nn.ModuleList([nn.LayerNorm(inner) for _ in own])  # its weights; it norms without the mean
        self.head = nn.ModuleList([nn.Linear(inner, vocab, bias=False) for _ in own])
        alpha = 0.5 ** (0.5 / heads)
        self.share = math.sqrt((1 - alpha**2) * inner / 2) / alpha  # β/α

    def enter(self, features: Tensor) -> Tensor:
        """s_0, [n, d], of the target's last hidden states [n, d]."""
        return _normalised(features) / math.sqrt(2) if self.scaled else features

    def read(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The states [n, inner] of the head at this depth, counted from 0, and its logits [n, vocab].

        states: [n, width] of the head before. tokens: [n] int64, those drawn from it.
        """
        emb, proj, ln, head = (every[min(depth, len(every) - 1)] for every in (self.emb, self.proj, self.ln, self.head))
        states = _normalised(proj(states) + self.share * emb(tokens))
        states = functional.gelu(states * ln.weight + ln.bias)
        return states, head(states)

    def reading(self) -> dict[str, Any]:
        return super().reading() | {"normed_first": self.scaled}


def _normalised(x: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], eps=_EPSILON)


def load_mlp_speculator(files: PartFiles, target: PreTrainedModel) -> MlpSpeculator:
    """The speculator in a folder, in evaluation mode, on the target's device and in its dtype.

    Raises SpecvizError (field ``draft``) if it is damaged, or was made for another target.
    """
    tied, width = files.setting("tie_weights", default=False), files.setting("emb_dim", "hidden_size")
    own = {name: name.removeprefix("speculator.") for name in files.shapes}
    files = files.named(lambda name: None if tied and _COPY.match(own[name]) else own[name])
    same_target(files, target, hidden_size=width, vocab_size=files.setting("vocab_size"))
    return filled(lambda: MlpSpeculator(files, target), files, target)
