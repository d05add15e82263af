"""Heads that share keys and values: the same attention, with nothing repeated and the model itself untouched."""

import pytest
import torch
from tiny import tiny_model, unprepared
from torch.nn import functional

from specviz.passes.cached_model import reader
from specviz.passes.devices import Stopwatch
from specviz.passes.model_twins import with_grouped_attention

CPU = torch.device("cpu")
IDS = [5, 9, 33, 7, 7, 20, 11, 3]
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
            cached = reader(model, Stopwatch(CPU), passes)
            cached.prefill(IDS)
            given.append(cached.verify(IDS, torch.arange(1, 1 + len(parents)), parents))
        torch.testing.assert_close(given[1], given[0], rtol=1e-4, atol=1e-4)
        assert heads_of_keys == {model.config.num_key_value_heads}


def test_models_without_groups_or_with_attention_of_their_own_are_left_alone():
    for model in (tiny_model("gpt2"), tiny_model("llama", num_key_value_heads=4), tiny_model("gemma2")):
        assert with_grouped_attention(model) is model
