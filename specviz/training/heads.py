"""Heads on the frozen target, each learning its distributions at every depth that it drafts.

EAGLE's on its own drafts (training-time test, EAGLE-3, arXiv 2503.01840, §3.2); the parallel head's, many drafts in
each block of text, all in one pass (arXiv 2602.06036).
"""

import pathlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from specviz.parts.head_files import fingerprint, load, save
from specviz.parts.head_passes import HeadModel
from specviz.parts.heads import EagleConfig, EagleHead, Head, ParallelHead
from specviz.records.errors import SpecvizError
from specviz.training.loop import Recipe
from specviz.training.losses import agreement, distillation, of_one_width
from specviz.training.parts import DECAY, Both, FrozenTarget, seen_by_chains

#: Draft steps of an EAGLE head that are unrolled to learn from, and to measure.
_UNROLLED, _MEASURED = 3, 5

#: Places in a block of text from which a parallel head drafts.
_ANCHORS = 32


class HeadRecipe(Recipe):
    """0.5 · KL + TV to the frozen target's distribution at each depth, weighted 0.8^k.

    sample: [rows, n] int64, some text from which to set a new head's scale. start: a head in float32 to train on.
    """

    head_class: ClassVar[type[Head]]
    depth: ClassVar[str]  # the word for one

    def __init__(self, target: PreTrainedModel, sample: Tensor, seed: int = 0, start: nn.Module | None = None):
        torch.manual_seed(seed)
        self.device, self.dtype = target.device, target.dtype
        student = self.head_class(self.head_class.sizes_class.of(target)) if start is None else start
        self.student = student.to(self.device)
        self.target = FrozenTarget(target, self.student.feature_layers)
        if start is None:
            with torch.no_grad():
                self.student.norm.weight.fill_(self.target.last_scale(sample.to(self.device)))

    @abstractmethod
    def drafts(self, ids: Tensor, step: int | None) -> Iterator[Both]:
        """The head's and the target's logits at each depth. step: of the training; None to measure."""

    def loss(self, ids: Tensor, step: int) -> Tensor:
        terms = [distillation(*both) for both in self.drafts(ids, step)]
        weights = [DECAY**k for k in range(len(terms))]
        return sum(weight * term for weight, term in zip(weights, terms)) / sum(weights)

    def measure(self, ids: Tensor) -> dict[str, Tensor]:
        return {f"{self.depth} {k}": agreement(*both) for k, both in enumerate(self.drafts(ids, None), start=1)}

    @classmethod
    def head_in(cls, folder: pathlib.Path, target: PreTrainedModel) -> nn.Module:
        """The head in `folder`, in float32, to train on. Raises SpecvizError as loading it to draft does."""
        return load(cls.head_class, folder, target).float().requires_grad_(True)

    def save(self, folder: pathlib.Path) -> None:
        save(self.student, folder, fingerprint(self.target.model))


class EagleRecipe(HeadRecipe):
    """Learns at each unrolled draft step."""

    name, head_class, depth = "eagle", EagleHead, "step"

    def drafts(self, ids: Tensor, step: int | None) -> Iterator[Both]:
        return self.chains(ids, _MEASURED if step is None else _UNROLLED)

    def chains(self, ids: Tensor, steps: int) -> Iterator[Both]:
        """Both logits at every draft step, for chains from n rows.

        The chain from row t reads the target's features up to t and continues on the head's own hidden states, as in
        drafting; its tokens are the text's.
        """
        text, head = self.target.read(ids), self.student
        model, cache, n = HeadModel(head, self.target.model), DynamicCache(), ids.shape[1] - steps
        hidden = head.fuse(text.features[:, :n])
        for j in range(steps):
            ahead = slice(1 + j, 1 + j + n)
            entered = head.enter(model.embed(ids[:, ahead]), hidden, None)
            turns = head.turns(torch.arange(j, j + n, device=ids.device)[None], entered[0].dtype)
            hidden = head(*entered, turns, seen_by_chains(n, j, ids.device), cache)
            yield of_one_width(model.logits(hidden), text.logits[:, ahead])


@torch.no_grad()
def head_from(draft: PreTrainedModel, config: EagleConfig) -> EagleHead:
    """A head that drafts exactly like this one-layer Llama: its weights, and nothing taken from features yet.

    Raises SpecvizError (field ``start``) if the draft model's shape is not the head's.
    """
    sizes, heads, d = draft.config, draft.config.num_attention_heads, draft.config.hidden_size
    wanted = {"num_hidden_layers": 1, "tie_word_embeddings": True}
    wanted |= {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}
    if sizes.model_type != "llama" or any(getattr(sizes, name) != value for name, value in wanted.items()):
        raise SpecvizError(
            "An EAGLE head can start from a draft model that is a one-layer Llama with tied embeddings and no biases; "
            "leave out --start to train a new one.",
            "start",
        )
    if sizes.num_key_value_heads != heads or sizes.head_dim * heads != d:
        raise SpecvizError(
            "An EAGLE head has as many key heads as query heads, together as wide as its states; this draft has not.",
            "start",
        )
    config = replace(
        config,
        hidden_size=d,
        num_attention_heads=heads,
        intermediate_size=sizes.intermediate_size,
        rope_theta=sizes.rope_parameters["rope_theta"],
        own_vocabulary=sizes.vocab_size,
        target_width=config.feature_width,
    )
    head, layer = EagleHead(config), draft.model.layers[0]
    attention, mlp = layer.self_attn, layer.mlp
    head.embed_tokens.weight.copy_(draft.model.embed_tokens.weight)
    # Norm weights are folded into the matrices that follow.
    head.entry.weight.zero_()
    for own, name in zip(head.entry.weight.split(d)[1:], ("q_proj", "k_proj", "v_proj"), strict=True):
        own[:, :d] = getattr(attention, name).weight * layer.input_layernorm.weight
    head.out.weight.copy_(attention.o_proj.weight)
    both = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
    head.gate_up.weight.copy_(both * layer.post_attention_layernorm.weight)
    head.down.weight.copy_(mlp.down_proj.weight)
    head.norm.weight.copy_(draft.model.norm.weight)
    return head


class ParallelRecipe(HeadRecipe):
    """Learns the first depth at every row of the text, the others after rows chosen anew in each step."""

    name, head_class, depth = "parallel", ParallelHead, "depth"

    def drafts(self, ids: Tensor, step: int | None) -> Iterator[Both]:
        # As many places as are followed by a token for every depth.
        places = ids.shape[1] - self.student.sizes.depths
        if step is None:
            return self.blocks(ids, torch.arange(_ANCHORS, device=ids.device) * places // _ANCHORS)
        anchors = torch.randperm(places, generator=torch.Generator().manual_seed(step))[:_ANCHORS]
        return self.blocks(ids, anchors.to(ids.device))

    def blocks(self, ids: Tensor, anchors: Tensor) -> Iterator[Both]:
        """Both logits at each depth: at all rows of the text, then after the rows `anchors` [m]."""
        text, head = self.target.read(ids), self.student
        n, masks = ids.shape[1] - 1, head.sizes.depths - 1
        marks = head.marks.weight
        entered, _ = head.enter(text.embeddings[:, 1:], text.features[:, :n], 0)
        # Each anchor's masks in turn, after the text's rows.
        blocks = (entered[:, anchors].unsqueeze(2) + marks[1:]).flatten(1, 2)
        steps = torch.arange(1, 1 + masks, device=ids.device)
        positions = torch.cat([torch.arange(n, device=ids.device), (anchors.unsqueeze(-1) + steps).flatten()])
        state = torch.cat([entered + marks[0], blocks], 1)
        turns = head.turns(positions[None], state.dtype)
        hidden = head.norm(head(state, None, turns, seen_by_masks(n, anchors, masks)[None, None]))
        yield self.target.head(hidden[:, :n]), text.logits[:, 1:]
        drafted = hidden[:, n:].unflatten(1, (len(anchors), masks))
        for k in range(masks):
            yield self.target.head(drafted[:, :, k]), text.logits[:, anchors + 2 + k]


def seen_by_masks(n: int, anchors: Tensor, masks: int) -> Tensor:
    """The rows that each of n rows of text, and each mask after the rows `anchors`, sees: square, bool.

    A row of text sees those up to itself; a mask those up to its anchor, the masks before it there, and itself.
    """
    block = torch.arange(len(anchors), device=anchors.device).repeat_interleave(masks)
    before = torch.arange(n, device=anchors.device)
    text = torch.cat([before, anchors[block]]).unsqueeze(-1) >= before
    own = (block.unsqueeze(-1) == block).tril()
    return torch.cat([text, torch.cat([own.new_zeros(n, len(block)), own])], -1)
