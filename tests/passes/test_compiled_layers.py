"""Passes whose decoder layers are compiled: what they compute, what is joined, what is refused, who compiles.

Without a GPU: Inductor makes programs for the CPU, and where a program does not matter the layer's code stands in.
"""

import copy
import dataclasses
import pickle
import subprocess
import threading

import pytest
import torch
from fast_passes import replayed
from tiny import generated, tiny_model, tiny_pair, with_heads
from torch._dynamo.utils import counters
from torch.export import ExportedProgram
from transformers import PreTrainedModel

from specviz.models import pass_checks, preparation
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses
from specviz.models.preparation import Preparation
from specviz.parts.head_passes import StaticHead
from specviz.passes import compiled_layers, compiler, programs
from specviz.passes.compiled_layers import CompiledLayer, LayeredPass
from specviz.passes.cuda_graphs import GraphedPasses
from specviz.passes.fast_passes import FastPasses
from specviz.passes.joined_weights import laid_together
from specviz.passes.model_twins import few_queries_attention, grouped_attention
from specviz.passes.roles import DRAFT, TARGET, Role
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError

#: Tokens and room of passes: alone, several, the most that a program reads, more.
SHAPES = ((1, 64), (2, 192), (5, 256), (80, 128), (100, 128))


def layered(architecture: str, **settings) -> LayeredPass:
    return LayeredPass(StaticPass(tiny_model(architecture, **settings)))


@pytest.fixture
def code_for_programs(monkeypatch, tmp_path) -> list[compiler.ProgramJob]:
    """Programs that are made at once and are the layers' code itself; returns those that were made."""
    made = []

    def compile_all(jobs, processes, halt):
        for job in jobs:
            pickle.loads(pickle.dumps((job.build, job.static)))
            job.path.touch()
            made.append(job)
            yield job, None

    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "compile_all", compile_all)
    monkeypatch.setattr(compiled_layers, "loaded", lambda path: {job.path: job.static.code for job in made}[path])
    return made


def by_code(one: LayeredPass, monkeypatch) -> StaticPass:
    """The pass with each kind's code in place of its programs."""
    codes = {program.path: program.code for program in one.programs()}
    monkeypatch.setattr(compiled_layers, "loaded", codes.__getitem__)
    return one.compiled()


@torch.inference_mode()
def assert_same_passes(static: StaticPass, expected: StaticPass) -> None:
    """In all of `SHAPES`, logits, hidden states and the rows that are written."""
    for width, room in SHAPES:
        given, others = (static.examples(width, room) for _ in range(2))
        for one, other in zip([*static(*given), *given], [*expected(*others), *others], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


# What they compute.


@pytest.mark.parametrize(
    "architecture, kinds", [("llama", 1), ("qwen2", 1), ("gemma3", 2), ("gpt2", 1), ("gpt_neox", 1), ("phi", 1)]
)
def test_layers_of_one_kind_are_one_function_of_tensors(architecture, kinds, monkeypatch):
    model = tiny_model(architecture, layers=4)
    plain = StaticPass(model, (0, 2, 4))
    static = by_code(one := LayeredPass(plain), monkeypatch)
    assert len({id(code) for code in one.codes}) == kinds and len(one.programs()) == 2 * kinds
    assert_same_passes(static, plain)
    pass_checks.check(FastPasses.unprepared(static))  # a chain, and a tree where the model reads them
    assert not any("forward" in vars(part) for part in model.modules()), "the model itself is as it was"


def test_layers_that_a_pass_does_not_call_are_left_alone(monkeypatch):
    """As those that read pictures."""
    model = tiny_model("llama")
    model.other = type(model.base_model.layers[0])(model.config, 0)
    plain = StaticPass(model)
    static = by_code(one := LayeredPass(plain), monkeypatch)
    assert len(one.layers) == 2 and not isinstance(vars(static.model.other).get("forward"), CompiledLayer)
    assert_same_passes(static, plain)


def test_an_early_exit_has_the_targets_compiled_layers(monkeypatch):
    plain = StaticPass(tiny_model("llama", layers=3))
    first = by_code(LayeredPass(plain), monkeypatch).first_layers(2)
    assert sum(isinstance(vars(part).get("forward"), CompiledLayer) for part in first.model.modules()) == 2
    assert first.shares_kv
    assert_same_passes(first, plain.first_layers(2))


@pytest.mark.parametrize("role", ["eagle", "mtp"])
def test_heads_are_compiled_as_models_are(role, monkeypatch):
    pair = with_heads(tiny_pair("llama"))
    plain = StaticHead(pair.parts[role], StaticPass(pair.target))
    static = by_code(LayeredPass(plain), monkeypatch)
    assert type(static) is StaticHead and static.input_widths == plain.input_widths
    pass_checks.check(FastPasses.unprepared(static))


def test_a_layer_called_otherwise_runs_as_it_is(monkeypatch):
    static = by_code(layered("llama"), monkeypatch)
    ids = torch.arange(1, 9)[None]
    with torch.inference_mode():
        torch.testing.assert_close(static.model(ids).logits, static.original(ids).logits, rtol=1e-4, atol=1e-4)


# Products that are one.


def storages(model: PreTrainedModel) -> int:
    """Bytes of memory that the weights take."""
    held = {weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes() for weight in model.parameters()}
    return sum(held.values())


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_weights_that_are_read_together_lie_together_and_are_the_same_bits_in_the_same_memory(architecture):
    model = tiny_model(architecture)
    pair = dataclasses.replace(tiny_pair("llama"), target=model, draft=None)
    before, memory, text = copy.deepcopy(model.state_dict()), storages(model), generated(pair, [5, 9, 33], 20)
    static = StaticPass(model)
    one = LayeredPass(static)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert storages(model) == memory and generated(pair, [5, 9, 33], 20) == text
    attention = model.base_model.layers[1].self_attn
    three = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    places = [weight.data_ptr() for weight in three]
    whole = laid_together(three)
    assert torch.equal(whole, torch.cat(three)) and whole.data_ptr() == places[0]
    LayeredPass(static)
    assert [weight.data_ptr() for weight in three] == places, "a second time nothing moves"
    assert ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight") in one.codes[0].model_names


def products(program: ExportedProgram) -> int:
    return len(program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default))


@pytest.mark.parametrize("one_token", [True, False])
def test_a_traced_layer_has_one_product_for_all_that_read_the_same_and_no_size_of_a_pass(one_token):
    code = layered("qwen2").codes[0]
    program = code.exported(one_token)
    assert products(program) == 4  # q, k, v; o; gate, up; down
    run = program.module()
    for width, room in ((1, 64), (1, 320)) if one_token else ((2, 64), (80, 320)):
        given, others = (code.examples(width, room) for _ in range(2))
        for tensor, other in zip(given, others, strict=True):
            if tensor.is_floating_point():
                other.copy_(tensor.normal_())
        with torch.no_grad():
            torch.testing.assert_close(run(*given), code(*others), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(given, others, rtol=1e-4, atol=1e-4)


def test_weights_that_cannot_move_stay_apart():
    """Where they are a part of something larger, shared, or rows begin where kernels do not like it."""
    model = tiny_model("llama")
    first, second = model.base_model.layers
    first.self_attn.k_proj.weight.data = torch.cat([first.self_attn.k_proj.weight] * 2)[:24]
    second.mlp.up_proj.weight = second.mlp.gate_proj.weight
    joined = [sum(len(names) > 1 for names in code.model_names) for code in LayeredPass(StaticPass(model)).codes]
    assert joined == [1, 1]
    odd = layered("llama", hidden_size=42, num_attention_heads=3, num_key_value_heads=1, head_dim=14)
    assert all(len(names) == 1 for names in odd.codes[0].model_names)


def attending(queries: int, heads: int = 4, shared: int = 2, masks: int = 1):
    generator = torch.Generator().manual_seed(queries)
    query = torch.randn(1, heads, queries, 16, generator=generator)
    rows = [torch.randn(1, shared, 64, 16, generator=generator) for _ in range(2)]
    hidden = torch.rand(1, masks, queries, 64, generator=generator) < 0.5
    hidden[..., 0] = False
    module = torch.nn.Module()
    module.num_key_value_groups = heads // shared
    return module, query, *rows, torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("given", [attending(1), attending(5), attending(5, shared=4), attending(3, masks=4)])
def test_attention_of_few_queries_is_sdpas(given):
    expected, _ = grouped_attention(*given, scaling=0.3)
    torch.testing.assert_close(few_queries_attention(*given, scaling=0.3)[0], expected, rtol=1e-5, atol=1e-5)


# What cannot be compiled.


def test_layers_that_are_no_functions_of_tensors_are_refused(monkeypatch):
    model = tiny_model("llama")
    own = type(model.base_model).forward
    monkeypatch.setattr(
        type(model.base_model), "forward", lambda base, *given, **named: own(base, *given, **named, extra=object())
    )
    with pytest.raises(SpecvizError, match=r"other than tensors \(object\)"):
        LayeredPass(StaticPass(model))
    counting = lambda base, *given, **named: own(base, *given, **named, extra=named["input_ids"].shape[1])  # noqa: E731
    monkeypatch.setattr(type(model.base_model), "forward", counting)
    with pytest.raises(SpecvizError, match="not called in the same way"):
        LayeredPass(StaticPass(model))


def test_a_model_without_transformers_layers_is_refused(monkeypatch):
    monkeypatch.setattr(compiled_layers, "GradientCheckpointingLayer", torch.nn.LSTM)
    with pytest.raises(SpecvizError, match="no decoder layers of the kind"):
        layered("llama")


def test_where_nothing_can_be_compiled_it_is_said(monkeypatch):
    monkeypatch.setattr(compiled_layers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecvizError, match="Triton, which compiles for the GPU, is not installed"):
        compiled_layers.refuse_uncompilable(torch.device("cuda"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SpecvizError, match="no C\\+\\+ compiler"):
        compiled_layers.refuse_uncompilable(torch.device("cpu"))
    monkeypatch.delattr(torch._inductor, "standalone_compile")
    with pytest.raises(SpecvizError, match="version of torch"):
        compiled_layers.refuse_uncompilable(torch.device("cpu"))


# How a pair gets them.


def recorded(pair: ModelPair, compiling: bool = True, progress=lambda fraction, step: None) -> Preparation:
    """Prepares a pair as on CUDA."""
    work = preparation._Work(pair, compiling, threading.Event(), lambda done: done())
    work._few_rows = lambda: None
    work.record(work.statics(), replayed, progress)
    return work.outcome


def compiled_roles(pair: ModelPair) -> set[Role]:
    parts = {role: passes.static.modules() for role, passes in pair.passes.fast.items()}
    return {
        role for role, some in parts.items() if any(isinstance(vars(one).get("forward"), CompiledLayer) for one in some)
    }


@pytest.fixture
def always_faster(monkeypatch):
    monkeypatch.setattr(pass_checks, "_refuse_slower_graphs", lambda passes, slower: None)


def test_graphs_are_there_at_once_and_those_of_compiled_layers_together_later(code_for_programs, always_faster):
    pair, seen = with_heads(tiny_pair("llama")), []

    def progress(fraction, step):
        seen.append((str(step), sorted(pair.passes.fast), pair.passes.tried.is_set(), compiled_roles(pair)))

    done = recorded(pair, progress=progress)
    roles = [DRAFT, Role("eagle"), Role.exit(1), Role("mtp"), Role("parallel"), TARGET]
    assert seen[0] == ("0 of 9 compiled", roles, True, set())
    assert seen[-1] == ("testing compiled passes", roles, True, {TARGET, DRAFT})
    assert compiled_roles(pair) == set(roles) and not done.reasons
    fast = pair.passes.fast
    assert all(isinstance(passes, GraphedPasses) and passes.graphs for passes in fast.values())
    assert fast[Role.exit(1)].kept_buffers is fast[TARGET].kept_buffers
    assert {job.role for job in code_for_programs[:4]} == {TARGET, DRAFT}


def test_programs_of_earlier_need_no_process(code_for_programs, always_faster):
    pair = tiny_pair("llama")
    assert set(recorded(pair, compiling=False).reasons) == {TARGET, DRAFT} and compiled_roles(pair) == set()
    again = dataclasses.replace(pair, passes=PairPasses())
    recorded(again)
    count = len(code_for_programs)
    third = dataclasses.replace(pair, passes=PairPasses())
    assert recorded(third, compiling=False).reasons == {} and len(code_for_programs) == count
    assert compiled_roles(third) == {TARGET, DRAFT, Role.exit(1)}
    assert not third.passes.tried.is_set(), "there is nothing to wait for"


def test_graphs_as_they_are_stay_where_compiled_ones_are_wrong_slower_or_not_made(
    code_for_programs, monkeypatch, tmp_path
):
    def refuse(passes, slower):
        raise SpecvizError("Compiled passes were made, but are no faster here than the present ones.", "passes")

    pair = tiny_pair("llama")
    monkeypatch.setattr(pass_checks, "_refuse_slower_graphs", refuse)
    reasons = recorded(pair).reasons
    assert compiled_roles(pair) == set() and "no faster" in str(reasons[TARGET])

    monkeypatch.setattr(pass_checks, "_refuse_slower_graphs", lambda passes, slower: None)
    wrong = dataclasses.replace(pair, passes=PairPasses())
    monkeypatch.setattr(compiled_layers, "loaded", lambda path: lambda *given: [torch.zeros_like(given[0])])
    assert "more than rounding" in str(recorded(wrong).reasons[TARGET]) and compiled_roles(wrong) == set()

    def broken(path):
        raise RuntimeError("half a file")

    monkeypatch.setattr(compiled_layers, "loaded", broken)
    halved = dataclasses.replace(pair, passes=PairPasses())
    assert "cannot be loaded: half a file" in str(recorded(halved).reasons[TARGET])

    def failing(jobs, processes, halt):
        for job in jobs:
            yield job, SpecvizError("The C++ compiler failed: {reason}", "passes", reason="it is old")

    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(compiler, "compile_all", failing)
    unmade = dataclasses.replace(pair, passes=PairPasses())
    assert "it is old" in str(recorded(unmade).reasons[TARGET])
    for one in (pair, wrong, halved, unmade):
        assert all(passes.kind == "graphs" and passes.graphs for passes in one.passes.fast.values())


def test_where_nothing_can_be_recorded_nothing_is_compiled(code_for_programs, monkeypatch):
    def refuse(*arguments, **named):
        raise SpecvizError("There is not enough memory to prepare this model's passes.", "passes")

    monkeypatch.setattr(pass_checks, "recorded", refuse)
    pair = tiny_pair("llama")
    assert set(recorded(pair).reasons) == {TARGET, DRAFT, Role.exit(1)}
    assert pair.passes.fast == {} and code_for_programs == []


def test_of_two_graphs_the_faster_one_stays():
    static = StaticPass(tiny_model("llama"))

    def slowly(function, examples):
        replay, rest = replayed(function, examples), threading.Event()
        return lambda arguments: (rest.wait(0.02), replay(arguments))[1]

    fast, slow = (pass_checks.recorded(static, record, None) for record in (replayed, slowly))
    pass_checks._refuse_slower_graphs(fast, slow)
    with pytest.raises(SpecvizError, match="no faster"):
        pass_checks._refuse_slower_graphs(slow, fast)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_process_that_compiles_sees_gpus_only_if_it_compiles_for_one(on_gpu, monkeypatch, tmp_path):
    given, real = {}, subprocess.Popen
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(subprocess, "Popen", lambda *order, **options: given.update(options) or real(*order, **options))
    with compiler.Worker(0, on_gpu):
        assert given["env"]["CUDA_VISIBLE_DEVICES"] == ("3" if on_gpu else "")


def test_programs_made_elsewhere_load_without_compiling_and_serve_all_passes(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    plain = StaticPass(tiny_model("llama", layers=3))
    one = LayeredPass(plain)
    jobs = [compiler.ProgramJob(TARGET, each, each.path, compiled_layers.build) for each in one.programs()]
    assert [error for _, error in compiler.compile_all(jobs, 1, threading.Event())] == [None, None]
    counters.clear()
    static = one.compiled()
    assert_same_passes(static, plain)
    pass_checks.check(FastPasses.unprepared(static))
    assert not counters["inductor"]["fxgraph_cache_miss"] and not counters["stats"], "nothing is traced or compiled"
    programs.forget_old(keep_bytes=0)
    assert not list(tmp_path.glob("*.layer"))
