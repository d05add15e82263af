"""Preparing a pair's passes, the compiler left out: what is given when, what is halted, what is taken from before."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from tiny import tiny_pair

from specviz.models import pass_checks
from specviz.models.pair import PairPasses
from specviz.models.preparation import prepare_passes
from specviz.passes import compiler


@pytest.fixture
def pair():
    return tiny_pair("llama")


@pytest.fixture
def compiled_by_hand(monkeypatch, tmp_path) -> dict[str, threading.Event]:
    """Programs that are made at once and are the passes themselves, always right and always faster."""
    halts: dict[str, threading.Event] = {}

    def compile_all(jobs, processes, halt):
        halts["halt"] = halt
        for job in jobs:
            job.path.touch()
            yield job, None

    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "compile_all", compile_all)
    monkeypatch.setattr(compiler, "Program", lambda static, path: static)
    monkeypatch.setattr(pass_checks, "drafting_in_one_call", lambda static, program: None)
    monkeypatch.setattr(pass_checks, "_refuse_slower", lambda passes, slower: None)
    return halts


def kinds(pair) -> set[str]:
    return {passes.kind for passes in pair.passes.fast.values()}


def test_target_and_draft_model_are_given_at_one_moment_and_timed_as_runs_take_them(compiled_by_hand, pair):
    seen, turns = [], []

    def turn(work):
        turns.append(work)
        return work()

    def progress(fraction, step):
        seen.append((fraction, str(step), [passes.kind for passes in pair.passes.fast.values()]))

    done = prepare_passes(pair, progress, turn=turn)
    assert done.ready == list(pair.passes.fast) == ["target", "draft", "exit 1"] and done.reasons == {}
    given = {step: found for _, step, found in seen if " of " in step}
    assert given == {f"{n} of 3 compiled": ["kernels"] * 3 for n in range(3)} | {
        "3 of 3 compiled": ["compiled", "compiled", "kernels"]
    }
    assert all(0 <= fraction <= 1 for fraction, _, _ in seen) and turns
    assert sorted(pair.passes.seconds_by_width) == [1, 2, 5, 9]


def test_what_was_halted_gives_nothing_more(compiled_by_hand, pair):
    halt = threading.Event()
    done = prepare_passes(pair, lambda fraction, step: "2 of" in step and halt.set(), halt=halt)
    assert compiled_by_hand["halt"] is halt
    assert kinds(pair) == {"kernels"} and done.reasons == {}


def test_without_compiling_only_what_was_compiled_before_is_taken(compiled_by_hand, pair):
    never = prepare_passes(pair, compiling=False)
    assert kinds(pair) == set() and "never compiled here" in str(never.reasons["target"])
    assert never.reasons["target"].__traceback__ is None, "it would hold on to the models"
    prepare_passes(pair)
    again = replace(pair, passes=PairPasses())
    assert prepare_passes(again, compiling=False).reasons == {} and kinds(again) == {"compiled"}
