"""The engine: where runs end, what it refuses, and that how a record is made changes nothing in it."""

import dataclasses
import weakref
from functools import lru_cache

import pytest
import torch
from fake_target import copying
from fast_passes import MAKERS, with_passes
from matrix import pairwise
from refusal import refused
from tiny import byte_tokenizer, generated, sentencepiece_tokenizer, tiny_model, tiny_pair, with_heads

import specviz
from specviz.decoding import decoder, engine, record
from specviz.decoding.continuation import Continuation
from specviz.decoding.decoder import Judge
from specviz.decoding.record import Ledger, PendingRound, collect
from specviz.decoding.request import prepare
from specviz.drafters.copying import PromptLookup
from specviz.models.pair import ModelPair
from specviz.passes.cached_model import CachedModel
from specviz.records.errors import SpecvizError
from specviz.records.runs import Seconds
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.rules import exact, sampling, transfer
from specviz.rules.draft import Draft, Uniforms
from specviz.rules.exact import MATCH
from specviz.rules.sampling import Warper

GREEDY = SamplingParams(temperature=0)
PROMPT = [5, 17, 33, 8, 5, 17, 33, 8, 60, 61]
CPU = torch.device("cpu")


@lru_cache
def pair_of(architecture):
    return tiny_pair(architecture)


# Where runs end


def with_end(pair, *end_ids):
    return dataclasses.replace(pair, eos_ids=frozenset(end_ids))


#: Rotary factors that change after 48 tokens, as those of Phi-3 with 128k do after 4096.
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 6,
    "long_factor": [4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
    "original_max_position_embeddings": 48,
}

#: And those that change with every token beyond the trained positions.
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize(
    "architecture, settings",
    [
        ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 48, "pad_token_id": 0}),
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 48}),
        ("doge", {"keep_window_size": 48}),
        ("gpt2", {"n_positions": 48}),
        ("mpt", {"max_seq_len": 48}),
        ("roberta", {"max_position_embeddings": 49}),
    ],
)
def test_a_text_ends_where_its_model_reads_on_otherwise_or_not_at_all(architecture, settings):
    pair = with_end(tiny_pair(architecture, **settings), 10**9)
    assert pair.context_length == 48
    prompt = PROMPT + [7] * (34 - len(PROMPT))
    ways = [None, "draft_model", "prompt_lookup", "suffix"]
    ways += ["lookahead", "early_exit"] if architecture not in ("mpt", "roberta") else []
    runs = [
        specviz.run(pair, prompt, drafter=way, sampling=GREEDY, num_draft_tokens=6, max_new_tokens=40) for way in ways
    ]
    assert all(run.stop_reason == "context" and len(run.token_ids) == 14 for run in runs)
    assert len({tuple(run.token_ids) for run in runs}) == 1
    assert list(runs[0].token_ids) == generated(pair, prompt, 14)
    with pytest.raises(SpecvizError, match="too long") as caught:
        specviz.run(pair, [7] * 48)
    assert ("LongRoPE" in str(caught.value)) is (architecture == "phi3")
    assert ("how it is read" in str(caught.value)) is (architecture == "doge")


def test_a_stop_string_across_tokens_ends_the_run():
    pair = with_end(pair_of("llama"), 10**9)
    free = specviz.run(pair, PROMPT, sampling=GREEDY, max_new_tokens=20)
    stop = "".join(piece for one in free.rounds for piece in one.pieces)[4:7]
    run = specviz.run(pair, PROMPT, sampling=GREEDY, max_new_tokens=20, stop=[stop])
    assert run.stop_reason == "stop_string"
    assert run.text == free.text[: free.text.index(stop) + len(stop)]


def test_a_stop_string_of_single_bytes_ends_the_run_at_once():
    tokenizer = sentencepiece_tokenizer()
    pair = ModelPair.of(tiny_model("llama", vocab=320), None, tokenizer)
    b, end_of_line, c = tokenizer.convert_tokens_to_ids(["b", "<0x0A>", "c"])
    text = Continuation(prepare(pair, RunSettings("a", drafter=None, stop=("\n",))))
    emitted, pieces = text.extend((b, end_of_line, c))
    assert (emitted, pieces, text.stop_reason) == ([b, end_of_line], ["b", "\n"], "stop_string")


FLAWS = [float("nan"), float("inf")]


@pytest.mark.parametrize(
    "flaw, drafter, temperature", pairwise(flaw=FLAWS, drafter=[None, "prompt_lookup"], temperature=[0.0, 1.0])
)
def test_a_target_whose_logits_are_no_numbers_is_refused(flaw, drafter, temperature):
    target = tiny_model("llama")
    with torch.no_grad():
        target.lm_head.weight[5] = flaw
    pair = ModelPair.of(target, None, byte_tokenizer())
    with refused("dtype", "NaN or infinite logits"):
        specviz.run(pair, PROMPT, drafter=drafter, sampling=SamplingParams(temperature), max_new_tokens=8)


@pytest.fixture(scope="module")
def damaged():
    """A pair that can draft in every way, the last norm of its draft model, and its trained parts."""
    pair = with_heads(tiny_pair("llama"))
    return with_end(pair, 10**9), [pair.draft.model.norm, *pair.parts.values()]


@pytest.mark.parametrize(
    "flaw, branches, drafter, temperature",
    pairwise(
        flaw=FLAWS,
        branches=[1, 3],
        drafter=["draft_model", "hybrid", "medusa", "eagle", "mtp", "parallel"],
        temperature=[0.0, 1.0],
    ),
)
def test_a_draft_whose_logits_are_no_numbers_is_refused(damaged, flaw, branches, drafter, temperature):
    pair, parts = damaged
    kept = [{name: tensor.clone() for name, tensor in part.state_dict().items()} for part in parts]
    order = {"drafter": drafter, "num_draft_tokens": 2, "max_new_tokens": 8, "drafting": DraftParams(branches)}
    with torch.no_grad():
        for part in parts:
            for tensor in part.parameters():
                tensor.fill_(flaw)
    try:
        with pytest.raises(SpecvizError, match="The drafter produced NaN or infinite logits") as caught:
            specviz.run(pair, PROMPT, sampling=SamplingParams(temperature), **order)
    finally:
        for part, state in zip(parts, kept):
            part.load_state_dict(state)
    assert caught.value.field == "dtype"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_logits_lie_elsewhere_the_record_tells(monkeypatch, damaged, temperature):
    monkeypatch.setattr(decoder, "on_cpu", lambda tensor: False)
    test_a_target_whose_logits_are_no_numbers_is_refused(float("nan"), None, temperature)
    test_a_draft_whose_logits_are_no_numbers_is_refused(damaged, float("inf"), 1, "draft_model", temperature)


def test_closing_the_generator_ends_the_run_and_the_rounds_so_far_are_a_run():
    pair = with_end(pair_of("llama"), 10**9)
    request = prepare(pair, RunSettings(PROMPT, max_new_tokens=50))
    rounds = engine.rounds(request)
    done = [next(rounds), next(rounds)]
    rounds.close()
    run = collect(request, done)
    assert run.stop_reason == "stopped" and len(run.rounds) == 2


# Records


def test_among_equal_logits_the_record_names_the_token_that_was_chosen():
    u = torch.zeros(1, dtype=torch.float64)
    nothing, uniforms = Draft.copied((), CPU), Uniforms(u, u, u[0])
    verdict = Judge(MATCH, Warper(GREEDY)).verdict(nothing, torch.zeros(1, 4096), uniforms)
    told = PendingRound(verdict, pair_of("llama").texts, MATCH, 0, verdict.tokens, (), Seconds(0, 0, 0, 0, 0)).record()
    assert told.top[0].p == ((told.next.id, 1.0),) == ((0, 1.0),)


@pytest.mark.parametrize("drafter, branches", [("draft_model", 1), ("draft_model", 3), ("prompt_lookup", 1)])
@pytest.mark.parametrize("temperature, top_p", [(0.0, 1.0), (1.0, 1.0), (0.8, 0.9)])
def test_a_device_that_is_not_waited_for_makes_the_same_rounds(monkeypatch, drafter, branches, temperature, top_p):
    """What takes fewer steps where the host may look comes to the same, bit by bit, as what never looks."""

    def rounds():
        run = specviz.run(
            pair_of("llama"),
            PROMPT,
            drafter=drafter,
            drafting=DraftParams(branches=branches),
            sampling=SamplingParams(temperature=temperature, top_p=top_p),
            max_new_tokens=30,
            seed=4,
        )
        return [dataclasses.replace(one, seconds=None) for one in run.rounds]

    near = rounds()
    for module in (sampling, exact, transfer):
        monkeypatch.setattr(module, "on_cpu", lambda tensor: False)
    assert rounds() == near


@pytest.mark.parametrize(
    "drafter, most_bytes, temperature",
    pairwise(
        drafter=[None, "draft_model", "prompt_lookup", "lookahead"],
        most_bytes=[record.MOST_BYTES, 2_000],
        temperature=[0, 0.8],
    ),
)
def test_records_made_late_are_those_made_at_once(monkeypatch, drafter, most_bytes, temperature):
    monkeypatch.setattr(record, "MOST_BYTES", most_bytes)
    settings = RunSettings(
        tuple(PROMPT), drafter=drafter, sampling=SamplingParams(temperature), max_new_tokens=60, seed=3
    )
    request, ledger, waited = prepare(pair_of("llama"), settings), Ledger(), []
    for one in engine.pending_rounds(request):
        ledger.add(one)
        waited.append(sum(each.verdict.held_bytes for each in ledger._waiting))
    assert max(waited) <= most_bytes and (most_bytes > 2_000 or 0 in waited)
    late, at_once = ledger.rounds(), list(engine.rounds(request))
    assert [dataclasses.replace(one, seconds=None) for one in late] == [
        dataclasses.replace(one, seconds=None) for one in at_once
    ]


@pytest.mark.parametrize("kind, threads", [("kernels", 1), ("static", 2), ("plain", 2)])
def test_torch_takes_one_thread_in_a_round_on_kernels_and_all_of_them_between_rounds(monkeypatch, kind, threads):
    inside, between = [], []

    def noting(original):
        return lambda *given: (inside.append(torch.get_num_threads()), original(*given))[1]

    monkeypatch.setattr(PromptLookup, "propose", noting(PromptLookup.propose))
    monkeypatch.setattr(PendingRound, "record", noting(PendingRound.record))
    pair, before = pair_of("llama"), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        pair = with_passes(pair, MAKERS[kind](pair))
        for _ in specviz.speculate(pair, PROMPT, drafter="prompt_lookup", max_new_tokens=8, sampling=GREEDY):
            between.append(torch.get_num_threads())
        between.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert set(inside) == {threads} and set(between) == {2}


# Prompt lookup


@pytest.mark.parametrize(
    "text, budget, expected",
    [
        ([1, 2, 3, 4, 1, 2], 2, [3, 4]),
        ([1, 2, 3, 1, 2, 4, 1, 2], 1, [4]),  # of two places the more recent
        ([7, 1, 2, 5, 9, 1, 2, 6, 7, 1, 2], 1, [5]),  # a longer match wins over a more recent one
        ([8, 8, 8], 4, [8]),  # what there is
        ([1, 2, 3], 4, []),
    ],
)
def test_prompt_lookup_copies_what_followed_the_longest_match(text, budget, expected):
    lookup = copying(PromptLookup)
    lookup.prefill(text[:-1])
    draft = lookup.propose(text, budget, torch.rand(budget))
    assert draft.tokens.tolist()[: len(expected)] == expected and len(draft.parents) <= budget
    assert bool(draft.parents) == bool(expected)
    assert draft.is_chain and draft.probs is None


# Bad input


def test_none_asks_for_the_default_and_for_plain_decoding_only_as_the_drafter():
    usual, unsaid = (
        specviz.run(pair_of("llama"), PROMPT, max_new_tokens=8, seed=1, **settings)
        for settings in ({}, {"sampling": None, "drafting": None, "num_draft_tokens": None})
    )
    assert usual.drafter == unsaid.drafter == "draft_model"
    assert (usual.token_ids, usual.sampling, usual.settings) == (unsaid.token_ids, unsaid.sampling, unsaid.settings)


@pytest.mark.parametrize("pair", [None, "Once upon", 3])
@pytest.mark.parametrize("door", [specviz.run, specviz.speculate])
def test_what_is_no_pair_is_refused_before_the_first_round(door, pair):
    with refused("pair", r"^pair must be specviz\.load_pair\(…\), not "):
        door(pair, PROMPT)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("temperature", r"sampling=specviz\.SamplingParams\(temperature=…\)"),
        ("branches", r"drafting=specviz\.DraftParams\(branches=…\)"),
        ("gamma", r"no setting 'gamma'; choose from drafter, num_draft_tokens, sampling, "),
        ("prompts", r"no setting 'prompts'"),
    ],
)
def test_a_setting_that_there_is_not_is_refused_by_its_name_and_one_within_another_is_shown_its_place(name, said):
    with refused(name, said):
        specviz.speculate(pair_of("llama"), PROMPT, **{name: 1})


def test_a_pair_without_a_draft_model_says_what_to_do():
    base = pair_of("llama")
    pair = ModelPair.of(base.target, None, base.tokenizer, name="alone")
    with refused("drafter", "prompt_lookup"):
        specviz.run(pair, PROMPT)
    assert specviz.run(pair, PROMPT, drafter="prompt_lookup", max_new_tokens=5).token_ids


def forward_failing_when(condition, error):
    forward = CachedModel.forward

    def failing(self, *args, **attention):
        if condition():
            raise error
        return forward(self, *args, **attention)

    return failing


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried ..."), MemoryError()])
def test_running_out_of_memory_ends_the_run_in_a_sentence_and_gives_the_cache_back(error, monkeypatch):
    caches, done = [], []
    build = CachedModel.__init__

    def build_and_note(self, *args):
        build(self, *args)
        caches.append(weakref.ref(self))

    monkeypatch.setattr(CachedModel, "__init__", build_and_note)
    monkeypatch.setattr(CachedModel, "forward", forward_failing_when(lambda: len(done) == 2, error))
    with pytest.raises(SpecvizError) as caught:
        for one in specviz.speculate(with_end(pair_of("llama"), 10**9), PROMPT):
            done.append(one)
    tokens = len(PROMPT) + sum(len(one.emitted) for one in done)
    assert len(done) == 2 and caught.value.field == "max_new_tokens"
    assert f"ran out of memory at {tokens} tokens: ask for fewer" in str(caught.value)
    # The error is still held here, and its traceback with it: the caches must be gone nevertheless.
    assert caches and all(reference() is None for reference in caches)


def test_other_errors_in_a_round_stay_what_they_are(monkeypatch):
    done = []
    error = RuntimeError("tensor a must match tensor b")
    monkeypatch.setattr(CachedModel, "forward", forward_failing_when(lambda: len(done) == 2, error))
    with pytest.raises(RuntimeError) as caught:
        for one in specviz.speculate(with_end(pair_of("llama"), 10**9), PROMPT):
            done.append(one)
    assert caught.value is error
