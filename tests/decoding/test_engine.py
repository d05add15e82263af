"""The engine's promises: greedy output is `generate`'s, caches are a fresh prefill's, records can be recomputed."""

import dataclasses
import weakref
from functools import lru_cache
from types import SimpleNamespace

import pytest
import torch
from fake_target import copying
from tiny import (
    assert_same_rows,
    byte_tokenizer,
    generated,
    sentencepiece_tokenizer,
    tiny_model,
    tiny_pair,
    with_heads,
)

import specviz
from specviz.decoding import decoder, engine, round_record
from specviz.decoding.continuation import Continuation
from specviz.decoding.judging import judged_as
from specviz.decoding.request import prepare
from specviz.decoding.round_record import Ledger, Unrecorded
from specviz.decoding.run_record import collect
from specviz.drafters.copying import PromptLookup
from specviz.models.pair import ModelPair
from specviz.passes.cached_model import CachedModel
from specviz.records.errors import SpecvizError
from specviz.records.runs import Seconds
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.rules import exact, sampling, transfer
from specviz.rules.draft import Draft, TargetRows, Uniforms, chain
from specviz.rules.exact import MATCH, residual
from specviz.rules.sampling import Warper

GREEDY = SamplingParams(temperature=0)
PROMPT = [5, 17, 33, 8, 5, 17, 33, 8, 60, 61]
ARCHITECTURES = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2", "gpt_neox"]
CPU = torch.device("cpu")
RUNS = (None, "draft_model", "prompt_lookup")


@lru_cache
def pair_of(architecture):
    return tiny_pair(architecture)


# Greedy equality


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("drafter", [None, "draft_model"])
def test_greedy_output_is_that_of_generate(architecture, drafter):
    pair = pair_of(architecture)
    expected = generated(pair, PROMPT, 33)
    for gamma in [1] if drafter is None else [1, 2, 5]:
        run = specviz.run(
            pair, PROMPT, drafter=drafter, num_draft_tokens=gamma, sampling=GREEDY, max_new_tokens=len(expected)
        )
        assert list(run.token_ids) == expected, f"γ = {gamma}"


@pytest.mark.parametrize("length", [1, 2, 33])
@pytest.mark.parametrize("gamma", [1, 2, 3, 5, 8])
def test_greedy_output_holds_for_every_length_and_gamma(length, gamma):
    pair = pair_of("llama")
    for prompt in (PROMPT, PROMPT[:1]):
        run = specviz.run(pair, prompt, num_draft_tokens=gamma, sampling=GREEDY, max_new_tokens=length)
        assert list(run.token_ids) == generated(pair, prompt, length)


@pytest.mark.parametrize("architecture", ["mistral", "gemma3"])
def test_greedy_output_holds_far_beyond_a_sliding_window(architecture):
    pair = pair_of(architecture)
    prompt = PROMPT * 4
    run = specviz.run(pair, prompt, num_draft_tokens=4, sampling=GREEDY, max_new_tokens=80)
    assert list(run.token_ids) == generated(pair, prompt, 80)[: len(run.token_ids)]
    assert 0 < sum(one.accepted for one in run.rounds) < sum(one.judged for one in run.rounds)


def test_greedy_output_of_the_embedded_pair_is_that_of_generate():
    pair = specviz.load_pair(dtype="float32")
    prompt = "Once upon a time there was a little girl who lived in a"
    expected = generated(pair, list(pair.encode(prompt).ids), 24)
    without = {"mtp", "parallel"} - pair.parts.keys()
    for drafter in (None, *(name for name in specviz.DRAFTERS if name not in without)):
        run = specviz.run(pair, prompt, drafter=drafter, sampling=GREEDY, max_new_tokens=24)
        assert list(run.token_ids) == expected, drafter
        assert run.text == pair.tokenizer.decode([*run.prompt.ids, *run.token_ids])[len(prompt) :]


# Where runs end


def with_end(pair, *end_ids):
    return dataclasses.replace(pair, eos_ids=frozenset(end_ids))


def test_an_end_token_inside_an_accepted_run_ends_the_text_there():
    base = pair_of("llama")
    pair = with_end(ModelPair.of(base.target, base.target, base.tokenizer, name="itself"), 10**9)
    free = specviz.run(pair, PROMPT, num_draft_tokens=4, sampling=GREEDY, max_new_tokens=20)
    # The draft is the target itself, so the first round accepts everything; end it at its second token.
    first = free.rounds[0]
    end = first.drafted[1].id
    assert end not in (first.drafted[0].id,) and first.accepted == 4
    run = specviz.run(with_end(pair, end), PROMPT, num_draft_tokens=4, sampling=GREEDY, max_new_tokens=20)
    assert run.stop_reason == "eos"
    assert list(run.token_ids) == [first.drafted[0].id, end]
    # Acceptance was decided before the cut, and the cut is recorded apart.
    assert run.rounds[0].accepted == 4 and run.rounds[0].dropped == 3


@pytest.mark.parametrize("drafter", [None, "draft_model", "prompt_lookup"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_more_tokens_than_asked_for(drafter, temperature):
    pair = with_end(pair_of("llama"), 10**9)
    for wanted in range(1, 12):
        run = specviz.run(
            pair,
            PROMPT,
            drafter=drafter,
            num_draft_tokens=4,
            max_new_tokens=wanted,
            sampling=SamplingParams(temperature=temperature),
        )
        assert len(run.token_ids) == wanted and run.stop_reason == "length"


def test_a_full_context_stops_the_run_and_says_so():
    pair = dataclasses.replace(with_end(pair_of("llama"), 10**9), context_length=len(PROMPT) + 7)
    for drafter in (None, "draft_model"):
        run = specviz.run(pair, PROMPT, drafter=drafter, max_new_tokens=100)
        assert run.stop_reason == "context" and len(run.token_ids) == 7


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
    if architecture != "roberta":  # whose positions `generate` counts from another number than the model does
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
    emitted, pieces = text.extend(SimpleNamespace(tokens=(b, end_of_line, c)))
    assert (emitted, pieces, text.stop_reason) == ([b, end_of_line], ["b", "\n"], "stop_string")


@pytest.mark.parametrize("flaw", [float("nan"), float("inf")])
@pytest.mark.parametrize("drafter", [None, "prompt_lookup"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_target_whose_logits_are_no_numbers_is_refused(flaw, drafter, temperature):
    target = tiny_model("llama")
    with torch.no_grad():
        target.lm_head.weight[5] = flaw
    pair = ModelPair.of(target, None, byte_tokenizer())
    with pytest.raises(SpecvizError, match="no numbers") as caught:
        specviz.run(pair, PROMPT, drafter=drafter, sampling=SamplingParams(temperature), max_new_tokens=8)
    assert caught.value.field == "dtype"


@pytest.fixture(scope="module")
def damaged():
    """A pair that can draft in every way, the last norm of its draft model, and its trained parts."""
    pair = with_heads(tiny_pair("llama"))
    return with_end(pair, 10**9), [pair.draft.model.norm, *pair.parts.values()]


@pytest.mark.parametrize("flaw", [float("nan"), float("inf")])
@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("drafter", ["draft_model", "hybrid", "medusa", "eagle", "mtp", "parallel"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_whose_logits_are_no_numbers_is_refused(damaged, flaw, branches, drafter, temperature):
    pair, parts = damaged
    kept = [{name: tensor.clone() for name, tensor in part.state_dict().items()} for part in parts]
    order = {"drafter": drafter, "num_draft_tokens": 2, "max_new_tokens": 8, "drafting": DraftParams(branches)}
    with torch.no_grad():
        for part in parts:
            for tensor in part.parameters():
                tensor.fill_(flaw)
    try:
        with pytest.raises(SpecvizError, match="The draft's logits are no numbers") as caught:
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


# Caches


@pytest.fixture
def caches(monkeypatch):
    """Every cache that is built from here on: the target's first, then the draft's."""
    built, build = [], CachedModel.__init__
    monkeypatch.setattr(CachedModel, "__init__", lambda self, *args: built.append(self) or build(self, *args))
    return built


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_caches_equal_a_fresh_prefill_after_every_round(architecture, temperature, caches):
    pair, ids = with_end(pair_of(architecture), 10**9), list(PROMPT)
    outcomes = set()
    for one in specviz.speculate(
        pair, PROMPT, num_draft_tokens=3, sampling=SamplingParams(temperature=temperature), max_new_tokens=40, seed=1
    ):
        ids += one.emitted
        outcomes.add(one.accepted)
        target, draft = caches[:2]
        assert target.length == len(ids) - 1 and draft.length <= len(ids) - 1
        assert_same_rows(target, ids)
        assert_same_rows(draft, ids)
    assert len(outcomes) > 1, "the test needs both rejections and full acceptances"


# Records


@lru_cache
def sampled_run():
    params = SamplingParams(temperature=0.9, top_k=60, top_p=0.95, min_p=0.01)
    return specviz.run(pair_of("llama"), PROMPT, num_draft_tokens=4, sampling=params, max_new_tokens=80, seed=3)


def test_every_decision_can_be_recomputed_from_its_record():
    outcomes = []
    for one in sampled_run().rounds:
        alive = True
        for token in one.drafted:
            if not alive:
                assert (token.outcome, token.u, token.accept_prob) == ("discarded", None, None)
                continue
            ratio = torch.tensor(token.p) / torch.tensor(token.q)
            assert token.accept_prob == pytest.approx(min(1.0, ratio.item()), abs=1e-6)
            alive = token.u < token.accept_prob
            assert token.outcome == ("accepted" if alive else "rejected")
        assert one.next.kind == ("bonus" if alive else "recovered")
        expected = [token.id for token in one.drafted if token.outcome == "accepted"] + [one.next.id]
        assert list(one.emitted) == expected[: len(one.emitted)]
        outcomes += [token.outcome for token in one.drafted]
    assert set(outcomes) == {"accepted", "rejected", "discarded"}


def test_a_recorded_draw_gives_the_recorded_token():
    """p, q and residual recomputed from the models alone; then each u points at the token that was recorded."""
    run, pair = sampled_run(), pair_of("llama")
    warp = Warper(run.sampling).probabilities
    ids = list(run.prompt.ids)
    with torch.inference_mode():
        for one in run.rounds[:-1]:
            path = [*ids, *(token.id for token in one.drafted)]
            p = warp(pair.target(torch.tensor([path])).logits[0, len(ids) - 1 :])
            q = warp(pair.draft(torch.tensor([path])).logits[0, len(ids) - 1 : -1])
            for index, token in enumerate(one.drafted):
                assert token.p == pytest.approx(p[index, token.id].item(), abs=1e-4)
                assert token.q == pytest.approx(q[index, token.id].item(), abs=1e-4)
                assert covers(q[index], token.id, token.draft_u)
                assert dict(one.top[index].p).get(token.id, 0.0) == pytest.approx(token.p, abs=1e-6)
            row = one.accepted
            distribution = residual(p[row], q[row]) if one.next.kind == "recovered" else p[row]
            assert one.next.prob == pytest.approx(distribution[one.next.id].item(), abs=1e-3)
            assert covers(distribution, one.next.id, one.next.u)
            ids += one.emitted


def covers(probs, token, u, slack=1e-4):
    """Whether u falls on the token's stretch of the cumulative distribution, up to rounding between two passes."""
    upto = probs.double().cumsum(-1)
    return upto[token] - probs[token] - slack <= u <= upto[token] + slack


def test_top_lists_are_the_likeliest_tokens_in_order():
    for one in sampled_run().rounds:
        assert len(one.top) == len(one.drafted) + 1
        for index, row in enumerate(one.top):
            for listed in (row.p, row.q, row.residual, row.p_raw, row.q_raw):
                assert list(listed) == sorted(listed, key=lambda pair: -pair[1])
                assert sum(value for _, value in listed) <= 1 + 1e-5
            assert bool(row.residual) == (one.next.kind == "recovered" and index == one.accepted)


def test_greedy_records_flip_no_coin():
    run = specviz.run(pair_of("llama"), PROMPT, sampling=GREEDY, max_new_tokens=30)
    for one in run.rounds:
        assert one.next.u is None and one.next.prob == 1.0
        for token in one.drafted:
            assert token.u is None and token.draft_u is None and token.q == 1.0
            if token.outcome != "discarded":
                assert token.accept_prob == token.p == float(token.outcome == "accepted")


def test_among_equal_logits_the_record_names_the_token_that_was_chosen():
    rows = TargetRows.of(torch.zeros(1, 4096), Warper(GREEDY))
    u = torch.zeros(1, dtype=torch.float64)
    nothing, uniforms = Draft.copied((), CPU), Uniforms(u, u, u[0])
    judged = judged_as(nothing, rows, uniforms, MATCH.decide(nothing, rows, uniforms))
    told = Unrecorded(judged, pair_of("llama").texts, MATCH, 0, judged.tokens, (), Seconds(0, 0, 0, 0, 0)).record()
    assert told.top[0].p == ((told.next.id, 1.0),) == ((0, 1.0),)


def test_only_a_drafter_leaves_settings():
    pair = pair_of("llama")
    settings = {name: specviz.run(pair, PROMPT, drafter=name, max_new_tokens=2).settings for name in RUNS}
    drafting = {"branches": 1, "confidence": 0.0}
    assert settings == {None: {}, "draft_model": drafting, "prompt_lookup": {"max_ngram": 4, "min_ngram": 1}}


def test_copied_drafts_are_point_masses():
    run = specviz.run(pair_of("llama"), PROMPT * 3, drafter="prompt_lookup", max_new_tokens=60, seed=2)
    drafted = [token for one in run.rounds for token in one.drafted]
    assert drafted and all(token.q == 1.0 and token.q_raw is None for token in drafted)
    assert all(token.accept_prob == token.p for token in drafted if token.outcome != "discarded")


def test_one_seed_gives_one_run_and_another_seed_another():
    pair = pair_of("llama")
    runs = [specviz.run(pair, PROMPT, max_new_tokens=40, seed=seed) for seed in (1, 1, 2)]
    timeless = [[dataclasses.replace(one, seconds=runs[0].rounds[0].seconds) for one in run.rounds] for run in runs]
    assert timeless[0] == timeless[1] != timeless[2]


def test_times_add_up():
    for one in sampled_run().rounds:
        seconds = one.seconds
        assert seconds.draft + seconds.verify + seconds.accept == pytest.approx(seconds.total)
        assert 0 < seconds.models < seconds.total
        assert (seconds.prefill > 0) == (one.index == 0)


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


@pytest.mark.parametrize("drafter", [None, "draft_model", "prompt_lookup", "lookahead"])
@pytest.mark.parametrize("most_bytes", [round_record.MOST_BYTES, 2_000])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_records_made_late_are_those_made_at_once(monkeypatch, drafter, most_bytes, temperature):
    monkeypatch.setattr(round_record, "MOST_BYTES", most_bytes)
    settings = RunSettings(
        tuple(PROMPT), drafter=drafter, sampling=SamplingParams(temperature), max_new_tokens=60, seed=3
    )
    request, ledger, waited = prepare(pair_of("llama"), settings), Ledger(), []
    for one in engine.unrecorded(request):
        ledger.add(one)
        waited.append(sum(each.bytes for each in ledger._waiting))
    assert max(waited) <= most_bytes and (most_bytes > 2_000 or 0 in waited)
    late, at_once = ledger.rounds(), list(engine.rounds(request))
    assert [dataclasses.replace(one, seconds=None) for one in late] == [
        dataclasses.replace(one, seconds=None) for one in at_once
    ]


def test_the_joined_pieces_are_the_text_and_the_decoded_tokens():
    pair = pair_of("llama")
    for seed in range(5):
        run = specviz.run(pair, PROMPT, max_new_tokens=60, seed=seed)
        assert "".join(piece for one in run.rounds for piece in one.pieces) == run.text
        whole = pair.tokenizer.decode([*PROMPT, *run.token_ids], skip_special_tokens=True)
        assert whole == pair.tokenizer.decode(PROMPT) + run.text


# The distribution of whole runs


def test_sampled_runs_follow_the_exact_distribution_of_the_first_two_tokens():
    from scipy import stats

    # Few tokens are likely, so that chi-square has mass in every cell.
    pair = dataclasses.replace(pair_of("llama"), eos_ids=frozenset())
    params = SamplingParams(temperature=1.0, top_k=3)
    warp = Warper(params).probabilities
    distribution = {}
    with torch.inference_mode():
        first = warp(pair.target(torch.tensor([PROMPT])).logits[0, -1:])[0]
        for one in first.nonzero().flatten().tolist():
            second = warp(pair.target(torch.tensor([[*PROMPT, one]])).logits[0, -1:])[0]
            for other in second.nonzero().flatten().tolist():
                distribution[one, other] = (first[one] * second[other]).item()
    samples = 300
    counts = dict.fromkeys(distribution, 0)
    for seed in range(samples):
        # One token more than is counted: within two, nobody would draft a second one.
        run = specviz.run(pair, PROMPT, num_draft_tokens=2, max_new_tokens=3, sampling=params, seed=seed)
        counts[run.token_ids[:2]] += 1
    scale = samples / sum(distribution.values())
    assert (
        stats.chisquare(
            [counts[key] for key in distribution], [distribution[key] * scale for key in distribution]
        ).pvalue
        > 0.001
    )


# Padded vocabularies


@pytest.mark.parametrize("target_width, draft_width", [(128, 160), (160, 128)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padded_vocabularies_of_one_tokenizer_work(target_width, draft_width, temperature):
    pair = ModelPair.of(
        tiny_model("qwen2", vocab=target_width), tiny_model("qwen2", vocab=draft_width), byte_tokenizer(), name="padded"
    )
    pair = with_end(pair, 10**9)
    run = specviz.run(pair, PROMPT, sampling=SamplingParams(temperature=temperature), max_new_tokens=40)
    assert len(run.token_ids) == 40 and all(0 <= token < target_width for token in run.token_ids)
    if temperature == 0:
        assert list(run.token_ids) == generated(pair, PROMPT, 40)


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


@pytest.mark.parametrize(
    "settings, field",
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens"),
        ({"num_draft_tokens": 10**6}, "num_draft_tokens"),
        ({"num_draft_tokens": 2.5}, "num_draft_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": True}, "max_new_tokens"),
        ({"drafter": "telepathy"}, "drafter"),
        ({"seed": -1}, "seed"),
        ({"stop": "end"}, "stop"),
    ],
)
def test_a_wrong_setting_is_refused_at_once_with_its_name(settings, field):
    with pytest.raises(SpecvizError) as caught:
        specviz.speculate(pair_of("llama"), PROMPT, **settings)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "settings, field",
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
    ],
)
def test_a_distribution_that_cannot_be_is_refused(settings, field):
    with pytest.raises(SpecvizError) as caught:
        SamplingParams(**settings)
    assert caught.value.field == field


def test_a_pair_without_a_draft_model_says_what_to_do():
    base = pair_of("llama")
    pair = ModelPair.of(base.target, None, base.tokenizer, name="alone")
    with pytest.raises(SpecvizError, match="prompt_lookup") as caught:
        specviz.run(pair, PROMPT)
    assert caught.value.field == "drafter"
    assert specviz.run(pair, PROMPT, drafter="prompt_lookup", max_new_tokens=5).token_ids


def forward_failing_when(condition, error):
    forward = CachedModel.forward

    def failing(self, *args, **attention):
        if condition():
            raise error
        return forward(self, *args, **attention)

    return failing


@pytest.mark.parametrize("drafter", [None, "draft_model"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        MemoryError(),
    ],
)
def test_running_out_of_memory_ends_the_run_in_a_sentence_and_gives_the_cache_back(drafter, error, monkeypatch):
    caches, done = [], []
    build = CachedModel.__init__

    def build_and_note(self, *args):
        build(self, *args)
        caches.append(weakref.ref(self))

    monkeypatch.setattr(CachedModel, "__init__", build_and_note)
    monkeypatch.setattr(CachedModel, "forward", forward_failing_when(lambda: len(done) == 2, error))
    with pytest.raises(SpecvizError) as caught:
        for one in specviz.speculate(with_end(pair_of("llama"), 10**9), PROMPT, drafter=drafter):
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


def test_chains_are_told_from_trees():
    assert Draft(torch.tensor([1, 2]), chain(2)).is_chain
    assert not Draft(torch.tensor([1, 2]), (-1, -1)).is_chain
