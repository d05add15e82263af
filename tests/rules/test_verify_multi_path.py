"""Of several drawn paths one is picked and judged as a whole: exact for every number and length of paths."""

import dataclasses

import pytest
import torch
from enumeration import Model, distance, mean_kept, replaced, verify_by_block, verify_by_multi_path
from test_verify_tree import assert_is_a_path

from specviz.rules import exact
from specviz.rules.draft import chain


def paths(count, length):
    """The parents of so many paths of this length, level by level."""
    return (-1,) * count + tuple(range(count * (length - 1)))


def models(seed, vocab=3, zeros=False):
    return Model(seed, 3, vocab, zeros), Model(seed + 1000, 3, vocab)


def all_of(rule, target, drafter, parents):
    return distance(rule, target, drafter, parents, "with", all_judged=True)


@pytest.mark.parametrize("count, length, vocab", [(2, 1, 4), (3, 1, 3), (2, 2, 3), (3, 2, 2)])
def test_a_round_of_several_paths_emits_the_target_distribution(count, length, vocab):
    for seed, zeros in [(0, False), (1, True)]:
        assert all_of(verify_by_multi_path, *models(seed, vocab, zeros and vocab > 2), paths(count, length)) < 1e-6


# Rules that are wrong on purpose: each must fail the enumeration above.


def rule_that_judges_the_pick_by_q(*given):
    """As if the picked path were the only one that was drawn."""
    right = verify_by_multi_path(*given)
    tokens, _, draft_probs, target_probs, coins, next_u = given
    picked = right.weighed.nonzero().flatten()
    rows = torch.cat([target_probs[:1], target_probs[picked + 1]])
    wrong = verify_by_block(tokens[picked], draft_probs[picked], rows, coins[picked], next_u)
    return replaced(
        right,
        kept=torch.zeros_like(right.kept).index_copy(0, picked, wrong.kept.bool()),
        accept_prob=torch.zeros_like(right.p).index_copy(0, picked, wrong.accept_prob),
        next_probs=wrong.next_probs,
    )


def test_a_picked_path_judged_by_q_does_not_emit_the_target_distribution():
    assert all_of(rule_that_judges_the_pick_by_q, *models(0), paths(2, 2)) > 1e-3


@pytest.mark.parametrize("claimed", [1, 3])
def test_the_wrong_number_of_paths_does_not_emit_the_target_distribution(claimed, monkeypatch):
    right = exact._largest_of
    monkeypatch.setattr(exact, "_largest_of", lambda q, p, draws: right(q, p, torch.full_like(draws, claimed)))
    assert all_of(verify_by_multi_path, *models(0), paths(2, 2)) > 1e-3


# What it is for


def kept_by(rule, target, drafter, parents):
    return mean_kept(rule, target, drafter, parents, how="with", all_judged=True)


def test_two_paths_keep_more_tokens_over_many_models_than_one():
    """In expectation, over models: for a single model the greedy pick can lose (here with seed 3)."""
    pairs = [models(seed) for seed in range(6)]
    one = sum(kept_by(verify_by_multi_path, *pair, chain(2)) for pair in pairs)
    two = sum(kept_by(verify_by_multi_path, *pair, paths(2, 2)) for pair in pairs)
    assert two > 1.1 * one


def random_paths(seed, count=3, length=4, vocab=9):
    generator = torch.Generator().manual_seed(seed)
    rows = {}

    def row(text):
        return rows.setdefault(text, (torch.randn(2, vocab, generator=generator) * 1.5).softmax(-1))

    texts = [()] * count
    tokens, probs, target = [], [], [row(())[0]]
    for _ in range(length):
        drawn = [int(torch.multinomial(row(text)[1], 1, generator=generator)) for text in texts]
        probs += [row(text)[1] for text in texts]
        texts = [(*text, token) for text, token in zip(texts, drawn)]
        target += [row(text)[0] for text in texts]
        tokens += drawn
    coins, next_u = torch.rand(count * length, generator=generator).double(), torch.rand((), generator=generator)
    return torch.tensor(tokens), paths(count, length), torch.stack(probs), torch.stack(target), coins, next_u.double()


@pytest.mark.parametrize("seed", range(10))
def test_one_whole_path_is_weighed_and_what_is_kept_lies_on_it(seed):
    given = random_paths(seed)
    decision = verify_by_multi_path(*given)
    assert_is_a_path(decision, given[1])
    assert_is_a_path(
        dataclasses.replace(decision, kept=decision.weighed, row=decision.weighed.nonzero()[-1] + 1), given[1]
    )
    assert not (decision.kept & ~decision.weighed).any()
    assert torch.allclose(decision.drawn_from.sum(-1), torch.ones(len(given[1])))
    assert torch.equal(
        decision.drawn_from.gather(-1, given[0].unsqueeze(-1))[:, 0][decision.weighed], decision.q[decision.weighed]
    )


def test_a_single_path_is_judged_as_a_block():
    tokens, _, probs, target, coins, next_u = random_paths(7, count=1)
    one = verify_by_multi_path(tokens, chain(4), probs, target, coins, next_u)
    block = verify_by_block(tokens, probs, target, coins, next_u)
    for field in ("kept", "accept_prob", "row", "next_token", "next_probs"):
        assert torch.equal(getattr(one, field), getattr(block, field)), field
