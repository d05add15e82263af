"""Sampled text follows the target's distribution with every drafter under every lossless rule, and what does not is
found out."""

import dataclasses
import itertools
import pathlib
from functools import partial

import pytest
import torch
from assistant_files import assistant_config, assistant_weights, module_config, module_weights, saved
from block_checkpoints import LAYOUTS, write_block
from chi_square import FEW, SHORT, p_value, plain_speakers
from matrix import EXACT, HOT, LOSSLESS, drafting_with
from published_heads import write_eagle, write_medusa, write_speculator
from tiny import save_model, tiny_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import specviz
from specviz.drafters import DRAFTERS
from specviz.drafters.choosers import Draws
from specviz.drafters.heads import Parallel
from specviz.models.pair import ModelPair
from specviz.models.trained_parts import load_parts
from specviz.models.vocabularies import Translation
from specviz.records.rules import RULES
from specviz.records.settings import AUTO, SamplingParams
from specviz.rules import rule_named
from specviz.rules.draft import Draft

HOT_AND_WARPED = SamplingParams(temperature=3.0, top_k=5, top_p=0.95, min_p=0.01)


def two_each() -> list[tuple[str, str, int]]:
    """Two rules for each drafter, the second ones in turn: all that a rule learns of a drafter is its probabilities."""
    fitting = [[case for case in EXACT if case[0] == drafter] for drafter in DRAFTERS]
    return [
        case
        for place, (first, *others) in enumerate(fitting)
        for case in (first, *(others[place % len(others)] for _ in others[:1]))
    ]


@pytest.mark.parametrize("drafter, rule, branches", two_each())
def test_sampled_text_follows_the_targets_distribution(drafter, rule, branches):
    sampling = HOT if rule == "block" else HOT_AND_WARPED
    # The more is enough to find out accepting with twice the probability.
    tokens = 1200 if (drafter, rule) == ("draft_model", "token") else 400
    assert p_value(drafting_with(drafter, rule, branches), sampling, tokens) > 0.001


#: Of each kind of published head, one layout; of DSpark's, one without memory and one with it.
HEADS = {
    "Medusa": ("medusa", partial(write_medusa, layout="vllm, frequent tokens")),
    "MLP speculator": ("medusa", partial(write_speculator, layout="tied")),
    "EAGLE": ("eagle", partial(write_eagle, layout="norms")),
    "DFlash": ("parallel", partial(write_block, layout=LAYOUTS["DFlash speculators"])),
    "DSpark": ("parallel", partial(write_block, layout=LAYOUTS["DSpark speculators"])),
    "Domino": ("parallel", partial(write_block, layout=LAYOUTS["Domino"])),
    "DFlash2": ("parallel", partial(write_block, layout=LAYOUTS["DFlash2"])),
    "DSpark, rnn": ("parallel", partial(write_block, layout=LAYOUTS["DSpark speculators, each its own place"])),
}


@pytest.mark.parametrize("kind, how", [*zip(HEADS, itertools.cycle(LOSSLESS))])
def test_it_does_with_published_heads(kind, how, tmp_path):
    assert p_value(drafting_with(HEADS[kind][0], *how), pair=speaking_with(kind, tmp_path)) > 0.001


def speaking_with(kind: str, folder: pathlib.Path) -> ModelPair:
    """The plain speakers with a published head, which is written to `folder`."""
    (drafter, write), pair = HEADS[kind], plain_speakers()
    write(folder, pair.target)
    parts, _ = load_parts(pair.target, folder / "none", {drafter: folder})
    return dataclasses.replace(pair, parts=parts)


@pytest.mark.parametrize("drafter, how", [*zip(itertools.cycle(["draft_model", "parallel"]), LOSSLESS)])
def test_it_does_where_drafts_end_early_or_before_a_token_that_is_foreseen_to_be_unlikely(drafter, how, tmp_path):
    pair = speaking_with("DSpark", tmp_path) if drafter == "parallel" else plain_speakers()
    order = drafting_with(drafter, *how, confidence=0.4)
    run = specviz.run(pair, SHORT, sampling=HOT, max_new_tokens=60, **order)
    assert len({len(one.drafted) for one in run.rounds}) > 2
    assert p_value(order, pair=pair) > 0.001


def test_dropping_a_draft_token_for_what_it_became_is_found_out(tmp_path, monkeypatch):
    """What is foreseen of the row after a token decides on the token itself, and not on that row's."""
    chain = Parallel._chain

    def cut_too_late(self, *rows_and_coins):
        draft = chain(self, *rows_and_coins)
        count = len(draft.parents) - (draft.confidence is not None)
        if count < 1:
            return Draft.copied((), draft.tokens.device)
        rest = {"tokens": draft.tokens[:count], "parents": draft.parents[:count], "probs": draft.probs[:count]}
        rest |= {"logits": draft.logits[:count], "draws": draft.draws[:count], "sources": draft.sources[:count]}
        return dataclasses.replace(draft, **rest)

    order, pair = drafting_with("parallel", "token", 1, confidence=0.2), speaking_with("DSpark", tmp_path)
    assert p_value(order, tokens=1600, pair=pair) > 0.001
    monkeypatch.setattr(Parallel, "_chain", cut_too_late)
    assert p_value(order, tokens=1600, pair=pair) < 1e-4


def test_it_does_with_a_target_in_four_bits_and_with_a_length_that_chooses_itself():
    assert p_value(drafting_with("quantised_self", "token", 1, bits=4)) > 0.001
    assert p_value(drafting_with("draft_model", "token", 1) | {"num_draft_tokens": AUTO}) > 0.001


@pytest.fixture
def with_part(request, tmp_path):
    """Plain speakers whose part lies in files, as it is published."""
    if request.param == "assistant":
        target, config = tiny_model("gemma4", vocab=FEW), assistant_config(vocab=FEW)
        part = saved(tmp_path / "part", config | {"centroid_intermediate_top_k": 2}, assistant_weights(config))
    else:
        target, config = tiny_model("llama", vocab=FEW), module_config(vocab=FEW)
        part = saved(tmp_path / "part", config, module_weights())
    with torch.no_grad():
        for name, weights in target.named_parameters():
            weights *= 0.2 if "o_proj" in name else 1.0
    pair = specviz.load_pair(save_model(tmp_path / "target", target), part, dtype="float32")
    return dataclasses.replace(pair, eos_ids=frozenset())


@pytest.mark.parametrize("with_part, rule", [("assistant", "token"), ("module", "block")], indirect=["with_part"])
def test_it_does_with_a_published_part(with_part, rule):
    assert p_value(drafting_with("mtp", rule, 1), HOT, 800, with_part) > 0.001


@pytest.mark.parametrize("name, branches", LOSSLESS)
def test_a_rule_that_accepts_everything_is_found_out(name, branches, monkeypatch):
    rule = rule_named(name)

    def accept_all(draft, rows, uniforms):
        """The rule with every coin at 0."""
        return rule.verify(draft, rows, dataclasses.replace(uniforms, accept=torch.zeros_like(uniforms.accept)))

    monkeypatch.setattr(f"specviz.rules.{RULES[name].place}", dataclasses.replace(rule, verify=accept_all))
    assert p_value(drafting_with("draft_model", name, branches)) < 1e-4


def strangers() -> ModelPair:
    """Whose tokenizers share six tokens, and have some each that the other lacks."""
    tokens = (["a", "b", "Ġ", "ab", "Ġa", "c", "bc", "Ã"], ["c", "▁", "ca", "b", "▁a", "a", "ab", "cc"])
    spaces = (pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())
    spaces = (spaces, (pre_tokenizers.Metaspace(), decoders.Metaspace()))
    tokenizers = []
    for own, (before, after) in zip(tokens, spaces):
        vocabulary = {name: number for number, name in enumerate(["<end>", *own])}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer, tokenizer.decoder = before, after
        tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
        tokenizers.append(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>"))
    translation = Translation(*tokenizers)
    assert len(translation.pairs) == 6
    target, draft = tiny_model("llama", vocab=9), tiny_model("llama", vocab=11, seed=4)
    return dataclasses.replace(ModelPair.of(target, draft, tokenizers[0], translation=translation), eos_ids=frozenset())


def test_it_does_with_a_draft_model_of_other_tokens():
    assert p_value(drafting_with("draft_model", "token", 1), HOT_AND_WARPED, 1200, strangers()) > 0.001


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_q_that_the_token_was_not_drawn_from_is_found_out(rule, monkeypatch):
    def choose(self, row, u):
        probs = self.warper.probabilities(row)
        return probs.argmax(-1), probs

    monkeypatch.setattr(Draws, "choose", choose)
    assert p_value(drafting_with("draft_model", rule, 1)) < 1e-4
