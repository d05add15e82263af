"""Each lossless rule follows the target: proven by enumeration, for every shape of draft, and broken on purpose."""

import pytest
import torch
from enumeration import (
    BY_NAME,
    SHAPES,
    Model,
    by_block,
    by_multi_path,
    by_token,
    by_tree,
    by_tree_on_device,
    distance,
    is_tried,
    mean_kept,
    outcomes,
    replaced,
)

from specviz.rules import RULES, exact, rule_named
from specviz.rules.draft import chain
from specviz.rules.exact import residual


def paths(count, length):
    """The parents of so many paths of this length, level by level."""
    return (-1,) * count + tuple(range(count * (length - 1)))


def models(seed, vocab=3, zeros=False):
    return Model(seed, 3, vocab, zeros), Model(seed + 1000, 3, vocab)


WEIGH_ALL = [BY_NAME[name] for name in RULES if rule_named(name).weighs_all]


def off(rule, target, drafter, parents, how="without"):
    """How far a round is off the target's distribution; some rules look at every coin."""
    wrong_one = getattr(rule, "__name__", "").startswith(("block", "paths"))
    return distance(rule, target, drafter, parents, how, all_judged=wrong_one or rule in WEIGH_ALL)


def cases(rule):
    """Drafts that a rule can judge: their parents, how siblings are drawn, size of the vocabulary."""
    if rule.paths:
        return [(paths(*size), "with", vocab) for *size, vocab in [(2, 1, 4), (3, 1, 3), (2, 2, 3), (3, 2, 2)]]
    shapes = SHAPES.values() if rule.trees else map(chain, (1, 2, 3))
    return [(shape, how, 3) for shape in shapes for how in ("without", "chosen")]


EXACT = [(BY_NAME[name], *case) for name in RULES if rule_named(name).lossless for case in cases(rule_named(name))]
EXACT += [(by_tree_on_device, shape, "without", 3) for shape in SHAPES.values()]
EXACT += [(by_tree, SHAPES[shape], "with", 3) for shape in ("(3,)", "(2, 1)")]


@pytest.mark.parametrize("rule, parents, how, vocab", EXACT)
def test_a_round_emits_the_target_distribution(rule, parents, how, vocab):
    for seed, zeros in [(0, False), (1, vocab > 2)]:
        assert off(rule, *models(seed, vocab, zeros), parents, how) < 1e-6


@pytest.mark.parametrize("agreed", [(0, 1, 2, 3), (1,), (2,), (1, 2), (0, 2)])
def test_where_the_models_agree_a_block_still_emits_the_target_distribution(agreed):
    """Z = 0 and, if the block has passed so far, 1 − p = 0: h is 0/0 there."""
    target, drafter = models(7)
    drafter.rows |= {text: row for text, row in target.rows.items() if len(text) in agreed}
    assert off(by_block, target, drafter, chain(3)) < 1e-6


@pytest.mark.parametrize("rule, parents, depth", [(by_block, chain(3), 3), (by_tree, (-1, -1, 0, 1), 2)])
def test_a_drafter_equal_to_the_target_is_always_accepted(rule, parents, depth):
    target, _ = models(5)
    ways = outcomes(rule, target, target, parents, "without", all_judged=rule is by_block)
    assert {len(way.kept) for way in ways if way.chance > 1e-6} == {depth}


# Rules that are wrong on purpose: each must fail the enumeration above, or it proves nothing. A rule is given (tokens,
# parents, draft_probs, target_probs, coins, next_u).


def token_without_normalised_residual(*given):
    right, (tokens, _, draft_probs, target_probs, *_) = by_token(*given), given
    row = int(right.row)
    if row == len(tokens):
        return right
    return replaced(right, next_probs=(target_probs[row] - draft_probs[row]).clamp_min(0))


def token_that_recovers_from_p(*given):
    right = by_token(*given)
    return replaced(right, next_probs=given[3][int(right.row)])


def token_that_accepts_everything(*given):
    right = by_token(*given)
    return replaced(right, accepted=torch.ones_like(right.accepted))


def token_with_a_swapped_comparison(*given):
    """u ≥ p/q instead of u < p/q, by coins that lie on the other side."""
    *before, coins, next_u = given
    return by_token(*before, (coins < by_token(*given).accept_prob).to(coins.dtype), next_u)


def a_block_of(count, *given):
    """The decision at a block of this length: a coin of 0 at its end, and coins that never pass elsewhere."""
    *before, coins, next_u = given
    forced = torch.ones_like(coins)
    forced[count - 1 : count] = 0
    return replaced(by_block(*before, forced, next_u), accepted=torch.arange(len(coins)) < count)


def block_that_stops_at_the_first_refusal(*given):
    return a_block_of(int((given[4] < by_block(*given).accept_prob).cumprod(0).sum()), *given)


def block_with_the_residual_of_a_token(*given):
    right, (tokens, _, draft_probs, target_probs, *_) = by_block(*given), given
    row = int(right.row)
    ended = row == len(tokens)
    return replaced(right, next_probs=right.next_probs if ended else residual(target_probs[row], draft_probs[row]))


def block_judged_by_its_likelihood_alone(*given):
    """Keeps up to the largest i whose coin is below p_i, as if every position were the last one."""
    right, share, shares = by_block(*given), 1.0, []
    for ratio in (right.p / right.q).tolist():
        share = min(1.0, share * ratio)
        shares.append(share)
    passed = [i for i, coin in enumerate(given[4]) if coin < torch.tensor(shares[i])]
    return replaced(a_block_of(max(passed, default=-1) + 1, *given), accept_prob=torch.tensor(shares))


def tree_with_the_unreduced_q(tokens, parents, draft_probs, *others):
    return by_tree(tokens, parents, draft_probs[[parents.index(parent) for parent in parents]], *others)


def tree_that_tries_siblings_against_p(*given):
    """No refusal takes anything from the target before the next sibling; what is left at the end is right."""
    right, (_, parents, *_, coins, next_u) = by_tree(*given), given
    accept_prob, kept = (right.p / right.q).clamp_max(1), [False] * len(parents)
    for token in range(len(parents)):
        kept[token] = is_tried(token, parents, kept) and bool(coins[token] < accept_prob[token])
    end = by_tree(*given[:4], torch.where(torch.tensor(kept), 0.0, 1.0).double(), next_u)
    return replaced(end, accept_prob=accept_prob, accepted=torch.tensor(kept))


def tree_that_forgets_the_residual(*given):
    right = by_tree(*given)
    return replaced(right, next_probs=given[3][right.row][0])


def tree_that_forgets_the_first_refusal(*given):
    right, (_, parents, draft_probs, target_probs, *_) = by_tree(*given), given
    row, last = int(right.row), [i for i in range(len(parents)) if parents[i] == int(right.row) - 1]
    return replaced(right, next_probs=residual(target_probs[row], draft_probs[last[-1]]) if last else target_probs[row])


def paths_whose_pick_is_judged_by_q(*given):
    """As if the picked path were the only one that was drawn."""
    right, (tokens, _, draft_probs, target_probs, coins, next_u) = by_multi_path(*given), given
    picked = right.weighed.nonzero().flatten()
    rows = torch.cat([target_probs[:1], target_probs[picked + 1]])
    wrong = by_block(tokens[picked], chain(len(picked)), draft_probs[picked], rows, coins[picked], next_u)
    kept = torch.zeros_like(right.accepted).index_copy(0, picked, wrong.accepted.bool())
    accept_prob = torch.zeros_like(right.p).index_copy(0, picked, wrong.accept_prob)
    return replaced(right, accepted=kept, accept_prob=accept_prob, next_probs=wrong.next_probs)


WRONG = [rule for name, rule in globals().items() if name.startswith(("token_", "block_", "tree_", "paths_"))]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rules_do_not_emit_the_target_distribution(wrong):
    shapes = {"tree": (SHAPES["(2, 1)"], "without"), "paths": (paths(2, 2), "with")}
    parents, how = shapes.get(wrong.__name__.split("_")[0], (chain(2), "without"))
    assert off(wrong, *models(1), parents, how) > 1e-3


@pytest.mark.parametrize("claimed", [1, 3])
def test_the_wrong_number_of_paths_does_not_emit_the_target_distribution(claimed, monkeypatch):
    right = exact._largest_of
    monkeypatch.setattr(exact, "_largest_of", lambda q, p, draws: right(q, p, torch.full_like(draws, claimed)))
    assert off(by_multi_path, *models(0), paths(2, 2), "with") > 1e-3


def test_a_chosen_tree_beside_a_softmax_does_not_emit_the_target_distribution():
    target, drafter = models(0)

    def rule(tokens, parents, _draft_probs, *others):
        return by_tree(tokens, parents, drafter.rows[()].expand(2, -1), *others)

    assert off(rule, target, drafter, (-1, -1), "chosen") > 1e-3


# How much is kept


def test_the_papers_example_keeps_ten_ninths_token_by_token_and_eleven_ninths_by_block():
    target, drafter = Model(0, 2, vocab=2), Model(0, 2, vocab=2)
    for text in target.rows:
        target.rows[text], drafter.rows[text] = torch.tensor([1 / 3, 2 / 3]), torch.tensor([2 / 3, 1 / 3])
    assert mean_kept(by_token, target, drafter, chain(2)) == pytest.approx(10 / 9, abs=1e-6)
    assert mean_kept(by_block, target, drafter, chain(2), all_judged=True) == pytest.approx(11 / 9, abs=1e-6)


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_a_block_keeps_no_fewer_tokens_in_expectation(gamma):
    more = []
    for seed in range(8 if gamma < 3 else 3):
        pair = models(seed, zeros=seed % 2 == 1)
        kept = mean_kept(by_block, *pair, chain(gamma), all_judged=True)
        more.append(kept - mean_kept(by_token, *pair, chain(gamma)))
    assert min(more) > -1e-6
    assert max(more) > 1e-3 or gamma == 1


def test_two_paths_keep_more_tokens_over_many_models_than_one():
    """In expectation, over models: for a single model the greedy pick can lose (here with seed 3)."""
    one, two = (
        sum(mean_kept(by_multi_path, *models(seed), parents, "with", all_judged=True) for seed in range(6))
        for parents in (chain(2), paths(2, 2))
    )
    assert two > 1.1 * one
