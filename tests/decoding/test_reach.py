"""The share of the target's probability that a smaller draft vocabulary reaches: shown, and a bound on acceptance."""

import dataclasses
import json

import pytest
import torch
from published_heads import frequent, write_medusa
from tiny import byte_tokenizer, save_pair, tiny_model, tiny_pair

import specviz
from specviz.decoding.engine import pending_rounds
from specviz.decoding.request import prepare
from specviz.models.loading import frequent_ids, keep_frequent
from specviz.models.pair import ModelPair, logit_width
from specviz.models.vocabularies import Translation
from specviz.records.metrics import tally
from specviz.records.runs import Run
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.rules.sampling import Warper
from specviz.views.run_messages import rounds_message
from specviz.views.terminal import summary

PROMPT = [5, 9, 33, 7, 7, 20, 11, 3] * 3
KEPT = 70
SAMPLINGS = [SamplingParams(temperature=0), SamplingParams(temperature=1), SamplingParams(temperature=2, top_k=40)]


@pytest.fixture(
    scope="module",
    params=["frequent tokens", "a wider target", "a wider draft", "another tokenizer", "published heads"],
)
def small(request, tmp_path_factory):
    """A pair, its drafter, and the target's tokens that this one knows."""
    wider = {"frequent tokens": None, "a wider target": 0, "a wider draft": 1}
    if request.param in wider:
        pair, drafter = tiny_pair("llama"), "draft_model"
        # Checkpoints of one tokenizer are padded to different widths.
        models = [
            tiny_model("llama", vocab=pair.vocab_size + 32, seed=place) if wider[request.param] == place else model
            for place, model in enumerate((pair.target, pair.draft))
        ]
        pair = ModelPair.of(*models, pair.tokenizer)
        ids = frequent_ids(pair.tokenizer, KEPT, min(map(logit_width, models)))
        pair = dataclasses.replace(pair, draft_columns=keep_frequent(pair.draft, pair.tokenizer, KEPT))
    elif request.param == "another tokenizer":
        syllables = tuple((consonant, vowel) for consonant in "bcdfghjklmnpqrstvwxyz" for vowel in "aeiou")
        target, other = byte_tokenizer(merges=syllables), byte_tokenizer()
        models = [tiny_model("llama", vocab=len(one), seed=seed) for seed, one in enumerate((target, other))]
        pair, drafter = ModelPair.of(*models, target, translation=Translation(target, other)), "draft_model"
        ids = list(range(1, len(other)))  # not the end token, nor the syllables
    else:
        folder, _ = save_pair(tmp_path_factory.mktemp("heads"))
        write_medusa(folder.parent / "part", tiny_pair("llama").target, "vllm, frequent tokens")
        pair, drafter = specviz.load_pair(folder, folder.parent / "part", dtype="float32"), "medusa"
        ids = frequent(pair.vocab_size).tolist()
    return dataclasses.replace(pair, eos_ids=frozenset()), drafter, sorted(ids)


@torch.inference_mode()
def by_hand(pair, ids, sampling, text):
    logits = pair.target(torch.tensor([text])).logits[0, -1:]
    return Warper(sampling).probabilities(logits)[0, ids].sum().item()


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_it_is_the_targets_probability_of_the_tokens_in_the_map(small, sampling, branches):
    pair, drafter, ids = small
    drafting = DraftParams(branches=branches)
    settings = {"sampling": sampling, "drafting": drafting, "max_new_tokens": 24, "num_draft_tokens": 3, "seed": 1}
    run = specviz.run(pair, PROMPT, drafter=drafter, **settings)
    text, seen = list(PROMPT), []
    for one in run.rounds:
        paths = [[]]
        for token in one.drafted:
            paths.append([*paths[token.parent + 1], token.id])
        judging = {token.parent + 1 for token in one.drafted}
        for row, candidates in enumerate(one.top):
            if row not in judging:
                assert candidates.reach is None, "nothing was judged there"
                continue
            assert candidates.reach == pytest.approx(by_hand(pair, ids, sampling, text + paths[row]), abs=1e-4)
        judged = {token.parent + 1 for token in one.drafted if token.outcome != "discarded"}
        seen += [one.top[row].reach for row in judged]
        text += one.emitted
    assert 0 < sum(seen) < len(seen), "some is out of reach"
    assert tally(run.rounds).reach == pytest.approx(sum(seen) / len(seen))
    assert f"covers {sum(seen) / len(seen):.1%}" in summary(tally(run.rounds), run.stop_reason, run.rule)
    assert Run.from_dict(json.loads(json.dumps(run.to_dict()))) == run
    told = json.loads(rounds_message("run", run.rounds, run.vocabulary))["rounds"][0]["top"][0]
    assert told["reach"] == pytest.approx(run.rounds[0].top[0].reach)


@pytest.mark.parametrize("branches", [1, 3])
def test_no_draft_token_is_kept_more_often_on_average(small, branches):
    pair, drafter, _ = small
    settings = RunSettings(PROMPT, drafter, 3, SAMPLINGS[1], 24, drafting=DraftParams(branches=branches))
    for one in pending_rounds(prepare(pair, settings)):
        rows, *_ = one.verdict.details()
        reach = [candidates.reach for candidates in one.record().top]
        for place, parent in enumerate(one.verdict.draft.parents):
            kept = torch.minimum(rows.probs[parent + 1], one.verdict.draft.probs[place]).sum().item()
            assert kept <= reach[parent + 1] + 1e-6


def test_a_drafter_of_the_whole_vocabulary_has_none():
    run = specviz.run(tiny_pair("llama"), PROMPT, max_new_tokens=12, sampling=SAMPLINGS[1])
    assert {row.reach for one in run.rounds for row in one.top} == {None} and tally(run.rounds).reach is None
    assert "reach" not in rounds_message("run", run.rounds, run.vocabulary)


def test_a_hybrid_says_it_of_what_its_model_drafts_and_not_of_copies():
    pair = tiny_pair("llama")
    ids = frequent_ids(pair.tokenizer, KEPT, min(logit_width(pair.target), logit_width(pair.draft)))
    pair = dataclasses.replace(pair, draft_columns=keep_frequent(pair.draft, pair.tokenizer, KEPT), eos_ids=frozenset())
    settings = {"num_draft_tokens": 3, "sampling": SAMPLINGS[1], "max_new_tokens": 24, "seed": 1}
    text, copied = list(PROMPT), []
    for one in specviz.speculate(pair, PROMPT, drafter="hybrid", **settings):
        if one.drafted:
            copied.append(one.drafted[0].source is not None)
            due = None if copied[-1] else pytest.approx(by_hand(pair, ids, SAMPLINGS[1], text), abs=1e-4)
            assert one.top[0].reach == due
        text += one.emitted
    assert set(copied) == {True, False}, "some drafts are copies"
