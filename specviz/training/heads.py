"""The recipes of EAGLE-3 heads (Li et al., arXiv 2503.01840, §3), MTP modules (FastMTP, arXiv 2509.18362) and Medusa
heads (Cai et al., arXiv 2401.10774, §2.2.1), on a target that stays fixed.

EAGLE-3 heads are written as speculators writes them. vLLM reads that; SGLang, which does not, reads the layer's sizes,
the class and the target's layers from the top of the same configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.parts.eagle import Eagle3Head
from specviz.parts.medusa import PublishedMedusa
from specviz.parts.mtp import MtpFile, last_scale
from specviz.parts.published import hidden_size_of, logit_width
from specviz.training.parts import (
    ChainRecipe,
    Checkpoint,
    Logits,
    PartRecipe,
    layer_settings,
    read_states,
    sizes_of,
    speculators_settings,
)

#: How many tokens a server drafts where nobody says otherwise.
_PROPOSED = 4


class Eagle3Recipe(ChainRecipe):
    """A head as wide as the target, with the target's embeddings; from a draft model one as wide as that, with
    embeddings of its own. Either has an output head of its own, and drafts from the whole vocabulary.

    It has no ``d2t`` and ``t2d``, which vLLM refuses where no token is left out. Its configuration says how many
    tokens there are all the same: SGLang would take the target's output head, and llama.cpp's converter a Llama.
    """

    name, part, grows = "eagle", Eagle3Head, True

    def new(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> Checkpoint:
        layers = layer_settings(target, 1, **({} if draft is None else sizes_of(draft, self.part.method, 1)))
        states, width = read_states(target), target.config.get_text_config().hidden_size
        tensors, vocab = new_head(layers, len(states) * width), layers["vocab_size"]
        if draft is None:
            hidden_size_of(target)  # refuses embeddings of another width
            tensors["lm_head.weight"] = target.get_output_embeddings().weight
        else:
            tensors |= weights_from(draft, tensors, vocab)
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
        return settings, tensors


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


def weights_from(draft: PreTrainedModel, tensors: dict[str, Tensor], vocab: int) -> dict[str, Tensor]:
    """The weights of a one-layer draft model, as a head of its sizes has them in its `tensors`: attention reads the
    embedding as it did there, and the state besides, which is as large as embeddings are."""
    weights = {name.removeprefix("model."): weight for name, weight in draft.state_dict().items()}
    for name in ("embed_tokens.weight", "lm_head.weight"):
        # Checkpoints with one tokenizer may be padded to different widths.
        weights[name] = functional.pad(weights[name], (0, 0, 0, vocab - len(weights[name])))
    size = weights["embed_tokens.weight"].square().mean().sqrt()
    weights["layers.0.hidden_norm.weight"] = size * tensors["layers.0.hidden_norm.weight"].to(size)
    for name in ("q", "k", "v"):
        joined = f"layers.0.self_attn.{name}_proj.weight"
        embedding = weights[joined]
        weights[joined] = torch.cat([embedding, tensors[joined][:, embedding.shape[1] :].to(embedding)], -1)
    return weights


#: How many tokens its configuration says that it drafts, as FastMTP's does.
_MTP_PROPOSED = 3


class MtpRecipe(ChainRecipe):
    """One module, run again on its own states for every further depth, learns at each of them.

    DeepSeek-V3 trains its modules with the target, on the text's tokens (arXiv 2412.19437, eq. 24 and 25); here the
    target is there already, and its distributions are the labels.
    """

    name: ClassVar[str] = "mtp"
    part: ClassVar[type[MtpFile]] = MtpFile

    def new(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> Checkpoint:
        """A layer that gives the state back, and so says what the target said; 4 MB where that is 384 wide.

        Whatever the target's family, it is a layer of Qwen 3: of those without experts or recurrence, the only one that
        speculators reads as a module.
        """
        config = target.config.get_text_config()
        sizes = layer_settings(target, config.num_hidden_layers, model_type="qwen3")
        d, size = hidden_size_of(target), sizes["head_dim"]
        inner = sizes["intermediate_size"] = -(-5 * d // (2 * 64)) * 64
        layer = {"input_proj": torch.eye(d, 2 * d).roll(d, 1), "final_layernorm": last_scale(target)}
        norms = ("token_layernorm", "hidden_layernorm", "input_layernorm", "post_attention_layernorm")
        layer |= {norm: torch.ones(d) for norm in norms}
        layer |= {f"self_attn.{part}_norm": torch.ones(size) for part in "qk"}
        layer |= {f"self_attn.{part}_proj": _spread(d, d) for part in "qkv"} | {"self_attn.o_proj": torch.zeros(d, d)}
        layer |= {f"mlp.{part}_proj": _spread(inner, d) for part in ("gate", "up")}
        layer |= {"mlp.down_proj": torch.zeros(d, inner)}
        settings = speculators_settings(target, "mtp", "MTPDraftModel", _MTP_PROPOSED, sizes)
        tensors = {f"mtp_layers.0.{name}.weight": tensor for name, tensor in layer.items()}
        return settings | {"num_nextn_predict_layers": 1}, tensors


def _spread(outputs: int, inputs: int) -> Tensor:
    """Normal weights [outputs, inputs] that keep the size of what they read."""
    return torch.randn(outputs, inputs) * inputs**-0.5


#: How far ahead a new part looks.
_HEADS = 4


class MedusaRecipe(PartRecipe):
    """Head k at row t learns the target's row t + k along the text, from the hidden state of row t alone.

    Written as vLLM loads it: one output matrix for all heads, which starts as the target's and learns with them.
    """

    name: ClassVar[str] = "medusa"
    part: ClassVar[type[PublishedMedusa]] = PublishedMedusa
    depth: ClassVar[str] = "head"

    def new(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> Checkpoint:
        """Heads whose blocks add nothing yet: each says what the target's own row says (§2.2.1)."""
        d, vocab = hidden_size_of(target), logit_width(target)
        tensors = {"lm_heads.0.weight": target.get_output_embeddings().weight.detach().clone()}
        for head in range(_HEADS):
            tensors[f"blocks.{head}.layers.0.weight"] = torch.zeros(d, d)
            tensors[f"blocks.{head}.layers.0.bias"] = torch.zeros(d)
        settings = {
            "architectures": ["MedusaModel"],
            "dtype": "bfloat16",
            "model_type": "medusa",
            "hidden_size": d,
            "num_heads": _HEADS,
            "num_hidden_layers": 1,
            "medusa_fc_bias": True,
            "original_lm_head": True,
            "vocab_size": vocab,
            "truncated_vocab_size": vocab,
        }
        return settings, tensors

    def drafts(self, ids: Tensor, step: int | None) -> Iterator[Logits]:
        """At the n rows where all heads have a label."""
        text, heads = self.target.read(ids), self.student.num_heads
        n = ids.shape[1] - heads
        for k, state in enumerate(self.student.states(text.features[:, :n]), start=1):
            yield self.student.output_head(k - 1, self.target.model)(state), text.logits[:, k : k + n]
