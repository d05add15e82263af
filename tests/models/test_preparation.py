"""Preparing a pair: its passes, the compiler left out, and the target in few bits."""

import dataclasses
import threading
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch
from refusal import refused
from tiny import generated, save_model, save_pair, tiny_model, tiny_pair, unprepared

import specviz
from specviz.models import pass_checks
from specviz.models.pair_passes import PairPasses
from specviz.models.preparation import prepare_passes
from specviz.models.quantised_targets import quantised_target
from specviz.passes import compiler, programs
from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.roles import DRAFT, TARGET, Role
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.settings import BITS, DraftParams, SamplingParams


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
    monkeypatch.setattr(programs, "Program", lambda static, path: static)
    monkeypatch.setattr(pass_checks.OpenedProgram, "of", lambda program: None)
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
    assert done.ready == list(pair.passes.fast) == [TARGET, DRAFT, Role.exit(1)] and done.reasons == {}
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
    assert kinds(pair) == set() and "never compiled here" in str(never.reasons[TARGET])
    assert never.reasons[TARGET].__traceback__ is None, "it would hold on to the models"
    prepare_passes(pair)
    again = replace(pair, passes=PairPasses())
    assert prepare_passes(again, compiling=False).reasons == {} and kinds(again) == {"compiled"}


def test_a_second_preparation_has_nothing_to_do_and_a_first_one_after_loading_only_what_is_missing(
    compiled_by_hand, pair, monkeypatch
):
    before = specviz.run(pair, PROMPT, sampling=GREEDY, max_new_tokens=24)
    assert not prepare_passes(pair, compiling=False).complete, "programs are missing"
    done = pair.prepare()
    assert done.complete and repr(done) == "prepared: target, draft, exit 1" and kinds(pair) == {"compiled"}
    monkeypatch.setattr(programs, "file", lambda *given: pytest.fail("it was prepared again"))
    assert pair.prepare() is done
    after = specviz.run(pair, PROMPT, sampling=GREEDY, max_new_tokens=24)
    assert (before.pair.passes, after.pair.passes) == ("plain", "compiled")
    assert before.token_ids == after.token_ids and before.rounds[0].drafted


def test_a_run_that_has_begun_keeps_its_passes(compiled_by_hand, pair):
    order = {"sampling": SamplingParams(temperature=0.7), "max_new_tokens": 24, "seed": 3}
    whole = specviz.run(pair, PROMPT, **order)
    rounds = specviz.speculate(pair, PROMPT, **order)
    first = next(rounds)
    pair.prepare()
    ids = [token for round_ in (first, *rounds) for token in round_.emitted]
    assert ids == list(whole.token_ids) and pair.passes.kind == "compiled"


@pytest.mark.parametrize("passes, kind", [("cached", "compiled"), ("auto", "compiled"), ("plain", "plain")])
def test_loading_takes_what_was_compiled_before_unless_told_otherwise(compiled_by_hand, tmp_path, passes, kind):
    folders = save_pair(tmp_path / "pair")
    fresh = specviz.load_pair(*folders, dtype="float32", device="cpu")
    reasons = fresh.passes.prepared.reasons
    assert fresh.passes.kind == "plain" and "prepare() in Python" in str(reasons[TARGET])
    assert "plain passes, draft: " in repr(fresh.passes.prepared)
    fresh.prepare()
    again = specviz.load_pair(*folders, dtype="float32", device="cpu", passes=passes)
    assert again.passes.kind == kind
    texts = [specviz.run(each, PROMPT, sampling=GREEDY, max_new_tokens=24).token_ids for each in (fresh, again)]
    assert texts[0] == texts[1]


def test_where_no_kernels_were_built_loading_builds_none(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(kernel_library, "_loaded", [])
    monkeypatch.setattr(kernel_library, "_build", lambda path: pytest.fail("it builds for seconds, and nobody asked"))
    pair = specviz.load_pair(*save_pair(tmp_path / "pair"), dtype="float32", device="cpu")
    assert pair.passes.kind == "plain" and not pair.passes.prepared.ready
    with refused("passes", "one of plain, cached, auto"):
        specviz.load_pair(*save_pair(tmp_path / "other"), passes="fast")


PROMPT, GREEDY = [5, 9, 33], SamplingParams(temperature=0)


def drafting(pair, bits: int | None = None, **order) -> specviz.Run:
    order = {"sampling": GREEDY, "max_new_tokens": 24} | order
    return specviz.run(pair, PROMPT, drafter="quantised_self", drafting=DraftParams(bits=bits), **order)


def test_it_is_made_once_and_anew_when_the_target_has_other_passes():
    pair = tiny_pair("llama")
    drafting(pair)
    (first,) = pair.passes.quantised.values()
    drafting(pair, 4)
    assert pair.passes.quantised == {4: first} and first.passes is None
    pair.passes.fast = {TARGET: unprepared(pair.target, few_rows=FewRows.ready())}
    drafting(pair, 4)
    assert pair.passes.quantised[4].passes.kind == "kernels"
    assert pair.passes.quantised[4] is quantised_target(pair, 4, pair.passes.fast[TARGET])


@pytest.mark.parametrize("bits, per_weight", [(8, 1), (4, 0.5 + 4 / 32)])
def test_it_says_what_it_takes(bits, per_weight):
    """The weights themselves, or codes and scales; what it shares with the target takes nothing."""
    pair = tiny_pair("llama", hidden_size=64, intermediate_size=128)
    weights = sum(one.weight.numel() for one in pair.target.modules() if type(one) is torch.nn.Linear)
    assert quantised_target(pair, bits, None).bytes == 4 * weights
    on_kernels = quantised_target(pair, bits, unprepared(pair.target, few_rows=FewRows.ready()))
    # Rows have scales, and narrow matrices are filled up to whole panels.
    assert per_weight * weights <= on_kernels.bytes < 1.4 * per_weight * weights


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "architecture, dtype, settings",
    [
        ("llama", torch.float16, {"tie_word_embeddings": True}),
        ("qwen2", torch.bfloat16, {}),
        ("gpt2", torch.float32, {}),
    ],
)
def test_a_target_alone_in_a_folder_drafts_for_itself(architecture, dtype, settings, bits, tmp_path):
    folder = save_model(tmp_path / "model", tiny_model(architecture, **settings).to(dtype))
    pair = dataclasses.replace(specviz.load_pair(folder, dtype="float32"), eos_ids=frozenset())
    for fast in ({}, {TARGET: unprepared(pair.target, few_rows=FewRows.ready())}):
        run = drafting(dataclasses.replace(pair, passes=PairPasses(fast)), bits)
        assert list(run.token_ids) == generated(pair, PROMPT, 24)
        assert run.settings["bits"] == bits and sum(one.accepted for one in run.rounds) > 0


def test_what_cannot_be_rounded_is_refused(monkeypatch):
    pair = tiny_pair("llama")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    with refused("drafter", "are free"):
        drafting(pair)
    monkeypatch.undo()
    pair.target.config.quantization_config = {"bits": 8}
    with pytest.raises(SpecvizError, match="quantised already"):
        drafting(pair)


def test_a_freed_pair_gives_it_up():
    pair = tiny_pair("llama")
    pair.passes.fast = {TARGET: unprepared(pair.target, few_rows=FewRows.ready())}
    drafting(pair)
    (made,) = pair.passes.quantised.values()
    pair.free()
    assert pair.passes.quantised == {} and not hasattr(made.passes, "static")


def test_passes_are_compared_as_they_run_without_gradients():
    static, seen = StaticPass(tiny_model("llama")), []

    class Watched:
        def __init__(self):
            self.static = static

        def run(self, *inputs):
            seen.append(torch.is_inference_mode_enabled())

    pass_checks._refuse_slower(Watched(), static)
    assert seen and all(seen)
