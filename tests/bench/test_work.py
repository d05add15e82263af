"""What drafters come to on several prompts, and on each of their domains."""

from __future__ import annotations

import pytest
from handmade import rounds_of

from specviz.bench.advice import ALL, FEWEST, Work, as_good
from specviz.bench.contestants import PLAIN, Contestant, TimedRun, Turn, speedup_of

PLAIN_RUN, MODEL, COPIES = Contestant(PLAIN), Contestant("draft_model", 2), Contestant("suffix", 4)


def a_run(prompt: int, number: int, seconds: float, words=("",) * 4, group: int = 0) -> TimedRun:
    """Rounds of these outcomes in two turns."""
    rounds = rounds_of(*words)
    ids = tuple(token for one in rounds for token in one.emitted)
    half = len(ids) // 2
    turns = Turn(0, half, seconds / 2), Turn(1, len(ids) - half, seconds / 2)
    return TimedRun(number, (prompt, group), 0, turns, ids, rounds, True)


def measured(domains, drafted=("aa", "ar"), slower=lambda prompt: 1.0) -> Work:
    """Every prompt once: plain decoding takes 4 s for 4 tokens, the draft model 2 s for 5, `slower` times as long."""
    work = Work((PLAIN_RUN, MODEL, COPIES), domains)
    for prompt in range(len(domains)):
        work.add(a_run(prompt, 0, 4.0))
        work.add(a_run(prompt, 1, 2.0 * slower(prompt), drafted))
    return work


def test_there_is_a_row_for_all_prompts_and_one_for_each_domain_of_those_that_were_measured():
    rows = measured(["code", "story", "code", ""]).rows()
    assert [(row.domain, row.contestant, row.prompts) for row in rows] == [
        (ALL, MODEL, 4),
        ("code", MODEL, 2),
        ("story", MODEL, 1),
        ("", MODEL, 1),
    ]
    assert [row.domain for row in measured(["code", "code"]).rows()] == [ALL], "one domain is all of them"
    assert [row.domain for row in measured([ALL, "code"]).rows()] == [ALL, "code"], "nothing is told twice"


def test_a_row_has_its_speedup_its_tokens_a_pass_and_what_was_kept_where_it_was_reached():
    row, *_ = measured(["a", "b", "a", "b"]).rows()
    assert row.speedup_measured == row.ratio.value == pytest.approx((5 / 2) / (4 / 4))
    assert row.tokens_a_pass.value == row.acceptance_length == 2.5
    assert [one.value for one in row.kept_at] == [1.0, 0.5]
    assert row.speedup_interval == (row.ratio.low, row.ratio.high)


def test_from_a_few_prompts_on_intervals_are_over_prompts():
    def told(count):
        work = measured(["x"] * count, slower=lambda prompt: 1.0 if prompt % 2 else 3.0)
        row, *_ = work.rows()
        return row.ratio, speedup_of(work.runs[MODEL], work.runs[PLAIN_RUN])

    few, turns = told(FEWEST - 1)
    assert few == turns
    many, turns = told(FEWEST)
    # At worst every prompt drawn is one of the slow ones, at best none is.
    assert many.value == turns.value == pytest.approx(5 / 4) and many.low == pytest.approx(2.5 / 3)
    assert many.high == pytest.approx(5 / 2) and (many.low, many.high) != (turns.low, turns.high)


def test_one_prompt_leaves_acceptance_without_an_interval():
    row, *_ = measured(["x"]).rows()
    assert row.tokens_a_pass.low is None and all(one.low is None for one in row.kept_at)


def test_each_is_compared_with_the_plain_runs_that_it_took_turns_with():
    work = Work((PLAIN_RUN, MODEL, COPIES), ["x"] * FEWEST)
    for prompt in range(FEWEST):
        for group, (number, slow) in enumerate(((1, 1.0), (2, 5.0))):
            work.add(a_run(prompt, 0, 4.0 * slow, group=group))
            work.add(a_run(prompt, number, 2.0 * slow, ("aa", "ar"), group=group))
    rows = {row.contestant: row.ratio.value for row in work.rows()}
    assert rows == {MODEL: pytest.approx(2.5), COPIES: pytest.approx(2.5)}, "the machine was slow to the second group"


def test_lengths_that_cannot_be_told_apart_are_as_good():
    work = Work((PLAIN_RUN, *(Contestant("suffix", gamma) for gamma in (2, 4, 6, 8))), ["x"] * 6)
    for prompt in range(6):
        work.add(a_run(prompt, 0, 4.0))
        for number, seconds in enumerate((4.0, 2.05, 2.0, 2.1), start=1):
            work.add(a_run(prompt, number, seconds * (0.9 + 0.04 * ((prompt + number) % 6)), ("aa", "ar")))
    rows = work.rows()
    best = max(rows, key=lambda row: row.ratio.value)
    assert best.contestant.num_draft_tokens == 6 and as_good(rows, best) == [4, 6, 8]
