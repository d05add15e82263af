"""Each lossless rule emits the target's law: proven by enumeration, checked on samples, and broken on purpose."""

import itertools

import pytest
import torch
from scipy import stats

from specviz.sampling import SamplingParams, Warper, _first_above, draw
from specviz.verify import residual, shape_of, verify_by_match, verify_by_rejection

VOCAB = 4


def random_probs(seed, *shape, zeros=False):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(*shape, VOCAB, generator=generator)
    if zeros:
        probs[..., torch.randint(VOCAB, (1,), generator=generator)] = 0
    return probs / probs.sum(-1, keepdim=True)


def first_token_law(p, q, rule=verify_by_rejection, draft_is_drawn_from=None, shown_q=None):
    """The exact law [vocab] of the first token emitted by one round with γ = 1.

    The accept decision is integrated over its coin through the rule's own verdicts: a coin just below `accept_prob`
    must pass, one at it must not. The next token's law is the distribution the rule says it draws from.
    """
    law = torch.zeros(VOCAB, dtype=torch.float64)
    drawn_from = q if draft_is_drawn_from is None else draft_is_drawn_from
    shown = q if shown_q is None else shown_q
    rows = torch.stack([p, p])
    for token in range(VOCAB):
        if drawn_from[token] == 0:
            continue
        draft, probs = torch.tensor([token]), None if shown is None else shown.unsqueeze(0)
        passing = passing_share(rule, draft, probs, rows)
        refused = rule(draft, probs, rows, torch.tensor([0.99999994]), torch.tensor(0.5))
        law[token] += drawn_from[token].double() * passing
        if passing < 1:
            law += drawn_from[token].double() * (1 - passing) * refused.next_probs.double()
    return law


def passing_share(rule, draft, probs, rows):
    """The measure of coins that pass, by bisection on the rule's verdict."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        kept = rule(draft, probs, rows, torch.tensor([middle], dtype=torch.float64), torch.tensor([0.5])).kept
        low, high = (middle, high) if kept.item() else (low, middle)
    return low


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_rejection_of_a_sampled_draft_emits_the_target_law(seed, zeros):
    p, q = random_probs(seed, zeros=zeros), random_probs(seed + 100)
    assert torch.allclose(first_token_law(p, q), p.double(), atol=1e-6)


@pytest.mark.parametrize("copied", range(VOCAB))
@pytest.mark.parametrize("seed", range(5))
def test_rejection_of_a_copied_draft_emits_the_target_law(seed, copied):
    p = random_probs(seed, zeros=True)
    point = torch.nn.functional.one_hot(torch.tensor(copied), VOCAB).float()
    law = first_token_law(p, point, shown_q=None, draft_is_drawn_from=point, rule=copied_rule)
    assert torch.allclose(law, p.double(), atol=1e-6)


def copied_rule(draft, _probs, rows, coins, next_u):
    return verify_by_rejection(draft, None, rows, coins, next_u)


# Rules that are wrong on purpose: each must fail the test above, or the test proves nothing.


def rule_without_normalised_residual(draft, probs, rows, coins, next_u):
    right = verify_by_rejection(draft, probs, rows, coins, next_u)
    left = (rows[0] - probs[0]).clamp_min(0)
    return replaced(right, next_probs=left if not right.kept.item() else right.next_probs)


def rule_that_recovers_from_p(draft, probs, rows, coins, next_u):
    return replaced(verify_by_rejection(draft, probs, rows, coins, next_u), next_probs=rows[0])


def rule_that_accepts_everything(draft, probs, rows, coins, next_u):
    right = verify_by_rejection(draft, probs, rows, coins, next_u)
    return replaced(right, kept=torch.ones_like(right.kept))


def replaced(decision, **changes):
    fields = {name: getattr(decision, name) for name in decision.__slots__}
    return type(decision)(**(fields | changes))


@pytest.mark.parametrize(
    "wrong", [rule_without_normalised_residual, rule_that_recovers_from_p, rule_that_accepts_everything]
)
def test_wrong_rules_do_not_emit_the_target_law(wrong):
    p, q = random_probs(1), random_probs(101)
    assert not torch.allclose(first_token_law(p, q, rule=wrong), p.double(), atol=1e-3)


def test_argmax_drafts_beside_softmax_q_do_not_emit_the_target_law():
    p, q = random_probs(1), random_probs(101)
    argmax = torch.nn.functional.one_hot(q.argmax(), VOCAB).float()
    assert not torch.allclose(first_token_law(p, q, draft_is_drawn_from=argmax), p.double(), atol=1e-3)
    assert torch.allclose(first_token_law(p, argmax), p.double(), atol=1e-6)


def test_a_token_the_target_excludes_never_passes_even_on_a_coin_of_zero():
    p = torch.tensor([[0.0, 1.0, 0.0, 0.0]] * 2)
    q = torch.full((1, VOCAB), 0.25)
    zero = torch.zeros(1)
    assert not verify_by_rejection(torch.tensor([0]), q, p, zero, zero).kept.item()
    assert not verify_by_rejection(torch.tensor([0]), None, p, zero, zero).kept.item()


def test_a_coin_equal_to_the_acceptance_probability_is_refused():
    p, q = torch.tensor([[0.25, 0.75, 0, 0]] * 2), torch.tensor([[0.5, 0.5, 0, 0]])
    half = torch.tensor([0.5])
    assert not verify_by_rejection(torch.tensor([0]), q, p, half, half).kept.item()


def test_an_empty_residual_falls_back_to_the_target():
    p = random_probs(3)
    assert torch.equal(residual(p, p), p)


def sequence_law(p_rows, order, length):
    """Exact law of the first `length` tokens under a first-order target `p_rows` [vocab, vocab] from token `order`."""
    law = {}
    for tokens in itertools.product(range(VOCAB), repeat=length):
        chance, before = 1.0, order
        for token in tokens:
            chance *= p_rows[before, token].item()
            before = token
        law[tokens] = chance
    return law


def speculative_sample(p_rows, q_rows, gamma, length, generator, rule):
    """`length` tokens of a first-order target, made with whole rounds of drafting and verification."""
    tokens = [0]
    while len(tokens) <= length:
        uniforms = torch.rand(2 * gamma + 1, generator=generator)
        draft, probs = [], []
        before = tokens[-1]
        for step in range(gamma):
            probs.append(q_rows[before])
            before = draw(probs[-1], uniforms[step]).item()
            draft.append(before)
        rows = p_rows[torch.tensor([tokens[-1], *draft])]
        drafted = torch.tensor(draft)
        decision = rule(drafted, torch.stack(probs), rows, uniforms[gamma:-1], uniforms[-1])
        kept = int(decision.kept.sum())
        tokens += [*draft[:kept], int(decision.next_token)]
    return tuple(tokens[1 : length + 1])


def chi_square_p_value(rule, gamma=3, length=2, samples=4000):
    p_rows, q_rows = random_probs(5, VOCAB), random_probs(6, VOCAB)
    generator = torch.Generator().manual_seed(7)
    law = sequence_law(p_rows, 0, length)
    counts = dict.fromkeys(law, 0)
    for _ in range(samples):
        counts[speculative_sample(p_rows, q_rows, gamma, length, generator, rule)] += 1
    scale = samples / sum(law.values())  # float32 rows sum to one only up to rounding
    return stats.chisquare([counts[key] for key in law], [law[key] * scale for key in law]).pvalue


def test_samples_of_whole_rounds_follow_the_target_law():
    assert chi_square_p_value(verify_by_rejection) > 0.001


@pytest.mark.parametrize("wrong", [rule_that_accepts_everything])
def test_samples_of_a_wrong_rule_do_not(wrong):
    assert chi_square_p_value(wrong) < 1e-9


def test_a_swapped_comparison_is_caught_by_the_samples():
    def swapped(draft, probs, rows, coins, next_u):
        p = rows[:-1].gather(-1, draft[:, None])[:, 0]
        q = probs.gather(-1, draft[:, None])[:, 0]
        # u ≥ p/q instead of u < p/q, by coins that lie on the other side.
        flipped = torch.where(coins < p / q, torch.ones_like(coins), torch.zeros_like(coins))
        return verify_by_rejection(draft, probs, rows, flipped, next_u)

    assert chi_square_p_value(swapped) < 1e-9


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


def test_the_shape_of_a_tree_says_who_judges_and_who_came_before():
    shape = shape_of((-1, 0, -1, 2), torch.device("cpu"))
    assert shape.rows.tolist() == [0, 1, 0, 3]
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


def test_greedy_is_a_point_mass_on_the_first_largest_logit():
    probs = Warper(SamplingParams(temperature=0)).probabilities(torch.tensor([[1.0, 5.0, 5.0, 2.0]]))
    assert probs.tolist() == [[0, 1, 0, 0]]
