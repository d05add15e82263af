"""The EAGLE head, trained on its own drafts (training-time test, EAGLE-3, arXiv 2503.01840, §3.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specviz.passes.trained_heads import EagleConfig, EagleHead, rotation
from specviz.records.errors import SpecvizError
from specviz.training.head import HeadRecipe
from specviz.training.losses import agreement, distillation, of_one_width

#: Draft steps that are unrolled, and the weight of each relative to the one before.
_UNROLLED = 3
_DECAY = 0.8

#: Draft steps that are measured.
_MEASURED = 5


class EagleRecipe(HeadRecipe):
    """0.5 · KL + TV to the frozen target's distribution at each unrolled draft step, weighted 0.8^j."""

    name = "eagle"
    head_class, config_class = EagleHead, EagleConfig

    def loss(self, ids: Tensor, step: int) -> Tensor:
        weights = [_DECAY**j for j in range(_UNROLLED)]
        terms = [distillation(*both) for both in self._drafts(ids, _UNROLLED)]
        return sum(weight * term for weight, term in zip(weights, terms)) / sum(weights)

    def measure(self, ids: Tensor) -> dict[str, Tensor]:
        return {f"step {j + 1}": agreement(*both) for j, both in enumerate(self._drafts(ids, _MEASURED))}

    def _drafts(self, ids: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The head's and the target's logits, [rows, n, vocab] each, at every draft step, for chains from n rows.

        The chain from row t reads the target's features up to t and continues on the head's own hidden states, as in
        drafting; its tokens are the text's.
        """
        text, head = self.target.read(ids), self.student
        n = ids.shape[1] - steps
        hidden, keys_values = head.fuse(text.features[:, :n]), []
        for j in range(steps):
            ahead = slice(1 + j, 1 + j + n)
            embeddings = head.embed(ids[:, ahead], self.target.model)
            turns = rotation(torch.arange(j, j + n, device=ids.device), head.config)
            entered, queries, own = head.project(hidden, embeddings, turns)
            keys_values.append(own)
            hidden = head.finish(entered, attend(queries, keys_values))
            yield of_one_width(head.logits(hidden, self.target.model), text.logits[:, ahead])


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
    head.table.weight.copy_(draft.model.embed_tokens.weight)
    # Norm weights are folded into the matrices that follow.
    head.entry.zero_()
    for place, part in enumerate((attention.q_proj, attention.k_proj, attention.v_proj), start=1):
        head.entry[place, :, :d] = part.weight * layer.input_layernorm.weight
    head.out.copy_(attention.o_proj.weight)
    head.gate_up.copy_(torch.stack([mlp.gate_proj.weight, mlp.up_proj.weight]) * layer.post_attention_layernorm.weight)
    head.down.copy_(mlp.down_proj.weight)
    head.scale.copy_(draft.model.norm.weight)
    return head


def attend(queries: Tensor, keys_values: Sequence[Tensor]) -> Tensor:
    """What the attention of chains from n rows gathers at a draft step, [rows, n, heads, width].

    queries: [rows, n, heads, width]. keys_values: of this step and all before it, [rows, n, 2, heads, width] each. The
    chain from row t sees the first step's rows up to t, and only its own row of the later steps.
    """
    first, *later = keys_values
    n, scale = queries.shape[1], 1 / math.sqrt(queries.shape[-1])
    hidden_rows = torch.ones(n, n, dtype=torch.bool, device=queries.device).triu(1)
    scores = torch.einsum("bqhw,bkhw->bhqk", queries, first[:, :, 0]).masked_fill(hidden_rows, float("-inf"))
    own = [(queries * step[:, :, 0]).sum(-1).transpose(1, 2).unsqueeze(-1) for step in later]
    weights = (torch.cat([scores, *own], -1) * scale).softmax(-1)
    gathered = torch.einsum("bhqk,bkhw->bqhw", weights[..., :n], first[:, :, 1])
    for index, step in enumerate(later):
        gathered = gathered + weights[..., n + index].transpose(1, 2).unsqueeze(-1) * step[:, :, 1]
    return gathered
