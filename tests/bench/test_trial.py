"""The short trial after loading, by which a target without any drafter of its own starts with one."""

import dataclasses
import threading

import pytest
from tiny import tiny_pair, with_heads

from specviz.bench.advising import MOST_TRIAL_SECONDS, TRIAL_TOKENS, try_drafters
from specviz.drafters.registry import worth_trying
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses
from specviz.records.settings import LONGEST_AUTO


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return with_heads(tiny_pair("llama"))


def alone(pair: ModelPair, **further_fields) -> ModelPair:
    passes = PairPasses(seconds_by_width={1: 0.001})
    return dataclasses.replace(pair, **{"draft": None, "parts": {}, "passes": passes} | further_fields)


def test_every_drafter_that_needs_no_part_is_measured_in_turns_with_plain_decoding(pair, monkeypatch):
    target = alone(pair)
    try_drafters(target, threading.Event())
    trials = target.passes.trials
    assert set(trials) == set(worth_trying(target)) > {"prompt_lookup", "early_exit", "quantised_self"}
    assert all(one.ratio.value > 0 and 1 <= one.tokens_a_pass <= 1 + LONGEST_AUTO for one in trials.values())

    monkeypatch.delattr("specviz.drafters.copying.PromptLookup.propose")
    try_drafters(target, threading.Event())
    assert set(target.passes.trials) == set(trials) - {"prompt_lookup"}, "the others go on"


def test_a_target_whose_weights_are_in_few_bits_is_not_rounded_to_few_bits_to_be_tried(pair):
    target = alone(pair, stored={"target": "Q4_1"})
    try_drafters(target, threading.Event())
    assert "early_exit" in target.passes.trials and "quantised_self" not in target.passes.trials
    assert target.passes.quantised == {}


def test_there_is_none_where_something_was_named_or_it_would_keep_a_visitor_waiting_or_is_halted(pair):
    halted = threading.Event()
    halted.set()
    slow = PairPasses(seconds_by_width={1: MOST_TRIAL_SECONDS / TRIAL_TOKENS})
    for one, halt in (
        (alone(pair, draft=pair.draft), threading.Event()),
        (alone(pair, parts={"medusa": pair.parts["medusa"]}), threading.Event()),
        (alone(pair, passes=slow), threading.Event()),
        (alone(pair, context_length=20), threading.Event()),
        (alone(pair), halted),
    ):
        try_drafters(one, halt)
        assert one.passes.trials == {}
