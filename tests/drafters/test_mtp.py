"""A checkpoint's own multi-token-prediction modules: read as transformers reads them, round after round, and refused
where they cannot be.

An MTP head trained afterwards is tested among all drafters.
"""

import copy
import dataclasses
import json
import types
from functools import lru_cache

import pytest
import torch
from fast_passes import MAKERS, with_passes
from mtp_folders import LAYERS, save_with_modules
from refusal import refused
from safetensors.torch import load_file, save_file
from subjects import OWN_MODULES
from tiny import InTurn, save_pair
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.generation.candidate_generator import MTPCandidateGenerator

import specviz
from specviz.decoding import engine
from specviz.models.pair import ModelPair
from specviz.models.trained_parts import load_mtp_modules
from specviz.parts.mtp import MtpFile
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams, SamplingParams
from specviz.training.heads import MtpRecipe

GREEDY = SamplingParams(temperature=0)
HOT = SamplingParams(temperature=3.0)
PROMPT = [3, 5, 7, 11, 3, 5, 2, 9, 1]

#: Those that transformers reads too.
TARGETS = [case for case in OWN_MODULES if not case[0].startswith("qwen")]


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory):
    """The pair of a family and a number of modules. No token ends its texts."""

    @lru_cache
    def load(family: str, modules: int) -> ModelPair:
        folder = save_with_modules(tmp_path_factory.mktemp("target"), family, modules)
        pair = specviz.load_pair(folder, device="cpu", dtype="float32")
        return dataclasses.replace(pair, eos_ids=frozenset())

    return load


def prepared(pair: ModelPair, passes: str) -> ModelPair:
    """With passes of this kind, of every module too."""
    made = MAKERS[passes](pair)
    assert not made or sum(role.kind == "mtp" for role in made) == pair.parts["mtp"].num_modules
    return with_passes(pair, made)


def drafting(branches: int | None = None, **order) -> dict[str, object]:
    return {"drafter": "mtp", "drafting": DraftParams(branches=branches), "max_new_tokens": 16} | order


@lru_cache
def generator_of(target: PreTrainedModel) -> MTPCandidateGenerator:
    """transformers' own drafter, which reads the checkpoint by itself."""
    if target.config.model_type != "mellum":
        # Or else it would look for the modules where the published sizes have them.
        layers = range(LAYERS, LAYERS + target.config.num_mtp_layers)
        target._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layer}\." for layer in layers]
    return MTPCandidateGenerator(target, GenerationConfig(do_sample=False), {})


def transformers_drafts(pair: ModelPair, ids: list[int]) -> torch.Tensor:
    """The logits [modules, vocab] with which it drafts greedily after a text that it has not seen before."""
    generator = generator_of(pair.target)
    generator.is_main_model_prefill, generator.mtp_cache = True, MtpCache(config=pair.target.config.get_mtp_config())
    states = pair.target(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states
    given = {"position_ids": torch.arange(len(ids))[None]}
    outputs = types.SimpleNamespace(hidden_states=states)
    _, logits = generator.get_candidates(torch.tensor([ids]), given, outputs, False, n_last_matches=0)
    return logits[0]


@torch.inference_mode()
@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "hot"])
@pytest.mark.parametrize("passes", ["plain", "static", "kernels"])
@pytest.mark.parametrize("family, modules", TARGETS)
def test_every_module_drafts_as_in_transformers(pair_of, family, modules, passes, sampling, monkeypatch):
    """Which reads every text anew. It drafts greedily, so that of other drafts the first row alone is the same."""
    pair, ids, seen, accepted = prepared(pair_of(family, modules), passes), list(PROMPT), 0, 0
    monkeypatch.setattr(engine, "depth_policy", lambda request: InTurn())
    for one in specviz.speculate(pair, PROMPT, sampling=sampling, seed=4, **drafting()):
        for token, row in list(zip(one.drafted, transformers_drafts(pair, ids)))[: None if sampling.greedy else 1]:
            assert token.id == row.argmax() or not sampling.greedy
            assert token.q_raw == pytest.approx(row.softmax(-1)[token.id].item(), abs=1e-4)
            seen += 1
        ids += one.emitted
        accepted += one.accepted
    assert seen > 3 and (accepted or sampling.greedy)


class QwenModule:
    """Qwen3.5's module by its formulas, over a whole text at once: row t reads token t + 1 and the state of token t."""

    def __init__(self, target: PreTrainedModel):
        self.target, self.config = target, copy.deepcopy(target.config)
        self.config.layer_types = ["full_attention"]
        self.layer = type(target.model.layers[-1])(self.config, 0)
        every = load_file(f"{target.name_or_path}/model.safetensors")
        self.weights = {name.removeprefix("mtp."): one for name, one in every.items() if name.startswith("mtp.")}
        inner = {name: one for name, one in self.weights.items() if name.startswith("layers.0.")}
        self.layer.load_state_dict({name.removeprefix("layers.0."): one for name, one in inner.items()})

    def norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        spread = (rows.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
        return rows * spread * (1 + self.weights[f"{name}.weight"])

    def states(self, tokens: list[int], before: torch.Tensor) -> torch.Tensor:
        embeddings = self.target.get_input_embeddings()(torch.tensor(tokens))
        joined = [self.norm(embeddings, "pre_fc_norm_embedding"), self.norm(before, "pre_fc_norm_hidden")]
        rows, n = (torch.cat(joined, -1) @ self.weights["fc.weight"].T)[None], len(tokens)
        turns = self.target.model.rotary_emb(rows, torch.arange(1, n + 1)[None])
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        return self.norm(self.layer(rows, position_embeddings=turns, attention_mask=mask)[0], "norm")


@torch.inference_mode()
@pytest.mark.parametrize("passes", ["plain", "static", "kernels"])
def test_the_module_of_a_hybrid_is_read_by_its_formulas(pair_of, passes, monkeypatch):
    """Rounds read text again, plain steps come between, and drafts go deeper than there are modules."""
    monkeypatch.setattr(engine, "depth_policy", lambda request: InTurn())
    pair, ids, seen, again = prepared(pair_of("qwen3_5", 1), passes), list(PROMPT), 0, 0
    module = QwenModule(pair.target)
    for one in specviz.speculate(pair, PROMPT, sampling=HOT, seed=4, **drafting()):
        again += one.read_again
        states = pair.target(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states[-1][0]
        tokens = ids[1:]
        for token in one.drafted:
            made = module.states(tokens, states)
            q = pair.target.lm_head(made[-1]).softmax(-1)
            assert token.q_raw == pytest.approx(q[token.id].item(), abs=1e-4)
            states, tokens = torch.cat([states, made[-1:]]), [*tokens, token.id]
            seen += 1
        ids += one.emitted
    assert seen > 8 and again


def test_every_token_says_which_module_proposed_it(pair_of):
    one, *_ = specviz.speculate(pair_of("deepseek_v3", 3), PROMPT, **drafting(num_draft_tokens=4))
    assert [token.source for token in one.drafted] == ["module 1", "module 2", "module 3", "module 3"]


def test_half_precision_is_the_modules_too(tmp_path):
    pair = specviz.load_pair(save_with_modules(tmp_path, "glm4_moe"), device="cpu", dtype="bfloat16")
    module, layer = pair.parts["mtp"].modules[0].module, pair.target.model.layers[-1]
    own = {name: weight.dtype for name, weight in module.mtp_block.named_parameters()}
    assert own == {name: weight.dtype for name, weight in layer.named_parameters()}, "a router may stay in float32"
    assert own["self_attn.q_proj.weight"] == module.eh_proj.weight.dtype == torch.bfloat16
    assert specviz.run(pair, PROMPT, **drafting()).token_ids


def test_a_head_beside_the_target_comes_before_the_modules_in_its_checkpoint(tmp_path):
    folder = save_with_modules(tmp_path, "mellum")
    MtpRecipe(AutoModelForCausalLM.from_pretrained(folder)).save(folder / "mtp")
    assert isinstance(specviz.load_pair(folder, device="cpu").parts["mtp"], MtpFile)


def test_modules_that_cannot_be_read_are_refused_by_name(tmp_path):
    folder = save_with_modules(tmp_path, "glm4_moe")
    file = folder / "model.safetensors"
    weights = load_file(file)
    del weights[f"model.layers.{LAYERS}.eh_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    pair = specviz.load_pair(folder, device="cpu")
    with refused("drafter", r"MTP modules in .* cannot be read: .* missing"):
        specviz.speculate(pair, PROMPT, drafter="mtp")
    pair.target.config.quantization_config = {"quant_method": "fp8"}
    with pytest.raises(SpecvizError, match="quantised"):
        load_mtp_modules(pair.target)
    save_file({name: one for name, one in weights.items() if f"layers.{LAYERS}." not in name}, file, {"format": "pt"})
    assert specviz.load_pair(folder, device="cpu").flaws == {}, "a checkpoint without modules has no such part"


def test_a_tensor_that_a_hybrids_module_lacks_is_named(tmp_path):
    folder = save_with_modules(tmp_path, "qwen3_5")
    weights = load_file(file := folder / "model.safetensors")
    del weights["mtp.fc.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    flaw = specviz.load_pair(folder, device="cpu").flaws["mtp"]
    assert "lack mtp.fc.weight" in str(flaw) and "Copy it again" in str(flaw)


def test_modules_in_a_shard_that_the_index_does_not_name_lead_to_the_index(tmp_path):
    folder = save_with_modules(tmp_path, "glm4_moe")
    weights, shards = load_file(folder / "model.safetensors"), [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    (folder / "model.safetensors").unlink()
    modules = {name for name in weights if f"layers.{LAYERS}." in name}
    for shard, inside in zip(shards, (weights.keys() - modules, modules), strict=True):
        save_file({name: weights[name] for name in inside}, folder / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(sorted(weights.keys() - modules), shards[0])}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    flaw = specviz.load_pair(folder, device="cpu").flaws["mtp"]
    assert "model.safetensors.index.json names: fetch the whole checkpoint again" in str(flaw)


def test_modules_that_transformers_does_not_know_are_named(tmp_path):
    folder, _ = save_pair(tmp_path, "nemotron_h")
    file = folder / "model.safetensors"
    save_file(load_file(file) | {"mtp.layers.0.enorm.weight": torch.ones(4)}, file, metadata={"format": "pt"})
    flaw = specviz.load_pair(folder, device="cpu").flaws["mtp"]
    assert "does not read the MTP modules of" in str(flaw) and "(nemotron_h)" in str(flaw)


def test_modules_that_are_joined_otherwise_are_not_called_damaged(tmp_path):
    """As those of Qwen3.8-Flash-Next."""
    folder = save_with_modules(tmp_path, "qwen3_5")
    weights = load_file(file := folder / "model.safetensors")
    joined = weights.pop("mtp.fc.weight").chunk(2, 1)
    weights |= {f"mtp.fc_{name}.weight": half.contiguous() for name, half in zip(("embedding", "hidden"), joined)}
    save_file(weights, file, metadata={"format": "pt"})
    assert "does not read the MTP modules of" in str(specviz.load_pair(folder, device="cpu").flaws["mtp"])
