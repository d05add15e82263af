"""EAGLE-3 heads (Li et al., arXiv 2503.01840, §3), written as speculators writes them.

vLLM reads that; SGLang, which does not, reads the layer's sizes, the class and the target's layers from the top of the
same configuration.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.parts.eagle3 import Eagle3Head
from specviz.parts.published import hidden_size_of
from specviz.records.errors import SpecvizError
from specviz.training.parts import ChainRecipe, Files, layer_settings, read_states, speculators_settings

#: What a draft model is like that a head can start from.
_LIKE_A_HEAD = {"num_hidden_layers": 1, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}

#: How many tokens a server drafts where nobody says otherwise.
_PROPOSED = 4


class Eagle3Recipe(ChainRecipe):
    """A head as wide as the target, with the target's embeddings; from a draft model one as wide as that, with
    embeddings of its own. Either has an output head of its own, and drafts from the whole vocabulary."""

    name, part, grows = "eagle", Eagle3Head, True

    def new(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> Files:
        layers = layer_settings(target, 1, **({} if draft is None else _sizes_of(draft)))
        states, width = read_states(target), target.config.get_text_config().hidden_size
        tensors, vocab = new_head(layers, len(states) * width), layers["vocab_size"]
        if draft is None:
            hidden_size_of(target)  # refuses embeddings of another width
            tensors["lm_head.weight"] = target.get_output_embeddings().weight
        else:
            tensors |= known_to(draft, tensors, vocab)
        settings = (
            layers
            | speculators_settings(target, "eagle3", "LlamaForCausalLMEagle3", _PROPOSED, layers)
            | {
                "draft_vocab_size": vocab,
                "eagle_aux_hidden_state_layer_ids": states,
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [state - 1 for state in states]},
                "embed_requires_grad": draft is not None,
                # As speculators trains them by default. Without these norms the states outweigh what attention brings.
                "norm_before_fc": True,
                "norm_before_residual": True,
                "norm_output": True,
                "target_hidden_size": width,
            }
        )
        maps = {"d2t": torch.zeros(vocab, dtype=torch.long), "t2d": torch.ones(vocab, dtype=torch.bool)}
        return settings, tensors | maps


def new_head(layers: dict[str, Any], fused: int) -> dict[str, Tensor]:
    """A head of these `layer_settings` that adds nothing yet to what it fuses of so many numbers.

    Without embeddings and output head.
    """
    d, inner, head = (layers[name] for name in ("hidden_size", "intermediate_size", "head_dim"))
    queries, keys = layers["num_attention_heads"] * head, layers["num_key_value_heads"] * head

    def drawn(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns) * columns**-0.5

    tensors = {f"layers.0.{name}.weight": torch.ones(d) for name in ("input_layernorm", "hidden_norm")}
    tensors |= {name: torch.ones(d) for name in ("layers.0.post_attention_layernorm.weight", "norm.weight")}
    tensors["input_norm.weight"] = torch.ones(fused)
    shapes = {"q": queries, "k": keys, "v": keys}
    tensors |= {f"layers.0.self_attn.{name}_proj.weight": drawn(rows, 2 * d) for name, rows in shapes.items()}
    tensors |= {f"layers.0.mlp.{name}_proj.weight": drawn(inner, d) for name in ("gate", "up")}
    tensors |= {"layers.0.self_attn.o_proj.weight": torch.zeros(d, queries)}
    return tensors | {"layers.0.mlp.down_proj.weight": torch.zeros(d, inner), "fc.weight": drawn(d, fused)}


def known_to(draft: PreTrainedModel, tensors: dict[str, Tensor], vocab: int) -> dict[str, Tensor]:
    """The weights of a one-layer draft model, as a head of its sizes has them in its `tensors`: attention reads the
    embedding as it did there, and the state besides, which is as large as embeddings are."""
    own = {name.removeprefix("model."): weight for name, weight in draft.state_dict().items()}
    for name in ("embed_tokens.weight", "lm_head.weight"):
        # Checkpoints with one tokenizer may be padded to different widths.
        own[name] = functional.pad(own[name], (0, 0, 0, vocab - len(own[name])))
    size = own["embed_tokens.weight"].square().mean().sqrt()
    own["layers.0.hidden_norm.weight"] = size * tensors["layers.0.hidden_norm.weight"].to(size)
    for name in ("q", "k", "v"):
        joined = f"layers.0.self_attn.{name}_proj.weight"
        own[joined] = torch.cat([own[joined], tensors[joined][:, own[joined].shape[1] :].to(own[joined])], -1)
    return own


def _sizes_of(draft: PreTrainedModel) -> dict[str, Any]:
    """Raises SpecvizError (field ``start``) for a draft model of a shape that a head cannot have."""
    config = draft.config
    if config.model_type != "llama" or any(getattr(config, name) != value for name, value in _LIKE_A_HEAD.items()):
        raise SpecvizError(
            "An EAGLE head can start from a draft model that is a one-layer Llama without biases; leave out --start to "
            "train a new one.",
            "start",
        )
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    return {name: getattr(config, name) for name in (*names, "rms_norm_eps", "rope_parameters")}
