"""Published drafters that go on from the target's last hidden state: assistants and modules in files of their own,
written here as they are published."""

import dataclasses
import json
import math
import re

import pytest
import torch
from assistant_files import AT, FULL, SLIDING, assistant_config, assistant_weights, module_config, module_weights, saved
from fast_passes import MAKERS, with_passes
from refusal import refused
from tiny import greedy_run, save_model, tiny_model
from torch.nn import functional
from transformers import AutoModelForCausalLM, DynamicCache

import specviz
from specviz.drafters.heads import Mtp
from specviz.records.settings import DraftParams, SamplingParams

GREEDY = SamplingParams(temperature=0)
HOT = SamplingParams(temperature=3.0)
PROMPT = [3, 5, 7, 11, 3, 5]
CLOSE = {"rtol": 1e-3, "atol": 1e-3}


def loaded(target, draft, dtype="float32"):
    return dataclasses.replace(specviz.load_pair(target, draft, device="cpu", dtype=dtype), eos_ids=frozenset())


def looked_at(monkeypatch, pair, branches):
    """(text, the branch from its end to a draft token, the row of what follows it) for each row of a run's drafts."""
    looked, first_row, next_rows = [], Mtp.first_row, Mtp.next_rows

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

    monkeypatch.setattr(Mtp, "first_row", note_first)
    monkeypatch.setattr(Mtp, "next_rows", note_next)
    # With a least confidence, no draft is made in one call.
    order = {"drafter": "mtp", "drafting": DraftParams(branches=branches, confidence=1e-9)}
    run = specviz.run(pair, PROMPT, sampling=HOT, num_draft_tokens=3, max_new_tokens=24, seed=4, **order)
    assert len(looked) > 20
    return run, looked


def norm(x, weights, name, eps=1e-6):
    return functional.rms_norm(x, x.shape[-1:], weights[f"{name}.weight"], eps)


# Gemma 4 assistants


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """Folders of targets, the last layers of one of which share the keys and values of earlier ones, and of
    assistants."""
    folder, kinds = tmp_path_factory.mktemp("gemma"), [SLIDING, FULL] * 2
    targets = {
        "shared": {"num_kv_shared_layers": 2},
        "whole": {"hidden_size_per_layer_input": 0},
        "full": {"layer_types": [FULL] * 4},
    }
    settings = {"layers": 4, "layer_types": kinds, "vocab": 16, "eos_token_id": None}
    folders = {
        name: save_model(folder / name, tiny_model("gemma4", **settings | changes)) for name, changes in targets.items()
    }
    configs = {
        "ordered": assistant_config(),
        "unified": assistant_config("gemma4_unified", ordered=False),
        "all full": assistant_config(kinds=(FULL, FULL)),
    }
    return folders | {
        name: saved(folder / name, config, assistant_weights(config), pickled=name == "unified")
        for name, config in configs.items()
    }


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
            seen = 7 if kind == SLIDING else None  # the window without the token itself
            keys, values = (
                part[0, :, -seen if seen else 0 :].repeat_interleave(2, 0) for part in (source.keys, source.values)
            )
            size = keys.shape[-1]
            queries = norm(x, weights, f"{layer}.input_layernorm") @ weights[f"{layer}.self_attn.q_proj.weight"].T
            queries = norm(queries.unflatten(-1, (4, size)), weights, f"{layer}.self_attn.q_norm")
            # A quarter of the full layers' dimensions turn, those of windows all.
            turning, theta = (size // 2, 1e4) if kind == SLIDING else (size // 8, 1e6)
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
    "target, drafter, passes, branches",
    [
        ("shared", "ordered", "plain", None),
        ("whole", "ordered", "static", None),
        ("whole", "unified", "kernels", None),
        ("full", "all full", "plain", 3),
    ],
)
def test_an_assistant_drafts_from_the_targets_own_keys_and_values(
    gemma, target, drafter, passes, branches, monkeypatch
):
    pair, config = loaded(gemma[target], gemma[drafter]), json.loads((gemma[drafter] / "config.json").read_text())
    weights = assistant_weights(config)
    pair = prepared(pair, passes)
    run, looked = looked_at(monkeypatch, pair, branches)
    for text, branch, row in looked:
        torch.testing.assert_close(row, assistant_by_hand(weights, config, pair.target, text, branch), **CLOSE)
    assert sum(one.accepted for one in run.rounds) > 1 and len(text) > 3 * 8
    if config["use_ordered_embeddings"]:
        assert all(row.isneginf().sum() == 10 for _, _, row in looked)


@torch.inference_mode()
def test_the_folders_and_the_plain_reading_are_transformers(gemma):
    target = loaded(gemma["shared"], gemma["ordered"]).target
    for name in ("ordered", "unified"):
        assistant, info = AutoModelForCausalLM.from_pretrained(gemma[name], output_loading_info=True)
        assert not any(info.values())
        read = target(torch.tensor([PROMPT[:-1]]), output_hidden_states=True, return_shared_kv_states=True)
        embedding = target.get_input_embeddings()(torch.tensor([PROMPT[-1:]]))
        output = assistant(
            inputs_embeds=torch.cat([embedding, read.hidden_states[-1][:, -1:]], -1),
            position_ids=torch.tensor([[len(PROMPT) - 1]]),
            shared_kv_states=read.shared_kv_states,
        )
        config = json.loads((gemma[name] / "config.json").read_text())
        expected = assistant_by_hand(assistant_weights(config), config, target, PROMPT, [])
        found = output.logits[0, 0].masked_fill(expected.isneginf(), -math.inf)
        torch.testing.assert_close(expected, found, **CLOSE)


# Modules in files of their own


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The folders of a target, and of a module of each family for it."""
    folder = tmp_path_factory.mktemp("modules")
    model = tiny_model("qwen3", layers=3, vocab=16, eos_token_id=None)
    with torch.no_grad():
        model.model.norm.weight.uniform_(0.5, 2)
    folders = {"target": save_model(folder / "target", model)}
    for family in ("llama", "qwen2", "qwen3"):
        weights = module_weights(family)
        if family == "qwen2":  # as early files
            weights |= {"embed_tokens.weight": torch.zeros(16, 48), "lm_head.weight": torch.zeros(16, 48)}
        folders[family] = saved(folder / family, module_config(family), weights, pickled=family == "llama")
    return folders


@torch.inference_mode()
def module_by_hand(weights, target, text, branch):
    """Logits of what follows a branch after a text, over the whole of both at once."""

    def linear(x, name):
        return functional.linear(x, weights[f"{AT}.{name}.weight"], weights.get(f"{AT}.{name}.bias"))

    def heads(x, name, turned=True):
        rows = linear(x, f"self_attn.{name}_proj").unflatten(-1, (-1, 8)).transpose(0, 1)
        if f"{AT}.self_attn.{name}_norm.weight" in weights:
            rows = norm(rows, weights, f"{AT}.self_attn.{name}_norm")
        if not turned:
            return rows
        angles = torch.arange(len(x))[:, None] * 5e3 ** -(torch.arange(4) / 4)
        (left, right), cos, sin = rows.chunk(2, -1), angles.cos(), angles.sin()
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    def states_of(ids, states):
        embeddings = target.get_input_embeddings()(torch.tensor(ids))
        joined = [norm(embeddings, weights, f"{AT}.token_layernorm"), norm(states, weights, f"{AT}.hidden_layernorm")]
        x = linear(torch.cat(joined, -1), "input_proj")
        inner = norm(x, weights, f"{AT}.input_layernorm")
        queries, keys = heads(inner, "q"), heads(inner, "k").repeat_interleave(2, 0)
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        shares = (queries @ keys.mT / 8**0.5).masked_fill(later, -math.inf).softmax(-1)
        gathered = shares @ heads(inner, "v", False).repeat_interleave(2, 0)
        x = x + linear(gathered.transpose(0, 1).flatten(1), "self_attn.o_proj")
        inner = norm(x, weights, f"{AT}.post_attention_layernorm")
        x = x + linear(functional.silu(linear(inner, "mlp.gate_proj")) * linear(inner, "mlp.up_proj"), "mlp.down_proj")
        return norm(x, weights, f"{AT}.final_layernorm")

    last = []
    hook = target.model.norm.register_forward_pre_hook(lambda _, given: last.append(given[0][0]))
    target(torch.tensor([text[:-1]]))
    hook.remove()
    states, ids = last[0], [*text[1:], *branch]
    while True:
        found = states_of(ids[: len(states)], states)
        if len(states) == len(ids):
            return target.get_output_embeddings()(found[-1])
        states = torch.cat([states, found[-1:]])


@pytest.mark.parametrize(
    "family, passes, branches",
    [("qwen3", "plain", None), ("qwen2", "plain", 3), ("llama", "static", None), ("qwen3", "kernels", None)],
)
def test_a_module_in_a_file_of_its_own_goes_on_from_the_targets_last_layer(
    modules, family, passes, branches, monkeypatch
):
    pair, weights = prepared(loaded(modules["target"], modules[family]), passes), module_weights(family)
    run, looked = looked_at(monkeypatch, pair, branches)
    for text, branch, row in looked:
        torch.testing.assert_close(row, module_by_hand(weights, pair.target, text, branch), **CLOSE)
    assert sum(one.accepted for one in run.rounds) > 1


# Both


def prepared(pair, passes):
    """The pair with passes of this kind (`fast_passes.MAKERS`)."""
    return with_passes(pair, MAKERS[passes](dataclasses.replace(pair, draft=pair.target)))


@pytest.mark.parametrize("depth", [1, 4, 7, 20])
def test_greedy_text_is_generates(gemma, modules, depth):
    cases = [(gemma["shared"], gemma["ordered"], "plain", 1), (gemma["whole"], gemma["unified"], "static", 1)]
    cases += [(modules["target"], modules["qwen3"], *case) for case in (("plain", 1), ("plain", 3), ("kernels", 1))]
    for target, part, passes, branches in cases:
        pair = prepared(loaded(target, part), passes)
        for prompt in (PROMPT, PROMPT[:1]):
            drafting = DraftParams(branches=branches)
            run = greedy_run(pair, prompt, 24, drafter="mtp", drafting=drafting, num_draft_tokens=depth)
            assert run.settings["modules"] == 1


def test_beside_copies_they_draft_too(gemma, modules):
    for target, part in [(gemma["shared"], gemma["ordered"]), (modules["target"], modules["qwen3"])]:
        run = greedy_run(loaded(target, part), [*PROMPT, *PROMPT], 24, drafter="hybrid")
        assert len({token.source for one in run.rounds for token in one.drafted}) > 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_keeps_the_positions(gemma, modules, dtype):
    for target, part in [(gemma["shared"], gemma["ordered"]), (modules["target"], modules["qwen3"])]:
        pair = loaded(target, part, dtype)
        own = pair.parts["mtp"]
        assert {weight.dtype for weight in own.parameters()} == {getattr(torch, dtype)}
        assert {one.dtype for name, one in own.named_buffers() if "inv_freq" in name} == {torch.float32}
        assert specviz.run(pair, PROMPT, drafter="mtp", max_new_tokens=8).token_ids


def test_their_readings_and_neighbours_are_named(gemma, modules):
    own = loaded(gemma["shared"], gemma["ordered"]).parts["mtp"]
    assert own.reading()["keys_and_values"] == {SLIDING: 0, FULL: 1} and own.reading()["hidden_states"] == [4]
    assert own.reading()["place"] == "last token"
    module = loaded(modules["target"], modules["qwen3"]).parts["mtp"]
    assert module.reading()["state"] == "before the target's last norm"
    for part in (own, module):
        readings = [part.reading(), *(other.reading() for other in part.other_readings().values())]
        assert all(one not in readings[:index] for index, one in enumerate(readings))


def other_text(**changes):
    return lambda config, weights: config["text_config"].update(changes)


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda config, weights: config.update(backbone_hidden_size=64), "another target: hidden_size is 64"),
        (other_text(vocab_size=32), "another target: vocab_size is 32"),
        (other_text(global_head_dim=8), r"another target: head_dim \(full_attention\) is 8"),
        (other_text(sliding_window=4), "another target: sliding_window is 4"),
        (other_text(intermediate_size=64), r"gate_proj.weight in .* has the shape"),
        (other_text(hidden_size="wide"), "does not describe a part of its kind"),
        (lambda config, weights: weights.pop("post_projection.weight"), "lack post_projection.weight"),
        (lambda config, weights: weights["pre_projection.weight"].fill_(math.nan), "not all numbers"),
        (lambda config, weights: weights["masked_embedding.token_ordering"].fill_(3), "groups of tokens"),
        (lambda config, weights: config.update(centroid_intermediate_top_k=9), "groups of tokens"),
    ],
)
def test_a_bad_assistant_is_refused_by_what_is_wrong(gemma, change, sentence, tmp_path):
    config = assistant_config()
    weights = assistant_weights(config)
    change(config, weights)
    assert re.search(sentence, refusal(gemma["whole"], saved(tmp_path / "bad", config, weights)))


def test_parts_of_other_targets_are_refused(gemma, modules, tmp_path):
    assert "keys and values of a Gemma 4 model" in refusal(modules["target"], gemma["ordered"])
    config = module_config("qwen3", vocab=32)
    assert "another target: vocab_size is 32" in refusal(
        modules["target"], saved(tmp_path / "other", config, module_weights())
    )
    config = module_config("qwen3_next")
    assert "family qwen3_next" in refusal(modules["target"], saved(tmp_path / "hybrid", config, module_weights()))


def refusal(target, part):
    with refused("draft") as caught:
        loaded(target, part)
    return str(caught.value)
