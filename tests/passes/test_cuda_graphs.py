"""Passes as graphs: what is recorded, when, over which buffers, and what happens if it cannot be.

Without a GPU: a stand-in records as CUDA does, and torch's own calls are written down instead of made.
"""

import contextlib
import dataclasses
import gc
import itertools
import types

import pytest
import torch
from fast_passes import graphed_passes, replayed
from tiny import assert_same_rows, tiny_model, tiny_pair

from specviz.bench.turns import Amount, engine_stepper, take_turns
from specviz.decoding import decoder, engine
from specviz.decoding.record import collect
from specviz.decoding.request import prepare
from specviz.models import pass_checks
from specviz.models.pair_passes import PairPasses
from specviz.models.refusals import is_out_of_memory
from specviz.passes.cuda_graphs import CudaRecorder, GraphedPasses, Shape, refuse_unrecordable
from specviz.passes.devices import Stopwatch
from specviz.passes.fast_passes import LEAST_ROOM, REMEMBERED_TEXTS, KeptBuffers
from specviz.passes.model_twins import exit_after
from specviz.passes.readers import new_cached_model
from specviz.passes.roles import DRAFT, TARGET
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.runs import Run
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.records.words import Bytes

CPU = torch.device("cpu")
IDS = [5, 9, 33, 7, 7, 20, 11, 3]


class Recorder:
    """Records as CUDA does: warms up, then replays over the very tensors that were recorded."""

    def __init__(self):
        self.recorded = []  # widths, and 0 for each part of a whole round
        self.replays = 0

    def __call__(self, function, examples):
        self.recorded.append(len(examples[0]) if examples else 0)
        function(*examples)
        recorded = replayed(function, examples)

        def replay(arguments):
            self.replays += 1
            return recorded(arguments)

        return replay


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", max_position_embeddings=2048)


def graphed(model, record=None) -> GraphedPasses:
    return GraphedPasses(StaticPass(model), record or Recorder())


@torch.inference_mode()
def logits_of(cached, parts: list[list[int]], passes=None) -> list[torch.Tensor]:
    """Reads these parts of a text, one pass each, with time between them."""
    given = []
    for part in parts:
        if passes is not None:
            passes.between_rounds()
        given.append(cached.forward(torch.tensor(part), rows_wanted=1))
    return given


def test_a_shape_is_recorded_between_rounds_once_it_was_met_twice_in_whatever_texts(model):
    passes = graphed(model)
    parts = [IDS * 5, [1], [2], [3], [4], [5, 6]]
    fast = logits_of(new_cached_model(model, Stopwatch(CPU), passes), parts, passes)
    assert passes.record.recorded == [1] and passes.record.replays == 2
    for given, expected in zip(fast, logits_of(new_cached_model(model, Stopwatch(CPU)), parts), strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)
    for replays in (2, 3):
        cached = new_cached_model(model, Stopwatch(CPU), passes)
        prompt = [7, *IDS * 5]  # of another length, but as wide when it is padded
        given, expected = (
            logits_of(cached, [prompt], passes),
            logits_of(new_cached_model(model, Stopwatch(CPU)), [prompt]),
        )
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)
        del cached
        passes.between_rounds()
        assert passes.record.recorded == [1, 48] and passes.record.replays == replays


@torch.inference_mode()
def test_padding_leaves_the_text_and_its_rows_alone(model):
    """Seven tokens in a graph of eight, chain and tree, after a pass of eight that filled all its places."""
    passes = graphed(model)
    cached = new_cached_model(model, Stopwatch(CPU), passes)
    cached.prefill(IDS)
    for width in (8, 8, 7):
        passes.between_rounds()
        cached.forward(torch.arange(1, 1 + width), rows_wanted=width)
        cached.rewind(len(IDS) - 1)
    tree = torch.tensor([3, IDS[0], 4, 6, 8, 2]), (-1, -1, 0, 1, 1, 0)
    plain = new_cached_model(model, Stopwatch(CPU))
    plain.prefill(IDS)
    torch.testing.assert_close(cached.verify(IDS, *tree), plain.verify(IDS, *tree), rtol=1e-4, atol=1e-4)
    cached.rewind_to_path(len(IDS), (1, 3))
    # The prompt, which was as wide, was the first to need this shape.
    assert passes.record.recorded == [8] and passes.record.replays == 3
    assert_same_rows(cached, [*IDS, IDS[0], 6])


@torch.inference_mode()
def test_an_early_exit_reads_on_in_the_targets_buffers_without_emptying_them(model):
    target, short = graphed(model), exit_after(model, 1)
    exits = GraphedPasses(target.static.first_layers(1), Recorder(), target.kept_buffers)
    cached, prompt = new_cached_model(model, Stopwatch(CPU), target), IDS * 40
    cached.prefill(prompt)
    twin = cached.sharing_first_layers(short, 1, exits)
    assert cached.buffers.room == 2 * LEAST_ROOM
    for _ in range(3):
        exits.between_rounds()
        twin.length = cached.length
        drafted = twin.forward(twin.unread(prompt), rows_wanted=1)
        twin.rewind(cached.length)
    assert exits.record.recorded == [1]
    plain = new_cached_model(model, Stopwatch(CPU))
    plain.prefill(prompt)
    expected = plain.sharing_first_layers(short, 1, None).forward(plain.unread(prompt), rows_wanted=1)
    torch.testing.assert_close(drafted, expected, rtol=1e-4, atol=1e-4)
    plain.rewind(plain.length)
    assert_same_rows(cached, prompt)


def test_rooms_that_texts_no_longer_reach_are_given_up_with_their_graphs(model):
    passes = graphed(model)
    for prompt in [IDS * 50, *[IDS] * (REMEMBERED_TEXTS + 1)]:
        cached = new_cached_model(model, Stopwatch(CPU), passes)
        logits_of(cached, [prompt, [1], [2], [3]], passes)
        passes.between_rounds()
        del cached
    assert set(passes.kept_buffers.by_room) == {LEAST_ROOM}
    assert set(passes.graphs) == {Shape(1, LEAST_ROOM), Shape(len(IDS), LEAST_ROOM)}
    # The same room once more has other buffers than those recorded earlier.
    again = new_cached_model(model, Stopwatch(CPU), passes)
    logits_of(again, [IDS * 50, [1], [2], [3]], passes)
    assert_same_rows(again, [*IDS * 50, 1, 2, 3])


def test_between_two_rounds_the_engine_has_passes_recorded_and_no_round_waits_for_it(monkeypatch):
    pair = tiny_pair("llama")
    inside, record = [], Recorder()

    class Watched(Recorder):
        def __call__(self, function, examples):
            assert not inside, "recorded while a round was timed"
            return record(function, examples)

    original = decoder.Decoder.round

    def watched(self, *arguments):
        inside.append(True)
        try:
            return original(self, *arguments)
        finally:
            inside.clear()

    monkeypatch.setattr(decoder.Decoder, "round", watched)
    statics = {TARGET: StaticPass(pair.target), DRAFT: StaticPass(pair.draft)}
    pair.passes = PairPasses({role: GraphedPasses(static, Watched()) for role, static in statics.items()})
    settings = RunSettings(IDS, sampling=SamplingParams(temperature=0), max_new_tokens=40)
    list(engine.rounds(prepare(pair, settings)))
    assert record.recorded.count(0) >= 3 and record.replays > 10


@pytest.mark.parametrize("amount", [Amount(40, repeats=2), Amount(40, repeats=2, budget=0.05, whole=False, least=2)])
def test_all_who_take_turns_have_the_buffers_that_graphs_work_on(monkeypatch, amount):
    pair, lent = tiny_pair("llama"), []
    statics = {TARGET: StaticPass(pair.target), DRAFT: StaticPass(pair.draft)}
    pair.passes = PairPasses({role: GraphedPasses(static, Recorder()) for role, static in statics.items()})
    lend = KeptBuffers.lend
    monkeypatch.setattr(KeptBuffers, "lend", lambda kept, reader: lent.append(lend(kept, reader)) or lent[-1])
    plain = RunSettings(IDS, None, sampling=SamplingParams(temperature=0), max_new_tokens=40)
    lanes = [
        engine_stepper(prepare(pair, dataclasses.replace(plain, drafter=drafter))) for drafter in (None, "draft_model")
    ]
    assert list(take_turns([dataclasses.replace(lane, divisible=False) for lane in lanes], amount))
    assert len(lent) > 6 and all(lent)


@pytest.mark.parametrize("drafter", [None, "draft_model", "early_exit"])
def test_a_text_beside_another_is_right_without_graphs_and_its_record_says_so(drafter):
    pair, prompts = tiny_pair("llama"), (IDS, IDS[::-1])
    greedy = RunSettings(IDS, None, sampling=SamplingParams(temperature=0), max_new_tokens=40)
    due = [_whole(pair, dataclasses.replace(greedy, prompt=prompt)).token_ids for prompt in prompts]
    pair.passes = PairPasses(graphed_passes(pair))
    settings = dataclasses.replace(greedy, drafter=drafter, drafting=DraftParams(exit_layer=1))
    requests = [prepare(pair, dataclasses.replace(settings, prompt=prompt)) for prompt in prompts]
    turns = itertools.zip_longest(*map(engine.rounds, requests))
    first, second = (collect(request, list(filter(None, made))) for request, made in zip(requests, zip(*turns)))
    assert [first.token_ids, second.token_ids] == due
    assert (first.pair.passes, second.pair.passes) == ("graphs", "plain")
    assert pair.passes.kind == "graphs" and pair.passes.fast[TARGET].whole_rounds
    again = _whole(pair, requests[1].settings)
    assert again.pair.passes == "graphs" and again.token_ids == due[1], "the buffers are free again"


def _whole(pair, settings: RunSettings) -> Run:
    request = prepare(pair, settings)
    return collect(request, list(engine.rounds(request)))


# What cannot be recorded.


@pytest.mark.parametrize("free", [2**28, 2**33])
def test_nothing_is_recorded_where_that_would_leave_texts_no_memory(model, monkeypatch, free):
    static, record = StaticPass(model), Recorder()
    monkeypatch.setattr(pass_checks, "free_memory", lambda device: free)
    needed = pass_checks.graph_bytes(static)
    assert 2**28 < needed < 2**33
    if free > needed:
        assert pass_checks.recorded(static, record, None).graphs
        return
    with pytest.raises(SpecvizError) as caught:
        pass_checks.recorded(static, record, None)
    assert f"about {Bytes(needed)} of memory, but only {Bytes(free)} are free" in caught.value.message
    assert not record.recorded


def test_the_memory_that_graphs_take_grows_with_the_vocabulary_and_an_exit_has_no_rows_of_its_own(model):
    static = StaticPass(model)
    needed = pass_checks.graph_bytes(static)
    assert pass_checks.graph_bytes(static.first_layers(1)) < needed
    assert pass_checks.graph_bytes(StaticPass(tiny_model("llama", vocab=4096))) > needed


def failing(function, examples):
    try:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ...")
    finally:
        # As `torch.cuda.graph` does on its way out.
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def test_a_recording_that_fails_leaves_plain_passes_and_the_first_reason(model):
    passes = graphed(model, failing)
    parts = [IDS, *([token] for token in IDS)]
    fast = logits_of(new_cached_model(model, Stopwatch(CPU), passes), parts, passes)
    plain = logits_of(new_cached_model(model, Stopwatch(CPU)), parts)
    torch.testing.assert_close(fast[-1], plain[-1], rtol=1e-4, atol=1e-4)
    assert passes.kind == "plain" and not passes.graphs
    assert "CUDA graphs: CUDA out of memory. Tried to allocate 2.00 GiB" in passes.refusal.message


def test_running_out_of_memory_is_recognised_within_a_recording():
    with pytest.raises(RuntimeError) as caught:
        failing(None, None)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    for said in (
        "not enough memory: you tried to allocate 8 bytes.",
        "can't allocate memory: you tried to allocate 8.",
    ):
        assert is_out_of_memory(RuntimeError(f"[enforce fail] DefaultCPUAllocator: {said}"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(RuntimeError("CUDA error: operation not permitted when stream is capturing"))


def test_preparation_refuses_graphs_that_replay_something_else(model):
    """As those recorded on another device do: they are empty and give what was there before."""

    def stale(function, examples):
        outputs = [output.clone() for output in function(*examples)]
        return lambda arguments: [output.clone() for output in outputs]

    static = StaticPass(model)
    assert pass_checks.recorded(static, Recorder(), None).graphs
    with pytest.raises(SpecvizError, match="more than rounding"):
        pass_checks.recorded(static, stale, None)
    with pytest.raises(SpecvizError, match="out of memory"):
        pass_checks.recorded(static, failing, None)


class Peeking(StaticPass):
    """Decides on the host by a value."""

    def forward(self, token_ids, *others):
        return super().forward(token_ids + int(token_ids.max() > 100), *others)


class Picking(StaticPass):
    """Has a result whose shape depends on values."""

    def forward(self, token_ids, positions, where, visible, *rows):
        token_ids[visible.any(-1)] += 0
        return super().forward(token_ids, positions, where, visible, *rows)


@pytest.mark.parametrize("kind", [Peeking, Picking])
def test_a_pass_that_needs_values_on_the_host_is_refused_before_it_is_recorded(model, kind):
    with pytest.raises(SpecvizError, match="on the host"):
        refuse_unrecordable(kind(model))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_ordinary_passes_need_nothing_on_the_host(architecture):
    refuse_unrecordable(StaticPass(tiny_model(architecture)))


# On which device and stream: torch's calls, written down.


class Cuda:
    """What `CudaRecorder` calls of torch, for two devices with a current stream each."""

    def __init__(self, monkeypatch, fail=False):
        self.current, self.streams, self.done, self.fail = 0, {0: "home 0", 1: "home 1"}, [], fail
        for name in ("device", "stream", "graph"):
            monkeypatch.setattr(torch.cuda, name, contextlib.contextmanager(getattr(self, name)))
        stream = types.SimpleNamespace(wait_stream=lambda other: None)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: types.SimpleNamespace(of=device.index, **vars(stream)))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (), {"replay": lambda graph: None}))
        ended = lambda device, pool: self.done.append(("ended", device, pool))  # noqa: E731
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", ended, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, pool: None, raising=False)
        self.cleared = []  # how many recordings had begun
        cleared = lambda: self.cleared.append(len(self.done))  # noqa: E731
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", cleared, raising=False)

    def device(self, device):
        before, self.current = self.current, device.index
        try:
            yield
        finally:
            self.current = before

    def stream(self, stream):
        before, self.streams[self.current] = self.streams[self.current], stream
        try:
            yield
        finally:
            self.streams[self.current] = before

    def graph(self, graph, pool, stream, capture_error_mode):
        self.done.append(("recorded", self.current, pool))
        assert self.streams[self.current] is stream and stream.of == self.current
        assert capture_error_mode == "thread_local" and not gc.isenabled()
        self.streams[self.current] = "left behind"
        yield
        if self.fail:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.streams[self.current] = stream


def doubled(tensor):
    return [2 * tensor]


def test_a_graph_is_recorded_on_the_models_device_and_leaves_the_threads_own_stream(monkeypatch):
    cuda = Cuda(monkeypatch)
    recorder = CudaRecorder(torch.device("cuda:1"))
    replays = [recorder(doubled, [torch.ones(2)]) for _ in range(2)]
    (first, device, pool), second = cuda.done
    assert (first, device) == ("recorded", 1) and second == cuda.done[0], "one pool for all"
    assert cuda.cleared == [0, 1, 1, 2], "workspaces of cuBLAS live in the pool, and only there"
    assert gc.isenabled()
    assert cuda.current == 0 and cuda.streams == {0: "home 0", 1: "home 1"}
    del replays
    recorder(doubled, [torch.ones(2)])
    assert cuda.done[-1][2] is not pool, "a pool that has lost all its graphs is not used again"


def test_a_recording_that_fails_at_its_end_leaves_nothing_open(monkeypatch):
    cuda = Cuda(monkeypatch, fail=True)
    recorder = CudaRecorder(torch.device("cuda:1"))
    with pytest.raises(RuntimeError, match="during capture"):
        recorder(doubled, [torch.ones(2)])
    assert [what for what, *_ in cuda.done] == ["recorded", "ended"] and cuda.done[1][1:] == cuda.done[0][1:]
    assert cuda.current == 0 and cuda.streams == {0: "home 0", 1: "home 1"}
