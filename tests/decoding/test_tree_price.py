"""What a tree has to make is said before it runs, from the passes that were timed and the chains that ran here."""

import copy
import dataclasses
import itertools
from collections import deque

import pytest
from tiny import tiny_pair, with_heads

import specviz
from specviz.decoding.request import prepare
from specviz.decoding.tree_price import said_of_tree
from specviz.models.pair import PairPasses
from specviz.records.settings import AUTO, DraftParams, RunSettings, SamplingParams
from specviz.records.words import Sentence

#: A plain step takes a second, and each further token half as long: also beyond the widths that were timed.
TIMED = {1: 1.0, 5: 3.0, 9: 5.0}
PROMPT = (3, 5, 7, 11, 3, 5)


@pytest.fixture(scope="module", params=["draft_model", "eagle"])
def drafter(request):
    return request.param


@pytest.fixture
def pair():
    made = dataclasses.replace(with_heads(tiny_pair("llama", vocab=16)), eos_ids=frozenset())
    return dataclasses.replace(made, passes=PairPasses(seconds_by_width=dict(TIMED)))


def said(pair, drafter, depth=4, branches=3, confidence=0.0, temperature=1.0) -> Sentence | None:
    sampling, drafting = SamplingParams(temperature=temperature), DraftParams(branches, confidence=confidence)
    return said_of_tree(prepare(pair, RunSettings(PROMPT, drafter, depth, sampling=sampling, drafting=drafting)))


def chains(pair, drafter, depth, seconds, **settings):
    """Drafts chains of this depth; then as if each of their rounds had taken so long. Returns their mean tokens."""
    earlier = copy.deepcopy(pair.passes.chains)  # the last draft of a text may be shorter, and be one of those
    run = specviz.run(pair, PROMPT, drafter=drafter, num_draft_tokens=depth, max_new_tokens=120, **settings)
    way = next(way for way in pair.passes.chains if depth in way)
    made = [tokens for tokens, _ in pair.passes.chains[way]]
    full = [one.emitted for one in run.rounds if len(one.drafted) == depth]
    assert made == [len(emitted) for emitted in full[1:]]  # the first one reads the prompt as well
    pair.passes.chains = earlier | {way: deque(zip(made, itertools.repeat(seconds)))}
    return sum(made) / len(made)


def test_with_nothing_but_timed_passes_a_tree_is_held_against_plain_decoding(pair, drafter):
    assert said(pair, drafter).values == {"times": pytest.approx(7.0), "most": 5}


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_tree_has_to_make_up_for_what_its_pass_takes_longer_than_a_chain_drafted_here(pair, drafter, rule):
    made = chains(pair, drafter, 4, 4.0, rule=rule)  # of which the target's pass takes 3
    told = said(pair, drafter).values
    assert (told["length"], told["made"], told["needed"]) == (4, pytest.approx(made), pytest.approx(made * 8 / 4))
    assert told["low"] < told["needed"] < told["high"]


def test_of_several_chains_the_best_counts_unless_it_is_deeper_than_the_tree(pair):
    shallow = chains(pair, "draft_model", 2, 2.5)
    chains(pair, "draft_model", 4, 400.0)
    assert said(pair, "draft_model").values["needed"] == pytest.approx(shallow * (2.5 + 7 - 2) / 2.5)
    assert "times" in said(pair, "draft_model", depth=1).values
    assert "times" in said(pair, "draft_model", temperature=0.5).values  # another way to draw


@pytest.mark.parametrize(
    "settings",
    [{"branches": 1}, {"depth": AUTO}, {"confidence": 0.5}, {"drafter": "suffix"}],
    ids=["a chain", "chosen in each round", "ends when unsure", "copies as much as it finds"],
)
def test_nothing_is_said_of_what_is_not_known(pair, settings):
    assert said(pair, **{"drafter": "draft_model"} | settings) is None


def test_nothing_is_said_before_passes_were_timed(pair, drafter):
    pair.passes.seconds_by_width = {}
    assert said(pair, drafter) is None
