"""DFlash's blocks, whose rows are corrected from left to right by the tokens before each: DSpark (arXiv
2607.05147), which also foresees a row's chance of acceptance, Domino (arXiv 2605.29707) and DFlash2 (z-lab).

In the layouts of DeepSpec, SpecForge, speculators and NVIDIA's Model Optimizer.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.parts.block_files import unknown_kind
from specviz.parts.dflash import DFlashHead
from specviz.parts.part_files import PartFiles
from specviz.parts.reading import Reading, Rows, SomeLevel, parent_states, with_level
from specviz.parts.servers import Servers
from specviz.passes.kernels.chains import READ_DTYPES, Gain, OnePass
from specviz.passes.kernels.packed_linear import FewRowsLinear

#: Corrected logits, and the memory after the tokens that corrected them.
RowsAndMemory = tuple[Tensor, Tensor]

#: What corrects a row: the token before alone; it and the row's hidden state; these and all tokens before.
_KINDS = ("vanilla", "gated", "rnn")


class CorrectedHead(DFlashHead):
    """A block whose rows are corrected from left to right, with a memory of the tokens before.

    A row is corrected before its token is drawn, so q is what that was drawn from. Where a part foresees a row's
    chance of acceptance, `DraftParams.confidence` ends the draft before the first one that is too unlikely. That
    depends on the tokens before, never on this one: to drop a token for what it became would change the distribution of
    the text (App. A).
    """

    memory_width: int = 0

    def source(self, depth: int) -> str:
        return f"slot {depth + 1}"

    def rows_by_level(self, reading: Reading[SomeLevel], depth: int) -> Rows[SomeLevel]:
        rows, tokens, skipped = self.block(reading), reading.last, self.skipped
        if reading.gains_width == rows.shape[-1] and (gain := self.gain(tokens)) is not None:
            reading.gain = gain
            yield self.for_target(rows[skipped : skipped + depth])
            return
        hidden = reading.states.to(self.norm.weight.dtype)
        memory = memories = self.first_memory(tokens, hidden)
        for slot in range(skipped, skipped + depth):
            with reading.span():
                logits, new_memories = self.corrected(slot - skipped, rows[slot], tokens, hidden[slot], memory)
                reading.forecast = self.acceptance_forecast(tokens, hidden[slot]) if reading.foresees else None
                logits = self.for_target(logits)
            level = yield logits
            memories = new_memories if slot == skipped else with_level(memories, new_memories, level)
            tokens, memory = level.tokens, parent_states(memories, level)

    @property
    def one_pass(self) -> OnePass | None:
        one_pass, gain = super().one_pass, self.gain(torch.zeros(1, dtype=torch.long))
        return one_pass._replace(gain=gain) if one_pass and gain else None

    def gain(self, last: Tensor) -> Gain | None:
        """What `corrected` adds to all rows, where it depends on the token before alone and our kernels multiply it.
        last: [1], the text's last token."""
        return None

    def first_memory(self, last: Tensor, hidden: Tensor) -> Tensor:
        """[1, width], before the first row that drafts. last: [1], the text's last token; hidden: [slots, d]."""
        return hidden.new_zeros(1, self.memory_width)

    def corrected(self, depth: int, logits: Tensor, tokens: Tensor, hidden: Tensor, memory: Tensor) -> RowsAndMemory:
        """The logits [rows] at a depth after each of the tokens [k] before it, [k, rows], and the next memory
        [k, width]. hidden: [d], the row's. depth: of its token in the draft, from 0."""
        return logits.expand(len(tokens), -1), memory

    def acceptance_forecast(self, tokens: Tensor, hidden: Tensor) -> Tensor | None:
        """[k], an estimate of Σ min(p, q) of a row [d] after each of the tokens [k]; None if it foresees nothing."""
        return None


class MarkovHead(nn.Module):
    """What a row's logits gain from the token before its own: W_2 e, and e = W_1[token].

    Gated, e is multiplied by σ(G [h; e]), h being the row's hidden state. As a recurrent network it is tanh(o) of
    [g; c; o] = J [m; e; h], whose memory m becomes σ(g) m + (1 − σ(g)) tanh(c).
    """

    def __init__(self, kind: str, vocab_size: int, rows: int, rank: int, d: int):
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, rows, bias=False)
        self.gate_proj = nn.Linear(d + rank, rank) if kind == "gated" else None
        self.joint_proj = nn.Linear(2 * rank + d, 3 * rank) if kind == "rnn" else None

    def forward(self, tokens: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """[k, rows] and the next memory [k, rank], after tokens [k], for a row [d]."""
        embedded = self.markov_w1(tokens)
        if self.gate_proj is not None:
            read = torch.cat([hidden.expand(len(tokens), -1), embedded], -1)
            embedded = self.gate_proj(read).sigmoid() * embedded
        elif self.joint_proj is not None:
            read = torch.cat([memory, embedded, hidden.expand(len(tokens), -1)], -1)
            gate, candidate, output = self.joint_proj(read).chunk(3, -1)
            gate, embedded = gate.sigmoid(), output.tanh()
            memory = gate * memory + (1 - gate) * candidate.tanh()
        return self.markov_w2(embedded), memory


class DSparkHead(CorrectedHead):
    """A DFlash block with a Markov head and a confidence head, or one of them."""

    method: ClassVar[str] = "DSpark"
    servers: ClassVar[Servers] = Servers("dspark", "DSPARK", "draft-dspark", "DSPARK_DRAFTER")

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        super().__init__(files, target)
        d, vocab, kind = self.config.hidden_size, self.config.vocab_size, files.setting("markov_head_type") or _KINDS[0]
        if kind not in _KINDS:
            raise unknown_kind(files, self.method, kind)
        embedded, proj = "markov_head.markov_w1.weight", "confidence_head.proj.weight"
        rank = files.setting("markov_rank", default=files.size(embedded, 1) if embedded in files.shapes else 0)
        rows = vocab if self.lm_head is None else self.lm_head.out_features
        self.memory_width = rank
        self.markov_head = MarkovHead(kind, vocab, rows, rank, d) if rank else None
        # From a row's hidden state, or that and the token's embedding in the Markov head.
        self.confidence_head = None
        self.embeds_confidence = proj in files.shapes and files.size(proj, 1) > d
        if proj in files.shapes:
            width = d + rank * self.embeds_confidence
            self.confidence_head = nn.ModuleDict({"proj": nn.Linear(width, 1)})

    def first_memory(self, last: Tensor, hidden: Tensor) -> Tensor:
        memory = super().first_memory(last, hidden)
        if self.sizes.predicts_next or self.markov_head is None:
            return memory
        # It is trained from the first slot on, also where that one drafts nothing (speculators).
        return self.markov_head(last, hidden[0], memory)[1]

    def corrected(self, depth: int, logits: Tensor, tokens: Tensor, hidden: Tensor, memory: Tensor) -> RowsAndMemory:
        if self.markov_head is None:
            return super().corrected(depth, logits, tokens, hidden, memory)
        gain, memory = self.markov_head(tokens, hidden, memory)
        return logits + gain, memory

    def gain(self, last: Tensor) -> Gain | None:
        head = self.markov_head
        if head is None or head.gate_proj is not None or head.joint_proj is not None or self.columns is not None:
            return None
        embeddings, layer = head.markov_w1.weight, head.markov_w2
        read = isinstance(layer, FewRowsLinear) and embeddings.dtype in READ_DTYPES
        return Gain(embeddings, layer, last) if read else None

    def acceptance_forecast(self, tokens: Tensor, hidden: Tensor) -> Tensor | None:
        if self.confidence_head is None:
            return None
        read, proj = hidden.expand(len(tokens), -1), self.confidence_head["proj"]
        if self.embeds_confidence:
            assert self.markov_head is not None
            read = torch.cat([read, self.markov_head.markov_w1(tokens)], -1)
        return proj(read).float().sigmoid().squeeze(-1)


class DominoHead(CorrectedHead):
    """A DFlash block whose logits gain V silu(U [h; m]), m being the state of a GRU that has read the embeddings of the
    tokens before; the first few stay as they are."""

    method: ClassVar[str] = "Domino"
    servers: ClassVar[Servers] = Servers()

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        super().__init__(files, target)
        self.uncorrected = files.setting("pure_draft_prefix_len", default=0)
        self.__dict__["embeddings"] = target.get_input_embeddings()  # not as one of its modules
        self.memory_width, between = (files.needed(name) for name in ("gru_hidden_dim", "emb_dim"))
        d, vocab = self.config.hidden_size, self.config.vocab_size
        self.prefix_gru = nn.GRU(d, self.memory_width, bias=False)
        steps = nn.Linear(d + self.memory_width, between, bias=False), nn.Linear(between, vocab, bias=False)
        self.embed_proj = nn.Sequential(steps[0], nn.SiLU(), steps[1])

    def corrected(self, depth: int, logits: Tensor, tokens: Tensor, hidden: Tensor, memory: Tensor) -> RowsAndMemory:
        read, gru = self.embeddings(tokens).to(memory), self.prefix_gru
        memory = torch.gru_cell(read, memory, gru.weight_ih_l0, gru.weight_hh_l0)
        if depth < self.uncorrected:
            return super().corrected(depth, logits, tokens, hidden, memory)
        return logits + self.embed_proj(torch.cat([hidden.expand(len(tokens), -1), memory], -1)), memory


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
        kernels_before, kernels_after = (self.base_kernel + added.repeat_interleave(self.group, -1)).unbind(2)
        return self._mix(inner(self._mix(x, kernels_before)), kernels_after)

    def _mix(self, x: Tensor, kernels: Tensor) -> Tensor:
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
        context = selector.predecessor_codebook[tokens] * selector.hidden_projection(hidden)
        scores = likeliest + context @ selector.successor_codebook[ids].T
        out = logits.new_full((len(tokens), len(logits)), float("-inf"))
        return out.scatter(-1, ids.expand(len(tokens), -1), scores), memory
