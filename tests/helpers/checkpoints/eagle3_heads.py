"""Folders of random EAGLE-3 and P-EAGLE heads for a target 48 wide, in the layouts in which they are published, and
what their weights compute over whole texts at once (as `published_heads`)."""

import pathlib
from typing import Any

import torch
from by_hand import attention, feed_forward, linear, norm
from published_heads import Expected, drawn, write
from torch import Tensor
from transformers import PreTrainedModel

MASK, HEADS, KEYS, SIZE = 9, 4, 2, 8

_SPECFORGE = {"fc_norm": True, "norm_output": True, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}
_SPECULATORS = {"norm_before_residual": True, "norm_before_fc": True, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}

#: The layouts of EAGLE-3 heads for three layers: prefix of the head's layer, file, label, further settings, width,
#: whether it drafts from all tokens, and the hidden states that it fuses.
EAGLE3: dict[str, tuple[str, str, str, dict[str, Any], int, bool, tuple[int, ...]]] = {
    "SafeAILab": ("midlayer.", "pytorch_model.bin", "LlamaForCausalLM", {}, 48, False, (2, 1, 0)),
    "SpecForge": ("midlayer.", "model.safetensors", "LlamaForCausalLMEagle3", _SPECFORGE, 32, False, (1, 2, 3)),
    "DeepSpec": (
        *("layers.0.", "model.safetensors", "Qwen3Eagle3Model", {"target_layer_ids": [-1, 0, 1, 2]}),
        *(48, True, (0, 1, 2, 3)),
    ),
    "NeMo": ("model.layers.0.", "model.safetensors", "LlamaForCausalLM", {}, 48, False, (2, 1, 0)),
    "speculators": ("layers.0.", "model.safetensors", "", _SPECULATORS, 48, False, (1, 2, 3)),
}


def weights_of(
    d: int,
    rows: int,
    states: int,
    own: int | None = None,  # rows of its own embeddings
    *,
    layers: int = 1,
    qwen: bool = False,
    fc_norm: bool = False,
    norm_before_fc: bool = False,
) -> dict[str, Tensor]:
    """The tensors of a head, by the names that `Reading` has for them."""
    shapes: dict[str, tuple[int, ...]] = {"fc": (d, states * 48), "norm": (d,), "lm_head": (rows, d)}
    shapes |= {"embed_tokens": (own, d)} if own else {}
    shapes |= {"input_norm": (states * 48,)} if norm_before_fc else {}
    shapes |= {f"fc_norm.{i}": (48,) for i in range(states)} if fc_norm else {}
    for layer in range(layers):
        at, wide = f"layers.{layer}", d if layer else 2 * d
        shapes |= {f"{at}.{name}": (d,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{at}.self_attn.q_proj": (HEADS * SIZE, wide), f"{at}.self_attn.o_proj": (d, HEADS * SIZE)}
        shapes |= {f"{at}.self_attn.{name}_proj": (KEYS * SIZE, wide) for name in "kv"}
        shapes |= {f"{at}.mlp.{name}_proj": (64, d) for name in ("gate", "up")} | {f"{at}.mlp.down_proj": (d, 64)}
        shapes |= {f"{at}.self_attn.{name}_norm": (SIZE,) for name in "qk"} if qwen else {}
    shapes["layers.0.hidden_norm"] = (d,)
    tensors = {f"{name}.weight": drawn(*shape, seed=i, scale=2) for i, (name, shape) in enumerate(shapes.items())}
    return {name: 1 + tensor if tensor.dim() == 1 else tensor for name, tensor in tensors.items()}


def vocabulary(size: int, rows: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(1))[:rows].sort().values


def _write(folder: pathlib.Path, weights: dict, settings: dict, prefix: str, file: str, vocab: int) -> None:
    front, first = "model." if prefix.startswith("model.") else "", "layers.0."
    named = {
        prefix + name.removeprefix(first) if name.startswith(first) else front + name: tensor
        for name, tensor in weights.items()
    }
    rows, d = weights["lm_head.weight"].shape
    if rows < vocab:
        ids = vocabulary(vocab, rows)
        named[f"{front}d2t"] = ids - torch.arange(rows)
        named[f"{front}t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    sizes = {"hidden_size": d, "intermediate_size": 64, "num_attention_heads": HEADS, "num_key_value_heads": KEYS}
    sizes |= {"head_dim": SIZE, "rms_norm_eps": 1e-6, "vocab_size": vocab, "num_hidden_layers": 1, "rope_theta": 5e3}
    sizes |= {"model_type": "llama", "draft_vocab_size": rows, "target_hidden_size": 48}
    if "speculators_model_type" in settings:
        sizes = {"draft_vocab_size": rows, "transformer_layer_config": sizes}
    write(folder, sizes | settings, named, file)


def write_eagle3(folder: pathlib.Path, target: PreTrainedModel, layout: str = "SafeAILab", **changes: Any) -> Expected:
    """changes: of the configuration."""
    prefix, file, label, settings, d, whole, states = EAGLE3[layout]
    vocab = target.config.vocab_size
    settings = settings | ({"architectures": [label]} if label else {"speculators_model_type": "eagle3"})
    flags = {flag: settings.get(flag, False) for flag in ("fc_norm", "norm_before_fc")}
    own = vocab if d != 48 or layout == "speculators" else None
    rows = vocab if whole else vocab * 5 // 16
    weights = weights_of(d, rows, len(states), own, qwen="Qwen" in label, **flags)
    _write(folder, weights, settings | changes, prefix, file, vocab)
    return Reading(weights, settings, target, states).after_chain


def write_p_eagle(folder: pathlib.Path, target: PreTrainedModel, layout: str = "speculators") -> Expected:
    vocab = target.config.vocab_size
    settings = {"architectures": ["PEagleDraftModel"], "mask_token_id": MASK, "num_depths": 4}
    weights = weights_of(32, vocab * 5 // 16, 3, vocab, layers=2) | {"mask_hidden": drawn(1, 1, 144, seed=90)}
    _write(folder, weights, settings, "layers.0.", "model.safetensors", vocab)
    return Reading(weights, settings, target, (2, 1, 0)).after_masks


class Reading:
    """A head over whole texts at once, as its paper says (EAGLE-3, §3; P-EAGLE, §3)."""

    def __init__(self, weights: dict, settings: dict, target: PreTrainedModel, states: tuple[int, ...]):
        self.weights, self.settings, self.target, self.states = weights, settings, target, states

    def norm(self, x: Tensor, name: str) -> Tensor:
        return norm(self.weights, name, x)

    def fuse(self, features: Tensor) -> Tensor:
        if self.settings.get("norm_before_fc"):
            features = self.norm(features, "input_norm")
        if self.settings.get("fc_norm"):
            features = torch.cat([self.norm(f, f"fc_norm.{i}") for i, f in enumerate(features.split(48, -1))], -1)
        return linear(self.weights, "fc", features)

    def hidden(self, ids: list[int], states: Tensor, layers: int = 1) -> Tensor:
        table = self.weights.get("embed_tokens.weight", self.target.get_input_embeddings().weight)
        normed = self.norm(states, "layers.0.hidden_norm")
        joined = torch.cat([self.norm(table[ids], "layers.0.input_layernorm"), normed], -1)
        x = normed if self.settings.get("norm_before_residual") else states
        for layer in (f"layers.{i}" for i in range(layers)):
            read = joined if layer == "layers.0" else self.norm(x, f"{layer}.input_layernorm")
            x = x + attention(self.weights, f"{layer}.self_attn", read, SIZE)
            x = x + feed_forward(self.weights, f"{layer}.mlp", self.norm(x, f"{layer}.post_attention_layernorm"))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        rows, vocab = linear(self.weights, "lm_head", self.norm(hidden, "norm")), self.target.config.vocab_size
        ids = vocabulary(vocab, len(rows)) if len(rows) < vocab else torch.arange(vocab)
        return torch.full((vocab,), -torch.inf).index_put((ids,), rows)

    def features(self, ids: list[int]) -> Tensor:
        states = self.target(torch.tensor([ids]), output_hidden_states=True).hidden_states
        return torch.cat([states[layer][0] for layer in self.states], -1)

    def after_chain(self, text: list[int], branch: list[int]) -> Tensor:
        states, ids = self.fuse(self.features(text[:-1])), [*text[1:], *branch]
        while True:
            hidden = self.hidden(ids[: len(states)], states)
            if len(states) == len(ids):
                return self.logits(hidden[-1])
            back = self.norm(hidden[-1:], "norm") if self.settings.get("norm_output") else hidden[-1:]
            states = torch.cat([states, back])

    def after_masks(self, text: list[int], branch: list[int]) -> Tensor:
        """Whatever the branch is: all rows come from one pass."""
        masks = self.weights["mask_hidden"][0].expand(len(branch), -1)
        states = self.fuse(torch.cat([self.features(text[:-1]), masks]))
        return self.logits(self.hidden([*text[1:], *[MASK] * len(branch)], states, layers=2)[-1])
