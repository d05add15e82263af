"""Fast passes are the same passes: over static buffers, as graphs, and compiled."""

import itertools
import os
import pathlib
import pickle

import pytest
import torch
from fast_passes import GREEDY, MAKERS, NEW_TOKENS, PROMPT, SAMPLED, graphed_passes, tokens, with_passes
from tiny import assert_same_rows, generated, tiny_model, tiny_pair, unprepared, with_heads

from specviz.decoding import engine
from specviz.decoding.request import prepare
from specviz.drafters import DRAFTERS
from specviz.models import pass_checks, placement, preparation
from specviz.models.pair import ModelPair
from specviz.passes import programs
from specviz.passes.devices import Stopwatch
from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.readers import new_cached_model
from specviz.passes.static_passes import ROOM_STEP, StaticPass, few_numbers
from specviz.records.settings import RunSettings

CPU = torch.device("cpu")


#: How passes are made for each drafter. On the kernels a target in few bits has its inputs rounded too.
KINDS = dict(zip([None, *DRAFTERS], itertools.cycle(["static", "kernels", "graphs"]))) | {"quantised_self": "static"}


@pytest.mark.parametrize("drafter, kind", KINDS.items())
def test_every_drafter_draws_the_same_over_static_buffers(drafter, kind):
    pair = with_heads(tiny_pair("llama"))
    assert tokens(with_passes(pair, MAKERS[kind](pair)), drafter, SAMPLED) == tokens(pair, drafter, SAMPLED)


@torch.inference_mode()
def test_a_prompt_longer_than_a_pass_is_read_in_parts(monkeypatch):
    monkeypatch.setattr("specviz.passes.readers.WIDEST", 16)
    model, ids = tiny_model("llama"), list(range(1, 60))
    whole = new_cached_model(model, Stopwatch(CPU))
    parts = new_cached_model(model, Stopwatch(CPU), unprepared(model, (1,)))
    whole.feature_layers = parts.feature_layers = (1,)
    for cached in (whole, parts):
        cached.prefill(ids)
    assert_same_rows(parts, ids)
    # Rounded as the largest are, about 60: sums of another width may be made in another order.
    torch.testing.assert_close(parts.features, whole.features, rtol=1e-4, atol=1e-4)
    # Rows of logits may come from several parts.
    rows = [
        new_cached_model(model, Stopwatch(CPU), passes).forward(torch.tensor(ids), 20)
        for passes in (None, unprepared(model))
    ]
    torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-4)


def test_two_runs_at_a_time_never_share_the_buffers_of_a_graph():
    pair = tiny_pair("llama")
    fast = with_passes(pair, graphed_passes(pair))

    def rounds(seed):
        request = prepare(fast, RunSettings(PROMPT, sampling=SAMPLED, max_new_tokens=40, seed=seed))
        return engine.rounds(request)

    alone = [[one.emitted for one in rounds(seed)] for seed in (1, 2)]
    together = [[], []]
    for pair_of_rounds in itertools.zip_longest(rounds(1), rounds(2)):
        for made, one in zip(together, pair_of_rounds):
            if one is not None:
                made.append(one.emitted)
    assert together == alone


@pytest.mark.parametrize("architecture", ["llama", "gemma", "gemma3", "gpt2", "cohere"])
@pytest.mark.parametrize("on_kernels", [False, True])
def test_what_a_compiler_writes_into_a_program_reaches_its_process(architecture, on_kernels):
    """Gemma's scale of embeddings is such a number, and lies elsewhere in the twin on the kernels."""
    static = StaticPass(tiny_model(architecture), (1,), FewRows.ready() if on_kernels else None)
    with torch.no_grad():
        for number, tensor in enumerate(few_numbers(static.model).values(), start=3):
            tensor.fill_(number)
    expected, given = few_numbers(static.model), few_numbers(pickle.loads(pickle.dumps(static)).model)
    assert expected.keys() == given.keys()
    assert all(torch.equal(given[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
@torch.no_grad()
def test_what_is_compiled_reads_any_number_of_tokens_in_any_room(architecture):
    """Traced with five, it must hold for one and for many: a number that is taken for granted shows here."""
    # One layer of each kind that the architecture has.
    layers = 2 if architecture in ("gemma2", "gemma3") else 1
    static = StaticPass(tiny_model(architecture, layers=layers), (1,), FewRows.ready())
    program = programs.exported(static).module()
    for count, room in itertools.product((1, 2, 17), (ROOM_STEP, 3 * ROOM_STEP)):
        kept = [run(*static.examples(count, room)) for run in (static, program)]
        for expected, given in zip(*kept, strict=True):
            torch.testing.assert_close(given, expected)


# What cannot be prepared stays plain, with a reason.


@pytest.fixture
def untouched(tmp_path, monkeypatch) -> ModelPair:
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "programs"))
    kernel_library.load()
    # Speed is for the benchmark to say.
    monkeypatch.setattr(pass_checks, "_refuse_slower", lambda passes, slower: None)
    return tiny_pair("llama")


def refused(pair: ModelPair, kind: str) -> set[str]:
    """Why no role of the pair has better passes than of this kind."""
    done = preparation.prepare_passes(pair)
    assert pair.passes.kind == kind
    assert tokens(pair, "draft_model", GREEDY) == generated(pair, PROMPT, NEW_TOKENS)
    return {error.message for error in done.reasons.values()}


def test_without_a_compiler_passes_stay_plain(untouched, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    (reason,) = refused(untouched, "kernels")
    assert "no C++ compiler (no-such-compiler)" in reason
    untouched.passes.fast = {}
    monkeypatch.setattr(kernel_library, "_loaded", [])
    (reason,) = refused(untouched, "plain")
    assert "no C++ compiler (no-such-compiler)" in reason


def test_without_memory_for_more_copies_passes_stay_plain(untouched, monkeypatch):
    # As much as a container leaves, whatever its host has.
    monkeypatch.setattr(placement, "memory_at_hand", lambda: 10**4)
    half = "more than half of the 0 MB of free memory"
    assert all(half in reason for reason in refused(untouched, "plain"))


def test_a_compilation_that_fails_says_its_last_word(untouched, monkeypatch, tmp_path):
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho first line >&2\necho the disk is full >&2\nexit 1\n")
    interpreter.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(interpreter))
    assert all(reason.endswith("failed: the disk is full") for reason in refused(untouched, "kernels"))


def test_old_programs_make_room_for_new_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    for age, name in enumerate(["new", "middle", "old"]):
        path = tmp_path / f"{name}.pt2"
        path.write_bytes(bytes(100))
        stamp = 1_000_000 - age
        os.utime(path, (stamp, stamp))
        path.with_suffix(".so").touch()  # its machine code, unpacked
    programs.forget_old(keep_bytes=250)
    assert sorted(path.name for path in pathlib.Path(tmp_path).iterdir()) == [
        *("middle.pt2", "middle.so", "new.pt2", "new.so")
    ]
