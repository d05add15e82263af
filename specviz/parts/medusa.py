"""Medusa heads as they are published: each guesses a token further ahead, all of them from one hidden state.

Three layouts are read: FasterDecoding's, where each head has an output matrix; text-generation-inference's, where the
heads end in the target's; and vLLM's and speculators', of either kind, which may leave rare tokens out.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.parts.formats import PartFiles
from specviz.parts.heads import MedusaConfig
from specviz.parts.published import PublishedPart, columns_of, filled, logit_width, same_target
from specviz.records.words import Sentence
from specviz.rules.sampling import in_order

#: FasterDecoding's names in vLLM's: head i is a sequence of blocks j with its output matrix at the end.
_RENAMED = [
    (re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)"), r"blocks.\1.layers.\2.\3"),
    (re.compile(r"(\d+)\.\d+\.weight"), r"lm_heads.\1.weight"),
    (re.compile(r"lm_head\.weight"), "lm_heads.0.weight"),
]

#: Tensors that say which tokens are not left out, or that the target has too.
_UNREAD = {"token_map", "d2t", "t2d", "embed_tokens.weight"}


class _Block(nn.Module):
    """What one head adds to a hidden state: x += SiLU(W x + b), layer by layer."""

    def __init__(self, width: int, layers: int, bias: bool):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width, bias) for _ in range(layers)])

    def forward(self, state: Tensor) -> Tensor:
        for layer in self.layers:
            state = state + functional.silu(layer(state))
        return state


class PublishedMedusa(PublishedPart):
    """K heads over h_t, the target's last hidden state where it wrote token t + 1: head k guesses token t + 1 + k,
    k = 1..K (Cai et al., arXiv 2401.10774, §2.1). They do not see what was written."""

    kind: ClassVar[str] = "medusa"
    method: ClassVar[str] = "Medusa"

    def __init__(self, sizes: MedusaConfig, layers: int, bias: bool, outputs: int, rows: int):
        """outputs: how many output matrices there are, K, 1 or 0 (the target's). rows: of each."""
        super().__init__()
        self.sizes = sizes
        self.feature_layers = sizes.feature_layers
        self.skipped = 0  # heads before the one that guesses the first draft token
        self.blocks = nn.ModuleList([_Block(sizes.hidden_size, layers, bias) for _ in range(sizes.num_heads)])
        self.lm_heads = nn.ModuleList([nn.Linear(sizes.hidden_size, rows, bias=False) for _ in range(outputs)])

    def logits(self, features: Tensor, tokens: Tensor, target: PreTrainedModel) -> Tensor:
        """As `MedusaHeads.logits`."""
        states = [block(features) for block in self.blocks[self.skipped :]]
        if len(self.lm_heads) > 1:
            rows = torch.stack([head(one) for head, one in zip(self.lm_heads[self.skipped :], states)], -2)
        else:
            head = self.lm_heads[0] if self.lm_heads else target.get_output_embeddings()
            rows = head(torch.stack(states, -2)).to(features.device)
        return rows if self.columns is None else in_order(rows, self.columns)

    def reading(self) -> dict[str, Any]:
        """And which token the first head guesses, counted from the one that the hidden state belongs to."""
        return super().reading() | {"first_token": 2 - self.skipped}

    def other_readings(self) -> dict[Sentence, PublishedPart]:
        """And with a first head that guesses the token already written, as some train it."""
        skipping = copy.copy(self)
        skipping.skipped = 1
        skipping.sizes = dataclasses.replace(self.sizes, num_heads=self.sizes.num_heads - 1)
        named = {Sentence("the first head guessing the token already written"): skipping}
        return super().other_readings() | (named if skipping.sizes.num_heads else {})


def load_medusa(files: PartFiles, target: PreTrainedModel) -> PublishedMedusa:
    """The heads in a folder, in evaluation mode, on the target's device and in its dtype.

    There are as many as the tensors say: published configurations may count fewer. Raises SpecvizError (field
    ``draft``) if they are damaged, or were made for another target.
    """
    config = target.config.get_text_config()
    shapes = {_own_name(name): shape for name, shape in files.shapes.items()}
    places = [re.fullmatch(r"blocks\.(\d+)\.layers\.(\d+)\.weight", name) for name in shapes]
    heads, layers = (max(1, len({place[part] for place in places if place})) for part in (1, 2))
    width = shapes.get("blocks.0.layers.0.weight", (config.hidden_size,))[0]
    rows = shapes.get("lm_heads.0.weight", (None,))[0]
    map_name = next((name for name in files.shapes if _own_name(name) in ("token_map", "d2t")), None)
    few = map_name is not None and files.shapes[map_name] == (rows,)
    same_target(files, target, hidden_size=width, vocab_size=files.setting("vocab_size") if few else rows)

    outputs = 0 if rows is None else 1 if files.setting("original_lm_head") else heads
    rows = rows or logit_width(target)
    sizes = MedusaConfig(width, heads, (config.num_hidden_layers,))
    with torch.device("meta"):
        part = PublishedMedusa(sizes, layers, "blocks.0.layers.0.bias" in shapes, outputs, rows)
    if map_name is not None:
        part.columns = _columns(files, map_name, rows, logit_width(target))
    unread = _UNREAD | {f"lm_heads.{i}.weight" for i in range(outputs, heads)}
    return filled(part, files, target, lambda name: own if (own := _own_name(name)) not in unread else None)


def _own_name(name: str) -> str:
    name = re.sub(r"^medusa_heads?\.", "", name)
    return next((pattern.sub(own, name) for pattern, own in _RENAMED if pattern.fullmatch(name)), name)


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
