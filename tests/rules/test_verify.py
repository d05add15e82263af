"""Each lossless rule follows the target: proven by enumeration, and broken on purpose."""

import pytest
import torch
from enumeration import (
    Model,
    by_block,
    by_token,
    distance,
    drafts,
    mean_kept,
    outcomes,
    replaced,
    verify_by_block,
    verify_by_match,
    verify_by_rejection,
)
from transformers import TopPLogitsWarper

from specviz.records.settings import SamplingParams
from specviz.rules.draft import chain, tree_shape
from specviz.rules.exact import residual
from specviz.rules.sampling import SortedTopP, Warper, _first_above, draw

# What a decision says


def test_a_token_the_target_excludes_never_passes_even_on_a_coin_of_zero():
    p = torch.tensor([[0.0, 1.0, 0.0, 0.0]] * 2)
    q = torch.full((1, 4), 0.25)
    zero = torch.zeros(1)
    assert not verify_by_rejection(torch.tensor([0]), q, p, zero, zero).kept.item()
    assert not verify_by_rejection(torch.tensor([0]), None, p, zero, zero).kept.item()


def test_a_coin_equal_to_the_acceptance_probability_is_refused():
    p, q = torch.tensor([[0.25, 0.75, 0, 0]] * 2), torch.tensor([[0.5, 0.5, 0, 0]])
    half = torch.tensor([0.5])
    assert not verify_by_rejection(torch.tensor([0]), q, p, half, half).kept.item()


def test_an_empty_residual_falls_back_to_the_target():
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert torch.equal(residual(p, p), p)


# Whole rounds: token by token, and as a block


RULES = {"token": (by_token, {}), "block": (by_block, {"all_judged": True})}


def models(seed, zeros=False):
    return Model(seed, 3, zeros=zeros), Model(seed + 1000, 3)


@pytest.mark.parametrize("how", ["without", "chosen"])
@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize("name", RULES)
def test_a_round_of_a_chain_emits_the_target_distribution(name, gamma, how):
    rule, options = RULES[name]
    for seed, zeros in [(0, False), (1, True)]:
        assert distance(rule, *models(seed, zeros), chain(gamma), how, **options) < 1e-6


@pytest.mark.parametrize("agreed", [(0, 1, 2, 3), (1,), (2,), (1, 2), (0, 2)])
def test_where_the_models_agree_a_block_still_emits_the_target_distribution(agreed):
    """Z = 0 and, if the block has passed so far, 1 − p = 0: h is 0/0 there."""
    target, drafter = models(7)
    drafter.rows |= {text: row for text, row in target.rows.items() if len(text) in agreed}
    assert distance(by_block, target, drafter, chain(3), "without", all_judged=True) < 1e-6
    if len(agreed) == 4:
        ways = outcomes(by_block, target, drafter, chain(3), "without", all_judged=True)
        assert {len(way.kept) for way in ways if way.chance > 1e-6} == {3}


# Rules that are wrong on purpose: each must fail the enumeration above, or it proves nothing.


def token_without_normalised_residual(tokens, parents, draft_probs, target_probs, coins, next_u):
    right = by_token(tokens, parents, draft_probs, target_probs, coins, next_u)
    row = int(right.row)
    if row == len(tokens):
        return right
    return replaced(right, next_probs=(target_probs[row] - draft_probs[row]).clamp_min(0))


def token_that_recovers_from_p(tokens, parents, draft_probs, target_probs, coins, next_u):
    right = by_token(tokens, parents, draft_probs, target_probs, coins, next_u)
    return replaced(right, next_probs=target_probs[int(right.row)])


def token_that_accepts_everything(tokens, parents, draft_probs, target_probs, coins, next_u):
    right = by_token(tokens, parents, draft_probs, target_probs, coins, next_u)
    return replaced(right, kept=torch.ones_like(right.kept))


def token_with_a_swapped_comparison(tokens, parents, draft_probs, target_probs, coins, next_u):
    """u ≥ p/q instead of u < p/q, by coins that lie on the other side."""
    bound = by_token(tokens, parents, draft_probs, target_probs, coins, next_u).accept_prob
    return by_token(tokens, parents, draft_probs, target_probs, (coins < bound).to(coins.dtype), next_u)


def block_that_stops_at_the_first_refusal(tokens, _parents, draft_probs, target_probs, coins, next_u):
    right = verify_by_block(tokens, draft_probs, target_probs, coins, next_u)
    kept = (coins < right.accept_prob).cumprod(0)
    # The same residual, of the row where it stopped: a coin of 0 there, and coins that never pass elsewhere.
    forced = torch.ones_like(coins)
    forced[int(kept.sum()) - 1 : int(kept.sum())] = 0
    return replaced(verify_by_block(tokens, draft_probs, target_probs, forced, next_u), kept=kept)


def block_with_the_residual_of_a_token(tokens, _parents, draft_probs, target_probs, coins, next_u):
    right = verify_by_block(tokens, draft_probs, target_probs, coins, next_u)
    row = int(right.row)
    ended = row == len(tokens)
    return replaced(right, next_probs=right.next_probs if ended else residual(target_probs[row], draft_probs[row]))


def block_judged_by_its_likelihood_alone(tokens, _parents, draft_probs, target_probs, coins, next_u):
    """Keeps up to the largest i whose coin is below p_i, as if every position were the last one."""
    right = verify_by_block(tokens, draft_probs, target_probs, coins, next_u)
    share, shares = 1.0, []
    for ratio in (right.p / right.q).tolist():
        share = min(1.0, share * ratio)
        shares.append(share)
    passed = [i for i in range(len(tokens)) if coins[i] < torch.tensor(shares[i])]
    count = max(passed, default=-1) + 1
    forced = torch.ones_like(coins)
    forced[count - 1 : count] = 0
    kept = torch.arange(len(tokens)) < count
    end = verify_by_block(tokens, draft_probs, target_probs, forced, next_u)
    return replaced(end, kept=kept, accept_prob=torch.tensor(shares))


@pytest.mark.parametrize(
    "wrong",
    [
        token_without_normalised_residual,
        token_that_recovers_from_p,
        token_that_accepts_everything,
        token_with_a_swapped_comparison,
        block_that_stops_at_the_first_refusal,
        block_with_the_residual_of_a_token,
        block_judged_by_its_likelihood_alone,
    ],
)
def test_wrong_rules_do_not_emit_the_target_distribution(wrong):
    options = {"all_judged": True} if "block" in wrong.__name__ else {}
    assert distance(wrong, *models(1), chain(2), "without", **options) > 1e-3


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
        target, drafter = models(seed, zeros=seed % 2 == 1)
        token = mean_kept(by_token, target, drafter, chain(gamma))
        more.append(mean_kept(by_block, target, drafter, chain(gamma), all_judged=True) - token)
    assert min(more) > -1e-6
    assert max(more) > 1e-3 or gamma == 1


def test_a_block_of_one_token_is_judged_as_a_token():
    for seed in range(10):
        target, drafter = models(seed)
        for _, texts, probs in drafts(drafter, chain(1), "without"):
            tokens, rows = torch.tensor(texts[0]), torch.stack([target.rows[()], target.rows[texts[0]]])
            coins, next_u = torch.tensor([0.7]).double(), torch.tensor(0.4).double()
            token, block = (rule(tokens, probs, rows, coins, next_u) for rule in (verify_by_rejection, verify_by_block))
            assert torch.equal(token.accept_prob, block.accept_prob) and torch.equal(token.next_probs, block.next_probs)


def test_in_a_block_too_a_token_the_target_excludes_never_passes_nor_one_after_it():
    target_probs = torch.tensor([[0.0, 0.9, 0.1]]).expand(4, 3)
    draft_probs = torch.full((3, 3), 1 / 3)
    for probs in (draft_probs, None):
        decision = verify_by_block(torch.tensor([1, 0, 1]), probs, target_probs, torch.zeros(3), torch.tensor(0.5))
        assert decision.kept.tolist() == [True, False, False]
        assert decision.accept_prob[1:].tolist() == [0, 0]


# Greedy


@pytest.mark.parametrize(
    "draft, target, kept",
    [([1, 2, 3], [1, 2, 3, 0], 3), ([1, 2, 3], [1, 2, 0, 0], 2), ([1, 2, 3], [0, 2, 3, 0], 0), ([], [2], 0)],
)
def test_matching_keeps_the_agreeing_prefix_and_the_target_goes_on(draft, target, kept):
    parents = tuple(range(-1, len(draft) - 1))
    decision = verify_by_match(torch.tensor(draft, dtype=torch.long), parents, torch.tensor(target))
    assert decision.kept.tolist() == [True] * kept + [False] * (len(draft) - kept)
    assert decision.next_token.item() == target[kept]


def test_matching_a_tree_follows_the_branch_the_target_takes():
    #            0:a 1:b 2:a.c 3:b.c 4:b.d
    tokens, parents = torch.tensor([1, 2, 3, 3, 0]), (-1, -1, 0, 1, 1)
    decision = verify_by_match(tokens, parents, torch.tensor([2, 0, 3, 0, 1, 1]))
    assert decision.kept.tolist() == [False, True, False, True, False]
    assert decision.row.item() == 4 and decision.next_token.item() == 1


def test_the_shape_of_a_tree_says_who_judges_who_came_before_and_who_are_siblings():
    shape = tree_shape((-1, 0, -1, 2), torch.device("cpu"))
    assert shape.rows.tolist() == [0, 1, 0, 3] and shape.families.tolist() == [0, 1, 0, 2]
    assert shape.ancestors.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


# Draws and distributions


def test_a_draw_is_the_inverse_of_the_cumulative_distribution():
    probs = torch.tensor([0.1, 0.0, 0.4, 0.5])
    for u, token in [(0.0, 0), (0.09, 0), (0.11, 2), (0.49, 2), (0.51, 3), (0.99999994, 3)]:
        assert draw(probs, torch.tensor(u)).item() == token


def test_a_token_of_probability_zero_is_never_drawn():
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(200, 50, generator=generator) * (torch.rand(200, 50, generator=generator) < 0.3)
    probs[:, 7] += 0.01
    probs /= probs.sum(-1, keepdim=True)
    for u in (0.0, 0.25, 0.5, 0.99999994):
        tokens = draw(probs, torch.full((200, 1), u, dtype=torch.float64))
        assert (probs.gather(-1, tokens[:, None]) > 0).all()


def test_the_search_for_parallel_sums_draws_the_same_and_forgives_their_rounding():
    generator = torch.Generator().manual_seed(2)
    probs = torch.rand(500, 20, generator=generator).softmax(-1) * (torch.rand(500, 20, generator=generator) < 0.5)
    probs[:, 3] += 0.01
    u = torch.rand(500, 1, generator=generator).double()
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    assert torch.equal(_first_above(cumulative, u * cumulative[:, -1:], probs), draw(probs, u))
    rounded_up = torch.tensor([0.5, 0.5 + 1e-16, 1.0], dtype=torch.float64)
    assert _first_above(rounded_up, torch.tensor([0.5], dtype=torch.float64), torch.tensor([0.5, 0, 0.5])).item() == 2


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.2),
        SamplingParams(temperature=1.5, top_k=20, top_p=0.9, min_p=0.05),
    ],
)
def test_probabilities_are_those_of_the_definition(params):
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(1)) * 3
    assert torch.allclose(Warper(params).probabilities(logits), by_definition(logits, params), atol=1e-6)


def by_definition(logits, params):
    """Temperature, top-k, top-p, min-p, row by row and token by token."""
    rows = []
    for row in logits:
        probs = (row / params.temperature).softmax(-1)
        order = probs.argsort(descending=True).tolist()
        if params.top_k:
            order = order[: params.top_k]
        kept = probs[order] / probs[order].sum()
        if params.top_p < 1:
            inside = [sum(kept[:index].tolist()) < params.top_p for index in range(len(order))]
            order = [token for token, keep in zip(order, inside) if keep]
            kept = probs[order] / probs[order].sum()
        if params.min_p:
            order = [token for token, prob in zip(order, kept.tolist()) if prob >= params.min_p * kept[0].item()]
        result = torch.zeros_like(probs)
        result[order] = probs[order] / probs[order].sum()
        rows.append(result)
    return torch.stack(rows)


@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999])
def test_top_p_keeps_what_transformers_keeps(top_p):
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(4)) * 3
    theirs = TopPLogitsWarper(top_p)
    assert torch.equal(SortedTopP(top_p)(None, logits), theirs(None, logits))
    # Of equal logits as many; which of them is left to the sorting.
    for tied in (logits.round(), torch.zeros(1, 50)):
        ours = SortedTopP(top_p)(None, tied)
        assert torch.equal(ours.sort().values, theirs(None, tied).sort().values)
        assert torch.equal(ours[ours.isfinite()], tied[ours.isfinite()])


def test_greedy_is_a_point_mass_on_the_first_largest_logit():
    probs = Warper(SamplingParams(temperature=0)).probabilities(torch.tensor([[1.0, 5.0, 5.0, 2.0]]))
    assert probs.tolist() == [[0, 1, 0, 0]]
