"""Each lossless rule follows the target: proven by enumeration, checked on samples, and broken on purpose."""

import itertools

import pytest
import torch
from enumeration import Model, by_block, by_token, distance, drafts, mean_kept, outcomes, replaced
from judging import verify_by_block, verify_by_match, verify_by_rejection
from scipy import stats
from transformers import TopPLogitsWarper

from specviz.records.settings import SamplingParams
from specviz.rules.draft import chain, tree_shape
from specviz.rules.exact import residual
from specviz.rules.sampling import SortedTopP, Warper, _first_above, draw

VOCAB = 4


def random_probs(seed, *shape, zeros=False):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(*shape, VOCAB, generator=generator)
    if zeros:
        probs[..., torch.randint(VOCAB, (1,), generator=generator)] = 0
    return probs / probs.sum(-1, keepdim=True)


def first_token_distribution(p, q, rule=verify_by_rejection, draft_is_drawn_from=None, shown_q=None):
    """The exact distribution [vocab] of the first token emitted by one round with γ = 1.

    The accept decision is integrated over its coin through the rule's own verdicts: a coin just below `accept_prob`
    must pass, one at it must not. The next token's distribution is the distribution the rule says it draws from.
    """
    distribution = torch.zeros(VOCAB, dtype=torch.float64)
    drawn_from = q if draft_is_drawn_from is None else draft_is_drawn_from
    shown = q if shown_q is None else shown_q
    rows = torch.stack([p, p])
    for token in range(VOCAB):
        if drawn_from[token] == 0:
            continue
        draft, probs = torch.tensor([token]), None if shown is None else shown.unsqueeze(0)
        passing = passing_share(rule, draft, probs, rows)
        refused = rule(draft, probs, rows, torch.tensor([0.99999994]), torch.tensor(0.5))
        distribution[token] += drawn_from[token].double() * passing
        if passing < 1:
            distribution += drawn_from[token].double() * (1 - passing) * refused.next_probs.double()
    return distribution


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
def test_rejection_of_a_sampled_draft_emits_the_target_distribution(seed, zeros):
    p, q = random_probs(seed, zeros=zeros), random_probs(seed + 100)
    assert torch.allclose(first_token_distribution(p, q), p.double(), atol=1e-6)


@pytest.mark.parametrize("copied", range(VOCAB))
@pytest.mark.parametrize("seed", range(5))
def test_rejection_of_a_copied_draft_emits_the_target_distribution(seed, copied):
    p = random_probs(seed, zeros=True)
    point = torch.nn.functional.one_hot(torch.tensor(copied), VOCAB).float()
    distribution = first_token_distribution(p, point, shown_q=None, draft_is_drawn_from=point, rule=copied_rule)
    assert torch.allclose(distribution, p.double(), atol=1e-6)


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


@pytest.mark.parametrize(
    "wrong", [rule_without_normalised_residual, rule_that_recovers_from_p, rule_that_accepts_everything]
)
def test_wrong_rules_do_not_emit_the_target_distribution(wrong):
    p, q = random_probs(1), random_probs(101)
    assert not torch.allclose(first_token_distribution(p, q, rule=wrong), p.double(), atol=1e-3)


def test_argmax_drafts_beside_softmax_q_do_not_emit_the_target_distribution():
    p, q = random_probs(1), random_probs(101)
    argmax = torch.nn.functional.one_hot(q.argmax(), VOCAB).float()
    assert not torch.allclose(first_token_distribution(p, q, draft_is_drawn_from=argmax), p.double(), atol=1e-3)
    assert torch.allclose(first_token_distribution(p, argmax), p.double(), atol=1e-6)


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


def sequence_distribution(p_rows, order, length):
    """Exact, of the first `length` tokens under a first-order target `p_rows` [vocab, vocab] from token `order`."""
    distribution = {}
    for tokens in itertools.product(range(VOCAB), repeat=length):
        chance, before = 1.0, order
        for token in tokens:
            chance *= p_rows[before, token].item()
            before = token
        distribution[tokens] = chance
    return distribution


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
    distribution = sequence_distribution(p_rows, 0, length)
    counts = dict.fromkeys(distribution, 0)
    for _ in range(samples):
        counts[speculative_sample(p_rows, q_rows, gamma, length, generator, rule)] += 1
    scale = samples / sum(distribution.values())  # float32 rows sum to one only up to rounding
    return stats.chisquare(
        [counts[key] for key in distribution], [distribution[key] * scale for key in distribution]
    ).pvalue


def test_samples_of_whole_rounds_follow_the_target_distribution():
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
        block_that_stops_at_the_first_refusal,
        block_with_the_residual_of_a_token,
        block_judged_by_its_likelihood_alone,
    ],
)
def test_wrong_rules_for_blocks_do_not_emit_the_target_distribution(wrong):
    assert distance(wrong, *models(1), chain(2), "without", all_judged=True) > 1e-3


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


def test_a_block_keeps_more_tokens_than_token_by_token_on_the_same_thousand_draws():
    generator = torch.Generator().manual_seed(0)
    gamma, vocab, rounds = 4, 8, 1000
    kept = dict.fromkeys(RULES, 0)
    for _ in range(rounds):
        target_probs = torch.randn(gamma + 1, vocab, generator=generator).softmax(-1)
        draft_probs = (target_probs[:gamma].log() + torch.randn(gamma, vocab, generator=generator)).softmax(-1)
        tokens = torch.multinomial(draft_probs, 1, generator=generator)[:, 0]
        coins = torch.rand(gamma, generator=generator).double()
        for name, (rule, _) in RULES.items():
            kept[name] += int(rule(tokens, chain(gamma), draft_probs, target_probs, coins, coins[0]).kept.sum())
    assert kept["block"] > kept["token"]


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
