"""Folders of random heads for a target, in the layouts in which heads are published, and what their weights compute.

Each writer returns what the head says after a text and a branch of its draft, over the whole text at once: logits
[vocab], float32.
"""

import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_hand import attention, feed_forward, linear, norm
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

#: Logits [vocab] of a text and the draft tokens after it.
Expected = Callable[[list[int], list[int]], Tensor]


def drawn(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale * shape[-1] ** -0.5


def write(folder: pathlib.Path, settings: dict[str, Any], weights: dict[str, Tensor], file: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    weights = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(weights, folder / file) if file.endswith(".safetensors") else torch.save(weights, folder / file)


def noted(monkeypatch: pytest.MonkeyPatch, drafter: type, method: str = "propose") -> list[tuple[list[int], Any]]:
    """The text and the result of every call of a drafter's method from now on."""
    calls, original = [], getattr(drafter, method)

    def call_and_note(self, committed, *others):
        calls.append((list(committed), original(self, committed, *others)))
        return calls[-1][1]

    monkeypatch.setattr(drafter, method, call_and_note)
    return calls


def branches_of(parents: tuple[int, ...]) -> list[list[int]]:
    """The places on the branch of each row of a draft: of the text, then of each token with children."""
    branches: dict[int, list[int]] = {-1: []}
    for place, parent in enumerate(parents):
        branches[place] = [*branches[parent], place]
    return [branches[place] for place in sorted({*parents})]


def assert_rows(looked: list[tuple[list[int], Any]], expected: Expected) -> None:
    """Of drafts and the texts that they follow, the rows of logits are these."""
    for text, draft in looked:
        tokens = draft.tokens.tolist()
        rows = [expected(text, [tokens[place] for place in branch]) for branch in branches_of(draft.parents)]
        torch.testing.assert_close(draft.logits, torch.stack(rows), rtol=1e-3, atol=1e-3)


def last_state(target: PreTrainedModel, text: list[int]) -> Tensor:
    """With which the target wrote the last token of a text, after the final norm."""
    return target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[-1][0, -1]


def frequent(vocab: int) -> Tensor:
    """Most of the tokens, in no order."""
    return torch.randperm(vocab, generator=torch.Generator().manual_seed(2))[: vocab * 3 // 4]


#: The layouts of Medusa heads: whose file, how many layers a head has.
MEDUSA = {
    "pickled": ("medusa_lm_head.pt", 1),
    "two layers": ("medusa_lm_head.safetensors", 2),
    "without outputs": ("medusa_lm_head.safetensors", 1),
    "vllm": ("model.safetensors", 2),
    "vllm, frequent tokens": ("model.safetensors", 1),
    "vllm, frequent tokens of all": ("pytorch_model.bin", 1),
    "vllm, one output": ("model.safetensors", 1),
    "speculators": ("model.safetensors", 1),
    "speculators, frequent tokens": ("model.safetensors", 1),
}


def write_medusa(folder: pathlib.Path, target: PreTrainedModel, layout: str = "pickled", heads: int = 4) -> Expected:
    config, (file, layers) = target.config, MEDUSA[layout]
    d, vocab = config.hidden_size, config.vocab_size
    published, frequents = "v" not in layout.split(",")[0] and "spec" not in layout, "frequent" in layout
    ids = frequent(vocab) if frequents else torch.arange(vocab)
    rows = vocab if layout.endswith("of all") else len(ids)
    shared = target.get_output_embeddings().weight
    inner = {(i, j): drawn(d, d, seed=10 * i + j, scale=2) for i in range(heads) for j in range(layers)}
    shifts = {place: drawn(d, seed=place[0], scale=5) if published else torch.zeros(d) for place in inner}
    outputs = [drawn(rows, d, seed=100 + i, scale=3) for i in range(heads)]
    settings: dict[str, Any] = {"medusa_num_heads": 2, "medusa_num_layers": layers, "base_model_name_or_path": "x/y"}
    if published:
        weights = {f"{i}.{j}.linear.weight": weight for (i, j), weight in inner.items()}
        weights |= {f"{i}.{j}.linear.bias": shift for (i, j), shift in shifts.items()}
        weights |= {f"{i}.{layers}.weight": output for i, output in enumerate(outputs) if "without" not in layout}
    else:
        weights = {f"blocks.{i}.layers.{j}.weight": weight for (i, j), weight in inner.items()}
        settings = {"model_type": "medusa", "num_heads": heads, "num_hidden_layers": layers, "hidden_size": d}
        settings |= {"vocab_size": vocab, "truncated_vocab_size": len(ids)}
    if layout.startswith("vllm"):
        weights |= {f"lm_heads.{i}.weight": output for i, output in enumerate(outputs)}
        weights |= {"token_map": ids} if frequents else {}
        settings |= {"original_lm_head": True} if "one" in layout else {}
    if layout.startswith("speculators"):
        settings |= {"speculators_model_type": "medusa", "original_lm_head": True, "architectures": ["MedusaModel"]}
        ids = ids.sort().values
        maps = {"d2t": ids - torch.arange(len(ids)), "t2d": torch.isin(torch.arange(vocab), ids)}
        weights |= maps if frequents else {}
    if "without" in layout or layout.startswith("speculators"):
        outputs = [shared[ids]] * heads
    elif "one" in layout:
        outputs = outputs[:1] * heads
    elif rows > len(ids):
        outputs = [output[ids] for output in outputs]
    write(folder, settings, weights, file)

    def expected(text: list[int], branch: list[int]) -> Tensor:
        state, head = last_state(target, text), len(branch)
        for j in range(layers):
            state = state + functional.silu(inner[head, j] @ state + shifts[head, j])
        return torch.full((vocab,), -torch.inf).index_put((ids,), outputs[head] @ state)

    return expected


#: The layouts of MLP speculators: settings, and whether the file repeats weights that heads share.
SPECULATORS: dict[str, tuple[dict[str, Any], bool]] = {
    "own weights": ({"inner_dim": 0}, False),
    "scaled": ({"inner_dim": 32, "scale_input": True}, False),
    "tied": ({"inner_dim": 32, "scale_input": True, "tie_weights": True}, False),
    "tied, repeated": ({"inner_dim": 0, "tie_weights": True}, True),
}


def write_speculator(folder: pathlib.Path, target: PreTrainedModel, layout: str = "scaled", heads: int = 4) -> Expected:
    d, vocab, (settings, repeated) = target.config.hidden_size, target.config.vocab_size, SPECULATORS[layout]
    inner, tied = settings["inner_dim"] or d, settings.get("tie_weights", False)
    own = {i: 0 if tied else i for i in range(heads)}
    ways = {i: min(i, 1) if tied else i for i in range(heads)}
    emb = [drawn(vocab, inner, seed=own[i], scale=2) for i in range(heads)]
    proj = [drawn(inner, inner if i else d, seed=10 + ways[i], scale=2) for i in range(heads)]
    head = [drawn(vocab, inner, seed=20 + own[i], scale=3) for i in range(heads)]
    scale = [1 + drawn(inner, seed=30 + own[i]) for i in range(heads)]
    shift = [drawn(inner, seed=40 + own[i], scale=4) for i in range(heads)]
    weights = {}
    for i in range(heads):
        kept = {} if own[i] != i and not repeated else {"emb": emb[i], "head": head[i], "ln": scale[i]}
        weights |= {f"speculator.{kind}.{i}.weight": weight.clone() for kind, weight in kept.items()}
        weights |= {f"speculator.ln.{i}.bias": shift[i].clone()} if kept else {}
        weights |= {f"speculator.proj.{i}.weight": proj[i].clone()} if ways[i] == i or repeated else {}
    sizes = {"model_type": "mlp_speculator", "emb_dim": d, "vocab_size": vocab, "n_predict": heads}
    write(folder, sizes | settings, weights, "model.safetensors")

    def expected(text: list[int], branch: list[int]) -> Tensor:
        state = last_state(target, text)
        state = functional.rms_norm(state, (d,), eps=1e-6) / 2**0.5 if settings.get("scale_input") else state
        kept = 0.5 ** (0.5 / heads)
        added = ((1 - kept**2) * inner / 2) ** 0.5
        for i, token in enumerate([text[-1], *branch]):
            state = proj[i] @ state + added / kept * emb[i][token]
            state = functional.gelu(functional.rms_norm(state, (inner,), scale[i], 1e-6) + shift[i])
        return head[len(branch)] @ state

    return expected


#: The layouts of EAGLE heads: the file, whether the fusing layer and the queries are shifted, whether there are norms.
EAGLE = {
    "SafeAILab": ("pytorch_model.bin", True, False, False),
    "SafeAILab, Llama 3": ("model.safetensors", False, False, False),
    "SafeAILab, Qwen 2": ("model.safetensors", True, True, False),
    "norms": ("pytorch_model.bin", False, False, True),
    "speculators": ("model.safetensors", True, False, True),
}
_NORMS = {"norms": ("embed_layernorm", "hidden_layernorm", "lm_head_layernorm")}
_NORMS["speculators"] = ("embedding_layernorm", "transformer.input_layernorm", "pre_lm_head_layernorm")


def write_eagle(folder: pathlib.Path, target: PreTrainedModel, layout: str = "SafeAILab") -> Expected:
    d, vocab, (file, fused, queried, normed) = target.config.hidden_size, target.config.vocab_size, EAGLE[layout]
    shapes = {"fc.weight": (d, 2 * d), "layers.0.self_attn.o_proj.weight": (d, d)}
    for part, width in (("q", d), ("k", d // 2), ("v", d // 2)):
        shapes |= {f"layers.0.self_attn.{part}_proj.weight": (width, d)}
        shapes |= {f"layers.0.self_attn.{part}_proj.bias": (width,)} if queried else {}
    shapes |= {f"layers.0.mlp.{part}_proj.weight": (64, d) for part in ("gate", "up")}
    shapes |= {"layers.0.mlp.down_proj.weight": (d, 64), "layers.0.post_attention_layernorm.weight": (d,)}
    shapes |= {"fc.bias": (d,)} if fused else {}
    own = {name: drawn(*shape, seed=i, scale=1.2) for i, (name, shape) in enumerate(shapes.items())}
    own["layers.0.post_attention_layernorm.weight"] += 1
    norms = [1 + drawn(d, seed=50 + i) for i in range(3)] if normed else None
    weights = own | {f"{name}.weight": norm for name, norm in zip(_NORMS.get(layout, ()), norms or ())}
    settings = {"hidden_size": d, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    settings |= {"num_hidden_layers": 1, "vocab_size": vocab, "rms_norm_eps": 1e-5, "rope_theta": 5e3}
    settings |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_scaling": None}
    if layout == "speculators":
        weights = {re.sub("^fc", "fusion_fc", name): weight for name, weight in weights.items()}
        weights = {re.sub(r"^layers\.0", "transformer", name): weight for name, weight in weights.items()}
        settings = {"transformer_layer_config": settings, "layernorms": True, "fusion_bias": True}
        settings |= {"speculators_model_type": "eagle", "architectures": ["EagleSpeculator"]}
    table = target.get_input_embeddings().weight
    if layout == "SafeAILab":
        table = weights["embed_tokens.weight"] = drawn(vocab, d, seed=60, scale=3)
    write(folder, settings, weights, file)

    def normed_by(place: int, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (d,), norms[place], 1e-5) if norms else x

    def states(ids: list[int], features: Tensor) -> Tensor:
        x = linear(own, "fc", torch.cat([normed_by(0, table[ids]), features], -1))
        x = x + attention(own, "layers.0.self_attn", normed_by(1, x), d // 4)
        return x + feed_forward(own, "layers.0.mlp", norm(own, "layers.0.post_attention_layernorm", x, 1e-5))

    def expected(text: list[int], branch: list[int]) -> Tensor:
        features = target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[-1][0]
        for length in range(len(branch) + 1):
            made = states([*text[1:], *branch[:length]], features)
            features = torch.cat([features, made[-1:]])
        return target.get_output_embeddings()(normed_by(2, made[-1]))

    return expected
