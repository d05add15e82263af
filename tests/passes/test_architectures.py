"""Architectures that transformers knows, old and new: fast passes give the model's own logits, or are refused."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from matrix import PROMPT
from refusal import refused
from subjects import CHAINS_ONLY, NO_EXIT, further_pair
from tiny import MORE_ARCHITECTURES, greedy_run, save_pair, tiny_model, tiny_pair, unprepared, with_heads

import specviz
from specviz.models import pass_checks
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses
from specviz.parts.dflash import StaticBlock
from specviz.parts.head_passes import StaticHead
from specviz.passes import reading_checks
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.passes.fast_passes import FastPasses
from specviz.passes.reading_checks import check_exit, reads_trees, why_no_trees
from specviz.passes.roles import DRAFT, TARGET, Role
from specviz.passes.static_passes import StaticPass, additive_mask
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams

#: What has no fast passes.
NOT_STATIC = {"bloom", "deepseek_v32", "falcon_alibi", "gpt_neo", "llama4", "roberta"}


@pytest.mark.parametrize(
    "settings",
    [
        {"attn_temperature_tuning": False, "layer_types": ["chunked_attention"] * 2},
        {"attn_temperature_tuning": True, "layer_types": ["full_attention"] * 2},
    ],
)
def test_what_only_differs_in_long_texts_is_refused_before_any_is_read(settings):
    model = tiny_model("llama4", attention_chunk_size=8192, floor_scale=8192, **settings)
    with refused("passes", "counts the positions in its cache"):
        unprepared(model)


@pytest.mark.parametrize("architecture", MORE_ARCHITECTURES)
def test_fast_passes_give_the_models_own_logits_or_are_refused(architecture):
    pair = further_pair(architecture)
    if architecture in NOT_STATIC:
        with refused("passes"):
            pass_checks.check(unprepared(pair.target))
        return
    passes = {TARGET: unprepared(pair.target, (1,)), DRAFT: unprepared(pair.draft)}
    pass_checks.check(passes[TARGET])
    if architecture not in NO_EXIT:
        check_exit(pair.target, architecture)
        passes[Role.exit(1)] = passes[TARGET].first_layers(1)
        pass_checks.check(passes[Role.exit(1)], passes[TARGET])
    fast = dataclasses.replace(pair, passes=PairPasses(passes))
    branches = 1 if architecture in CHAINS_ONLY else 3
    greedy_run(fast, PROMPT, 10, num_draft_tokens=3, drafting=DraftParams(branches=branches))


# The trial itself


def faulty(fault: str) -> torch.nn.Module:
    """A model that makes something else of the mask or of positions that it is given."""
    model = tiny_model("llama", attn_implementation="eager")

    def spoil(module, positional, named):
        if (mask := named.get("attention_mask")) is not None:
            if fault == "ignores the mask":
                mask = additive_mask(
                    torch.ones_like(mask[0, 0], dtype=torch.bool).tril(mask.shape[-1] - mask.shape[-2]), mask.dtype
                )
            elif fault == "adds a bool mask":
                mask = (mask == 0).to(mask.dtype)
            elif fault == "counts places":
                named["position_ids"] = torch.arange(mask.shape[-1])[None, -mask.shape[-2] :]
            elif fault == "begins positions elsewhere":
                named["position_ids"] = named["position_ids"] + 2
            elif fault == "raises":
                raise ValueError("too many values to unpack")
            named["attention_mask"] = mask
        return positional, named

    model.register_forward_pre_hook(spoil, with_kwargs=True)
    return model


@pytest.mark.parametrize(
    "fault", ["ignores the mask", "adds a bool mask", "counts places", "begins positions elsewhere", "raises"]
)
def test_the_trial_finds_out_a_model_that_reads_trees_wrongly(fault):
    model = faulty(fault).to(torch.bfloat16)
    assert not reads_trees(model)
    reason = why_no_trees(model, "the target")
    assert reason.field == "branches" and "the target (llama)" in reason.message


@pytest.mark.parametrize("architecture", ["llama", "gptj", "qwen3_moe", "olmoe", "deepseek_v3", "xglm"])
def test_rounding_is_no_reason_to_refuse_trees(architecture):
    for dtype in (torch.bfloat16, torch.float16):
        assert reads_trees(tiny_model(architecture).to(dtype))


def test_the_trial_finds_out_rows_that_are_not_moved(monkeypatch):
    monkeypatch.setattr(CachedModel, "_move", lambda self, start, origins: None)
    assert not reads_trees(tiny_model("llama"))


@torch.inference_mode()
def test_the_keys_by_which_sparse_attention_chooses_move_with_the_others():
    """They count only once a text is longer than what is attended to, far beyond the trial."""
    model, tokens = tiny_model("deepseek_v32"), torch.tensor([20, 21, 22])
    branched, chained = (CachedModel(model, Stopwatch(torch.device("cpu"))) for _ in range(2))
    branched.verify(PROMPT, tokens, (-1, -1, 1))
    branched.rewind_to_path(len(PROMPT), (1, 2))
    chained.forward(torch.tensor([*PROMPT, 21, 22]), rows_wanted=1)
    for kept, expected in zip(branched.cache.layers, chained.cache.layers, strict=True):
        torch.testing.assert_close(kept.indexer_keys, expected.indexer_keys)


def test_a_model_that_reads_chains_only_gets_chains_unless_asked_for_trees():
    target = faulty("counts places")
    pair = with_heads(ModelPair.of(target, target, tiny_pair("llama").tokenizer))
    for drafter in ("draft_model", "early_exit", "medusa", "eagle", "parallel"):
        run = specviz.run(pair, PROMPT, drafter=drafter, max_new_tokens=6)
        assert all(token.parent == index - 1 for one in run.rounds for index, token in enumerate(one.drafted))
        with pytest.raises(SpecvizError, match="small tree"):
            specviz.speculate(pair, PROMPT, drafter=drafter, drafting=DraftParams(branches=2))


def test_a_model_is_tried_once_whoever_asks(monkeypatch):
    tries, tried = [], reading_checks._tried
    monkeypatch.setattr(reading_checks, "_tried", lambda model: tries.append(threading.get_ident()) or tried(model))
    model = tiny_model("llama")
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(reads_trees, [model] * 8))
    assert len(tries) == 1


def test_a_loaded_pair_has_been_tried(tmp_path, monkeypatch):
    target, draft = save_pair(tmp_path, "mpt")
    pair = specviz.load_pair(target, draft, device="cpu", dtype="float32")
    monkeypatch.setattr(reading_checks, "_tried", None)
    assert not reads_trees(pair.target) and not reads_trees(pair.draft)


# Passes with a deliberate error


class SeesSiblings(StaticPass):
    def _masks(self, visible, positions, where):
        places = torch.arange(visible.shape[-1])
        return additive_mask(places <= where.unsqueeze(-1), self.dtype)


class SeesEmptyPlaces(StaticPass):
    def _masks(self, visible, positions, where):
        return additive_mask(torch.ones_like(visible), self.dtype)


class CountsPlaces(StaticPass):
    def forward(self, token_ids, positions, where, visible, *rows):
        return super().forward(token_ids, where, where, visible, *rows)


class WritesNothing(StaticPass):
    def forward(self, token_ids, positions, where, visible, *rows):
        return super().forward(token_ids, positions, where, visible, *(one.clone() for one in rows))


class SpoilsFeatures(StaticPass):
    def forward(self, *arguments):
        logits, *features = super().forward(*arguments)
        return logits, *(1.01 * one for one in features)


class GivesNoNumbers(StaticPass):
    def forward(self, *arguments):
        return tuple(torch.full_like(one, torch.nan) for one in super().forward(*arguments))


class GivesTheFirstAgain(StaticPass):
    """As a graph does that was recorded empty."""

    def forward(self, *arguments):
        seen = self.__dict__.setdefault("first", {})
        given = super().forward(*arguments)
        return seen.setdefault(len(arguments[0]), given)


@pytest.mark.parametrize(
    "wrong",
    [SeesSiblings, SeesEmptyPlaces, CountsPlaces, WritesNothing, SpoilsFeatures, GivesNoNumbers, GivesTheFirstAgain],
)
def test_passes_with_an_error_are_refused(wrong):
    static = wrong(tiny_model("llama"), (1,))
    with refused("passes", "more than rounding"):
        pass_checks.check(FastPasses(static, static, "plain"))


def test_an_early_exit_that_reads_other_buffers_than_the_targets_is_refused():
    model = tiny_model("llama", layers=3)
    target = unprepared(model)
    exits = target.static.first_layers(2)
    pass_checks.check(FastPasses(exits, exits, "plain"), target)

    def in_its_own(token_ids, positions, where, visible, *rows):
        return exits(token_ids, positions, where, visible, *map(torch.zeros_like, rows))

    with pytest.raises(SpecvizError, match="more than rounding"):
        pass_checks.check(FastPasses(exits, in_its_own, "compiled"), target)


def by_places(static):
    return lambda ids, positions, where, visible, *others: static(ids, where, where, visible, *others)


def without_features(static):
    return lambda ids, positions, where, visible, features, *rows: static(
        ids, positions, where, visible, torch.zeros_like(features), *rows
    )


@pytest.mark.parametrize(
    "name, kind, wrong", [("eagle", StaticHead, by_places), ("parallel", StaticBlock, without_features)]
)
def test_wrong_passes_of_a_head_are_refused(name, kind, wrong):
    pair = with_heads(tiny_pair("llama"))
    static = kind(pair.parts[name], StaticPass(pair.target))
    pass_checks.check(FastPasses(static, static, "plain"))
    with pytest.raises(SpecvizError, match="more than rounding"):
        pass_checks.check(FastPasses(static, wrong(static), "compiled"))
