"""Runs at a forced acceptance rate: α is what was asked for, the text the target's, the passes the pair's own."""

from __future__ import annotations

import pickle

import pytest
from tiny import tiny_pair

from specviz.bench.forced import measure_forced
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError


def test_drafts_are_accepted_as_often_as_asked():
    pair = tiny_pair("llama", eos_token_id=None)
    # 42 tokens are no whole number of rounds of four: the last round is cut short, and does not count.
    for alpha, tokens_per_pass in ((0.0, 1.0), (1.0, 4.0)):
        *_, last = measure_forced(pair, alpha, 3, tokens=42, repeats=2)
        assert (last.alpha, last.num_draft_tokens, last.repeats, last.fraction) == (alpha, 3, 2, 1.0)
        assert last.figures.acceptance_rate == alpha
        assert last.figures.acceptance_length == tokens_per_pass
        assert last.figures.speedup_measured > 0 and last.figures.speedup_formula > 0
        assert pickle.loads(pickle.dumps(last)) == last
    *_, last = measure_forced(pair, 0.6, 3, tokens=60, repeats=8)
    assert 0.45 < last.figures.acceptance_rate < 0.75


def test_it_can_be_ended_between_rounds_and_tells_of_each_repeat():
    run = measure_forced(tiny_pair("llama"), 0.5, 2, tokens=12, repeats=3)
    shown = list(run)
    told = [one for one in shown if one is not None]
    assert [one.repeats for one in told] == [1, 2, 3, 3] and [one.fraction for one in told] == [1 / 3, 2 / 3, 1, 1]
    assert len(shown) > 10


@pytest.mark.parametrize(
    ("alpha", "gamma", "field"),
    [(1.5, 4, "alpha"), ("x", 4, "alpha"), (0.5, 0, "num_draft_tokens"), (0.5, "x", "num_draft_tokens")],
)
def test_what_cannot_be_forced_names_its_field(alpha, gamma, field):
    with pytest.raises(SpecvizError) as refusal:
        next(measure_forced(tiny_pair("llama"), alpha, gamma))
    assert refusal.value.field == field


def test_a_pair_without_a_draft_model_has_no_passes_to_make():
    pair = tiny_pair("llama")
    alone = ModelPair.of(pair.target, None, pair.tokenizer)
    with pytest.raises(SpecvizError, match="no draft model"):
        next(measure_forced(alone, 0.5, 4))
