"""Weights in few bits, and weights that only our kernels read: right to half a step, and given back to the bit."""

import copy
import dataclasses

import pytest
import torch
from tiny import tiny_model, tiny_pair
from torch import nn

import specviz
from specviz.models import pass_checks, preparation
from specviz.models.pair_passes import static_pass
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.few_bits import GROUPS, input_squares, quantised, rounded, rounded_twin
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.kernels.packed_linear import FewRowsLinear
from specviz.passes.model_twins import drop_weights_again, is_linear, packed_of, take_back, weight_of
from specviz.passes.reading_checks import reads_trees
from specviz.passes.static_passes import StaticPass
from specviz.records.settings import BITS

#: (outputs, inputs): whole panels, parts of one, more outputs than are unpacked at a time.
SIZES = [(256, 64), (48, 37), (7, 64), (1, 5), (2100, 40)]

IDS = torch.arange(2, 9)[None]


@pytest.fixture(scope="module")
def few_rows() -> FewRows:
    return FewRows.ready()


def released(model, few_rows: FewRows) -> StaticPass:
    """The pass on the kernels, for which the model has let go of its weights."""
    few_rows = few_rows.fitting(model)
    return StaticPass(model, (), few_rows, few_rows.twin(model, releasing=True))


def held_bytes(*modules: nn.Module) -> int:
    """Of all tensors of these modules that are in memory, each once."""
    every = [tensor for one in modules for tensor in (*one.parameters(), *one.buffers()) if not tensor.is_meta]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in every}.values())


@pytest.mark.parametrize("outputs, inputs", SIZES)
@pytest.mark.parametrize("dtype, half", [(torch.float32, False), (torch.bfloat16, True), (torch.float16, False)])
def test_packed_weights_unpack_to_the_bit(few_rows, outputs, inputs, dtype, half):
    weight = torch.randn(outputs, inputs).bfloat16().to(dtype) if half else torch.randn(outputs, inputs).to(dtype)
    packed = dataclasses.replace(few_rows, half=half).linear(weight)
    assert torch.equal(packed.unpacked().to(dtype), weight)


@pytest.mark.parametrize("outputs, inputs", SIZES)
@pytest.mark.parametrize("bits", BITS)
def test_packed_codes_unpack_to_what_they_stand_for(few_rows, outputs, inputs, bits):
    weight = torch.randn(outputs, inputs)
    packed = dataclasses.replace(few_rows, bits=bits).linear(weight)
    torch.testing.assert_close(packed.unpacked(), rounded(weight, bits), rtol=1e-6, atol=0)


def test_a_model_keeps_its_weights_where_they_were_packed_wrong(few_rows, monkeypatch):
    model, packing = tiny_model("llama").float(), FewRowsLinear._packed
    before = {name: weight.clone() for name, weight in model.named_parameters()}

    def wrong(self, rows, squares):
        panels, scales = packing(self, rows, squares)
        panels.view(torch.int32).view(-1)[5] ^= 1 << 16  # one bit of one weight
        return panels, scales

    monkeypatch.setattr(FewRowsLinear, "_packed", wrong)
    with pytest.raises(specviz.SpecvizError, match="did not preserve all weights"):
        static_pass(model, (), few_rows, compiling=True)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3", "qwen3_moe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_runs_has_its_weights_back(few_rows, architecture, dtype):
    model = tiny_model(architecture).to(dtype)
    before, expected = copy.deepcopy(model.state_dict()), model(IDS).logits
    parameters = model.num_parameters()
    released(model, few_rows)
    gone = [name for name, weight in model.named_parameters() if weight.is_meta]
    assert gone, "some weights are the kernels' alone"
    assert model.num_parameters() == parameters and (model.device.type, model.dtype) == ("cpu", dtype)
    with torch.inference_mode():
        assert torch.equal(model(IDS).logits, expected)
    model(IDS).logits.sum().backward()  # as before, also by those that came back without gradients being recorded
    take_back(model)  # experts that no token went to
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]) and weight.stride() == before[name].stride()


def test_what_is_held_is_little_more_than_what_is_packed(few_rows):
    model = tiny_model("llama", hidden_size=64, intermediate_size=256).bfloat16().float()
    whole = held_bytes(model)
    table = model.get_input_embeddings().weight.nbytes
    static = released(model, few_rows)
    packed = sum(part.panels.nbytes for part in static.model.modules() if hasattr(part, "panels"))
    assert packed < 0.6 * (whole - table), "in bfloat16"
    assert held_bytes(model, static.model) < packed + table + 0.1 * whole
    model(IDS)
    assert held_bytes(model) == whole
    drop_weights_again(model)
    assert held_bytes(model) < table + 0.1 * whole


def test_tied_embeddings_stay_and_twins_pack_nothing_twice(few_rows):
    model = tiny_model("llama", tie_word_embeddings=True)
    static = released(model, few_rows)
    assert not model.lm_head.weight.is_meta and model.lm_head.weight is model.model.embed_tokens.weight
    again = released(model, few_rows)
    dropped = {name: packed for name, part in model.named_modules() if (packed := packed_of(part)) is not None}
    assert dropped
    for one in (static, again):
        assert all(one.model.get_submodule(name) is packed for name, packed in dropped.items())


@pytest.mark.parametrize("bits", BITS)
def test_what_is_made_of_a_model_is_the_same_without_its_weights(few_rows, bits):
    model = tiny_model("llama")
    assert reads_trees(model)  # tried when a model is loaded, never again
    static, other = released(model, few_rows), StaticPass(copy.deepcopy(model), (), few_rows.fitting(model))
    for one, two in [(static, other), (static.quantised(bits, {}), other.quantised(bits, {}))]:
        assert all(torch.equal(*both) for both in zip(one.model.buffers(), two.model.buffers(), strict=True))
        pass_checks.check(FastPasses(one, one, "kernels"))
    first = static.first_layers(1)
    pass_checks.check(FastPasses(first, first, "kernels"), FastPasses(static, static, "kernels"))
    assert model.model.layers[0].mlp.up_proj.weight.is_meta, "a comparison leaves nothing behind"


def test_a_pair_whose_passes_were_refused_keeps_its_weights(few_rows, monkeypatch):
    pair = tiny_pair("llama")
    expected = specviz.run(pair, [3, 4, 5], drafter=None, max_new_tokens=8).token_ids
    refusal = specviz.SpecvizError("They are wrong.", "passes")
    monkeypatch.setattr(pass_checks, "check", lambda *given: (_ for _ in ()).throw(refusal))
    monkeypatch.setattr(preparation, "cxx", lambda: (_ for _ in ()).throw(refusal))
    done = preparation.prepare_passes(pair)
    assert done.ready == [] and not any(packed_of(part) for part in pair.target.modules())
    assert not any(weight.is_meta for weight in pair.target.parameters())
    assert specviz.run(pair, [3, 4, 5], drafter=None, max_new_tokens=8).token_ids == expected
    assert weight_of(pair.target.lm_head) is pair.target.lm_head.weight


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("outputs, inputs", [(48, 64), (7, 37), (1, 5)])
@pytest.mark.parametrize("bits", BITS)
def test_no_weight_is_off_by_more_than_half_a_step_of_its_group(bits, outputs, inputs, dtype):
    """Unless it lies beyond the codes, where a scale of less squared error has left it."""
    weight = drawn(outputs, inputs)
    weight[:, 0] *= 50  # one large weight, which coarsens its own group only
    weight = weight.to(dtype)
    coded = quantised(weight, bits)
    group = GROUPS[bits] or inputs
    assert coded.codes.dtype == torch.uint8 and coded.codes.max() == 2**bits - 1
    assert coded.codes.shape == (outputs, -(-inputs // group), group) and coded.scales.shape == coded.codes.shape[:2]
    scales, offsets = (part.repeat_interleave(group, 1)[:, :inputs] for part in coded[1:])
    beyond = (weight.float() - (offsets + (2**bits - 1) * scales)).clamp_min(offsets - weight.float()).clamp_min(0)
    apart = (rounded(weight.float(), bits) - weight.float()).abs()
    assert (apart <= (scales / 2).maximum(beyond) * (1 + 1e-5) + 1e-6).all()
    assert rounded(weight, bits).dtype == dtype


def test_a_group_in_four_bits_has_less_squared_error_than_in_even_steps_between_its_ends():
    weight = drawn(48, 64) + 0.5
    groups = weight.unflatten(1, (-1, 32))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / 15
    even = ((groups - low) / step).round() * step + low
    assert (rounded(weight, 4) - weight).square().sum() < 0.92 * (even.flatten(1) - weight).square().sum()


@pytest.mark.parametrize("bits", BITS)
def test_weights_of_zero_stay_zero(bits):
    assert not rounded(torch.zeros(3, 40), bits).any()
    assert not rounded(torch.zeros(3, 40), bits, torch.zeros(40)).any()


@torch.no_grad()
def test_in_four_bits_an_error_counts_by_the_inputs_that_it_meets(few_rows):
    """Layers that read unequal inputs, as real models' do, come nearer; those that no text reaches are as before."""
    model, few = tiny_model("llama", hidden_size=64, intermediate_size=128), dataclasses.replace(few_rows, bits=4)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.copy_(8 ** drawn(len(weight)))
    names = [name for name, part in model.named_modules() if is_linear(part)]
    squares = input_squares(model, names, range(2, 40))
    ids = torch.arange(40, 60)[None]
    by_kernels = input_squares(StaticPass(model, (), few_rows).reference(), names, range(2, 40))
    assert all(torch.allclose(squares[name], by_kernels[name], rtol=1e-3) for name in names)
    expected = model(ids).logits
    for made in (lambda counts: rounded_twin(model, 4, counts), lambda counts: few.twin(model, squares=counts)):
        apart = [(made(counts)(ids).logits - expected).norm().item() for counts in ({}, squares)]
        assert apart[1] < 0.8 * apart[0]


@pytest.mark.parametrize(
    "architecture, settings", [("llama", {"tie_word_embeddings": True}), ("gpt2", {}), ("qwen2", {})]
)
@torch.inference_mode()
def test_a_rounded_twin_is_nearly_its_model_and_leaves_it_alone(architecture, settings):
    model = tiny_model(architecture, **settings)
    before, ids = {name: one.clone() for name, one in model.state_dict().items()}, torch.arange(1, 20)[None]
    expected = model(ids).logits
    apart = {bits: (rounded_twin(model, bits, {})(ids).logits - expected).norm() / expected.norm() for bits in BITS}
    assert 0 < apart[8] < 0.1 and apart[8] < apart[4] < 1
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    twin = rounded_twin(model, 8, {})
    # Even where the head is tied to them: a row of a table is read as fast in any precision.
    assert twin.get_input_embeddings().weight is model.get_input_embeddings().weight
    assert not torch.equal(twin.get_output_embeddings().weight, model.get_output_embeddings().weight)
