"""Lookahead: the window is the paper's, its n-grams come from the target, and the text stays the target's."""

import dataclasses

import pytest
from fake_target import branch, copying, decode, draft_of, verdict_on
from refusal import refused
from tiny import tiny_pair

from specviz.decoding.request import prepare
from specviz.drafters.lookahead import Lookahead, Pool
from specviz.records.settings import DraftParams, RunSettings

PROMPT = list(range(100, 140))


def scrambled(context):
    """A target without any pattern: its token depends on the last two tokens and on nothing a drafter could know."""
    return (7919 * context[-1] + 104729 * context[-2]) % 10007 % 100


def looping(context):
    """A target whose text comes back: after every token one that this token alone decides, in a circle of 23."""
    return 1 + (context[-1] * 5 + 3) % 23


def cells_of(window, last):
    """Token of every cell (level, column), level 0 of column 0 being the last committed token."""
    levels = [[last, *window.levels[0]], *window.levels[1:]]
    return {(level, column): token for level, row in enumerate(levels) for column, token in enumerate(row)}


def test_no_draft_is_asked_for_that_is_too_shallow_to_be_one():
    drafter = copying(Lookahead, branches=3)
    drafter.prefill(PROMPT)
    sizes = [len(draft_of(drafter, PROMPT, budget=budget).parents) for budget in range(1, 4)]
    assert [bool(size) for size in sizes] == [depth >= Lookahead.least_depth for depth in range(1, 4)]
    request = prepare(tiny_pair("llama"), RunSettings("a b", drafter="lookahead", num_draft_tokens="auto"))
    assert request.depths[:3] == (0, 2, 3), "and 0 is plain"
    with refused("num_draft_tokens", "lookahead drafts at least 2 tokens a round"):
        prepare(tiny_pair("llama"), RunSettings("a b", drafter="lookahead", num_draft_tokens=1))
    assert prepare(tiny_pair("llama"), RunSettings("a b", drafter="lookahead", num_draft_tokens=2)).depths == (2,)


@pytest.mark.parametrize("columns, ngram", [(1, 2), (4, 2), (1, 4), (3, 3), (6, 5)])
def test_each_guess_sees_level_zero_up_to_its_column_then_its_own_column(columns, ngram):
    drafter = copying(Lookahead, branches=3, seed=1, WINDOW=columns, NGRAM=ngram)
    drafter.prefill(PROMPT)
    committed = list(PROMPT)
    for _ in range(8):
        draft = draft_of(drafter, committed, budget=16)
        cells = cells_of(drafter.window, committed[-1])
        branches = {tuple(branch(draft, index)) for index in range(len(draft.parents))}
        for level, column in cells:
            oldest = [cells[0, left] for left in range(1, column + 1)]
            own = [cells[below, column] for below in range(1, level + 1)]
            seen = (*oldest, *own)
            # One token deeper for each column and each level: position j + k after the last committed token.
            assert len(seen) == column + level
            assert not seen or seen in branches
        for column, top in enumerate(drafter.tops):
            expected = [cells[0, left] for left in range(1, column + 1)]
            assert branch(draft, top) == expected + [cells[level, column] for level in range(1, ngram - 1)]
        verdict = verdict_on(draft, committed, scrambled)
        drafter.observe_draft(len(committed), verdict, None)
        committed += verdict.tokens


@pytest.mark.parametrize("columns, ngram", [(4, 2), (3, 3), (6, 5)])
def test_after_a_pass_the_oldest_level_goes_and_the_targets_choices_are_the_newest(columns, ngram):
    drafter = copying(Lookahead, seed=2, WINDOW=columns, NGRAM=ngram)
    drafter.prefill(PROMPT)
    before = cells_of(drafter.window, PROMPT[-1])
    draft = draft_of(drafter, PROMPT, budget=16)
    verdict = verdict_on(draft, PROMPT, scrambled)
    drafter.observe_draft(len(PROMPT), verdict, None)
    after = cells_of(drafter.window, verdict.next_token)
    for column in range(columns):
        seen = [before[0, left] for left in range(1, column + 1)]
        own = [before[level, column] for level in range(1, ngram - 1)]
        choice = scrambled([*PROMPT, *seen, *own])
        ngram_found = (*own, choice)
        assert ngram_found in drafter.pool.after(before[0, column])
        for level in range(1, ngram):
            moved = (level - 1, column)
            if moved in after and moved != (0, 0):
                assert after[moved] == ngram_found[level - 1]


def test_the_pool_keeps_the_ngrams_met_last_and_tries_them_first():
    pool = Pool(guesses=2)
    for others in [(1, 2), (3, 4), (1, 2), (5, 6)]:
        pool.add(0, others)
    assert pool.after(0) == [(5, 6), (1, 2)]
    assert pool.after(9) == []


def test_candidates_that_begin_alike_share_a_branch_and_come_before_the_window():
    drafter = copying(Lookahead, branches=3, WINDOW=3, NGRAM=4)
    drafter.prefill(PROMPT)
    for others in [(1, 2, 3), (1, 2, 4), (1, 5, 6)]:
        drafter.pool.add(PROMPT[-1], others)
    draft = draft_of(drafter, PROMPT, budget=8)
    assert draft.tokens[:6].tolist() == [1, 5, 6, 2, 4, 3]
    assert draft.parents[:6] == (-1, 0, 1, 0, 3, 3)
    assert draft.sources == ("pool",) * 6 + ("window",) * (len(draft.sources) - 6)
    assert draft_of(drafter, PROMPT, budget=1).tokens.tolist() == [1]


@pytest.mark.parametrize("target", [scrambled, looping])
@pytest.mark.parametrize("budget, branches", [(1, 5), (4, 2), (16, 8)])
def test_no_draft_is_larger_than_it_says(target, budget, branches):
    drafter, committed = copying(Lookahead, branches), list(PROMPT)
    drafter.prefill(committed)
    for _ in range(40):
        draft = draft_of(drafter, committed, budget)
        assert len(draft.parents) <= Lookahead.largest_draft(budget, branches)
        verdict = verdict_on(draft, committed, target)
        drafter.observe_draft(len(committed), verdict, None)
        committed.append(verdict.next_token)
    assert Lookahead.largest_draft(8, Lookahead.default_branches) <= 40


@pytest.mark.parametrize("seed", range(3))
def test_a_text_that_comes_back_takes_fewer_passes_and_nothing_is_copied_from_it(seed):
    _, passes = decode(copying(Lookahead, seed=seed), looping, PROMPT, 120, budget=8)
    assert passes < 60
    # Only the target's choices fill the pool: told other choices, the same text brings nothing.
    drafter, committed = copying(Lookahead, seed=seed), list(PROMPT)
    drafter.prefill(PROMPT)
    for _ in range(60):
        draft = draft_of(drafter, committed, 8)
        verdict = verdict_on(draft, committed, looping)
        assert verdict.path == ()
        committed.append(verdict.next_token)
        other = dataclasses.replace(verdict, choices=(999,) * len(verdict.choices))
        drafter.observe_draft(len(committed) - 1, other, None)


def test_the_window_starts_with_tokens_of_the_prompt_that_follow_from_the_seed():
    def start(seed):
        drafter = copying(Lookahead, seed=seed)
        drafter.prefill(PROMPT)
        return draft_of(drafter, PROMPT, 8).tokens.tolist()

    assert start(4) == start(4) != start(5)
    assert set(start(4)) <= set(PROMPT)


def test_a_single_branch_and_a_target_that_reads_chains_only_are_refused_with_the_reason():
    with refused("branches", "tree"):
        Lookahead.check(tiny_pair("llama"), DraftParams(branches=1))
    with refused("drafter", "reads only chains"):
        Lookahead.check(tiny_pair("mistral"), DraftParams())
    Lookahead.check(tiny_pair("llama"), DraftParams(branches=2))
