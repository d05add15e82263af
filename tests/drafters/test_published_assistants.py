"""Published drafters that go on from the target's last hidden state: assistants and modules in files of their own,
written here as they are published."""

import dataclasses
import json
import math

import pytest
import torch
from safetensors.torch import save_file
from tiny import generated, save_model, tiny_model, unprepared
from torch.nn import functional
from transformers import AutoModelForCausalLM, DynamicCache

import specviz
from specviz.drafters.heads import Assistant
from specviz.models.pair import PairPasses
from specviz.records.settings import DraftParams, SamplingParams

GREEDY = SamplingParams(temperature=0)
HOT = SamplingParams(temperature=3.0)
PROMPT = [3, 5, 7, 11, 3, 5]
CLOSE = {"rtol": 1e-3, "atol": 1e-3}


def drawn(shapes, std=1.0):
    """Random weights by their names; norms between a half and three halves."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(shape, generator=generator) + 0.5
        if len(shape) == 1
        else std * torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        for name, shape in shapes.items()
    }


def saved(folder, config, weights, pickled=False):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def loaded(target, draft, dtype="float32"):
    return dataclasses.replace(specviz.load_pair(target, draft, device="cpu", dtype=dtype), eos_ids=frozenset())


def looked_at(monkeypatch, pair, kind, branches=None, **order):
    """(text, the branch from its end to a draft token, the row of what follows it) for each row of a run's drafts."""
    looked, first_row, next_rows = [], kind.first_row, kind.next_rows

    def note_first(self, committed):
        self.text, self.tokens = list(committed), []
        row = first_row(self, committed)
        if row is not None:
            looked.append((self.text, [], row[0]))
        return row

    def note_next(self, tokens, parents):
        self.tokens += tokens.tolist()
        rows = next_rows(self, tokens, parents)
        for index, row in zip(range(len(parents) - len(tokens), len(parents)), rows, strict=True):
            branch = []
            while index >= 0:
                branch, index = [self.tokens[index], *branch], parents[index]
            looked.append((self.text, branch, row))
        return rows

    monkeypatch.setattr(kind, "first_row", note_first)
    monkeypatch.setattr(kind, "next_rows", note_next)
    order = {"drafter": "mtp", "drafting": DraftParams(branches=branches), "max_new_tokens": 24} | order
    run = specviz.run(pair, PROMPT, sampling=HOT, num_draft_tokens=3, seed=4, **order)
    assert len(looked) > 20
    return run, looked


def norm(x, weights, name, eps=1e-6):
    return functional.rms_norm(x, x.shape[-1:], weights[f"{name}.weight"], eps)


# Gemma 4 assistants

KINDS = ["sliding_attention", "full_attention"]
SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"head_dim": 12, "global_head_dim": 16, "sliding_window": 8, "vocab_size": 16, "max_position_embeddings": 256}
SIZES |= {"num_hidden_layers": 3, "num_kv_shared_layers": 3, "layer_types": [*KINDS, KINDS[1]]}
SIZES |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
ASSISTANT = {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant"}
ASSISTANT |= {"backbone_hidden_size": 48, "text_config": SIZES | {"model_type": "gemma4_text"}}
ASSISTANT |= {"use_ordered_embeddings": True, "num_centroids": 8, "centroid_intermediate_top_k": 3}
UNIFIED = ASSISTANT | {"architectures": ["Gemma4UnifiedAssistantForCausalLM"], "model_type": "gemma4_unified_assistant"}
UNIFIED |= {"text_config": SIZES | {"model_type": "gemma4_unified_text"}, "use_ordered_embeddings": False}


def assistant_weights(config, kinds=(*KINDS, KINDS[1])):
    shapes = {"model.embed_tokens.weight": (16, 32), "model.norm.weight": (32,)}
    shapes |= {"pre_projection.weight": (32, 96), "post_projection.weight": (48, 32)}
    for index, kind in enumerate(kinds):
        size, layer = 12 if kind == KINDS[0] else 16, f"model.layers.{index}"
        shapes |= {f"{layer}.self_attn.q_proj.weight": (4 * size, 32), f"{layer}.self_attn.q_norm.weight": (size,)}
        shapes |= {f"{layer}.self_attn.o_proj.weight": (32, 4 * size), f"{layer}.layer_scalar": (1,)}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (40, 32) for name in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj.weight": (32, 40)}
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        shapes |= {f"{layer}.{name}_layernorm.weight": (32,) for name in norms}
    if config["use_ordered_embeddings"]:
        shapes["masked_embedding.centroids.weight"] = (8, 32)
    weights = drawn(shapes, std=2.5)
    if config["use_ordered_embeddings"]:
        weights["masked_embedding.token_ordering"] = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    return weights


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """Folders of targets, the last layers of one of which share the keys and values of earlier ones, and of
    assistants."""
    folder, four = tmp_path_factory.mktemp("gemma"), {"layers": 4, "layer_types": KINDS * 2, "vocab": 16}
    targets = {"shared": {"num_kv_shared_layers": 2}, "whole": {}, "full": {"layer_types": [KINDS[1]] * 4}}
    folders = {
        name: save_model(folder / name, tiny_model("gemma4", **four | {"eos_token_id": None} | changes))
        for name, changes in targets.items()
    }
    for name, config in {"ordered": ASSISTANT, "unified": UNIFIED}.items():
        folders[name] = saved(folder / name, config, assistant_weights(config), pickled=name == "unified")
    text = ASSISTANT["text_config"] | {"layer_types": [KINDS[1]] * 3}
    config = ASSISTANT | {"text_config": text}
    folders["all full"] = saved(folder / "all full", config, assistant_weights(config, [KINDS[1]] * 3))
    return folders


@torch.inference_mode()
def assistant_by_hand(weights, config, target, text, branch):
    """Logits of what follows a branch after a text, from a pass over the text without its last token."""
    cache = DynamicCache()
    states = target(torch.tensor([text[:-1]]), cache=cache, output_hidden_states=True).hidden_states
    own = [layer for layer in range(4) if layer < 4 - target.config.num_kv_shared_layers]
    kinds, state = target.config.layer_types, states[-1][0, -1]
    for token in [text[-1], *branch]:
        embedding = target.get_input_embeddings()(torch.tensor(token))
        x = torch.cat([embedding, state]) @ weights["pre_projection.weight"].T
        for index, kind in enumerate(config["text_config"]["layer_types"]):
            layer = f"model.layers.{index}"
            source = cache.layers[max(one for one in own if kinds[one] == kind)]
            seen = 7 if kind == KINDS[0] else None  # the window without the token itself
            keys, values = (
                part[0, :, -seen if seen else 0 :].repeat_interleave(2, 0) for part in (source.keys, source.values)
            )
            size = keys.shape[-1]
            queries = norm(x, weights, f"{layer}.input_layernorm") @ weights[f"{layer}.self_attn.q_proj.weight"].T
            queries = norm(queries.unflatten(-1, (4, size)), weights, f"{layer}.self_attn.q_norm")
            # A quarter of the full layers' dimensions turn, those of windows all.
            turning, theta = (size // 2, 1e4) if kind == KINDS[0] else (size // 8, 1e6)
            frequencies = torch.cat([theta ** -(torch.arange(turning) * 2 / size), torch.zeros(size // 2 - turning)])
            angles = (len(text) - 1) * frequencies
            (left, right), cos, sin = queries.chunk(2, -1), angles.cos(), angles.sin()
            queries = torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
            gathered = (queries.unsqueeze(1) @ keys.mT).softmax(-1) @ values
            attended = gathered.flatten() @ weights[f"{layer}.self_attn.o_proj.weight"].T
            x = x + norm(attended, weights, f"{layer}.post_attention_layernorm")
            inner = norm(x, weights, f"{layer}.pre_feedforward_layernorm")
            gate = functional.gelu(inner @ weights[f"{layer}.mlp.gate_proj.weight"].T, approximate="tanh")
            fed = (gate * (inner @ weights[f"{layer}.mlp.up_proj.weight"].T)) @ weights[
                f"{layer}.mlp.down_proj.weight"
            ].T
            x = (x + norm(fed, weights, f"{layer}.post_feedforward_layernorm")) * weights[f"{layer}.layer_scalar"]
        hidden = norm(x, weights, "model.norm")
        state = hidden @ weights["post_projection.weight"].T
    logits = hidden @ weights["model.embed_tokens.weight"].T
    if not config["use_ordered_embeddings"]:
        return logits
    groups = weights["masked_embedding.token_ordering"].view(8, 2)
    best = (hidden @ weights["masked_embedding.centroids.weight"].T).topk(3).indices
    hidden_tokens = torch.ones(16, dtype=torch.bool)
    hidden_tokens[groups[best]] = False
    return logits.masked_fill(hidden_tokens, -math.inf)


@pytest.mark.parametrize(
    "target, drafter, prepared, branches",
    [
        ("shared", "ordered", False, None),
        ("whole", "ordered", True, None),
        ("whole", "unified", False, None),
        ("full", "all full", False, 3),
    ],
)
def test_an_assistant_drafts_from_the_targets_own_keys_and_values(
    gemma, target, drafter, prepared, branches, monkeypatch
):
    pair, config = loaded(gemma[target], gemma[drafter]), json.loads((gemma[drafter] / "config.json").read_text())
    if prepared:
        passes = {"target": unprepared(pair.target, (4,))}
        pair = dataclasses.replace(pair, passes=PairPasses(passes))
    weights = assistant_weights(config, config["text_config"]["layer_types"])
    run, looked = looked_at(monkeypatch, pair, Assistant, branches)
    for text, branch, row in looked:
        torch.testing.assert_close(row, assistant_by_hand(weights, config, pair.target, text, branch), **CLOSE)
    assert sum(one.accepted for one in run.rounds) > 1 and len(text) > 3 * 8
    if config["use_ordered_embeddings"]:
        assert all(row.isneginf().sum() == 10 for _, _, row in looked)


def test_the_folders_are_those_that_transformers_reads(gemma):
    for name in ("ordered", "unified"):
        _, info = AutoModelForCausalLM.from_pretrained(gemma[name], output_loading_info=True)
        assert not any(info.values())


@pytest.mark.parametrize("depth", [1, 4, 7, 20])
def test_greedy_text_with_an_assistant_is_generates(gemma, depth):
    for target, drafter in [("shared", "ordered"), ("whole", "unified")]:
        pair = loaded(gemma[target], gemma[drafter])
        for prompt in (PROMPT, PROMPT[:1]):
            run = specviz.run(pair, prompt, drafter="mtp", sampling=GREEDY, max_new_tokens=24, num_draft_tokens=depth)
            assert list(run.token_ids) == generated(pair, prompt, 24)
