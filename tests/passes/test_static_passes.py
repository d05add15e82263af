"""Fast passes are the same passes: over static buffers, as graphs, and compiled."""

import itertools
import os
import pathlib
import pickle
from dataclasses import replace

import pytest
import torch
from fast_passes import MAKERS, graphed_passes, kernel_passes, with_passes
from tiny import assert_same_rows, generated, tiny_model, tiny_pair, unprepared, with_heads

import specviz
from specviz.bench.forced import measure_forced
from specviz.decoding import engine
from specviz.decoding.request import prepare
from specviz.drafters import DRAFTERS, stepwise
from specviz.models import pass_checks, placement, preparation
from specviz.models.pair import ModelPair
from specviz.parts.head_passes import StaticHead
from specviz.passes import compiler, programs
from specviz.passes.devices import Stopwatch
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.chains import drafting_in_one_call
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.made_drafts import Choice
from specviz.passes.readers import new_cached_model
from specviz.passes.roles import DRAFT, TARGET, Role
from specviz.passes.static_passes import ROOM_STEP, StaticPass, few_numbers
from specviz.records.errors import SpecvizError
from specviz.records.runs import Run
from specviz.records.settings import BITS, DraftParams, RunSettings, SamplingParams
from specviz.rules.sampling import Warper, draw

CPU = torch.device("cpu")
#: Nearly a block of buffers.
PROMPT = [5, 9, 33, 7, 7, 20, 11, 3] * 6
GREEDY, SAMPLED = SamplingParams(temperature=0), SamplingParams(temperature=1, top_p=0.9)
#: Enough for the buffers to grow once.
NEW_TOKENS = 20


def tokens(pair: ModelPair, drafter: str | None, sampling: SamplingParams, branches: int | None = None) -> list[int]:
    drafting = DraftParams(branches=branches)
    run = specviz.run(
        pair, PROMPT, drafter=drafter, sampling=sampling, max_new_tokens=NEW_TOKENS, seed=5, drafting=drafting
    )
    assert run.pair.passes == (pair.passes.fast[TARGET].kind if pair.passes.fast else "plain")
    return list(run.token_ids)


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


def drafted_ids(run: Run) -> list[list[int]]:
    return [[token.id for token in each.drafted] for each in run.rounds]


# Compiled for real, once for all tests below: this is what takes time.


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> ModelPair:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECVIZ_CACHE", str(tmp_path_factory.mktemp("programs")))
        # A single layer, because each further one is compiled anew.
        pair = with_heads(tiny_pair("llama", layers=1))
        # An EAGLE head in another size, and passes that greedy equality and the check of a head know already.
        del pair.parts["mtp"], pair.parts["parallel"]
        done = preparation.prepare_passes(pair)
        # What is compiled but no faster on the machine at hand would be refused: speed is for the benchmark to say.
        assert set(done.reasons) <= {Role("eagle"), Role("parallel"), DRAFT}, done.reasons
        yield pair


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("drafter", ["draft_model", "medusa", "eagle"])
def test_compiled_passes_give_what_transformers_generates(compiled, drafter, branches):
    assert tokens(compiled, drafter, GREEDY, branches) == generated(compiled, PROMPT, NEW_TOKENS)


@pytest.mark.parametrize("bits", BITS)
def test_a_target_in_few_bits_runs_the_targets_own_program(compiled, monkeypatch, bits):
    monkeypatch.setattr(pass_checks, "_refuse_slower", lambda passes, slower: None)
    order = {"drafter": "quantised_self", "drafting": DraftParams(bits=bits), "max_new_tokens": NEW_TOKENS}
    run = specviz.run(compiled, PROMPT, sampling=GREEDY, **order)
    assert list(run.token_ids) == generated(compiled, PROMPT, NEW_TOKENS)
    passes = compiled.passes.quantised[bits].passes
    assert passes.kind == "compiled" and passes.rows_are_alike and passes.draft
    assert passes.run.path == compiled.passes.fast[TARGET].run.path
    # And drafts what the same weights draft operation by operation.
    by_operations = with_passes(compiled, kernel_passes(compiled))
    assert drafted_ids(run) == drafted_ids(specviz.run(by_operations, PROMPT, sampling=GREEDY, **order))


def test_what_was_compiled_once_is_loaded(compiled, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "Worker", refuse)
    again = with_passes(compiled, {})
    done = preparation.prepare_passes(again)
    assert TARGET in done.ready and again.passes.fast[TARGET].kind == "compiled"
    assert tokens(again, "draft_model", GREEDY) == tokens(compiled, "draft_model", GREEDY)


def test_other_weights_take_the_same_program_and_other_shapes_do_not(compiled):
    static = compiled.passes.fast[TARGET].static

    def file(**changes):
        model = tiny_model("llama", **{"layers": 1} | changes)
        return programs.file(StaticPass, StaticPass(model, static.feature_layers, static.few_rows).described())

    files = [file(seed=4), file(layers=2), file(rms_norm_eps=1e-3)]
    assert files[0] == programs.file(StaticPass, static.described())
    assert len(set(files)) == len(files)


def test_a_program_reads_the_very_weights_of_its_model(compiled):
    passes = compiled.passes.fast[TARGET]
    given = [run(*passes.static.examples(3))[0] for run in (passes.run, passes.static)]
    torch.testing.assert_close(*given)
    norm = passes.static.model.model.norm.weight
    with torch.no_grad():
        norm.mul_(2)
        doubled = passes.run(*passes.static.examples(3))[0]
        norm.div_(2)
    torch.testing.assert_close(doubled, 2 * given[0])


def test_a_program_of_another_kind_of_pass_is_refused(compiled):
    static = compiled.passes.fast[TARGET].static
    with pytest.raises(SpecvizError, match=r"needs .*panels"):
        programs.Program(static.plain(), programs.file(StaticPass, static.described()))


def test_a_tokens_results_are_the_same_whatever_else_is_in_its_compiled_pass(compiled):
    assert {role: passes.rows_are_alike for role, passes in compiled.passes.fast.items()} == dict.fromkeys(
        compiled.passes.fast, True
    )


@pytest.mark.wide
def test_a_program_rounds_what_the_model_rounds(tmp_path):
    """Gemma's embeddings, in half precision twice: as they are stored, and once they are scaled."""
    model = tiny_model("gemma3", layers=1).bfloat16()
    static = StaticPass(model, (), FewRows.ready().fitting(model))
    job = compiler.ProgramJob(TARGET, static, tmp_path / "program.pt2")
    with compiler.Worker(0) as worker:  # compiling in this process leaves torch's options changed
        assert worker.make(job) is None
    pass_checks.check(FastPasses(static, programs.Program(static, job.path), "compiled"))


# Drafts in one call.


def one_call(pair: ModelPair, role: str = "draft") -> FastPasses:
    """A drafter's compiled passes, which draft in one call, faster here than others or not."""
    if role == "draft":
        static = StaticPass(pair.draft, (), FewRows.ready().fitting(pair.draft))
    else:
        static = StaticHead(pair.parts[role], pair.passes.fast[TARGET].static)
    passes = FastPasses(static, programs.Program(static, programs.file(type(static), static.described())), "compiled")
    passes.draft = drafting_in_one_call(static, passes.run, None if role == "draft" else static.fusion)
    return passes


@pytest.mark.parametrize("temperature", [0, 0.6, 1])
@torch.inference_mode()
def test_a_chain_in_one_call_is_that_of_single_steps(compiled, temperature):
    warper = Warper(SamplingParams(temperature=temperature))
    uniforms = torch.rand(8, generator=torch.Generator().manual_seed(1)).double()
    at_once, step_by_step = (new_cached_model(compiled.draft, Stopwatch(CPU), one_call(compiled)) for _ in range(2))
    for text in (PROMPT, [*PROMPT, *range(1, 20)]):  # the buffers grow within a chain, then several tokens are unread
        unread = at_once.unread(text)
        chosen, _, logits, probs = at_once.draft(unread, 8, Choice(1, temperature), uniforms)
        for depth, u in enumerate(uniforms):
            row = step_by_step.forward(chosen[depth - 1 : depth] if depth else unread, rows_wanted=1)
            assert torch.equal(logits[depth : depth + 1], row)
            if temperature:
                assert draw(probs[depth], u) == chosen[depth]
                torch.testing.assert_close(probs[depth : depth + 1], warper.probabilities(row), atol=1e-6, rtol=1e-5)
            else:
                assert probs is None and chosen[depth] == row.argmax()
        assert at_once.length == step_by_step.length == len(text) + 7
        for given, expected in zip(at_once.kv(), step_by_step.kv(), strict=True):
            assert torch.equal(given, expected)
        at_once.rewind(len(text) - 3)
        step_by_step.rewind(len(text) - 3)


HOT = SamplingParams(temperature=0.8)


@pytest.mark.parametrize(
    "drafter, sampling, options, calls",
    [
        ("draft_model", GREEDY, {}, True),
        ("draft_model", HOT, {}, True),
        ("draft_model", SAMPLED, {}, False),
        ("draft_model", GREEDY, {"drafting": DraftParams(confidence=0.1)}, False),
        ("draft_model", GREEDY, {"drafting": DraftParams(branches=3)}, True),
        ("draft_model", HOT, {"drafting": DraftParams(branches=3)}, True),
        ("draft_model", HOT, {"drafting": DraftParams(branches=3), "rule": "multi_path"}, True),
        ("draft_model", HOT, {"drafting": DraftParams(branches=3), "rule": "typical"}, True),
        ("eagle", GREEDY, {"drafting": DraftParams(branches=3)}, True),
        ("eagle", HOT, {"drafting": DraftParams(branches=3)}, True),
    ],
)
def test_a_run_drafts_in_one_call_where_it_can_and_is_the_same(compiled, drafter, sampling, options, calls):
    role = "draft" if drafter == "draft_model" else drafter
    passes, drafted = one_call(compiled, role), []
    draft = passes.draft

    def counted(*arguments):
        drafted.append(arguments)
        return draft(*arguments)

    def run(draft) -> Run:
        passes.draft = draft
        pair = with_passes(compiled, compiled.passes.fast | {Role(role): passes})
        order = {"drafter": drafter, "sampling": sampling, "max_new_tokens": NEW_TOKENS, "seed": 5}
        return specviz.run(pair, PROMPT, **order | options)

    in_one_call, step_by_step = run(counted), run(None)
    assert bool(drafted) is calls
    assert_same_drafts(in_one_call, step_by_step)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_an_oracle_is_heard_where_drafts_are_made_in_one_call(compiled, alpha):
    pair = with_passes(compiled, compiled.passes.fast | {DRAFT: one_call(compiled)})
    *_, last = measure_forced(replace(pair, eos_ids=frozenset()), alpha, 3, tokens=NEW_TOKENS, repeats=1)
    assert last.figures.acceptance_rate == alpha


@pytest.mark.parametrize("sampling", [GREEDY, HOT])
@pytest.mark.parametrize("branches", [1, 3])
def test_rows_that_are_there_already_are_spread_in_one_call(sampling, branches, monkeypatch):
    pair = with_heads(tiny_pair("llama"))
    pair = with_passes(pair, kernel_passes(pair))
    order = {"drafter": "medusa", "drafting": DraftParams(branches=branches), "seed": 5, "max_new_tokens": NEW_TOKENS}
    spread, calls = stepwise.spread, []
    monkeypatch.setattr(stepwise, "spread", lambda *given: calls.append(given) or spread(*given))
    in_one_call = specviz.run(pair, PROMPT, sampling=sampling, **order)
    assert calls
    monkeypatch.setattr(stepwise.Stepwise, "choice", None)
    assert_same_drafts(in_one_call, specviz.run(pair, PROMPT, sampling=sampling, **order))


def assert_same_drafts(run: Run, due: Run) -> None:
    assert run.token_ids == due.token_ids
    for one, other in zip(run.rounds, due.rounds, strict=True):
        for name in ("id", "parent", "draft_u", "u", "outcome"):
            assert [getattr(each, name) for each in one.drafted] == [getattr(each, name) for each in other.drafted]
        for name in ("q", "q_raw", "p_left", "accept_prob"):
            own, expected = ([getattr(each, name) for each in made.drafted] for made in (one, other))
            assert own == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("temperature", [0, 0.8])
@torch.inference_mode()
def test_a_head_drafts_in_one_call_what_single_steps_draft(compiled, temperature):
    passes = one_call(compiled, "eagle")
    static = passes.static
    generator = torch.Generator().manual_seed(1)
    uniforms = torch.rand(8, generator=generator).double()
    at_once, step_by_step = (
        new_cached_model(static.original, Stopwatch(static.device), passes, (-1,)) for _ in range(2)
    )
    for text in (PROMPT, list(range(1, 20))):  # the buffers grow within a chain, then several tokens are unread
        unread = torch.tensor(text)
        states = torch.randn(len(text), static.fusion.layer.inputs, generator=generator).to(static.dtype)
        chosen, _, logits, probs = at_once.draft(unread, 8, Choice(1, temperature), uniforms, states)
        features = static.fuse(states)
        read = len(text) + step_by_step.length
        for depth, u in enumerate(uniforms):
            row = step_by_step.forward(unread, 1, inputs=features[-1:] if depth else features)
            features = step_by_step.features
            assert torch.equal(logits[depth : depth + 1], row)
            assert chosen[depth] == (draw(probs[depth], u) if temperature else row.argmax())
            unread = chosen[depth : depth + 1]
        assert at_once.length == step_by_step.length == read + 7
        for given, expected in zip(at_once.buffers.tensors, step_by_step.buffers.tensors, strict=True):
            assert torch.equal(given[:, :, : at_once.length], expected[:, :, : at_once.length])
        at_once.rewind(read)
        step_by_step.rewind(read)


def test_a_program_that_cannot_be_opened_again_drafts_step_by_step(compiled):
    passes = one_call(compiled)
    passes.run.weights = {}
    assert drafting_in_one_call(passes.static, passes.run) is None


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
