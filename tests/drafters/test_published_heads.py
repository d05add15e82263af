"""Published heads that draft from the target's last hidden states: each computes what its paper says."""

import copy
import dataclasses
import itertools
import json
import pathlib

import pytest
import torch
from eagle3_heads import EAGLE3, write_eagle3, write_p_eagle
from fast_passes import MAKERS, assert_same_decisions, made_twice, with_passes
from matrix import GREEDY, PROMPT
from published_heads import (
    EAGLE,
    MEDUSA,
    SPECULATORS,
    Expected,
    assert_rows,
    noted,
    write_eagle,
    write_medusa,
    write_speculator,
)
from refusal import refused
from safetensors.torch import load_file, save_file
from tiny import greedy_run, save_pair, tiny_pair, with_heads

import specviz
from specviz.drafters.registry import drafter_class
from specviz.models import pass_checks
from specviz.models.pair import ModelPair
from specviz.models.trained_parts import load_parts
from specviz.passes.roles import Role
from specviz.records.settings import DraftParams, RunSettings, SamplingParams

WRITERS = {"Medusa": write_medusa, "MLP speculator": write_speculator, "EAGLE": write_eagle}
WRITERS |= {"EAGLE-3": write_eagle3, "P-EAGLE": write_p_eagle}
LAYOUTS = {"Medusa": MEDUSA, "MLP speculator": SPECULATORS, "EAGLE": EAGLE, "EAGLE-3": EAGLE3, "P-EAGLE": ["SafeAILab"]}
HEADS = [(kind, layout) for kind, layouts in LAYOUTS.items() for layout in layouts]
DRAFTERS = {"Medusa": "medusa", "MLP speculator": "medusa", "EAGLE": "eagle", "EAGLE-3": "eagle", "P-EAGLE": "parallel"}
#: What tokens say of who proposed them, from the first one on.
SOURCES = {"medusa": "head 1, head 2, head 3", "eagle": "step 1, step 2, step 3", "parallel": "row, mask 1, mask 2"}


def with_part(pair: ModelPair, kind: str, folder: pathlib.Path) -> ModelPair:
    parts, _ = load_parts(pair.target, folder / "none", {DRAFTERS[kind]: folder})
    return dataclasses.replace(pair, parts=parts, eos_ids=frozenset())


@pytest.fixture(scope="module")
def speaker() -> ModelPair:
    """Of few tokens, so that random heads are right now and then."""
    return tiny_pair("llama", vocab=16, layers=3)


@pytest.fixture
def loaded(request, speaker, tmp_path) -> tuple[ModelPair, str, Expected]:
    """The pair with a head in a layout, the head's drafter, and what it computes."""
    kind, layout = request.param
    expected = WRITERS[kind](tmp_path, speaker.target, layout)
    return with_part(speaker, kind, tmp_path), DRAFTERS[kind], expected


@torch.inference_mode()
@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("loaded", HEADS, indirect=True, ids=lambda case: ", ".join(case))
def test_a_head_computes_what_its_paper_says_and_its_greedy_text_is_generates(loaded, branches, monkeypatch):
    pair, name, expected = loaded
    looked = noted(monkeypatch, drafter_class(pair, name))
    hot = SamplingParams(temperature=3)
    settings = {"drafter": name, "drafting": DraftParams(branches=branches), "sampling": hot}
    run = specviz.run(pair, PROMPT, max_new_tokens=24, num_draft_tokens=3, seed=4, **settings)
    assert len(looked) > 5 and {len(one.emitted) for one in run.rounds} > {1}
    assert_rows(looked, expected)
    greedy = greedy_run(pair, PROMPT, drafter=name, drafting=DraftParams(branches=branches), num_draft_tokens=7)
    assert max(len(one.drafted) for one in greedy.rounds) == branches * (7 if name == "eagle" else 4)
    assert {token.source for one in run.rounds for token in one.drafted} == {*SOURCES[name].split(", ")}


@torch.inference_mode()
@pytest.mark.parametrize("loaded, passes", [*zip(HEADS, itertools.cycle(["static", "kernels"]))], indirect=["loaded"])
def test_prepared_passes_of_a_head_compute_the_same(loaded, passes, monkeypatch):
    pair, name, expected = loaded
    fast = MAKERS[passes](pair)
    assert sum(role.kind == name for role in fast) == (4 if "MLP" in pair.parts[name].method else 1)
    for role in fast:
        pass_checks.check(fast[role]) if role.kind == name else None
    looked = noted(monkeypatch, drafter_class(pair, name))
    drafting = {"drafter": name, "drafting": DraftParams(branches=3), "num_draft_tokens": 3, "max_new_tokens": 24}
    specviz.run(with_passes(pair, fast), PROMPT, sampling=SamplingParams(temperature=3), seed=4, **drafting)
    assert_rows(looked, expected)
    greedy_run(with_passes(pair, fast), PROMPT, drafter=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", EAGLE3)
@torch.inference_mode()
def test_hidden_states_are_fused_in_one_call_as_the_head_fuses_them(layout, dtype, speaker, tmp_path):
    """Each row as if it were alone; C++ does not read states in float16."""
    write_eagle3(tmp_path, speaker.target, layout)
    pair = with_part(speaker, "EAGLE-3", tmp_path)
    target, part = (copy.deepcopy(model).to(dtype) for model in (pair.target, pair.parts["eagle"]))
    pair = dataclasses.replace(pair, target=target, parts={"eagle": part})
    static = MAKERS["kernels"](pair)[Role("eagle")].static
    assert (static.fusion is None) is (dtype == torch.float16)
    states = torch.randn(5, part.fc.in_features, generator=torch.Generator().manual_seed(1)).to(dtype)
    states[3, 7] = torch.nan
    fused = static.fuse(states)
    torch.testing.assert_close(fused, static.model.head.fuse(states.float()).to(dtype), equal_nan=True)
    assert fused[3].isnan().all() and not fused[:3].isnan().any()
    for row, alone in zip(fused[[0, 1, 4]], states[[0, 1, 4]]):
        assert torch.equal(row, static.fuse(alone[None])[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_the_state_before_the_last_norm_is_found_in_one_call_as_mtp_finds_it(dtype):
    pair = with_heads(tiny_pair("llama"))
    target, part = (copy.deepcopy(model).to(dtype) for model in (pair.target, pair.parts["mtp"]))
    part.last_scale = torch.rand(len(part.last_scale), generator=torch.Generator().manual_seed(2)) + 0.5
    pair = dataclasses.replace(pair, target=target, parts={"mtp": part})
    static = MAKERS["kernels"](pair)[Role("mtp")].static
    states = torch.randn(5, len(part.last_scale), generator=torch.Generator().manual_seed(1)).to(dtype)
    assert static.fusion is not None and torch.equal(static.fuse(states), part.fuse(states.float()).to(dtype))


#: Every kind of head but those that have no such pass, greedily and drawn, in chains and in trees.
WAYS = [(3.0, 3), (0, 3), (3.0, 1)]
ON_A_DEVICE = [*zip([head for head in HEADS if head[0] != "MLP speculator"], itertools.cycle(WAYS))]
ON_A_DEVICE += [(("P-EAGLE", "SafeAILab"), way) for way in WAYS]


@pytest.mark.parametrize("loaded, way", dict.fromkeys(ON_A_DEVICE), indirect=["loaded"], ids=str)
def test_a_head_drafts_on_a_device_as_by_the_host(loaded, way):
    (pair, name, _), (temperature, branches) = loaded, way
    sampling, drafting = SamplingParams(temperature), DraftParams(branches=branches)
    settings = RunSettings(PROMPT, name, 3, sampling, 24, seed=4, drafting=drafting)
    for one, other in zip(*made_twice(pair, settings), strict=True):
        assert_same_decisions(one, other)


# Files


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Of a target of 128 tokens."""
    return save_pair(tmp_path_factory.mktemp("target"), layers=3)[0]


def named(folder, part, **settings):
    return specviz.load_pair(folder, draft=part, device="cpu", **{"dtype": "float32"} | settings)


@pytest.mark.parametrize("kind, dtype", [*zip(WRITERS, itertools.cycle(["float16", "bfloat16", "float32"]))])
def test_a_folder_that_is_named_drafts(folder, kind, dtype, tmp_path):
    WRITERS[kind](tmp_path, named(folder, None).target)
    pair = named(folder, tmp_path, dtype=dtype)
    part = pair.parts[DRAFTERS[kind]]
    assert {weight.dtype for weight in part.parameters()} == {getattr(torch, dtype)}
    # Of rotary positions and of a smaller vocabulary, where it has any.
    assert {buffer.dtype for buffer in part.buffers()} <= {torch.float32, torch.int64}
    run = specviz.run(pair, PROMPT, drafter=DRAFTERS[kind], sampling=GREEDY, max_new_tokens=8)
    assert max(len(one.drafted) for one in run.rounds) > 1


@pytest.mark.parametrize("kind", WRITERS)
def test_its_reading_and_its_neighbours_are_told(speaker, kind, tmp_path):
    WRITERS[kind](tmp_path, speaker.target)
    part = with_part(speaker, kind, tmp_path).parts[DRAFTERS[kind]]
    states = [2, 1, 0] if kind in ("EAGLE-3", "P-EAGLE") else [3]
    assert part.facts() | {"format": kind, "hidden_states": states} == part.facts()
    others = part.variants()
    others_read = (-1, 1) if kind in ("EAGLE", "MLP speculator") else (-1, 1, 0)
    assert [list(one.feature_layers) for one in others.values()] == [[one + by for one in states] for by in others_read]
    assert all(one.facts() != part.facts() for one in others.values())


def test_the_neighbour_of_medusa_heads_begins_with_the_second(speaker, tmp_path):
    expected = write_medusa(tmp_path, speaker.target, "vllm, frequent tokens")
    part = list(with_part(speaker, "Medusa", tmp_path).parts["medusa"].variants().values())[-1]
    with torch.inference_mode():
        state = speaker.target(torch.tensor([PROMPT[:-1]]), output_hidden_states=True).hidden_states[-1][0, -1:]
        rows = part.logits(state, speaker.target.get_output_embeddings())[0]
        torch.testing.assert_close(rows, torch.stack([expected(PROMPT, [0] * depth) for depth in (1, 2, 3)]))


def edited(**changes):
    """Weights of a file replaced; None: left out."""

    def edit(file: pathlib.Path) -> None:
        safe = file.suffix == ".safetensors"
        weights = load_file(file) if safe else torch.load(file, weights_only=True)
        for name, change in changes.items():
            weights[name] = change and change(weights[name])
        weights = {name: weight for name, weight in weights.items() if weight is not None}
        save_file(weights, file) if safe else torch.save(weights, file)

    return edit


def settings(**changes):
    def edit(file: pathlib.Path) -> None:
        path = file.parent / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def nan(weight):
    return torch.full_like(weight, torch.nan)


def narrower(weight):
    return weight[:, :-1].contiguous()


FEW, STATES = "vllm, frequent tokens", {"eagle_aux_hidden_state_layer_ids": [1, 3, 9]}


@pytest.mark.parametrize(
    "kind, layout, damage, sentence",
    [
        ("Medusa", "pickled", edited(**{"1.0.linear.weight": nan}), "NaN or infinite values .1.0.linear.weight"),
        ("Medusa", "pickled", edited(**{"2.1.weight": None}), "lack lm_heads.2.weight"),
        ("Medusa", "pickled", edited(**{"0.0.linear.weight": narrower}), r"has the shape \[48, 47\]"),
        ("Medusa", "pickled", edited(**{"0.1.weight": lambda old: old[:9]}), "another target: vocab_size is 9"),
        ("Medusa", "pickled", edited(**{"0.0.linear.weight": torch.sum}), "lack blocks.0.layers.0.weight"),
        ("MLP speculator", "scaled", settings(n_predict="three"), "Invalid n_predict .*'three'"),
        ("Medusa", FEW, edited(token_map=lambda old: old + 8), "vocabulary of the part"),
        ("Medusa", FEW, edited(token_map=lambda old: old * 0), "vocabulary of the part"),
        ("Medusa", FEW, edited(token_map=lambda old: old[:5]), "another target: vocab_size is 12"),
        ("MLP speculator", "scaled", settings(emb_dim=64), "another target: hidden_size is 64"),
        ("MLP speculator", "scaled", settings(vocab_size=32000), "another target: vocab_size is 32000"),
        ("MLP speculator", "scaled", settings(n_predict=5), "lack emb.4.weight"),
        ("EAGLE", "SafeAILab", edited(**{"layers.0.self_attn.q_proj.weight": None}), "lack layers.0.self_attn.q_proj"),
        ("EAGLE", "SafeAILab", settings(intermediate_size=10**9), r"gate_proj.weight .* need \[1000000000, 48\]"),
        ("EAGLE", "SafeAILab", edited(**{"fc.bias": torch.Tensor.long}), "fc.bias in .* of the type int64"),
        ("EAGLE", "SafeAILab", settings(num_key_value_heads=-1), "does not describe an? .+ part"),
        ("EAGLE", "SafeAILab", settings(vocab_size=32000), "another target: vocab_size is 32000"),
        ("EAGLE-3", "SafeAILab", edited(d2t=lambda old: old.flip(0)), "do not rise"),
        ("EAGLE-3", "SafeAILab", edited(d2t=lambda old: old + 16), "do not rise"),
        ("EAGLE-3", "SafeAILab", edited(d2t=None), "do not say which"),
        ("EAGLE-3", "SafeAILab", settings(target_hidden_size=64), "another target"),
        ("EAGLE-3", "SafeAILab", settings(vocab_size=64), "another target"),
        ("EAGLE-3", "SpecForge", settings(eagle_config=STATES), "another target"),
        ("P-EAGLE", "SafeAILab", edited(mask_hidden=None), "lack mask_hidden"),
    ],
)
def test_a_bad_file_is_refused_by_what_is_wrong_with_it(speaker, kind, layout, damage, sentence, tmp_path):
    WRITERS[kind](tmp_path, speaker.target, layout)
    damage(next(file for file in tmp_path.iterdir() if file.name != "config.json"))
    with refused("draft", sentence):
        with_part(speaker, kind, tmp_path)


def test_a_part_in_another_drafters_folder_is_not_drafted_with(speaker, tmp_path):
    write_medusa(tmp_path / "eagle", speaker.target)
    parts, flaws = load_parts(speaker.target, tmp_path, {})
    assert not parts and "drafts with medusa" in str(flaws["eagle"])
