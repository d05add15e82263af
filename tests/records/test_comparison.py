"""Two runs side by side: the speedup is the ratio of what was measured, and greedy texts agree or part somewhere."""

import math
from dataclasses import replace

import pytest
from handmade import PAIR, a_round, a_run

from specviz.records.metrics import compare, speedup
from specviz.records.runs import Candidates, Seconds
from specviz.records.settings import SamplingParams

GREEDY = SamplingParams(temperature=0)


def plain_run(ids, seconds=0.01, **settings):
    """One plain step a token; at each, the best two tokens have raw probabilities 0.5 and 0.4."""
    took = Seconds(0.0, seconds, 0.0, seconds, seconds)
    top = (Candidates(p=((1, 1.0),), p_raw=((1, 0.5), (2, 0.4))),)
    rounds = tuple(replace(a_round("", i, ids=(id,), seconds=took), top=top) for i, id in enumerate(ids))
    return a_run(rounds, **({"sampling": GREEDY} | settings))


def fast_run(*rounds_ids, seconds=0.01, **settings):
    """One round a group of ids, all accepted."""
    took = Seconds(0.0, seconds, 0.0, seconds, seconds)
    rounds = tuple(a_round("a" * (len(ids) - 1), i, ids=ids, seconds=took) for i, ids in enumerate(rounds_ids))
    return a_run(rounds, **({"sampling": GREEDY} | settings))


def test_the_speedup_is_the_ratio_of_tokens_per_second():
    plain = plain_run([1, 2, 3, 4, 5, 6], seconds=0.01)
    fast = fast_run((1, 2, 3), (4, 5, 6), seconds=0.015)
    # 100 tokens per second against 6 tokens in 30 ms.
    assert speedup(plain, fast) == pytest.approx(2.0)
    assert speedup(fast, plain) == pytest.approx(0.5)


def test_the_speedup_does_not_need_texts_of_one_length():
    assert speedup(plain_run([1, 2]), fast_run((1, 2, 3, 4), seconds=0.02)) == pytest.approx(2.0)


def test_without_a_round_there_is_no_speedup():
    assert speedup(a_run(()), fast_run((1, 2))) is None
    assert speedup(plain_run([1]), a_run(())) is None


def test_equal_greedy_texts_are_identical_and_do_not_part():
    result = compare(plain_run([1, 2, 3, 4]), fast_run((1, 2), (3, 4)))
    assert result["greedy"] is True and result["identical"] is True and result["parting"] is None


def test_greedy_texts_that_differ_say_where_and_how_close_it_was():
    plain, fast = plain_run([1, 2, 3, 4]), fast_run((1, 2), (5, 4))
    result = compare(plain, fast)
    assert result["identical"] is False
    parting = result["parting"]
    assert (parting["position"], parting["plain"], parting["speculative"]) == (2, " w3", " w5")
    assert parting["margin"] == pytest.approx(math.log(0.5 / 0.4))
    assert parting["half_precision"] is False


def test_half_precision_is_told():
    half = replace(PAIR, dtype="bfloat16")
    result = compare(plain_run([1, 2], pair=half), fast_run((1, 3), pair=half))
    assert result["parting"]["half_precision"] is True


def test_a_text_that_ends_before_the_other_parts_at_its_end():
    parting = compare(plain_run([1, 2, 3]), fast_run((1, 2)))["parting"]
    assert (parting["position"], parting["plain"], parting["speculative"]) == (2, " w3", "")
    parting = compare(plain_run([1, 2]), fast_run((1, 2), (3, 4)))["parting"]
    assert (parting["position"], parting["plain"], parting["speculative"]) == (2, "", " w3")
    assert parting["margin"] is None, "plain decoding made no pass there"


def test_sampled_runs_are_not_compared_token_for_token():
    sampled = SamplingParams(temperature=1.0)
    result = compare(plain_run([1, 2], sampling=sampled), fast_run((3, 4), sampling=sampled))
    assert result["greedy"] is False and result["identical"] is None and result["parting"] is None
