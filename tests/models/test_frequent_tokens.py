"""A draft model whose head knows the frequent tokens only: it proposes no others, and nothing else changes."""

import dataclasses
import itertools

import pytest
import torch
from refusal import refused
from tiny import (
    ARCHITECTURES,
    byte_tokenizer,
    greedy_run,
    save_model,
    save_pair,
    sentencepiece_tokenizer,
    tiny_model,
    tiny_pair,
)

import specviz
from specviz.models.loading import LEAST_FREQUENT, frequent_ids, keep_frequent, load_pair
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.roles import DRAFT
from specviz.passes.static_passes import StaticPass
from specviz.records.settings import SamplingParams

PROMPT = [5, 9, 33, 7, 7, 20, 11, 3] * 3
KEPT = 70


def narrowed(architecture: str = "llama", **settings) -> ModelPair:
    pair = tiny_pair(architecture, **settings)
    return dataclasses.replace(pair, draft_columns=keep_frequent(pair.draft, pair.tokenizer, KEPT))


def drafted_ids(run) -> set[int]:
    return {token.id for one in run.rounds for token in one.drafted}


@pytest.mark.parametrize("architecture, kernels", [*zip(ARCHITECTURES, itertools.cycle((False, True)))])
def test_greedy_texts_stay_the_targets_and_the_rest_is_never_proposed(architecture, kernels):
    pair = narrowed(architecture)
    if kernels:
        pair.passes = PairPasses({DRAFT: FastPasses.unprepared(StaticPass(pair.draft, (), FewRows.ready()))})
    known = set(frequent_ids(pair.tokenizer, KEPT, pair.vocab_size))
    run = greedy_run(pair, PROMPT, 40)
    assert drafted_ids(run) <= known and not set(run.token_ids) <= known
    assert any(one.accepted for one in run.rounds)


def test_what_is_proposed_is_the_drafts_softmax_over_the_tokens_it_kept():
    pair, whole = narrowed(), tiny_pair("llama")
    known = torch.tensor(frequent_ids(pair.tokenizer, KEPT, pair.vocab_size))
    sampling = SamplingParams(temperature=1)
    first = specviz.run(pair, PROMPT, max_new_tokens=8, sampling=sampling, seed=1).rounds[0]
    with torch.inference_mode():
        logits = whole.draft(torch.tensor([PROMPT])).logits[0, -1]
    left_out = torch.full_like(logits, -torch.inf).index_copy(0, known, logits[known])
    assert first.drafted[0].q == pytest.approx(left_out.softmax(-1)[first.drafted[0].id].item(), rel=1e-4)


def test_what_is_compiled_has_the_narrow_head():
    static = StaticPass(narrowed().draft, (), FewRows.ready())
    made, parts = static.__reduce__()
    again = made(*parts)
    assert again.described() == static.described()
    assert again(*again.examples(3))[0].shape == (3, KEPT)


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), sentencepiece_tokenizer()])
def test_the_end_and_single_characters_come_first_and_then_the_lowest_ids(tokenizer):
    ids = frequent_ids(tokenizer, 140, len(tokenizer))
    assert len(set(ids)) == len(ids) == min(140, len(tokenizer))
    assert ids[0] == tokenizer.eos_token_id
    kept = set(tokenizer.convert_ids_to_tokens(ids))
    assert {letter for letter in "abcxyz." if letter in tokenizer.get_vocab()} <= kept
    rest = [token for token in ids[1:] if len(tokenizer.convert_ids_to_tokens(token)) > 1]
    assert rest == sorted(rest)


def test_a_pair_is_loaded_with_it_and_says_so(tmp_path):
    target, draft = save_pair(tmp_path)
    pair = load_pair(target, draft, draft_vocabulary=KEPT, dtype="float32")
    assert pair.draft_name == f"draft (FR-Spec {KEPT})"
    assert pair.draft.get_output_embeddings().out_features == KEPT
    # A prompt may hold any token.
    greedy_run(pair, [127, 126, 5, 9])


@pytest.mark.parametrize("count", [LEAST_FREQUENT - 1, 128, 0, -3, True, "70", 70.5])
def test_a_number_out_of_range_is_named(tmp_path, count):
    target, draft = save_pair(tmp_path)
    with refused("draft_vocabulary", f"between {LEAST_FREQUENT} and 127 tokens"):
        load_pair(target, draft, draft_vocabulary=count, dtype="float32")


def test_it_takes_a_draft_model_of_the_targets_tokens(tmp_path):
    target, _ = save_pair(tmp_path)
    other = save_model(tmp_path / "other", tiny_model("llama", vocab=300), sentencepiece_tokenizer())
    for draft, reason in ((None, "Name a draft model"), (other, "tokenizer of its own")):
        with refused("draft_vocabulary", reason):
            load_pair(target, draft, draft_vocabulary=KEPT, dtype="float32")
