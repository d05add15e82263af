"""Our own kernels: right to rounding, and the same bit by bit for a token whatever else is in its pass."""

import dataclasses
import functools
import itertools
import os
import pathlib
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from fast_passes import static_passes, with_passes
from refusal import refused
from tiny import ARCHITECTURES, tiny_model, tiny_pair, unprepared, with_heads
from torch import nn
from torch.nn import functional
from transformers import DynamicCache
from transformers.pytorch_utils import Conv1D

import specviz
from specviz.models import pass_checks
from specviz.models.pair import ModelPair
from specviz.passes import programs
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels import kernel_library, operations
from specviz.passes.kernels.few_bits import rounded, rounded_inputs
from specviz.passes.kernels.few_rows import FewRows, _widen, attend
from specviz.passes.kernels.grids import GRIDS, Grid
from specviz.passes.kernels.joining import join_gates, join_layers
from specviz.passes.kernels.operations import LINEAR
from specviz.passes.kernels.packed_linear import FewRowsLinear
from specviz.passes.model_twins import weight_of
from specviz.passes.reading_checks import rows_are_alike
from specviz.passes.roles import TARGET, Role
from specviz.passes.static_passes import StaticPass, additive_mask
from specviz.records.errors import SpecvizError
from specviz.records.settings import BITS, DraftParams, SamplingParams

HALF, FULL = torch.bfloat16, torch.float32

#: (outputs, inputs): whole panels, parts of one, sizes that are no multiple of anything.
SIZES = [(256, 64), (48, 37), (7, 64), (1, 5), (130, 96)]
CASES = [(*size, *kind) for size, kind in zip(SIZES, itertools.cycle(itertools.product((HALF, FULL), (False, True))))]


@pytest.fixture(scope="module")
def few_rows() -> FewRows:
    return FewRows.ready()


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Beside(nn.Module):
    """Five layers over the same inputs, the second with a bias and other weights, one over outputs of the first, and
    one over the same numbers in other rows."""

    def __init__(self, few_rows: FewRows, bits: int | None):
        super().__init__()
        kind = dataclasses.replace(few_rows, bits=bits)
        made = [kind.linear(drawn(40, 37, seed=seed)) for seed in range(5)]
        made[1] = few_rows.linear(drawn(9, 37, seed=7).bfloat16(), drawn(9, seed=8))
        self.layers, self.last, self.each = nn.ModuleList(made), kind.linear(drawn(3, 40)), kind.linear(drawn(5, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = [layer(x) for layer in self.layers]
        return *made, self.last(made[0]), self.each(x.reshape(-1, 1))


@pytest.mark.parametrize("bits", [None, *BITS])
@pytest.mark.parametrize("threads", [1, 2])
def test_layers_that_read_the_same_are_computed_together_and_make_the_same(few_rows, bits, threads):
    layers, x = Beside(few_rows, bits), drawn(3, 37)
    alone = layers(x)
    program = torch.export.export(layers, (x,), strict=False)
    join_layers(program.graph)
    program.graph_module.recompile()
    counts = [len(program.graph.find_nodes(op="call_function", target=target)) for target in LINEAR]
    assert counts == [2, 1, 1]
    kernel_library.use_threads(threads)
    try:
        together = program.module()(x)
    finally:
        kernel_library.use_threads(1)
    assert all(torch.equal(*pair) for pair in zip(together, alone, strict=True))


#: (outputs, inputs) of two layers, and what their weights are kept as; at last one in bfloat16 beside one in float32.
GATED_CASES = [
    *((*size, *kinds) for size, kinds in zip(SIZES, itertools.cycle(((HALF, HALF), (FULL, FULL), (8, 8), (4, 4))))),
    *((130, 96, *kinds) for kinds in ((HALF, HALF), ("grid", "grid"), (HALF, FULL))),
]


@pytest.mark.parametrize("outputs, inputs, gate_kind, up_kind", GATED_CASES)
@pytest.mark.parametrize("activation", [functional.silu, functools.partial(functional.gelu, approximate="tanh")])
def test_gated_layers_are_right_and_know_no_neighbours(few_rows, outputs, inputs, gate_kind, up_kind, activation):
    def layer(kind: object, seed: int) -> FewRowsLinear:
        if kind == "grid":
            return few_rows.linear(on_grids(outputs, inputs, GRIDS[0]))
        weight, bias = drawn(outputs, inputs, seed=seed), drawn(outputs, seed=seed + 1)
        if isinstance(kind, int):
            return dataclasses.replace(few_rows, bits=kind).linear(weight, bias)
        return few_rows.linear(weight.to(kind), bias)

    gate, up, x = layer(gate_kind, 0), layer(up_kind, 2), 3 * drawn(30, inputs, seed=4)
    given = [(one.panels, one.scales, one.bias, one.outputs) for one in (gate, up)]
    tanh = activation is not functional.silu

    def gated(rows: torch.Tensor) -> torch.Tensor:
        return operations.GATED(rows, *given[0], *given[1], tanh)

    made = gated(x)
    torch.testing.assert_close(made, (activation(gate(x).double()) * up(x)).float(), atol=1e-5, rtol=1e-5)
    for count in range(1, 18):
        assert torch.equal(gated(x[:count]), made[:count])
    assert torch.equal(on_two_threads(lambda: gated(x)), made)


def test_activations_of_any_size_are_numbers(few_rows):
    """Where e to their power is none; and what is no number stays none."""
    sizes = torch.tensor([0.0, -1e-30, 1e-30, -88, 88, -1e4, 1e4, -1e30, 1e30, torch.nan]).unsqueeze(1)
    one = few_rows.linear(torch.ones(1, 1))
    layers = (one.panels, one.scales, None, 1), (one.panels, one.scales, torch.tensor([1.0]), 1)
    for tanh, activation in ((False, functional.silu), (True, functools.partial(functional.gelu, approximate="tanh"))):
        made = operations.GATED(sizes, *layers[0], *layers[1], tanh)
        torch.testing.assert_close(made, activation(sizes) * (sizes + 1), atol=1e-30, rtol=1e-5, equal_nan=True)


class Gates(nn.Module):
    """Two layers over the same inputs, one's activation times the other."""

    def __init__(self, few_rows: FewRows, activation: Callable[[torch.Tensor], torch.Tensor], wiring: str):
        super().__init__()
        sizes = (40, 1) if wiring == "one for all" else (40, 40)
        self.gate, self.up = (few_rows.linear(drawn(size, 37, seed=seed)) for seed, size in enumerate(sizes))
        self.activation, self.wiring = activation, wiring

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        if self.wiring == "up first":
            up = self.up(x)
            return up * self.activation(self.gate(x))
        activated, up = self.activation(self.gate(x)), self.up(x)
        if self.wiring == "outer":
            return activated.view(-1, 40, 1) * up.view(-1, 1, 40)
        if self.wiring == "each":
            return activated.view(1, -1, 40) * up.view(-1, 1, 40)
        if self.wiring == "added":
            return activated + up
        if self.wiring == "of itself":
            return activated * activated + up
        product = activated * up
        return {
            "usual": product,
            "one for all": product,
            "read twice": (product, activated),
            "up read twice": (product, up),
        }[self.wiring]


TANH = nn.GELU(approximate="tanh")


@pytest.mark.parametrize(
    ("activation", "wiring", "joined"),
    [
        (nn.SiLU(), "usual", True),
        (TANH, "usual", True),
        (TANH, "up first", True),
        (nn.GELU(), "usual", False),
        (nn.ReLU(), "usual", False),
        *(
            (nn.SiLU(), wiring, False)
            for wiring in ("outer", "each", "one for all", "read twice", "up read twice", "added", "of itself")
        ),
    ],
)
def test_activations_between_layers_are_computed_with_them(few_rows, activation, wiring, joined):
    layers, x = Gates(few_rows, activation, wiring), drawn(1, 3, 37)
    program = torch.export.export(layers, (x,), strict=False)
    join_layers(program.graph)
    join_gates(program.graph)
    program.graph_module.recompile()
    found = [len(program.graph.find_nodes(op="call_function", target=one)) for one in (operations.GATED, LINEAR[1])]
    assert found == [joined, not joined]
    torch.testing.assert_close(program.module()(x), layers(x), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_cosines_and_sines_are_kept_for_all_layers_and_heads(few_rows):
    """Gemma 3 has those of two kinds of layers."""
    for architecture, kinds in (("llama", 1), ("gemma3", 2), ("gpt2", 0)):
        static = StaticPass(tiny_model(architecture, layers=3), (), few_rows)
        graph = programs.exported(static).graph
        kept = graph.find_nodes(op="call_function", target=operations.COPY)
        assert len(kept) == 2 * kinds and all(len(node.args[0].users) == 1 for node in kept)


def on_two_threads(made: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Made often enough that a helper comes in time, the same each time."""
    kernel_library.use_threads(2)
    try:
        first, *others = [made() for _ in range(6)]
        assert all(map(first.equal, others))
        return first
    finally:
        kernel_library.use_threads(1)


#: Prints how many threads the process has once it ran a kernel on one thread, then on three.
COUNTING = """
import psutil, torch
from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.few_rows import FewRows, attend
few_rows = FewRows.ready()
layer, x, mask = few_rows.linear(torch.randn(512, 64)), torch.randn(1, 4, 5, 64), torch.zeros(1, 1, 5, 1024)
rows = torch.randn(1, 4, 1024, 64)
for kernel in (lambda: layer(x), lambda: attend(x, rows, rows, mask, 0.125)):
    for threads in (1, 3):
        kernel_library.use_threads(threads)
        kernel()
        print(psutil.Process().num_threads(), end=" ")
"""


def test_kernels_run_on_as_many_threads_as_they_are_told():
    told = subprocess.run([sys.executable, "-c", COUNTING], capture_output=True, encoding="utf-8", check=True).stdout
    alone, among_three, *later = map(int, told.split())
    assert among_three == alone + 2 and later == [among_three] * 2, told


@pytest.mark.parametrize("start, origins", [(0, [0, 1]), (0, [3]), (4, [4, 6, 7, 9]), (5, [6, 7, 8])])
def test_keys_and_values_move_together_and_all_others_stay(start, origins, few_rows):
    rows = [torch.randn(1, heads, 11, size) for heads, size in [(3, 8), (3, 8), (1, 5)]]
    expected, places = [part.clone() for part in rows], torch.tensor(origins)
    for part in expected:
        part[:, :, start : start + len(origins)] = part.index_select(2, places)
    operations.move(rows, start, places)
    assert all(map(torch.equal, rows, expected))


@pytest.mark.parametrize("outputs, inputs, dtype, biased", CASES)
def test_a_linear_layer_is_right_and_knows_no_neighbours(few_rows, outputs, inputs, dtype, biased):
    weight, bias = drawn(outputs, inputs).to(dtype), drawn(outputs, seed=1) if biased else None
    layer, x = few_rows.linear(weight, bias), drawn(30, inputs, seed=2)
    given = layer(x)
    as_read = x.to(few_rows.multiplied_in(dtype)).double()
    expected = functional.linear(as_read, weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(given, expected.float(), atol=1e-4, rtol=1e-5)
    for count in range(1, 18):
        assert torch.equal(layer(x[:count]), given[:count])
    assert torch.equal(layer(x.unflatten(0, (2, 15)))[1], given[15:])
    assert torch.equal(on_two_threads(lambda: layer(x)), given)


@pytest.mark.parametrize("outputs, inputs", SIZES)
def test_weights_in_float32_that_are_kept_in_bfloat16_are_multiplied_as_float32(few_rows, outputs, inputs):
    weight, x = drawn(outputs, inputs).to(HALF), drawn(9, inputs, seed=1)
    kept = few_rows.fitting(nn.Linear(inputs, outputs)).linear(weight.float())
    assert kept.panels.dtype == FULL, "weights that bfloat16 would change"
    kept = dataclasses.replace(few_rows, half=True).linear(weight.float())
    assert kept.panels.element_size() == 2
    torch.testing.assert_close(kept(x), functional.linear(x.double(), weight.double()).float(), atol=1e-4, rtol=1e-5)
    assert torch.equal(kept(x[:1]), kept(x)[:1])


#: A name for each grid, and whether its scales are in float16.
by_grid = pytest.mark.parametrize(
    ("grid", "short"),
    [
        pytest.param(one, short, id=f"{one.bits} by {one.group}{' and offset' * one.offsets}{' short' * short}")
        for one in GRIDS
        for short in (False, True)[: 2 if one.short else 1]
    ],
)


def on_grids(outputs: int, inputs: int, grid: Grid, short: bool = False) -> torch.Tensor:
    """Weights as GGUF files hold them: products of whole numbers and numbers in float16, and sums of them.

    short: in those kinds in which a code is the only whole number of a product.
    """
    groups = -(-inputs // grid.group)
    drawing = torch.Generator().manual_seed(0)
    codes = torch.randint(2**grid.bits, (outputs, groups, grid.group), generator=drawing).double()
    scales, offsets = (drawn(2, outputs, groups, 1) / 2 ** (grid.bits + 3 + 2 * (not short))).half().double()
    scales, offsets = (part if short else 3 * part for part in (scales, offsets))
    weights = codes * scales + offsets if grid.offsets else (codes - 128) * scales.abs()
    return weights.flatten(1)[:, :inputs].float()


@by_grid
@pytest.mark.parametrize("outputs, inputs", SIZES)
def test_weights_on_grids_are_kept_in_codes_to_the_bit_and_multiplied_as_they_are(
    few_rows, outputs, inputs, grid, short
):
    weight, bias, x = on_grids(outputs, inputs, grid, short), drawn(outputs, seed=1), drawn(20, inputs, seed=2) + 3
    layer = few_rows.linear(weight, bias)
    assert layer.grid is not None and torch.equal(layer.unpacked(), weight)
    if min(outputs, inputs) > 32:  # among few weights others do as well
        assert layer.grid == grid and layer.scales.dtype == (torch.float16 if short else torch.float32)
        assert sum(part.nbytes for part in layer.read) < 0.8 * weight.nbytes
    given = layer(x)
    expected = functional.linear(x.double(), weight.double(), bias.double()).float()
    torch.testing.assert_close(given, expected, atol=1e-4, rtol=1e-5)
    for count in range(1, 18):
        assert torch.equal(layer(x[:count]), given[:count])
    assert torch.equal(on_two_threads(lambda: layer(x)), given)


@by_grid
def test_inputs_of_weights_on_grids_lose_no_more_than_in_float32(few_rows, grid, short):
    weight, x = on_grids(256, 640, grid, short), drawn(5, 640, seed=2) * 10 ** drawn(640, seed=3)
    expected = functional.linear(x.double(), weight.double())
    by_torch, given = ((made - expected).norm() for made in (functional.linear(x, weight), few_rows.linear(weight)(x)))
    assert given < 8 * by_torch


@by_grid
def test_the_largest_codes_and_inputs_overflow_no_sum(few_rows, grid, short):
    least, most = (0, 2**grid.bits - 1) if grid.offsets else (-128, 127)
    weight = torch.full((32, 64), float(most))
    for place, code in enumerate((least, 1)):
        weight[:, place :: grid.group] = code
    if not grid.offsets:
        weight[:, grid.group :] *= 3  # so that larger groups have no such codes
    weight *= 1 if short else 1 + 2**-11  # which takes a digit more than float16 has
    layer, x = few_rows.linear(weight), torch.tensor([1e30, -1e30]).unsqueeze(-1).expand(2, 64)
    assert layer.grid == grid and layer.scales.dtype == (torch.float16 if short else torch.float32)
    torch.testing.assert_close(layer(x), functional.linear(x, weight), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("scale", "offset", "codes"),
    [
        (1.5, -2.25, (3, 9, 15)),  # a step found may be a multiple of the scale, and longer
        (1.0009765625, -8.0078125, (0, 7, 14)),
        (1.0009765625, -8.0078125, (9, 10, 11)),  # the least weight is not the offset
        (-1.0009765625, 8.0078125, (0, 3, 15)),  # nor the greatest
        (2**-24, 0, (0, 1, 2)),
        (0, 0.75, (0, 0, 0)),
    ],
)
def test_scales_and_offsets_that_a_file_has_in_float16_are_kept_in_float16(few_rows, scale, offset, codes):
    weight = (torch.tensor(codes).repeat(32, 32)[:, :32] * scale + offset).float()
    layer = few_rows.linear(weight)
    assert layer.grid == GRIDS[0] and layer.scales.dtype == torch.float16 and torch.equal(layer.unpacked(), weight)


@pytest.mark.parametrize("row", [0, 47])
def test_a_single_weight_off_its_grid_leaves_the_layer_as_it_is(few_rows, row):
    weight = on_grids(48, 64, GRIDS[-1])
    weight[row, 5] *= 1 + 2**-20
    layer = few_rows.linear(weight)
    assert layer.grid is None and torch.equal(layer.unpacked(), weight)
    for odd in (torch.nan, torch.inf):
        weight[row, 5] = odd
        assert few_rows.linear(weight).grid is None


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("outputs, inputs", SIZES)
def test_codes_of_few_bits_are_multiplied_as_what_they_stand_for(few_rows, outputs, inputs, bits):
    weight, bias = drawn(outputs, inputs), drawn(outputs, seed=1)
    few_bits = dataclasses.replace(few_rows, bits=bits)
    # Nearly all inputs of one sign, so that much is taken off the sums of the codes again, and groups of zeros.
    layer, x = few_bits.linear(weight, bias), drawn(20, inputs, seed=2) + 3
    x[3, :40] = 0
    given = layer(x)
    expected = functional.linear(rounded_inputs(x).double(), rounded(weight, bits).double(), bias.double())
    torch.testing.assert_close(given, expected.float(), atol=1e-4, rtol=1e-5)
    for count in range(1, 9):
        assert torch.equal(layer(x[:count]), given[:count])
    assert torch.equal(on_two_threads(lambda: layer(x)), given)


@pytest.mark.parametrize("inputs", [1, 32, 100])
def test_inputs_of_weights_in_few_bits_are_off_by_no_more_than_half_a_step(inputs):
    x = drawn(6, inputs) * torch.tensor([1e-20, 1e-3, 1, 50, 1e6, 0]).unsqueeze(-1)
    apart = (rounded_inputs(x) - x).abs()
    for first in range(0, inputs, 32):
        most = x[:, first : first + 32].abs().amax(-1, keepdim=True)
        assert (apart[:, first : first + 32] <= most / 127 / 2 * (1 + 1e-5)).all()


@pytest.mark.parametrize("march, needs", [("x86-64", "sse2"), ("haswell", "avx2"), ("skylake-avx512", "avx512bw")])
def test_kernels_for_lesser_processors_keep_their_promises_too(march, needs, tmp_path):
    if needs not in kernel_library.processor().split():
        pytest.skip("this processor does not have these instructions")
    chosen = (
        "linear_layer_is_right or gated_layers or of_any_size or few_bits or on_grids or largest_codes or "
        "kept_in_bfloat16 or attention_is_right"
    )
    order = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-k", chosen, __file__]
    told = os.environ | {"SPECVIZ_MARCH": march, "SPECVIZ_CACHE": str(tmp_path)}
    done = subprocess.run(order, env=told, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout[-2000:]


def test_rows_that_do_not_lie_one_after_the_other_are_read_too(few_rows):
    layer, x = few_rows.linear(drawn(16, 8)), drawn(4, 16)
    assert torch.equal(layer(x[:, ::2]), layer(x[:, ::2].contiguous()))


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_no_rows_are_no_outputs(few_rows, bits):
    """An expert that no token needs reads none, and a layer of whole numbers may lie on a grid."""
    coded = dataclasses.replace(few_rows, bits=bits)
    for layer in (coded.linear(drawn(64, 64)), few_rows.linear(drawn(64, 64).round())):
        assert layer(drawn(0, 64)).shape == (0, 64)


@pytest.mark.parametrize("flaw", [torch.nan, torch.inf])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_what_is_no_number_does_not_vanish_in_attention(few_rows, part, flaw):
    parts = [drawn(1, 2, 4, 16, seed=seed) for seed in range(3)]
    parts[part][0, :, 1, 3] = flaw
    mask = torch.zeros(1, 1, 4, 4)
    assert not attend(*parts, mask, 0.25).isfinite().all()


@pytest.mark.parametrize("size", [12, 16, 64, 80, 128])
@pytest.mark.parametrize("heads, shared", [(4, 4), (6, 2)])
def test_attention_is_right_and_knows_no_neighbours(few_rows, size, heads, shared):
    room, count, before = 128, 9, 70
    query = drawn(1, count, heads, size).transpose(1, 2)
    key, value = drawn(1, shared, room, 2 * size, seed=1).chunk(2, -1)
    visible = torch.arange(before, before + count).unsqueeze(-1) >= torch.arange(room)
    mask = additive_mask(visible, FULL)
    given = attend(query, key, value, mask, size**-0.5)
    expected = functional.scaled_dot_product_attention(
        *(part.double() for part in (query, key, value)), mask.double(), enable_gqa=True
    )
    torch.testing.assert_close(given, expected.transpose(1, 2).float(), atol=1e-5, rtol=1e-5)
    for token in range(count):
        alone = attend(query[:, :, [token]], key, value, mask[:, :, [token]], size**-0.5)
        assert torch.equal(alone[:, 0], given[:, token])
    assert torch.equal(on_two_threads(lambda: attend(query, key, value, mask, size**-0.5)), given)


@pytest.mark.parametrize("batch", [1, 3])
@torch.inference_mode()
def test_a_twin_that_masks_by_itself_reads_what_its_model_reads(few_rows, batch):
    """As where many requests are timed: transformers' own masks are of bools."""
    model = tiny_model("llama")
    twin, ids = few_rows.twin(model), torch.randint(100, (batch, 12), generator=torch.Generator().manual_seed(0))
    made = []
    for one in (model, twin):
        cache = DynamicCache(config=model.config)
        one(input_ids=ids[:, :7], cache=cache, use_cache=True)
        made.append(one(input_ids=ids[:, 7:], cache=cache, use_cache=True).logits.float())
    torch.testing.assert_close(*made, atol=1e-4, rtol=1e-4)


def test_a_token_is_summed_alike_wherever_its_branch_lies(few_rows):
    key, value, query = drawn(1, 2, 64, 16), drawn(1, 2, 64, 16, seed=1), drawn(1, 2, 1, 16, seed=2)
    here, there = torch.zeros(2, 1, 64, dtype=torch.bool)
    here[:, :10] = there[:, :7] = there[:, 40:43] = True
    for rows in (key, value):
        rows[:, :, 40:43] = rows[:, :, 7:10]
    given = [attend(query, key, value, additive_mask(visible, FULL), 0.25) for visible in (here, there)]
    assert torch.equal(*given)


def test_scores_far_apart_overflow_nowhere(few_rows):
    key, value = 1e4 * drawn(1, 1, 64, 16), drawn(1, 1, 64, 16, seed=1)
    mask = additive_mask(torch.ones(1, 64, dtype=torch.bool), FULL)
    given = attend(1e4 * key[:, :, [5]], key, value, mask, 1.0)
    torch.testing.assert_close(given[0, 0], value[:, 0, 5])


#: What attends or multiplies by code of its own, so that its sums depend on the number of tokens.
OTHERWISE = ("falcon", "gemma2", "gptj", "qwen3_moe")


def kernel_pass(model, few_rows: FewRows, feature_layers: tuple[int, ...] = ()) -> FastPasses:
    return unprepared(model, feature_layers, few_rows)


@pytest.mark.parametrize(
    "architecture, dtype",
    [*zip([*ARCHITECTURES, "falcon", "glm", "gptj", "olmo", "opt", "phi", "qwen3_moe"], itertools.cycle((HALF, FULL)))],
)
def test_models_on_the_kernels_are_right_and_their_rows_are_alike(architecture, dtype, few_rows):
    model = tiny_model(architecture).to(dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    passes = kernel_pass(model, few_rows, (1,))
    pass_checks.check(passes)
    assert rows_are_alike(passes) or architecture in OTHERWISE
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "architecture, dtype, settings",
    [
        ("llama", torch.float16, {"tie_word_embeddings": True}),
        ("gpt2", HALF, {}),
        *((name, FULL, {}) for name in ("gpt_neox", "qwen2", "gemma3")),
    ],
)
def test_models_in_few_bits_are_their_rounded_selves_and_their_rows_are_alike(
    architecture, dtype, settings, bits, few_rows
):
    static = StaticPass(tiny_model(architecture, **settings).to(dtype), (), few_rows).quantised(bits, {})
    passes = FastPasses.unprepared(static)
    pass_checks.check(passes)
    assert rows_are_alike(passes)


@pytest.mark.parametrize("dtype", [HALF, FULL])
@pytest.mark.parametrize("name", ["eagle", "mtp"])
def test_a_head_on_the_kernels_is_right_and_its_rows_are_alike(name, dtype, few_rows):
    pair = with_heads(tiny_pair("llama"))
    target = StaticPass(pair.target.to(dtype), (1, 2), few_rows)
    passes = FastPasses.unprepared(pair.parts[name].to(dtype).statics()[Role(name)](target))
    pass_checks.check(passes)
    assert rows_are_alike(passes)


def test_rows_that_know_of_each_other_are_found_out(few_rows):
    passes = kernel_pass(tiny_model("llama"), few_rows)

    def apart(ids, *others):
        return [rows * (1 + 1e-6 * len(ids)) for rows in passes.static(ids, *others)]

    assert not rows_are_alike(FastPasses(passes.static, apart, "compiled"))


def on_kernels(pair: ModelPair, few_rows: FewRows) -> ModelPair:
    return with_passes(pair, static_passes(pair, few_rows))


@functools.lru_cache
def long_text(drafter: str | None, branches: int | None = None) -> tuple[int, ...]:
    """Greedy, in half precision, on the kernels."""
    pair = with_heads(tiny_pair("llama"))
    for model in (pair.target, pair.draft, *pair.parts.values()):
        model.to(HALF)
    pair = on_kernels(dataclasses.replace(pair, dtype=HALF, eos_ids=frozenset()), FewRows.ready())
    order = {"sampling": SamplingParams(temperature=0), "drafting": DraftParams(branches=branches)}
    return specviz.run(pair, [5, 9, 33], drafter=drafter, max_new_tokens=200, **order).token_ids


@pytest.mark.parametrize(
    "drafter, branches",
    [("draft_model", 1), ("draft_model", 3), ("early_exit", 1), ("quantised_self", 2), ("eagle", 2), ("medusa", 3)],
)
def test_greedy_text_in_half_precision_is_plain_decodings_to_the_last_token(drafter, branches):
    """Whatever the margins: near-ties fall the same way, because the logits are the same."""
    plain = long_text(None)
    assert len(plain) == 200 and long_text(drafter, branches) == plain


def test_weights_are_in_memory_once_for_a_target_and_its_parts(few_rows):
    pair = on_kernels(with_heads(tiny_pair("llama")), few_rows)
    whole, short = (pair.passes.fast[role].static.model for role in (TARGET, Role.exit(1)))
    panels = {name: buffer.data_ptr() for name, buffer in whole.named_buffers() if name.endswith("panels")}
    assert len(panels) == 2 * 7 + 1
    assert {name: buffer.data_ptr() for name, buffer in short.named_buffers()}.items() >= {
        (name, place) for name, place in panels.items() if ".layers.1." not in name
    }
    assert whole.get_input_embeddings().weight is pair.target.get_input_embeddings().weight
    assert pair.passes.fast[Role("mtp")].static.model.unembed is whole.get_output_embeddings()


def test_a_pass_can_be_exported_in_another_process(few_rows, tmp_path):
    """As where it is compiled: nothing is registered there but by the modules that it names."""
    fast = on_kernels(with_heads(tiny_pair("llama")), few_rows).passes.fast
    statics = [pickle.dumps(fast[Role(name)].static) for name in ("target", "medusa", "eagle")]
    (tmp_path / "passes").write_bytes(pickle.dumps(statics))
    run = "import pickle, sys; from specviz.passes.programs import exported\n"
    run += "for static in pickle.load(open(sys.argv[1], 'rb')): exported(pickle.loads(static))"
    subprocess.run([sys.executable, "-c", run, tmp_path / "passes"], check=True)


def test_conv1d_weights_lie_the_other_way_round(few_rows):
    layer = Conv1D(24, 16)
    nn.init.normal_(layer.bias)
    parent = nn.Sequential(layer)
    _widen(parent, parent, lambda part: few_rows.linear(weight_of(part), part.bias))
    x = drawn(3, 16)
    torch.testing.assert_close(parent(x), layer(x))


# The library


@pytest.fixture
def unbuilt(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel_library, "_loaded", [])
    return tmp_path


def test_a_library_is_built_once(unbuilt, monkeypatch):
    built = []

    def build(command, **options):
        built.extend(["library"] if "-shared" in command else [])
        pathlib.Path(command[command.index("-o") + 1]).write_bytes(b"no library")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", build)
    kernel_library.load_ahead()
    for _ in range(2):
        with pytest.raises(SpecvizError, match="cannot be loaded"):  # what was built is no library
            kernel_library.load()
    assert len(built) == 1 and [path.suffix for path in unbuilt.iterdir()] == [".so"]


def test_a_compiler_that_does_not_understand_the_source_says_why(unbuilt, monkeypatch):
    monkeypatch.setattr(kernel_library, "_FLAGS", ("-std=c++98",))
    kernel_library.load_ahead()  # says nothing
    with refused("passes", r"The C\+\+ compiler failed: .*error"):
        kernel_library.load()
    assert list(unbuilt.iterdir()) == []


def test_a_compiler_that_speaks_another_language_or_in_other_letters_is_understood(unbuilt, monkeypatch, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_bytes(
        b'#!/bin/sh\n[ $LC_ALL = C ] && word=error || word=Fehler\nprintf "x.h: $word: \\347\\n" >&2; exit 1\n'
    )
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("LC_ALL", "de_DE")
    with refused("passes", r"The C\+\+ compiler failed: x.h: error: "):
        kernel_library.load()


@pytest.mark.parametrize("processor", ["ivybridge", "alderlake", "x86-64-v4", "sapphirerapids"])
def test_the_source_is_understood_for_every_kind_of_register(processor, unbuilt, monkeypatch):
    """Built for others, it is not run here; older ones are built for, and run, above."""
    flags = [flag for flag in kernel_library._FLAGS if "march" not in flag]
    # Understood is soon said: most of the time would go into making it fast.
    flags += ["-O0", f"-march={processor}", "-Wall", "-Werror", "-Wno-psabi"]
    monkeypatch.setattr(kernel_library, "_FLAGS", flags)
    kernel_library._build(unbuilt / "library.so")
    assert (unbuilt / "library.so").stat().st_size > 0


def test_a_model_that_is_loaded_meanwhile_changes_no_kernels_numbers(few_rows):
    """While it loads, transformers sets the default dtype of all threads to its own."""
    weight, x = drawn(48, 64), drawn(2, 64, seed=2)
    layer, heads = few_rows.linear(weight), drawn(1, 2, 3, 8)
    attend_to = functools.partial(attend, heads, heads, heads, torch.zeros(1, 1, 3, 3), 1.0)
    expected, seen, default = layer(x), attend_to(), torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        given, seen_meanwhile = layer(x), attend_to()
        packed = few_rows.linear(weight)
    finally:
        torch.set_default_dtype(default)
    for one, other in [(given, expected), (seen_meanwhile, seen)]:
        assert one.dtype == torch.float32 and torch.equal(one, other)
    assert torch.equal(packed.scales, layer.scales)
