"""Passes timed, of one text and of many requests, and the bytes and operations that they are held against."""

import itertools
import pickle
import random
import statistics

import pytest
import torch
from tiny import passes_called_compiled, tiny_model, tiny_pair
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from specviz.bench import machine
from specviz.bench.machine import model_size, peak_rate
from specviz.bench.pass_times import RequestBatch, measure_batches, measure_passes
from specviz.models.pair import ModelPair
from specviz.models.pass_timer import PassTimer, time_passes
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels import operations
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.static_passes import StaticPass
from specviz.theory.roofline import expected_experts


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gpt_neox"])
def test_counted_operations_are_those_that_torch_counts(architecture):
    model = tiny_model(architecture, layers=3)
    # Its fused attention on a CPU is none of the operations that torch counts.
    model.set_attn_implementation("eager")
    timer = PassTimer(model, [4], context=96)
    with FlopCounterMode(display=False) as counter:
        timer.seconds(4)
    # Norms and biases have parameters and no product, and a mask hides what torch computes anyway.
    assert model_size(timer).operations(4) == pytest.approx(counter.get_total_flops(), rel=0.03)
    assert model_size(timer).positions == 96
    if architecture == "llama":  # weights that are only looked up are not read
        tied = tiny_model("llama", layers=3, tie_word_embeddings=True)
        size = model_size(PassTimer(tied, [1]))
        assert size == model_size(PassTimer(model, [1])) and size.weight_bytes == 4 * tied.num_parameters()
        # 3 layers × 2 heads × 12 wide, keys and values, 4 bytes each.
        assert size.parameters == tied.num_parameters() and size.position_bytes == 3 * 2 * 12 * 2 * 4


class Touched(TorchDispatchMode):
    """Notes which of these tensors any operation reads, and what it is."""

    def __init__(self, tensors):
        super().__init__()
        self.places = {tensor.data_ptr(): tensor for tensor in tensors}
        self.reads: dict[int, set[str]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for given in tree_leaves((args, kwargs)):
            if isinstance(given, torch.Tensor) and given.data_ptr() in self.places:
                self.reads.setdefault(given.data_ptr(), set()).add(func.name())
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("way", ["plain", "kernels", 8, 4])
def test_counted_bytes_are_those_of_the_tensors_that_a_pass_reads(way, tied, monkeypatch):
    model, passes = tiny_model("qwen2", tie_word_embeddings=tied).bfloat16().float(), None  # has biases
    if way != "plain":
        few_rows = FewRows.ready()
        monkeypatch.setattr(operations, "linear", torch.ops.specviz.few_rows_linear)  # which shows what it reads
        static = StaticPass(model, (), few_rows.fitting(model))
        static = static if way == "kernels" else static.quantised(way, {})
        passes = FastPasses(static, static, "kernels")
    module = model if passes is None else passes.static.model
    timer = PassTimer(model, [1], passes=passes)
    with Touched([*module.parameters(), *module.buffers()]) as touched:
        timer.seconds(1)
    looked_up_only = {"aten::embedding"}
    read = {place for place, ways in touched.reads.items() if ways - looked_up_only - {"aten::detach", "aten::alias"}}
    never = [one.scales.data_ptr() for one in module.modules() if way == "kernels" and hasattr(one, "scales")]
    turning = [tensor.data_ptr() for name, tensor in module.named_buffers() if name.endswith("inv_freq")]
    weights = [touched.places[place].nbytes for place in read - {*never, *turning}]
    assert model_size(timer).weight_bytes == sum(weights) > 0
    if way == "kernels":
        assert sum(weights) < 0.7 * model_size(PassTimer(model, [1])).weight_bytes, "in bfloat16"


def test_a_measurement_fills_in_pass_by_pass_and_ends_complete():
    pair = tiny_pair("llama")
    shown = list(measure_passes(pair, widths=(1, 2, 4), context=32, repeats=2))
    assert [sum(len(curve.points) for curve in one.curves) for one in shown[:8]] == [0, 1, 2, 3, 4, 5, 6, 6]
    assert [one.fraction for one in shown] == sorted(one.fraction for one in shown) and shown[-1].fraction == 1
    last = pickle.loads(pickle.dumps(shown[-1]))
    assert last == shown[-1] and (last.context, last.target, last.dtype) == (32, pair.target_name, "float32")
    for role in ("target", "draft"):
        points = last.curve(role).points
        assert [(point.width, point.repeats) for point in points] == [(1, 2), (2, 2), (4, 2)]
        assert all(0 < point.low <= point.seconds <= point.high for point in points)
    assert last.cost_coefficient == last.curve("draft").one_token / last.curve("target").one_token


def test_no_short_pass_follows_a_much_wider_one(monkeypatch):
    """One token right after 64 took up to half as long again as after its like."""
    timed = []
    monkeypatch.setattr(PassTimer, "seconds", lambda timer, width: timed.append(width) or 0.001)
    widths = (1, 2, 4, 64)
    pair = tiny_pair("llama")
    list(measure_passes(pair, widths, context=8, repeats=5))
    time_passes(pair.target, widths, context=8, repeats=5)
    places = [widths.index(width) for width in timed]
    assert all(this >= last - 1 for last, this in itertools.pairwise(places))
    # Both models and the target alone, each with one pass of every width to warm up.
    assert all(timed.count(width) == 2 * (1 + 5) + (1 + 5) for width in widths)


def test_a_slow_pair_is_measured_once_and_a_small_one_only_as_far_as_it_goes():
    pair = tiny_pair("llama", max_position_embeddings=16)
    last = list(measure_passes(pair, repeats=50, budget=0.0))[-1]
    assert {point.repeats for curve in last.curves for point in curve.points} == {1}
    assert [point.width for point in last.curve("target").points] == [1, 2, 3, 4, 5, 6, 8]
    assert last.context == 8
    alone = ModelPair.of(pair.target, None, pair.tokenizer)
    assert [one.role for one in list(measure_passes(alone, widths=(1, 2), repeats=1))[-1].curves] == ["target"]


def test_passes_are_timed_as_runs_take_them_and_called_what_they_are():
    pair = tiny_pair("llama")
    lengths = []

    def counting(fast: FastPasses) -> FastPasses:
        def run(ids, *others):
            lengths.append(len(ids))
            return fast.static(ids, *others)

        return FastPasses(fast.static, run, "compiled")

    [*_, plain] = measure_passes(pair, widths=(1, 2, 4), context=32, repeats=2)
    assert plain.kind == "plain"
    pair.passes.fast = {role: counting(fast) for role, fast in passes_called_compiled(pair).items()}
    [*_, last] = measure_passes(pair, widths=(1, 2, 4), context=32, repeats=2)
    assert last.kind == "compiled"
    # Of both models: the context, each width twice to warm up, and twice.
    assert sorted(lengths) == sorted(2 * [32, *4 * [1, 2, 4]])
    assert [curve.size for curve in last.curves] == [curve.size for curve in plain.curves]


def test_the_peak_is_the_best_of_all_products_and_a_slow_dtype_costs_no_time(monkeypatch):
    seconds = {torch.float32: 1.0, torch.bfloat16: 70.0}
    timed = []

    def rate(rows, dtype, device):
        timed.append((rows, dtype))
        return rows / seconds[dtype] if rows < 100 else 50.0 / seconds[dtype]

    monkeypatch.setattr(machine, "_product_rate", rate)
    assert peak_rate(torch.bfloat16, torch.device("cpu")) == 64.0
    assert (machine.PEAK_SIDE["cpu"], torch.bfloat16) not in timed
    seconds[torch.bfloat16] = 0.5
    assert peak_rate(torch.bfloat16, torch.device("cpu")) == 128.0


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt_neox", "qwen3_next", "falcon_h1", "lfm2"])
def test_each_request_is_read_after_rows_of_its_own(architecture):
    model, context = tiny_model(architecture), 20
    batch = RequestBatch(model, requests=3, context=context)
    texts = torch.randint(0, 32, (3, 5), generator=torch.Generator().manual_seed(1))
    # What is timed leaves nothing behind, and what is read stays.
    batch.seconds(7)
    read = [batch.read(texts[:, :2]), batch.read(texts[:, 2:])]
    for request, text in enumerate(texts):
        alone = CachedModel(model, Stopwatch(torch.device("cpu")))
        alone.forward(torch.ones(context, dtype=torch.long), rows_wanted=1)
        alone.rewind(context)
        expected = alone.forward(text, rows_wanted=5)
        torch.testing.assert_close(torch.cat([part[request] for part in read]), expected, atol=1e-5, rtol=1e-4)


def test_all_passes_take_turns_and_the_last_message_is_complete():
    pair = tiny_pair("llama")
    shown = list(measure_batches(pair, batches=(1, 3), widths=(1, 2), context=16, repeats=2))
    assert [one.fraction for one in shown] == sorted(one.fraction for one in shown) and shown[-1].fraction == 1
    last = pickle.loads(pickle.dumps(shown[-1]))
    assert (last.target, last.context, last.kind, last.batches) == (pair.target_name, 16, "plain", (1, 3))
    asked = {("target", b, k) for b in (1, 3) for k in (1, 2)} | {("draft", b, 1) for b in (1, 3)}
    assert {(point.role, point.requests, point.width) for point in last.points} == asked
    assert {point.repeats for point in last.points} == {2} and all(point.seconds > 0 for point in last.points)


def test_the_largest_passes_of_a_slow_pair_are_left_out():
    pair = tiny_pair("llama", max_position_embeddings=16)
    alone = ModelPair.of(pair.target, None, pair.tokenizer)
    [*_, last] = measure_batches(alone, budget=0.0)
    # The first pass is always made; of a small model, none that fills more than half of its positions.
    assert [(point.requests, point.width, point.repeats) for point in last.points] == [(1, 1, 1)]
    [*_, last] = measure_batches(alone, batches=(1, 2), repeats=1)
    assert {point.width for point in last.points} == {1, 2, 3, 5} and last.context == 11


# Mixtures of experts


@pytest.mark.parametrize("architecture", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_of_a_mixture_those_experts_are_read_that_its_routers_choose(architecture):
    model = tiny_model(architecture, layers=3)
    routers = [part for part in model.modules() if type(part).__name__.endswith("Router")]
    chosen: list[torch.Tensor] = []
    for router in routers:
        router.register_forward_hook(lambda part, given, made: chosen.append(made[2]))
    timer = PassTimer(model, [1, 5])
    experts = model_size(timer).experts
    for width in (1, 5):
        chosen.clear()
        timer.seconds(width)
        assert len(chosen) == len(routers) == 3 and experts.read[width] == statistics.mean(
            len(set(choice.flatten().tolist())) for choice in chosen
        )
    assert (experts.number, experts.chosen, experts.read[1]) == (4, 2, 2)
    assert 2 < experts.read[5] <= 4, "tokens of a pass differ, and so do their experts"


def test_a_pass_moves_the_experts_that_it_reads_and_computes_with_those_of_each_token():
    mixture = tiny_model("mixtral", layers=3)
    size = model_size(PassTimer(mixture, [1, 5]))
    one = 3 * (192 * 48 + 48 * 96)  # gate and up, and down, of one expert in each layer
    assert (size.experts.parameters, size.experts.weight_bytes) == (one, 4 * one)
    grown = size.bytes_moved(5) - size.bytes_moved(1) - 4 * size.position_bytes
    assert grown == pytest.approx((size.experts.read[5] - 2) * 4 * one)
    mixture.set_attn_implementation("eager")
    mixture.set_experts_implementation("eager")  # torch does not count grouped products
    timer = PassTimer(mixture, [4], context=96)
    with FlopCounterMode(display=False) as counter:
        timer.seconds(4)
    assert model_size(timer).operations(4) == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_equally_likely_experts_are_expected_as_often_as_they_come_up():
    generator = random.Random(0)
    for number, chosen, tokens in [(8, 2, 1), (8, 2, 5), (128, 8, 5), (4, 4, 3)]:
        drawn = [
            len({expert for _ in range(tokens) for expert in generator.sample(range(number), chosen)})
            for _ in range(2000)
        ]
        assert expected_experts(number, chosen, tokens) == pytest.approx(statistics.mean(drawn), rel=0.02)
