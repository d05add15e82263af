"""Twins of a model on the same weights: its first layers alone, and attention that repeats no keys."""

import copy
import itertools
from functools import lru_cache

import pytest
import torch
from refusal import refused
from tiny import ARCHITECTURES, byte_tokenizer, tiny_model, unprepared
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, Gemma3nTextConfig

import specviz
from specviz.models.pair import ModelPair
from specviz.passes.devices import Stopwatch
from specviz.passes.model_twins import exit_after, layer_count, with_grouped_attention
from specviz.passes.readers import new_cached_model
from specviz.records.settings import DraftParams

LAYERS = 4
IDS = torch.tensor([[5, 17, 33, 8, 5, 17, 33, 8, 60, 61, 2, 9, 40, 41, 42, 7, 1, 100, 3, 77]])
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@lru_cache
def model_of(architecture):
    return tiny_model(architecture, layers=LAYERS)


@torch.inference_mode()
def read(model):
    return model(IDS)


@torch.inference_mode()
def left_after(model, layers):
    """Logits from the hidden states of the whole model after so many layers, by its own norm and head."""
    hidden = model(IDS, output_hidden_states=True).hidden_states[layers]
    norm = {"gpt2": "ln_f", "gpt_neox": "final_layer_norm"}.get(model.config.model_type, "norm")
    logits = model.get_output_embeddings()(getattr(model.base_model, norm)(hidden))
    cap = getattr(model.config, "final_logit_softcapping", None)
    return logits if cap is None else cap * (logits / cap).tanh()


@pytest.mark.parametrize("architecture, layers", [*zip(ARCHITECTURES, itertools.cycle(range(1, LAYERS)))])
def test_an_exit_is_the_first_layers_then_norm_and_head(architecture, layers):
    model = model_of(architecture)
    assert layer_count(model) == LAYERS
    short = exit_after(model, layers)
    assert layer_count(short) == layers
    own, shared = ({weight.data_ptr() for weight in one.parameters()} for one in (model, short))
    assert shared < own, "every weight is the model's"
    torch.testing.assert_close(read(short).logits, left_after(model, layers), **CLOSE)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
def test_a_model_in_use_is_not_touched_by_exits_of_several_depths_in_turn(architecture):
    model = model_of(architecture)
    config, modules = copy.deepcopy(model.config.to_dict()), dict(model.named_modules())
    whole = read(model).logits
    exits = {layers: exit_after(model, layers) for layers in (1, 3)}
    alone = {layers: read(exit_after(model, layers)).logits for layers in exits}
    assert not torch.allclose(alone[1], alone[3], **CLOSE) and not torch.allclose(alone[3], whole, **CLOSE)
    for layers in (3, 1, 3):
        assert torch.equal(read(exits[layers]).logits, alone[layers])
        assert torch.equal(read(model).logits, whole)
    assert model.config.to_dict() == config and layer_count(model) == LAYERS
    assert dict(model.named_modules()) == modules


@pytest.mark.parametrize("layer", [LAYERS, LAYERS + 1, 10**6, 0, -1, 1.5, True, "two"])
def test_an_exit_outside_the_layers_is_refused_by_name(layer):
    pair = ModelPair.of(model_of("llama"), None, byte_tokenizer(), name="four layers")
    with refused("exit_layer"):
        specviz.speculate(pair, IDS[0], drafter="early_exit", drafting=DraftParams(exit_layer=layer))


def test_a_model_of_one_layer_has_no_exit():
    pair = ModelPair.of(tiny_model("llama", layers=1), None, byte_tokenizer(), name="flat")
    with refused("drafter", "single layer"):
        specviz.speculate(pair, IDS[0], drafter="early_exit")


def test_a_model_whose_layers_do_not_stand_in_one_list_is_refused():
    model = tiny_model("llama", layers=2)
    model.model.others = nn.ModuleList([nn.Identity(), nn.Identity()])
    pair = ModelPair.of(model, None, byte_tokenizer(), name="two towers")
    with refused("drafter", "form one list"):
        specviz.speculate(pair, IDS[0], drafter="early_exit")


def test_a_model_whose_layers_share_keys_with_later_ones_is_refused_before_it_runs():
    """Gemma 3n: the first layers alone lack the kinds of layer that the last ones read from."""
    sizes = {"hidden_size": 48, "intermediate_size": [64] * LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"head_dim": 12, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 128, "laurel_rank": 4}
    sizes |= {"vocab_size": 128, "num_hidden_layers": LAYERS, "num_kv_shared_layers": 2, "sliding_window": 16}
    config = Gemma3nTextConfig(**sizes, activation_sparsity_pattern=[0.0] * LAYERS)
    pair = ModelPair.of(AutoModelForCausalLM.from_config(config).eval(), None, byte_tokenizer(), name="sharing")
    with refused("drafter", "cannot stop after some of its layers: The set"):
        specviz.speculate(pair, IDS[0], drafter="early_exit")
    assert len(specviz.run(pair, IDS[0], drafter="suffix", max_new_tokens=4).token_ids) == 4


CPU = torch.device("cpu")
TEXT = [5, 9, 33, 7, 7, 20, 11, 3]
SHARING = ("llama", "mistral", "qwen2", "qwen3", "gemma3")


@pytest.fixture
def heads_of_keys(monkeypatch) -> set[int]:
    """With how many heads of keys SDPA is called."""
    seen, original = set(), functional.scaled_dot_product_attention

    def watched(query, key, value, **options):
        seen.add(key.shape[1])
        return original(query, key, value, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    return seen


@pytest.mark.parametrize("architecture", SHARING)
@torch.inference_mode()
def test_a_pass_over_static_buffers_repeats_no_keys_and_gives_what_the_model_gives(architecture, heads_of_keys):
    model = tiny_model(architecture)
    trees = () if architecture in ("mistral", "gemma3") else ((-1, -1, 0, 1, 1),)
    for parents in ((), (-1, 0, 1), *trees):
        given = []
        for passes in (None, unprepared(model)):
            heads_of_keys.clear()
            cached = new_cached_model(model, Stopwatch(CPU), passes)
            cached.prefill(TEXT)
            given.append(cached.verify(TEXT, torch.arange(1, 1 + len(parents)), parents))
        torch.testing.assert_close(given[1], given[0], rtol=1e-4, atol=1e-4)
        assert heads_of_keys == {model.config.num_key_value_heads}


def test_models_without_groups_or_with_attention_of_their_own_are_left_alone():
    for model in (tiny_model("gpt2"), tiny_model("llama", num_key_value_heads=4), tiny_model("gemma2")):
        assert with_grouped_attention(model) is model
