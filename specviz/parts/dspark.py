"""DSpark drafters (arXiv 2607.05147): DFlash's blocks, whose rows are corrected from left to right by the token before
each, and a head that foresees how likely a row's token is to be kept.

In the layouts of DeepSpec, SpecForge, speculators and NVIDIA's Model Optimizer.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3Config

from specviz.parts.dflash import BlockConfig, DFlashHead, block_settings, own_shapes, with_weights
from specviz.parts.formats import PartFiles

#: What corrects a row: the token before alone; it and the row's hidden state; these and all tokens before.
_KINDS = ("vanilla", "gated", "rnn")


class MarkovHead(nn.Module):
    """What a row's logits gain from the token before its own: W_2 e, and e = W_1[token].

    Gated, e is multiplied by σ(G [h; e]), h being the row's hidden state. As a recurrent network it is tanh(o) of
    [g; c; o] = J [m; e; h], whose memory m becomes σ(g) m + (1 − σ(g)) tanh(c). (DSpark, §3.2.)
    """

    def __init__(self, kind: str, vocab_size: int, rows: int, rank: int, d: int):
        super().__init__()
        self.rank = rank
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, rows, bias=False)
        self.gate_proj = nn.Linear(d + rank, rank) if kind == "gated" else None
        self.joint_proj = nn.Linear(2 * rank + d, 3 * rank) if kind == "rnn" else None

    def forward(self, tokens: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """[k, rows] and the next memory [k, rank], after tokens [k], for rows with hidden states [k, d]."""
        embedded = self.markov_w1(tokens)
        if self.gate_proj is not None:
            embedded = self.gate_proj(torch.cat([hidden, embedded], -1)).sigmoid() * embedded
        elif self.joint_proj is not None:
            gate, candidate, output = self.joint_proj(torch.cat([memory, embedded, hidden], -1)).chunk(3, -1)
            gate, embedded = gate.sigmoid(), output.tanh()
            memory = gate * memory + (1 - gate) * candidate.tanh()
        return self.markov_w2(embedded), memory


class DSparkHead(DFlashHead):
    """A DFlash block with a Markov head and a confidence head, or one of them."""

    method: ClassVar[str] = "DSpark"

    def __init__(
        self,
        config: Qwen3Config,
        own: BlockConfig,
        feature_layers: tuple[int, ...],
        kind: str,
        rank: int,
        confidence_inputs: int,
    ):
        """rank: of the Markov head; 0: there is none. confidence_inputs: likewise."""
        super().__init__(config, own, feature_layers)
        d, rows = config.hidden_size, own.own_rows or config.vocab_size
        self.markov_head = MarkovHead(kind, config.vocab_size, rows, rank, d) if rank else None
        # From a row's hidden state, or that and the token's embedding in the Markov head.
        self.confidence_head = None
        if confidence_inputs:
            self.confidence_head = nn.ModuleDict({"proj": nn.Linear(d + rank * (confidence_inputs > d), 1)})

    def first_memory(self, last: Tensor, hidden: Tensor) -> Tensor:
        """[1, rank], before the first row that drafts. last: [1], the text's last token; hidden: [slots, d]."""
        if self.markov_head is None:
            return hidden[:1, :0]
        memory = hidden.new_zeros(1, self.markov_head.rank)
        # It is trained from the first slot on, also where that one drafts nothing (speculators).
        return memory if self.sizes.predicts_next else self.markov_head(last, hidden[:1], memory)[1]

    def corrected(self, logits: Tensor, tokens: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """A row's logits [rows] after each of the tokens [k] before it, [k, rows], and the next memory [k, rank]."""
        if self.markov_head is None:
            return logits.expand(len(tokens), -1), memory
        gain, memory = self.markov_head(tokens, hidden, memory)
        return logits + gain, memory

    def foreseen(self, tokens: Tensor, hidden: Tensor) -> Tensor | None:
        """[k], an estimate of Σ min(p, q) of the rows after tokens [k], with hidden states [k, d]; None without a
        confidence head."""
        if self.confidence_head is None:
            return None
        proj = self.confidence_head["proj"]
        if proj.in_features > hidden.shape[-1]:
            hidden = torch.cat([hidden, self.markov_head.markov_w1(tokens)], -1)
        return proj(hidden).float().sigmoid().squeeze(-1)


def load_dspark(files: PartFiles, target: PreTrainedModel) -> DSparkHead:
    """As `load_dflash`."""
    settings, shapes = block_settings(files, target, DSparkHead.method), own_shapes(files)
    kind = files.setting("markov_head_type", default="vanilla")
    if kind not in _KINDS:
        raise files.complaint(
            "The {method} drafter in {folder} is of a kind that is not known here: {kinds}.",
            method=DSparkHead.method,
            kinds=kind,
        )
    rank = files.setting("markov_rank", default=shapes.get("markov_head.markov_w1.weight", (0, 0))[1])
    confidence_inputs = shapes.get("confidence_head.proj.weight", (1, 0))[1]
    return with_weights(DSparkHead(*settings, kind, rank, confidence_inputs), files, target)
