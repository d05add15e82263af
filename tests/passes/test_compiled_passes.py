"""Compiled passes are the same passes, and so are drafts and rounds that C++ makes of them."""

import gc
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fast_passes import GREEDY, NEW_TOKENS, PROMPT, SAMPLED, kernel_passes, tokens, with_passes
from matrix import drafting_with, pairwise
from refusal import refused
from tiny import InTurn, assert_same_rows, generated, tiny_model, tiny_pair, with_heads

import specviz
from specviz.bench.forced import measure_forced
from specviz.decoding import engine, rounds_ahead
from specviz.decoding.decoder import Decoder
from specviz.decoding.lossless import LAB_RULES, Sampler
from specviz.decoding.one_call import OneCallDecoder
from specviz.decoding.request import prepare
from specviz.drafters import stepwise
from specviz.models import pass_checks, preparation
from specviz.models.pair import ModelPair
from specviz.passes import compiler, programs
from specviz.passes.devices import Stopwatch
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels import rounds
from specviz.passes.kernels.chains import DraftsInOneCall
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.kernels.opened import OpenedProgram
from specviz.passes.made_drafts import Choice
from specviz.passes.readers import new_cached_model
from specviz.passes.roles import DRAFT, TARGET, Role
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.runs import Round, Run
from specviz.records.settings import BITS, DraftParams, RunSettings, SamplingParams
from specviz.rules.sampling import Warper, draw
from specviz.theory.draft_length import FixedDepth

CPU = torch.device("cpu")


# Compiled for real, once for all tests below: this is what takes time.


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> ModelPair:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECVIZ_CACHE", str(tmp_path_factory.mktemp("programs")))
        # A single layer, because each further one is compiled anew.
        pair = with_heads(tiny_pair("llama", layers=1))
        # An EAGLE head in another size.
        del pair.parts["mtp"]
        done = preparation.prepare_passes(pair)
        # What is compiled but no faster on the machine at hand would be refused: speed is for the benchmark to say.
        assert set(done.reasons) <= {Role("eagle"), Role("parallel"), DRAFT}, done.reasons
        yield pair


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("drafter", ["draft_model", "medusa", "eagle"])
def test_compiled_passes_give_what_transformers_generates(compiled, drafter, branches):
    assert tokens(compiled, drafter, GREEDY, branches) == generated(compiled, PROMPT, NEW_TOKENS)


def drafted_ids(run: Run) -> list[list[int]]:
    return [[token.id for token in each.drafted] for each in run.rounds]


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
    alike = {role.kind for role, passes in compiled.passes.fast.items() if passes.rows_are_alike}
    assert alike == {role.kind for role in compiled.passes.fast} - {"parallel"}, "a block is always read whole"


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
        static = pair.parts[role].statics()[Role(role)](pair.passes.fast[TARGET].static)
    passes = opened(static, programs.file(type(static), static.described()))
    if role in ("draft", "eagle"):
        passes.draft = DraftsInOneCall(static, passes.opened, None if role == "draft" else static.fusion).draft
    return passes


def opened(static: StaticPass, program: Path) -> FastPasses:
    passes = FastPasses(static, programs.Program(static, program), "compiled")
    passes.opened = OpenedProgram.of(passes.run)
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
def test_a_run_drafts_in_one_call_where_it_can_and_is_the_same(
    compiled, drafter, sampling, options, calls, monkeypatch
):
    role = "draft" if drafter == "draft_model" else drafter
    passes, drafted, levels = one_call(compiled, role), [], rounds.SelfReliant.levels

    def noting(draft):
        return lambda *arguments: drafted.append(arguments) or draft(*arguments)

    # Whole rounds, or drafts alone where the judge is not C++'s.
    monkeypatch.setattr(rounds.SelfReliant, "levels", noting(levels))

    def run(draft) -> Run:
        passes.draft = draft
        pair = with_passes(compiled, compiled.passes.fast | {Role(role): passes})
        order = {"drafter": drafter, "sampling": sampling, "max_new_tokens": NEW_TOKENS, "seed": 5}
        return specviz.run(pair, PROMPT, **order | options)

    in_one_call = run(noting(passes.draft))
    assert bool(drafted) is calls
    step_by_step = run(None)
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
        states = torch.randn(len(text), static.fusion.inputs, generator=generator).to(static.dtype)
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
    assert OpenedProgram.of(passes.run) is None


# Rounds in one call.


@pytest.fixture(scope="module")
def drafting(compiled) -> ModelPair:
    """The pair, whose draft model and parts draft by themselves."""
    return with_passes(
        compiled,
        {
            TARGET: compiled.passes.fast[TARGET],
            DRAFT: one_call(compiled),
            **{Role(name): one_call(compiled, name) for name in ("eagle", "medusa", "parallel")},
        },
    )


@pytest.fixture
def made(drafting, monkeypatch) -> Callable[..., tuple[list[Round], Decoder]]:
    """A run's rounds without their times, and the decoder in the end. Plain steps come between the drafts."""
    monkeypatch.setattr(engine, "depth_policy", lambda request: InTurn() if request.settings.drafter else FixedDepth(0))
    of, decoders = OneCallDecoder.of, []

    def run(in_calls: bool, drafter: str | None, **order) -> tuple[list[Round], Decoder]:
        def noted(decoder, request):
            decoders.append(of(decoder, request) if in_calls else decoder)
            return decoders[-1]

        monkeypatch.setattr(OneCallDecoder, "of", noted)
        run = specviz.run(drafting, PROMPT, drafter=drafter, max_new_tokens=NEW_TOKENS, seed=7, **order)
        return [replace(one, seconds=None, choice=None) for one in run.rounds], decoders.pop()

    return run


@pytest.fixture(scope="module")
def two_layers(compiled, tmp_path_factory) -> ModelPair:
    """A target whose text ends late, and its first layer: what is compiled for the draft model is compiled for that."""
    pair = replace(tiny_pair("llama", layers=2), eos_ids=frozenset())
    target, early = (kernel_passes(pair)[role].static for role in (TARGET, Role.exit(1)))
    path = tmp_path_factory.mktemp("programs") / "program.pt2"
    with compiler.Worker(0) as worker:
        assert worker.make(compiler.ProgramJob(TARGET, target, path)) is None
    exiting = opened(early, programs.file(StaticPass, early.described()))
    exiting.draft = DraftsInOneCall(early, exiting.opened).draft
    return with_passes(pair, {TARGET: opened(target, path), Role.exit(1): exiting})


DRAWING = ("draft_model", "eagle", "medusa", "parallel", "quantised_self")

#: Drafters of which nobody has to be asked.
ALONE = (*DRAWING, "prompt_lookup")


@pytest.mark.parametrize(
    "drafter, temperature, branches, rule",
    pairwise(
        drafter=[None, *ALONE, "suffix", "hybrid"],
        temperature=[0.0, 0.7, 1.0],
        branches=[1, 3],
        rule=["auto", "block"],
    ),
)
def test_rounds_in_one_call_are_those_that_python_makes(made, drafter, temperature, branches, rule):
    order = {"sampling": SamplingParams(temperature=temperature)}
    if drafter:
        order |= drafting_with(drafter, rule if branches == 1 else "auto", branches)
    expected, by_python = made(False, **{"drafter": drafter} | order)
    given, in_calls = made(True, **{"drafter": drafter} | order)
    assert type(by_python) is Decoder and type(in_calls) is OneCallDecoder
    assert given == expected
    assert drafter is None or {one.judged > 0 for one in given} == {False, True}
    assert (in_calls.alone is not None) == (drafter in ALONE)
    text = [*PROMPT, *itertools.chain.from_iterable(one.emitted for one in given)]
    for cached in (in_calls.target, *([in_calls.alone[1].reader] if drafter == "draft_model" else [])):
        assert cached.length < len(text)
        assert_same_rows(cached, text)


@pytest.mark.wide
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_a_call_copies_what_python_would(endless, tokens, monkeypatch):
    draws = random.Random(tokens)
    prompts = [[draws.randrange(1, 1 + tokens) for _ in range(draws.randrange(1, 24))] for _ in range(25)]
    order = {"drafter": "prompt_lookup", "sampling": HOT, "max_new_tokens": 24}

    def run_all() -> list[list[Round]]:
        depths = [1, 2, 3, 5, 8]
        pairs = zip(prompts, itertools.cycle(depths))
        return [untimed(specviz.run(endless, prompt, num_draft_tokens=depth, **order)) for prompt, depth in pairs]

    in_calls = run_all()
    monkeypatch.setattr(OneCallDecoder, "of", lambda decoder, request: decoder)
    assert run_all() == in_calls
    assert {len(one.drafted) for run in in_calls for one in run} == set(range(9))


@pytest.mark.wide
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_exit_drafts_in_the_call_in_the_targets_own_rows(two_layers, temperature, counts, monkeypatch):
    order = {"num_draft_tokens": 3, "sampling": SamplingParams(temperature=temperature), "max_new_tokens": LONG}
    in_calls = specviz.run(two_layers, PROMPT, drafter="early_exit", **order)
    assert max(counts) > 1 and sum(one.accepted for one in in_calls.rounds) > 0
    monkeypatch.setattr(OneCallDecoder, "of", lambda decoder, request: decoder)
    assert untimed(specviz.run(two_layers, PROMPT, drafter="early_exit", **order)) == untimed(in_calls)


@pytest.mark.parametrize("rule", ["mislabelled", "two_precisions"])
@pytest.mark.parametrize("drafter", DRAWING)
def test_a_wrong_way_to_draw_is_the_labs_on_compiled_passes_too(drafting, drafter, rule, monkeypatch):
    draws, drawn = LAB_RULES[rule].draws, []
    choose = draws.choose
    monkeypatch.setattr(draws, "choose", lambda self, row, u: drawn.append(row) or choose(self, row, u))
    settings = RunSettings(PROMPT, drafter, 3, HOT, NEW_TOKENS, drafting=DraftParams(branches=1))
    Sampler(prepare(drafting, settings), LAB_RULES[rule]).sample()
    assert drawn


@pytest.mark.parametrize("drafter", DRAWING)
def test_a_text_longer_than_a_pass_is_read_in_parts_before_it_is_drafted_after(made, drafter, monkeypatch):
    expected, _ = made(True, drafter=drafter)
    monkeypatch.setattr(rounds, "WIDEST", 16)
    given, _ = made(True, drafter=drafter)
    assert given == expected and sum(one.judged for one in given) > 5


@pytest.mark.parametrize("drafter, flawed", [(None, "target"), ("draft_model", "target"), ("draft_model", "draft")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_number_is_refused_in_one_call_too(drafting, drafter, flawed, temperature):
    role = TARGET if flawed == "target" else DRAFT
    norm = drafting.passes.fast[role].static.model.model.norm.weight
    kept = norm.detach().clone()
    with torch.no_grad():
        norm.fill_(torch.nan)
    try:
        with refused("dtype", "The drafter produced NaN" if flawed == "draft" else "NaN or infinite logits"):
            specviz.run(drafting, PROMPT, drafter=drafter, sampling=SamplingParams(temperature=temperature))
    finally:
        with torch.no_grad():
            norm.copy_(kept)


def test_a_round_for_which_there_is_no_memory_is_refused(drafting, monkeypatch):
    monkeypatch.setattr(rounds.RoundsInOneCall, "_reserve", lambda *arguments, **further: None)
    monkeypatch.setattr(stepwise.Stepwise, "choice", Choice(branches=1 << 40, temperature=0.0))
    with refused("max_new_tokens", "ran out of memory"):
        specviz.run(drafting, PROMPT, drafter="draft_model", sampling=GREEDY)


def test_what_a_round_leaves_stays_as_long_as_somebody_looks_at_it(drafting, monkeypatch):
    forgotten, forget = [], rounds.MadeRound.__del__
    monkeypatch.setattr(rounds.MadeRound, "__del__", lambda self: forgotten.append(forget(self)))
    settings = RunSettings(PROMPT, drafter="draft_model", num_draft_tokens=3, max_new_tokens=NEW_TOKENS)
    pending = list(engine.pending_rounds(prepare(drafting, settings)))
    rows, decision, _ = pending[0].verdict.details()
    held = [rows.logits, rows.probs, decision.next_probs, pending[0].verdict.draft.probs]
    before, count = [tensor.clone() for tensor in held], len(pending)
    del pending, rows, decision
    gc.collect()
    assert len(forgotten) == count - 1
    assert all(map(torch.equal, held, before))
    held.clear()
    gc.collect()
    assert len(forgotten) == count


@pytest.fixture
def counts(monkeypatch) -> list[int]:
    """How many rounds each call made."""
    make, counts = rounds.RoundsInOneCall.rounds, []

    def counted(*arguments):
        made = make(*arguments)
        counts.append(len(made))
        return made

    monkeypatch.setattr(rounds.RoundsInOneCall, "rounds", counted)
    return counts


LONG = 150  # tokens: the coins of 64 rounds are drawn at once


@pytest.fixture
def endless(drafting) -> ModelPair:
    return replace(drafting, eos_ids=frozenset())


def run_ahead(pair: ModelPair, drafter: str | None, **order) -> Run:
    order = {"sampling": HOT, "max_new_tokens": LONG, "seed": 3, "num_draft_tokens": 3} | order
    return specviz.run(pair, PROMPT, drafter=drafter, **order)


def untimed(run: Run) -> list[Round]:
    return [replace(one, seconds=None, choice=None) for one in run.rounds]


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("drafter", [None, *ALONE])
def test_a_call_makes_several_rounds_and_they_are_the_same(endless, drafter, branches, counts, monkeypatch):
    order = {"drafting": DraftParams(branches=branches)} if drafter else {}
    ahead = run_ahead(endless, drafter, **order)
    assert max(counts) == rounds_ahead.MOST and sum(counts) == len(ahead.rounds), "none is made for nothing"
    monkeypatch.setattr(rounds, "PATIENCE", 0.0)
    counts.clear()
    one_by_one = run_ahead(endless, drafter, **order)
    assert set(counts) == {1} and untimed(one_by_one) == untimed(ahead)
    monkeypatch.setattr(OneCallDecoder, "of", lambda decoder, request: decoder)
    assert untimed(run_ahead(endless, drafter, **order)) == untimed(ahead)


@pytest.mark.parametrize("drafter", [None, *ALONE])
def test_a_text_ends_where_it_should_in_the_midst_of_a_call(endless, drafter, counts):
    whole = run_ahead(endless, drafter)
    end = next(token for token in whole.token_ids[20:] if token not in whole.token_ids[:20])
    before = whole.token_ids.index(end)
    counts.clear()
    ended = run_ahead(replace(endless, eos_ids=frozenset([end])), drafter)
    assert ended.token_ids == whole.token_ids[: before + 1] and ended.rounds[-1].stop_reason == "eos"
    assert sum(counts) == len(ended.rounds) and max(counts) > 1
    # Where a text is to end C++ does not know: a round too many is dropped.
    counts.clear()
    stopped = run_ahead(endless, drafter, stop=(ended.rounds[-1].pieces[-1],))
    assert stopped.rounds[-1].stop_reason == "stop_string" and len(stopped.rounds) < sum(counts)
    assert untimed(stopped)[:-1] == untimed(whole)[: len(stopped.rounds) - 1]


@pytest.mark.parametrize("drafter", [None, *ALONE])
def test_each_round_has_its_own_time_and_all_together_have_the_calls(endless, drafter):
    settings = RunSettings(PROMPT, drafter, 3, HOT, LONG)
    pending = list(engine.pending_rounds(prepare(endless, settings)))
    assert {one.apart > 0 for one in pending} == {False, True}
    assert sum(one.apart for one in pending) == pytest.approx(0, abs=1e-9)
    for one in pending:
        assert one.seconds.total > one.seconds.draft + one.seconds.verify > 0
        assert one.seconds.total > -one.apart


@pytest.mark.parametrize("drafter", [None, *ALONE])
def test_rounds_before_the_one_that_failed_are_shown(endless, drafter, counts):
    whole = run_ahead(endless, drafter)
    token = next(token for token in whole.token_ids[20:] if token not in whole.token_ids[:20])
    embeddings = endless.passes.fast[TARGET].static.model.get_input_embeddings().weight
    kept, shown = embeddings[token].detach().clone(), []
    counts.clear()
    settings = RunSettings(PROMPT, drafter, 3, HOT, LONG, seed=3)
    try:
        with torch.no_grad():
            embeddings[token] = torch.nan
        with refused("dtype", "NaN"):
            for round_ in engine.rounds(prepare(endless, settings)):
                shown.append(replace(round_, seconds=None, choice=None))
    finally:
        with torch.no_grad():
            embeddings[token] = kept
    assert shown and shown == untimed(whole)[: len(shown)] and sum(counts) == len(shown)
