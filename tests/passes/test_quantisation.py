"""Weights in few bits: none further off than half a step, and nothing of the model itself touched."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model

from specviz.passes.model_twins import rounded_twin
from specviz.passes.packed_weights import GROUPS, quantised, rounded
from specviz.records.settings import BITS


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("outputs, inputs", [(48, 64), (7, 37), (1, 5)])
@pytest.mark.parametrize("bits", BITS)
def test_no_weight_is_off_by_more_than_half_a_step_of_its_group(bits, outputs, inputs, dtype):
    weight = drawn(outputs, inputs)
    weight[:, 0] *= 50  # one large weight, which coarsens its own group only
    weight = weight.to(dtype)
    codes, scales = quantised(weight, bits)
    group = GROUPS[bits] or inputs
    assert codes.dtype == torch.int8 and codes.abs().max() == 2 ** (bits - 1) - 1
    assert codes.shape == (outputs, -(-inputs // group), group) and scales.shape == codes.shape[:2]
    steps = scales.repeat_interleave(group, 1)[:, :inputs]
    assert ((rounded(weight.float(), bits) - weight.float()).abs() <= steps / 2 * (1 + 1e-5)).all()
    assert rounded(weight, bits).dtype == dtype


@pytest.mark.parametrize("bits", BITS)
def test_weights_of_zero_stay_zero(bits):
    assert not rounded(torch.zeros(3, 40), bits).any()


@pytest.mark.parametrize(
    "architecture, settings", [("llama", {"tie_word_embeddings": True}), ("gpt2", {}), ("qwen2", {})]
)
@torch.inference_mode()
def test_a_rounded_twin_is_nearly_its_model_and_leaves_it_alone(architecture, settings):
    model = tiny_model(architecture, **settings)
    before, ids = {name: one.clone() for name, one in model.state_dict().items()}, torch.arange(1, 20)[None]
    expected = model(ids).logits
    apart = {bits: (rounded_twin(model, bits)(ids).logits - expected).norm() / expected.norm() for bits in BITS}
    assert 0 < apart[8] < 0.1 and apart[8] < apart[4] < 1
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    twin = rounded_twin(model, 8)
    # Even where the head is tied to them: a row of a table is read as fast in any precision.
    assert twin.get_input_embeddings().weight is model.get_input_embeddings().weight
    assert not torch.equal(twin.get_output_embeddings().weight, model.get_output_embeddings().weight)
