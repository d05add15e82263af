"""Published drafters that fill in masks: small folders of their form are drafted with as their papers say."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import assert_same_rows, edit_config, generated, save_pair, tiny_pair
from torch.nn import functional
from transformers import Qwen3Config

import specviz
from specviz.drafters.at_once import Parallel, ParallelDraftModel
from specviz.drafters.registry import drafter_class
from specviz.parts.dflash import DFlashConfig, DFlashHead
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams, SamplingParams

GREEDY = SamplingParams(temperature=0)
PROMPT = [3, 5, 7, 11, 3, 5]


def loaded(target, draft=None, **named):
    return specviz.load_pair(target, draft, device="cpu", dtype="float32", **named)


def looked_at(monkeypatch, pair, kind, branches=1):
    """(text, rows of a draft, the drafter) of every round of a sampled run."""
    looked, all_rows = [], kind.all_rows

    def draft_and_note(self, committed, depths):
        looked.append((list(committed), all_rows(self, committed, depths)[:depths], self))
        return looked[-1][1]

    monkeypatch.setattr(kind, "all_rows", draft_and_note)
    settings = {"drafter": "parallel", "drafting": DraftParams(branches=branches)}
    endless = dataclasses.replace(pair, eos_ids=frozenset())
    run = specviz.run(endless, PROMPT, max_new_tokens=20, num_draft_tokens=3, seed=4, **settings)
    assert len(looked) > 5
    return run, looked


# PARD

MASK = 9


@pytest.fixture(scope="module", params=["pard", "pard2"])
def pard(tmp_path_factory, request):
    """A target, and a draft model whose folder says that it was adapted to masks."""
    target, draft = save_pair(tmp_path_factory.mktemp("pard"), "qwen2", noise=0.15)
    if request.param == "pard2":
        torch.save({"target_proj.weight": drawn(48, 96, seed=0)}, draft / "warp_model.bin")
    return loaded(target, edit_config(draft, spd_type=request.param, pard_token=MASK))


@pytest.mark.parametrize("branches", [1, 3])
def test_a_pard_model_drafts_by_one_pass_over_the_text_and_masks(pard, branches, monkeypatch):
    run, looked = looked_at(monkeypatch, pard, ParallelDraftModel, branches)
    for text, rows, _ in looked:
        expected = pard.draft(torch.tensor([text + [MASK] * (len(rows) - 1)])).logits[0, -len(rows) :]
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-4)
    text, _, drafter = looked[-1]
    assert_same_rows(drafter.model, text)
    assert {token.source for one in run.rounds for token in one.drafted} == {"row", "mask 1", "mask 2"}


def test_an_ordinary_draft_model_is_not_taken_for_one_with_masks(pard):
    assert drafter_class(pard, "parallel") is ParallelDraftModel
    assert drafter_class(tiny_pair("qwen2"), "parallel") is Parallel
    with pytest.raises(SpecvizError, match=r"python -m specviz\.training parallel"):
        specviz.speculate(tiny_pair("qwen2"), PROMPT, drafter="parallel")


# DFlash

SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
SIZES |= {"num_hidden_layers": 2, "vocab_size": 128, "rms_norm_eps": 1e-6, "attention_bias": False, "rope_theta": 5e3}
PUBLISHED = SIZES | {
    "architectures": ["DFlashDraftModel"],
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "model_type": "qwen3",
    "block_size": 8,
    "num_target_layers": 3,
    "layer_types": ["full_attention"] * 2,
    "dflash_config": {"mask_token_id": 120, "target_layer_ids": [0, 2]},
}
LAYER = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * shape[-1] ** -0.5


@pytest.fixture(scope="module")
def dflash(tmp_path_factory):
    """The folders of a target and of a drafter for it, with the names of the published weights."""
    folder = tmp_path_factory.mktemp("dflash")
    target, _ = save_pair(folder, "qwen3", layers=3)
    head = DFlashHead(Qwen3Config(**SIZES), DFlashConfig(7, 120), (1, 3))
    weights = {name: drawn(*weight.shape, seed=i) for i, (name, weight) in enumerate(head.state_dict().items())}
    assert {f"layers.1.self_attn.{name}.weight" for name in LAYER} < weights.keys()
    assert {"fc.weight", "hidden_norm.weight", "norm.weight", "layers.0.mlp.gate_proj.weight"} < weights.keys()
    (folder / "drafter").mkdir()
    (folder / "drafter" / "config.json").write_text(json.dumps(PUBLISHED))
    save_file(weights, folder / "drafter" / "model.safetensors")
    return target, folder / "drafter"


def by_hand(weights, target, ids, depths):
    """Logits of the masks after a text, over the whole of it at once: DFlash, arXiv 2602.06036, §4."""

    def norm(x, name):
        return functional.rms_norm(x, x.shape[-1:], weights[f"{name}.weight"], 1e-6)

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T

    def heads(x, positions=None):
        x = x.unflatten(-1, (-1, 12)).transpose(0, 1)
        if positions is None:
            return x
        angles = positions[:, None] * 5e3 ** -(torch.arange(6) / 6)
        (left, right), cos, sin = x.chunk(2, -1), angles.cos(), angles.sin()
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    states = target(torch.tensor([ids]), output_hidden_states=True).hidden_states
    text = norm(linear(torch.cat([states[1], states[3]], -1)[0, :-1], "fc"), "hidden_norm")
    x = target.get_input_embeddings()(torch.tensor([ids[-1], *[120] * depths]))
    place = torch.arange(len(ids) + depths)
    for layer in ("layers.0", "layers.1"):
        own = norm(x, f"{layer}.input_layernorm")
        queries, keys, values = (
            torch.cat([linear(text, f"{layer}.self_attn.{n}_proj"), linear(own, f"{layer}.self_attn.{n}_proj")])
            if n != "q"
            else linear(own, f"{layer}.self_attn.q_proj")
            for n in "qkv"
        )
        queries = heads(norm(queries.unflatten(-1, (-1, 12)), f"{layer}.self_attn.q_norm").flatten(1), place[-len(x) :])
        keys = heads(norm(keys.unflatten(-1, (-1, 12)), f"{layer}.self_attn.k_norm").flatten(1), place)
        keys, values = (rows.repeat_interleave(2, 0) for rows in (keys, heads(values)))
        gathered = (queries @ keys.mT / 12**0.5).softmax(-1) @ values
        x = x + linear(gathered.transpose(0, 1).flatten(1), f"{layer}.self_attn.o_proj")
        inner = norm(x, f"{layer}.post_attention_layernorm")
        gate = functional.silu(linear(inner, f"{layer}.mlp.gate_proj"))
        x = x + linear(gate * linear(inner, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj")
    return target.get_output_embeddings()(norm(x, "norm"))[1:]


@torch.inference_mode()
def test_a_dflash_drafter_computes_what_its_paper_says(dflash, monkeypatch):
    pair, weights = loaded(dflash[0], draft=dflash[1]), load_file(dflash[1] / "model.safetensors")
    run, looked = looked_at(monkeypatch, pair, Parallel)
    for text, rows, _ in looked:
        torch.testing.assert_close(rows, by_hand(weights, pair.target, text, len(rows)), rtol=1e-3, atol=1e-3)
    assert {token.source for one in run.rounds for token in one.drafted} == {"mask 1", "mask 2", "mask 3"}


def test_greedy_text_with_a_dflash_drafter_is_generates(dflash):
    pair = loaded(dflash[0], draft=dflash[1])
    run = specviz.run(pair, PROMPT, drafter="parallel", sampling=GREEDY, max_new_tokens=20, num_draft_tokens=20)
    assert list(run.token_ids) == generated(pair, PROMPT, 20)
    assert max(len(one.drafted) for one in run.rounds) == 7


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2"),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}, "sliding_attention"),
        ({"dflash_config": PUBLISHED["dflash_config"] | {"output_multiplier": 0.2}}, "output_multiplier"),
        ({"num_target_layers": 36}, "another target"),
        ({"hidden_size": 64}, "another target"),
        ({"intermediate_size": 32}, "damaged"),
        ({"dflash_config": {}}, "damaged"),
    ],
)
def test_other_dflash_drafters_are_refused_by_name(dflash, changes, sentence, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | changes))
    (tmp_path / "model.safetensors").write_bytes((dflash[1] / "model.safetensors").read_bytes())
    with pytest.raises(SpecvizError, match=sentence) as caught:
        specviz.load_pair(dflash[0], draft=tmp_path, device="cpu", dtype="float32")
    assert caught.value.field == "draft"


def test_half_precision_keeps_the_positions(dflash):
    head = specviz.load_pair(dflash[0], draft=dflash[1], device="cpu", dtype="bfloat16").parts["parallel"]
    assert head.norm.weight.dtype == torch.bfloat16 and head.rotary_emb.inv_freq.dtype == torch.float32
