"""The drafter to start with: what was named, else what this machine makes of the target alone."""

import dataclasses

import pytest
from tiny import tiny_model, tiny_pair, unprepared, with_heads

from specviz.drafters import DRAFTERS
from specviz.drafters.registry import drafter_class, usual
from specviz.models import quantised_targets
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses, Trial
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.roles import TARGET
from specviz.records.errors import SpecvizError
from specviz.theory.statistics import Ratio


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return with_heads(tiny_pair("llama"))


def with_parts(pair: ModelPair, *kinds: str, draft: bool = False) -> ModelPair:
    parts = {kind: pair.parts[kind] for kind in kinds}
    return dataclasses.replace(pair, draft=pair.draft if draft else None, parts=parts, passes=PairPasses())


def test_it_is_what_was_named_to_draft_with(pair):
    assert usual(with_parts(pair, "eagle", draft=True)) == "draft_model"
    assert usual(with_parts(pair, "medusa", "mtp", "eagle")) == "eagle"
    assert usual(with_parts(pair, "medusa")) == "medusa"


def test_with_nothing_trained_it_is_the_target_in_few_bits_where_kernels_read_it(pair, monkeypatch):
    alone = with_parts(pair)
    assert usual(alone) == "quantised_self"
    assert usual(alone, preparing=False) == "prompt_lookup"
    alone.passes.fast = {TARGET: unprepared(alone.target, few_rows=FewRows.ready())}
    assert usual(alone, preparing=False) == "quantised_self"
    # On a GPU rounded weights are ordinary ones.
    alone.passes.fast = {TARGET: unprepared(alone.target)}
    assert usual(alone) == "prompt_lookup"


def test_without_a_compiler_or_memory_or_fitting_passes_it_is_prompt_lookup(pair, monkeypatch):
    hides = ModelPair.of(tiny_model("gpt_neo"), None, pair.tokenizer)
    assert usual(hides) == "prompt_lookup"
    with monkeypatch.context() as patch:
        patch.setattr(quantised_targets, "free_memory", lambda device: 1)
        assert usual(with_parts(pair)) == "prompt_lookup"

    def none() -> str:
        raise SpecvizError("There is no C++ compiler.", "passes")

    monkeypatch.setattr(quantised_targets, "cxx", none)
    assert usual(with_parts(pair)) == "prompt_lookup"


def test_a_trial_decides_where_nothing_was_named_and_of_drafters_as_fast_the_one_with_the_most_tokens_a_pass(pair):
    alone, named = with_parts(pair), with_parts(pair, "medusa")
    for one in (alone, named):
        one.passes.trials = {
            "suffix": Trial(Ratio(1.1, 1.0, 1.2), 1.2),
            "lookahead": Trial(Ratio(1.05, 0.9, 1.15), 1.9),
            "early_exit": Trial(Ratio(0.7, 0.6, 0.8), 2.8),
        }
    assert usual(alone) == "lookahead"
    alone.passes.trials |= {"prompt_lookup": Trial(Ratio(1.6, 1.5, 1.7), 1.7)}
    assert usual(alone) == "prompt_lookup"
    assert usual(named) == "medusa"


def test_every_drafter_is_registered_under_its_own_name():
    pair = tiny_pair("llama")
    assert {name: drafter_class(pair, name).name for name in DRAFTERS} == dict(zip(DRAFTERS, DRAFTERS))
