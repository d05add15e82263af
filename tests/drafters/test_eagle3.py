"""EAGLE-3 and P-EAGLE heads in each published layout are drafted with as their papers say."""

import dataclasses
import json

import pytest
import torch
from fast_passes import MAKERS, with_passes
from published_heads import noted
from refusal import refused
from safetensors.torch import save_file
from tiny import greedy_run, save_pair
from torch.nn import functional

import specviz
from specviz.drafters.at_once import Parallel
from specviz.drafters.heads import Eagle
from specviz.models import pass_checks
from specviz.records.settings import DraftParams, SamplingParams

GREEDY = SamplingParams(temperature=0)
PROMPT = [3, 5, 7, 11, 3, 5]
V, MASK, HEADS, KV, SIZE = 128, 9, 4, 2, 8
LAYERS = 6  # of the target

#: Layouts: prefix of the first layer, file, settings, width, rows of the draft vocabulary, states that are fused.
LAYOUTS = {
    "SafeAILab": ("midlayer.", "pytorch_model.bin", {"architectures": ["LlamaForCausalLM"]}, 48, 40, (2, 3, 3)),
    "SpecForge": (
        "midlayer.",
        "model.safetensors",
        {
            "architectures": ["LlamaForCausalLMEagle3"],
            "fc_norm": True,
            "norm_output": True,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 5]},
        },
        32,
        40,
        (1, 3, 6),
    ),
    "DeepSpec": (
        "layers.0.",
        "model.safetensors",
        {"architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [-1, 0, 2, 3, 4]},
        48,
        V,
        (0, 1, 3, 4, 5),
    ),
    "NeMo": ("model.layers.0.", "model.safetensors", {"architectures": ["LlamaForCausalLM"]}, 48, 40, (2, 3, 3)),
    "speculators": (
        "layers.0.",
        "model.safetensors",
        {
            "speculators_model_type": "eagle3",
            "norm_before_residual": True,
            "norm_before_fc": True,
            "eagle_aux_hidden_state_layer_ids": [1, 4, 6],
        },
        48,
        40,
        (1, 4, 6),
    ),
}


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * shape[-1] ** -0.5


def weights_of(d, rows, states, *, layers=1, qwen=False, fc_norm=False, norm_before_fc=False, own=False):
    """The tensors of a head, by the names that the plain reading below has for them."""
    shapes = {"fc": (d, states * 48), "norm": (d,), "lm_head": (rows, d)}
    if own:
        shapes["embed_tokens"] = (V, d)
    if norm_before_fc:
        shapes["input_norm"] = (states * 48,)
    if fc_norm:
        shapes |= {f"fc_norm.{i}": (48,) for i in range(states)}
    for layer in range(layers):
        wide = 2 * d if layer == 0 else d
        shapes |= {f"layers.{layer}.{name}": (d,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"layers.{layer}.self_attn.q_proj": (HEADS * SIZE, wide)}
        shapes |= {f"layers.{layer}.self_attn.{name}_proj": (KV * SIZE, wide) for name in "kv"}
        shapes |= {f"layers.{layer}.self_attn.o_proj": (d, HEADS * SIZE)}
        shapes |= {f"layers.{layer}.mlp.{name}_proj": (64, d) for name in ("gate", "up")}
        shapes |= {f"layers.{layer}.mlp.down_proj": (d, 64)}
        if qwen:
            shapes |= {f"layers.{layer}.self_attn.{name}_norm": (SIZE,) for name in "qk"}
    shapes["layers.0.hidden_norm"] = (d,)
    tensors = {f"{name}.weight": drawn(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return {name: 1 + tensor if tensor.dim() == 1 else tensor for name, tensor in tensors.items()}


def vocabulary(rows):
    return torch.randperm(V, generator=torch.Generator().manual_seed(1))[:rows].sort().values


def write(folder, tensors, settings, prefix, file, d, rows):
    folder.mkdir()
    front = "model." if prefix.startswith("model.") else ""
    named = {
        prefix + name.removeprefix("layers.0.") if name.startswith("layers.0.") else front + name: tensor
        for name, tensor in tensors.items()
    }
    if rows < V:
        ids = vocabulary(rows)
        named[f"{front}d2t"] = ids - torch.arange(rows)
        named[f"{front}t2d"] = torch.zeros(V, dtype=torch.bool).index_fill(0, ids, True)
    sizes = {"hidden_size": d, "intermediate_size": 64, "num_attention_heads": HEADS, "num_key_value_heads": KV}
    sizes |= {"head_dim": SIZE, "rms_norm_eps": 1e-6, "vocab_size": V, "num_hidden_layers": 1, "rope_theta": 5e3}
    sizes |= {"model_type": "llama", "draft_vocab_size": rows}
    if "speculators_model_type" in settings:
        own = {"draft_vocab_size": rows, "transformer_layer_config": sizes}
        (folder / "config.json").write_text(json.dumps(own | settings))
    else:
        (folder / "config.json").write_text(json.dumps(sizes | settings | {"target_hidden_size": 48}))
    save = torch.save if file.endswith(".bin") else save_file
    save({name: tensor.contiguous() for name, tensor in named.items()}, folder / file)
    return folder


class Plain:
    """A head over whole texts at once, as its paper says (EAGLE-3, §3; P-EAGLE, §3)."""

    def __init__(self, tensors, settings, target, states, rows):
        self.weights, self.settings, self.target, self.states, self.rows = tensors, settings, target, states, rows

    def norm(self, x, name):
        return functional.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], 1e-6)

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T

    def fuse(self, features):
        if self.settings.get("norm_before_fc"):
            features = self.norm(features, "input_norm")
        if self.settings.get("fc_norm"):
            features = torch.cat([self.norm(f, f"fc_norm.{i}") for i, f in enumerate(features.split(48, -1))], -1)
        return self.linear(features, "fc")

    def embed(self, ids):
        own = self.weights.get("embed_tokens.weight")
        return self.target.get_input_embeddings()(ids) if own is None else own[ids]

    def attention(self, x, layer):
        def heads(part, turned=True):
            rows = self.linear(x, f"{layer}.self_attn.{part}_proj").unflatten(-1, (-1, SIZE)).transpose(0, 1)
            if part != "v" and f"{layer}.self_attn.{part}_norm.weight" in self.weights:
                rows = self.norm(rows, f"{layer}.self_attn.{part}_norm")
            if not turned:
                return rows
            angles = torch.arange(len(x))[:, None] * 5e3 ** -(torch.arange(SIZE // 2) / (SIZE // 2))
            (left, right), cos, sin = rows.chunk(2, -1), angles.cos(), angles.sin()
            return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

        queries, (keys, values) = heads("q"), (r.repeat_interleave(2, 0) for r in (heads("k"), heads("v", False)))
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        gathered = (queries @ keys.mT / SIZE**0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ values
        return self.linear(gathered.transpose(0, 1).flatten(1), f"{layer}.self_attn.o_proj")

    def mlp(self, x, layer):
        x = self.norm(x, f"{layer}.post_attention_layernorm")
        gate = functional.silu(self.linear(x, f"{layer}.mlp.gate_proj"))
        return self.linear(gate * self.linear(x, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj")

    def hidden(self, embeddings, states, layers=1):
        normed = self.norm(states, "layers.0.hidden_norm")
        joined = torch.cat([self.norm(embeddings, "layers.0.input_layernorm"), normed], -1)
        x = (normed if self.settings.get("norm_before_residual") else states) + self.attention(joined, "layers.0")
        x = x + self.mlp(x, "layers.0")
        for layer in range(1, layers):
            x = x + self.attention(self.norm(x, f"layers.{layer}.input_layernorm"), f"layers.{layer}")
            x = x + self.mlp(x, f"layers.{layer}")
        return x

    def logits(self, hidden):
        rows = self.linear(self.norm(hidden, "norm"), "lm_head")
        if self.rows == V:
            return rows
        every = torch.full((*rows.shape[:-1], V), float("-inf"))
        every[..., vocabulary(self.rows)] = rows
        return every

    def features(self, ids):
        states = self.target(torch.tensor([ids]), output_hidden_states=True).hidden_states
        return torch.cat([states[layer][0] for layer in self.states], -1)

    def chain(self, text, drafted):
        """Logits of each draft token of a chain after `text`."""
        states, ids, rows = self.fuse(self.features(text[:-1])), [*text[1:], *drafted[:-1]], []
        for _ in drafted:
            hidden = self.hidden(self.embed(torch.tensor(ids[: len(states)])), states)
            rows.append(self.logits(hidden[-1]))
            back = self.norm(hidden[-1:], "norm") if self.settings.get("norm_output") else hidden[-1:]
            states = torch.cat([states, back])
        return torch.stack(rows)

    def masks(self, text, depths):
        """Logits of all depths after `text`, by P-EAGLE."""
        masks = self.weights["mask_hidden"][0].expand(depths - 1, -1)
        states = self.fuse(torch.cat([self.features(text[:-1]), masks]))
        ids = torch.tensor([*text[1:], *[MASK] * (depths - 1)])
        return self.logits(self.hidden(self.embed(ids), states, layers=2)[-depths:])


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("eagle3"), "qwen3", layers=LAYERS)[0]


def layout(name, folder, target):
    """A pair with such a head, and its plain reading."""
    prefix, file, settings, d, rows, states = LAYOUTS[name]
    flags = {flag: settings.get(flag, False) for flag in ("fc_norm", "norm_before_fc")}
    tensors = weights_of(d, rows, len(states), qwen=name == "DeepSpec", own=d != 48 or name == "speculators", **flags)
    part = write(folder / name, tensors, settings, prefix, file, d, rows)
    pair = specviz.load_pair(target, part, device="cpu", dtype="float32")
    return pair, Plain(tensors, settings, pair.target, states, rows)


@pytest.mark.parametrize("name", LAYOUTS)
@torch.inference_mode()
def test_a_head_computes_what_its_paper_says(name, target, tmp_path, monkeypatch):
    pair, plain = layout(name, tmp_path, target)
    assert pair.parts["eagle"].reading()["hidden_states"] == list(plain.states)
    looked = noted(monkeypatch, Eagle)
    endless = dataclasses.replace(pair, eos_ids=frozenset())
    # With a filter that keeps all of the likely tokens, the drafts hold their logits.
    sampling = SamplingParams(temperature=1, top_k=V - 1)
    settings = {"max_new_tokens": 16, "num_draft_tokens": 3, "seed": 4, "sampling": sampling}
    run = specviz.run(endless, PROMPT, drafter="eagle", **settings)
    assert run.settings["format"] == "EAGLE-3"
    assert run.settings["hidden_states"] == ", ".join(map(str, plain.states))
    assert len(looked) > 4
    for text, draft in looked:
        expected = plain.chain(text, draft.tokens.tolist())
        torch.testing.assert_close(draft.logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_greedy_text_is_generates(name, branches, target, tmp_path):
    pair, _ = layout(name, tmp_path, target)
    for depth in (1, 4, 7):
        greedy_run(pair, PROMPT, drafter="eagle", drafting=DraftParams(branches=branches), num_draft_tokens=depth)


@pytest.mark.parametrize("kind", ["static", "kernels"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_head_runs_over_static_buffers_and_on_kernels(name, kind, target, tmp_path):
    pair, _ = layout(name, tmp_path, target)
    fast = MAKERS[kind](pair)
    pass_checks.check(fast["eagle"])
    greedy_run(with_passes(pair, fast), PROMPT, drafter="eagle")


@torch.inference_mode()
def test_p_eagle_drafts_all_depths_in_one_pass(target, tmp_path, monkeypatch):
    settings = {"architectures": ["PEagleDraftModel"], "mask_token_id": MASK, "num_depths": 5}
    tensors = weights_of(32, 40, 3, layers=2, own=True) | {"mask_hidden": drawn(1, 1, 144, seed=90)}
    part = write(tmp_path / "part", tensors, settings, "layers.0.", "model.safetensors", 32, 40)
    pair = specviz.load_pair(target, part, device="cpu", dtype="float32")
    plain, looked, all_rows = Plain(tensors, settings, pair.target, (2, 3, 3), 40), [], Parallel.all_rows

    def rows_and_note(self, committed, depths):
        looked.append((list(committed), all_rows(self, committed, depths)[:depths]))
        return looked[-1][1]

    monkeypatch.setattr(Parallel, "all_rows", rows_and_note)
    run = greedy_run(pair, PROMPT, drafter="parallel", num_draft_tokens=20)
    assert max(len(one.drafted) for one in run.rounds) == 5
    for text, rows in looked:
        torch.testing.assert_close(rows, plain.masks(text, len(rows)), rtol=1e-3, atol=1e-3)


def test_half_precision_keeps_the_positions(target, tmp_path):
    prefix, file, settings, d, rows, states = LAYOUTS["SafeAILab"]
    part = write(tmp_path / "part", weights_of(d, rows, len(states)), settings, prefix, file, d, rows)
    head = specviz.load_pair(target, part, device="cpu", dtype="bfloat16").parts["eagle"]
    assert head.fc.weight.dtype == torch.bfloat16 and head.rotary_emb.inv_freq.dtype == torch.float32


BAD = {
    "d2t": (lambda t: t | {"d2t": t["d2t"].flip(0)}, {}, "do not rise"),
    "map beyond the vocabulary": (lambda t: t | {"d2t": t["d2t"] + V}, {}, "do not rise"),
    "no map": (lambda t: {name: x for name, x in t.items() if name != "d2t"}, {}, "do not say which"),
    "width": (lambda t: t | {"midlayer.mlp.up_proj.weight": drawn(60, 48, seed=0)}, {}, "mlp.up_proj.weight"),
    "lacks": (lambda t: {name: x for name, x in t.items() if name != "norm.weight"}, {}, "lack norm.weight"),
    "unknown": (lambda t: t | {"midlayer.extra.weight": drawn(4, 4, seed=0)}, {}, "extra.weight"),
    "NaN": (lambda t: t | {"norm.weight": t["norm.weight"] / 0}, {}, "not all numbers"),
    "other width": (lambda t: t, {"target_hidden_size": 64}, "another target"),
    "other vocabulary": (lambda t: t, {"vocab_size": 64}, "another target"),
    "other layers": (lambda t: t, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 9]}}, "another target"),
}


@pytest.mark.parametrize("flaw", BAD)
def test_a_bad_file_is_refused_with_its_reason(flaw, target, tmp_path):
    change, settings, sentence = BAD[flaw]
    prefix, _, own, d, rows, states = LAYOUTS["SafeAILab"]
    part = write(tmp_path / "part", weights_of(d, rows, len(states)), own | settings, prefix, "x.bin", d, rows)
    torch.save(change(torch.load(part / "x.bin")), part / "pytorch_model.bin")
    if "target_hidden_size" in settings:
        (part / "config.json").write_text(json.dumps(json.loads((part / "config.json").read_text()) | settings))
    with refused("draft", sentence):
        specviz.load_pair(target, part, device="cpu", dtype="float32")


def test_a_p_eagle_head_without_its_masks_state_is_refused(target, tmp_path):
    settings = {"architectures": ["PEagleDraftModel"], "mask_token_id": MASK}
    part = write(tmp_path / "part", weights_of(48, V, 3), settings, "layers.0.", "model.safetensors", 48, V)
    with refused("draft", "lack mask_hidden"):
        specviz.load_pair(target, part, device="cpu", dtype="float32")
