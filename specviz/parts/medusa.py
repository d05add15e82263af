"""Medusa heads as they are published: each guesses a token further ahead, all of them from one hidden state. And MLP
speculators, whose heads also read the token that the head before led to.

Three layouts of Medusa are read: FasterDecoding's, where each head has an output matrix; text-generation-inference's,
where the heads end in the target's; and vLLM's and speculators', of either kind, which may leave rare tokens out. Names
of a speculator's weights and settings are those of foundation-model-stack's checkpoints.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.parts.head_passes import Head, HeadModel, HeadOutput, StaticHead, WithoutPass, without_layers
from specviz.parts.part_files import PartFiles
from specviz.parts.published import PublishedPart, columns_of, filled, logit_width, same_target
from specviz.parts.reading import Reading, Rows, RunReading, SomeLevel, TrainedPart, parent_states, variant, with_level
from specviz.parts.servers import Servers
from specviz.passes.cached_model import CachedModel
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.chains import OnePass
from specviz.passes.readers import new_cached_model
from specviz.passes.roles import Role
from specviz.passes.static_passes import StaticPass
from specviz.records.words import Sentence
from specviz.rules.sampling import in_order

#: FasterDecoding's names in vLLM's: head i is a sequence of blocks j with its output matrix at the end.
_RENAMED = [
    (re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)"), r"blocks.\1.layers.\2.\3"),
    (re.compile(r"(\d+)\.\d+\.weight"), r"lm_heads.\1.weight"),
    (re.compile(r"lm_head\.weight"), "lm_heads.0.weight"),
]


class PublishedMedusa(Head):
    """K heads over h_t, the target's last hidden state where it wrote token t + 1: head k guesses token t + 1 + k,
    k = 1..K (Cai et al., arXiv 2401.10774, §2.1). They do not see what was written.

        x = h;  layer by layer: x += SiLU(W x + b);  logits = output head(x)
    """

    kind: ClassVar[str] = "medusa"
    method: ClassVar[str] = "Medusa"
    servers: ClassVar[Servers] = Servers("medusa", model="MEDUSA_HEADS")
    states_are_read: ClassVar[bool] = False
    reads_text: ClassVar[bool] = False
    at_once: ClassVar[bool] = True
    proposer: ClassVar[str] = "head"

    def __init__(self, shapes: dict[str, tuple[int, ...]], shared: bool, target: PreTrainedModel):
        """shapes: of the tensors, by the part's names. shared: all heads have the first one's output matrix."""
        config = target.config.get_text_config()
        super().__init__(without_layers(config.hidden_size))
        places = [re.fullmatch(r"blocks\.(\d+)\.layers\.(\d+)\.weight", name) for name in shapes]
        heads, layers = (max(1, len({place[part] for place in places if place})) for part in (1, 2))
        d, self.feature_layers = config.hidden_size, (config.num_hidden_layers,)
        self.num_heads = self.most_depths = heads
        self.skipped = 0  # heads before the one that guesses the first draft token
        bias, rows = "blocks.0.layers.0.bias" in shapes, shapes.get("lm_heads.0.weight", (0,))[0]
        self.blocks = nn.ModuleList([nn.Module() for _ in range(heads)])
        for block in self.blocks:
            block.layers = nn.ModuleList([nn.Linear(d, d, bias) for _ in range(layers)])
        # None: they end in the target's.
        outputs = range(0 if not rows else 1 if shared else heads)
        self.lm_heads = nn.ModuleList([nn.Linear(d, rows, bias=False) for _ in outputs])

    def states(self, features: Tensor) -> list[Tensor]:
        """What each head makes of the target's last hidden states [..., d], for its output matrix."""
        states = [features] * self.num_heads
        for head, block in enumerate(self.blocks[self.skipped :]):
            for layer in block.layers:
                states[head] = states[head] + functional.silu(layer(states[head]))
        return states

    def output_head(self, head: int, target: PreTrainedModel) -> nn.Module:
        """What the states of this head, counted from 0, go through."""
        return self.lm_heads[head % len(self.lm_heads)] if self.lm_heads else target.get_output_embeddings()

    def logits(self, features: Tensor, of_target: nn.Module) -> Tensor:
        """Each head's logits [n, K, vocab], as many of the K as draft.

        features: [n, d], the target's last hidden states. of_target: its output head.
        """
        states = self.states(features)
        if len(self.lm_heads) > 1:
            rows = torch.stack([self.lm_heads[head](state) for head, state in enumerate(states, self.skipped)], -2)
        else:
            rows = (self.lm_heads[0] if self.lm_heads else of_target)(torch.stack(states, -2)).to(features.device)
        return rows if self.columns is None else in_order(rows, self.columns)

    def statics(self) -> dict[Role, Callable[..., StaticPass]]:
        return {self.role: functools.partial(StaticMedusa, self)}

    def for_run(self, target: CachedModel, passes: Mapping[Role, FastPasses]) -> RunReading:
        heads_reader = new_cached_model(MedusaModel(self, target.model), target.stopwatch, passes.get(self.role))
        return RunReading(self, [heads_reader], self.fuse, recorded=target)  # it reads no text

    @property
    def one_pass(self) -> OnePass | None:
        return OnePass(masks=None)

    def rows_by_level(self, reading: Reading[SomeLevel], depth: int) -> Rows[SomeLevel]:
        rows, _ = reading.head_rows(reading.last, reading.last_state, self.num_heads)
        yield rows[:depth]

    def facts(self) -> dict[str, Any]:
        """And which token the first head guesses, counted from the one that the hidden state belongs to."""
        return super().facts() | {"first_token": 2 - self.skipped, "heads": self.num_heads}

    def variants(self) -> dict[Sentence, TrainedPart]:
        """And with a first head that guesses the token already written, as some train it."""
        fewer = variant(self, skipped=1, num_heads=self.num_heads - 1, most_depths=self.num_heads - 1)
        named = {Sentence("the first head guesses the token already written"): fewer}
        return super().variants() | (named if fewer.num_heads else {})

    @classmethod
    def load(cls, files: PartFiles, target: PreTrainedModel) -> Self:
        """There are as many heads as the tensors say: published configurations may count fewer."""
        shared = bool(files.setting("original_lm_head"))
        copies = r"embed_tokens\.weight|lm_heads\.[1-9]\d*\.weight" if shared else r"embed_tokens\.weight"
        files = files.named(lambda name: None if re.fullmatch(copies, part_name := _part_name(name)) else part_name)
        width = files.size("blocks.0.layers.0.weight", 0)
        rows = files.size("lm_heads.0.weight", 0) if "lm_heads.0.weight" in files.shapes else None
        map_name = next((name for name in ("token_map", "d2t") if name in files.shapes), None)
        few = map_name is not None and files.shapes[map_name] == (rows,)
        same_target(files, target, hidden_size=width, vocab_size=files.setting("vocab_size") if few else rows)
        columns = map_name and _columns(files, map_name, rows or logit_width(target), logit_width(target))
        return filled(lambda: cls(files.shapes, shared, target), files, target, columns)


class MedusaModel(HeadModel):
    """Heads with the target's output head. A pass reads no text: what it is given with each token is all it reads."""

    def forward(self, input_ids: Tensor, features: Tensor | None = None, **unused: object) -> HeadOutput:
        """Logits [1, n · K, vocab]; there are no ``hidden_states``."""
        if features is None:
            features = torch.zeros(*input_ids.shape, self.input_width, dtype=self.dtype, device=input_ids.device)
        return HeadOutput(self.head.logits(features[0], self.unembed).flatten(0, 1)[None], ())


class StaticMedusa(StaticHead):
    """One pass of all heads."""

    model_class: ClassVar[type[HeadModel]] = MedusaModel

    def __init__(self, head: PublishedMedusa, target: StaticPass | WithoutPass):
        super().__init__(head, target)
        self.logit_rows = head.num_heads
        self.reads_chains_only = True  # there are no trees of tokens with several rows


def _part_name(name: str) -> str:
    name = re.sub(r"^medusa_heads?\.", "", name)
    return next((pattern.sub(replacement, name) for pattern, replacement in _RENAMED if pattern.fullmatch(name)), name)


def _columns(files: PartFiles, map_name: str, rows: int, vocab_size: int) -> Tensor:
    """As `columns_of`, of the tokens in this tensor, which may be in any order.

    rows: of the output matrix, of these tokens or of the whole vocabulary.
    """
    tokens = files.tensor(map_name).long()
    counted = torch.arange(len(tokens))
    tokens = tokens + counted if map_name.endswith("d2t") else tokens
    order = tokens.argsort()
    columns = columns_of(files, tokens[order] - counted, vocab_size)
    places = order if len(tokens) == rows else tokens[order]
    return torch.cat([places, torch.tensor([rows])])[columns]


#: Weights of later heads where all share them: some files repeat them.
_COPY = re.compile(r"(emb|ln|head)\.[1-9]|proj\.([2-9]|\d\d)")

_EPSILON = 1e-6


class MlpSpeculator(PublishedPart):
    """Wertheimer et al., arXiv 2404.19124 (ibm-ai-platform/…-accelerator): heads k = 1..K with
    states s_k, s_0 being the target's last hidden state (normed and divided by √2 if `scaled`),
    and x_k the tokens from the one on that was drawn from it:

        s_k = GELU(norm_k(P_k s_{k-1} + β/α · E_k[x_k])),  α = 2^(-1/2K),  β = √((1 - α²) · inner size / 2)

    of which the output matrix of head k makes the logits of x_{k+1}. By the last head, the target's state makes up half
    of the sum (fms-extras, ``models/speculator.py``). If they are tied, heads share all weights but P_1.
    """

    kind: ClassVar[str] = "medusa"
    method: ClassVar[str] = "MLP speculator"
    servers: ClassVar[Servers] = Servers("mlp_speculator", model="SPECULATOR")
    reads_text: ClassVar[bool] = False
    proposer: ClassVar[str] = "head"

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        super().__init__()
        config, heads = target.config.get_text_config(), files.setting("n_predict", default=3)
        d, vocab, self.feature_layers = config.hidden_size, config.vocab_size, (config.num_hidden_layers,)
        self.num_heads = self.most_depths = heads
        self.scaled, self.tied = (files.setting(name, default=False) for name in ("scale_input", "tie_weights"))
        inner, stored_heads = files.setting("inner_dim") or d, range(1 if self.tied else heads)
        widths = [d, *[inner] * (heads - 1)][: 2 if self.tied else heads]
        self.emb = nn.ModuleList([nn.Embedding(vocab, inner) for _ in stored_heads])
        self.proj = nn.ModuleList([nn.Linear(width, inner, bias=False) for width in widths])
        self.ln = nn.ModuleList([nn.LayerNorm(inner) for _ in stored_heads])  # its weights; it norms without the mean
        self.head = nn.ModuleList([nn.Linear(inner, vocab, bias=False) for _ in stored_heads])
        alpha = 0.5 ** (0.5 / heads)
        self.share = math.sqrt((1 - alpha**2) * inner / 2) / alpha  # β/α

    def enter(self, features: Tensor) -> Tensor:
        """s_0, [n, d], of the target's last hidden states [n, d]."""
        return _normalised(features) / math.sqrt(2) if self.scaled else features

    def heads(self) -> list[SpeculatorHead]:
        """On the same weights."""
        return [SpeculatorHead(self, index) for index in range(self.num_heads)]

    def statics(self) -> dict[Role, Callable[..., StaticPass]]:
        return {role: make for head in self.heads() for role, make in head.statics().items()}

    def for_run(self, target: CachedModel, passes: Mapping[Role, FastPasses]) -> RunReading:
        return RunReading(self, [head.reader_for(target, passes) for head in self.heads()], self.fuse)

    def rows_by_level(self, reading: Reading[SomeLevel], depth: int) -> Rows[SomeLevel]:
        rows, states = reading.head_rows(reading.last, self.enter(reading.last_state), 1)
        for head in range(1, depth):
            level = yield rows
            rows, new_states = reading.head_rows(level.tokens, parent_states(states, level), len(level.tokens), head)
            states = with_level(states, new_states, level)
        yield rows

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"normed_first": self.scaled, "heads": self.num_heads}

    @classmethod
    def load(cls, files: PartFiles, target: PreTrainedModel) -> Self:
        tied, width = files.setting("tie_weights", default=False), files.setting("emb_dim", "hidden_size")
        part_names = {name: name.removeprefix("speculator.") for name in files.shapes}
        files = files.named(lambda name: None if tied and _COPY.match(part_names[name]) else part_names[name])
        same_target(files, target, hidden_size=width, vocab_size=files.setting("vocab_size"))
        return filled(lambda: cls(files, target), files, target)


class SpeculatorHead(Head):
    """One of a speculator's heads. It reads no text, but each token with the state of the head before."""

    kind: ClassVar[str] = MlpSpeculator.kind
    method: ClassVar[str] = MlpSpeculator.method

    def __init__(self, speculator: MlpSpeculator, index: int):
        """index: from 0."""
        modules = speculator.emb, speculator.proj, speculator.ln, speculator.head
        emb, proj, ln, head = (copies[min(index, len(copies) - 1)] for copies in modules)
        super().__init__(without_layers(proj.in_features))
        self.place, self.share, self.feature_layers = index + 1, speculator.share, speculator.feature_layers
        self.embed_tokens, self.proj, self.ln, self.norm, self.lm_head = emb, proj, ln, nn.Identity(), head

    def turns(self, position_ids: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.empty(2, *position_ids.shape, 0, dtype=dtype, device=position_ids.device)

    def read(self, embeddings: Tensor, features: Tensor, **attending: Any) -> Tensor:
        states = _normalised(self.proj(features) + self.share * embeddings)
        return functional.gelu(states * self.ln.weight + self.ln.bias)


def _normalised(x: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], eps=_EPSILON)
