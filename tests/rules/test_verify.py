"""What a decision says under each rule, draws from distributions, and the distributions that parameters make."""

import dataclasses

import pytest
import torch
from enumeration import (
    SHAPES,
    Model,
    by_block,
    by_multi_path,
    by_token,
    by_tree,
    by_tree_on_device,
    distribution,
    drafts,
    outcomes,
    verify_by_match,
    verify_by_typical,
)
from transformers import TopPLogitsWarper

from specviz.records.settings import SamplingParams
from specviz.rules.draft import chain, tree_shape
from specviz.rules.exact import residual
from specviz.rules.sampling import SortedTopP, Warper, _first_above, draw

HALF = torch.tensor(0.5, dtype=torch.float64)


def assert_same_decision(one, other, *fields):
    for field in fields or ("accepted", "accept_prob", "row", "next_token", "next_probs"):
        assert torch.equal(getattr(one, field).double(), getattr(other, field).double()), field


def assert_is_a_path(decision, parents):
    kept = [index for index, one in enumerate(decision.accepted.tolist()) if one]
    assert [parents[index] for index in kept] == [-1, *kept][: len(kept)]
    assert decision.row.tolist() == [kept[-1] + 1 if kept else 0]


# Chains


def test_an_empty_residual_falls_back_to_the_target():
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert torch.equal(residual(p, p), p)


@pytest.mark.parametrize("seed", range(10))
def test_chains_are_judged_alike_by_all_rules_that_come_to_the_same_there(seed):
    """Siblings token by token, whatever the length; blocks too if they have one token, and a path as a block."""
    generator = torch.Generator().manual_seed(seed)
    n, vocab = 1 + seed % 5, 9
    target_probs = (torch.randn(n + 1, vocab, generator=generator) * 2).softmax(-1)
    draft_probs = (target_probs[:n].log() + torch.randn(n, vocab, generator=generator)).softmax(-1)
    tokens = torch.multinomial(draft_probs, 1, generator=generator)[:, 0]
    coins, next_u = torch.rand(n, generator=generator).double(), torch.rand((), generator=generator).double()
    for probs in (draft_probs, None):
        given = tokens, chain(n), probs, target_probs, coins, next_u
        token, block = by_token(*given), by_block(*given)
        assert_same_decision(by_tree(*given), token)
        if n == 1:
            assert_same_decision(block, token)
        if probs is not None:
            assert_same_decision(by_multi_path(*given), block)


# Trees


def random_tree(seed, vocab=12):
    """A random tree of up to 12 tokens, siblings drawn without replacement, from a model that resembles the target."""
    generator = torch.Generator().manual_seed(seed)
    n = int(torch.randint(1, 13, (1,), generator=generator))
    parents = tuple(int(torch.randint(-1, i, (1,), generator=generator)) for i in range(n))
    logits = torch.randn(n + 1, vocab, generator=generator) * 2
    noisy = logits + torch.randn(n + 1, vocab, generator=generator)
    tokens, rows = [], []
    for index, parent in enumerate(parents):
        row = noisy[parent + 1].softmax(-1)
        row[[tokens[i] for i in range(index) if parents[i] == parent]] = 0
        rows.append(row / row.sum())
        tokens.append(int(torch.multinomial(rows[-1], 1, generator=generator)))
    coins = torch.rand(n, generator=generator).double()
    return torch.tensor(tokens), parents, torch.stack(rows), logits.softmax(-1), coins


@pytest.mark.parametrize("seed", range(25))
def test_whatever_the_rule_the_kept_tokens_form_one_path(seed):
    tokens, parents, draft_probs, target_probs, coins = random_tree(seed)
    assert_is_a_path(by_tree(tokens, parents, draft_probs, target_probs, coins, HALF), parents)
    assert_is_a_path(by_tree(tokens, parents, None, target_probs, coins, HALF), parents)
    assert_is_a_path(verify_by_typical(tokens, parents, target_probs, HALF), parents)
    assert_is_a_path(verify_by_match(tokens, parents, target_probs.argmax(-1)), parents)


@pytest.mark.parametrize("seed", range(25))
def test_a_tree_is_judged_on_a_device_as_on_the_host(seed):
    *given, coins = random_tree(seed)
    host, device = (rule(*given, coins, HALF) for rule in (by_tree, by_tree_on_device))
    assert torch.equal(host.accepted.bool(), device.accepted) and torch.equal(host.row, device.row)
    assert host.next_token == device.next_token
    for name in ("p_left", "accept_prob", "next_probs"):
        torch.testing.assert_close(getattr(host, name), getattr(device, name), rtol=0, atol=1e-6)


def test_a_token_that_could_not_be_drawn_never_passes_and_takes_nothing_from_its_siblings():
    p = torch.tensor([[0.5, 0.3, 0.2]])
    drawn = torch.tensor([[1.0, 0, 0], [0, 0, 0]])  # the only token there was, then one of no mass at all
    coins = torch.tensor([0.9, 0.0]).double()
    decision = by_tree_on_device(torch.tensor([0, 0]), (-1, -1), drawn, p.expand(3, 3), coins, HALF)
    assert not decision.accepted.any() and decision.next_probs.tolist() == pytest.approx([0, 0.6, 0.4])


@pytest.mark.parametrize("seed", range(5))
def test_of_several_paths_one_is_weighed_and_what_is_kept_lies_on_it(seed):
    model, count, length = Model(seed, 3, vocab=5), 3, 3
    generator, texts = torch.Generator().manual_seed(seed), [()] * count
    tokens, probs, target = [], [], [Model(seed + 1000, 3, vocab=5).rows[()]]
    for _ in range(length):
        probs += [model.rows[text] for text in texts]
        texts = [(*text, int(torch.multinomial(model.rows[text], 1, generator=generator))) for text in texts]
        target += [Model(seed + 1000, 3, vocab=5).rows[text] for text in texts]
        tokens += [text[-1] for text in texts]
    tokens, q, coins = torch.tensor(tokens), torch.stack(probs), torch.rand(9, generator=generator).double()
    parents = (-1,) * count + tuple(range(count * (length - 1)))
    decision = by_multi_path(tokens, parents, q, torch.stack(target), coins, HALF)
    weighed = decision.weighed
    assert_is_a_path(decision, parents)
    assert_is_a_path(dataclasses.replace(decision, accepted=weighed, row=weighed.nonzero()[-1] + 1), parents)
    assert not (decision.accepted & ~weighed).any()
    assert torch.allclose(decision.drawn_from.sum(-1), torch.ones(len(parents)))
    assert torch.equal(decision.drawn_from.gather(-1, tokens[:, None])[:, 0][weighed], decision.q[weighed])


def test_p_left_is_the_share_of_what_the_refused_siblings_left():
    p = torch.tensor([[0.5, 0.3, 0.2]])
    coins = torch.tensor([0.5, 0.7]).double()
    chosen = by_tree(torch.tensor([0, 1]), (-1, -1), None, p.expand(3, 3), coins, HALF)
    assert torch.allclose(chosen.p_left, torch.tensor([0.5, 0.6])) and torch.equal(chosen.accept_prob, chosen.p_left)
    assert chosen.next_probs.tolist() == [0, 0, 1]
    # Drawn from (0.8, 0.1, 0.1), then from (0, 1/2, 1/2): (0, 2/3, 1/3) is left, and then (0, 1, 0).
    rows = torch.tensor([[0.8, 0.1, 0.1], [0, 0.5, 0.5]])
    drawn = by_tree(torch.tensor([0, 2]), (-1, -1), rows, p.expand(3, 3), torch.tensor([0.9, 0.9]), HALF)
    assert torch.allclose(drawn.p_left, torch.tensor([0.5, 1 / 3]))
    assert torch.allclose(drawn.accept_prob, torch.tensor([0.625, 2 / 3]))
    assert torch.allclose(drawn.next_probs, torch.tensor([0.0, 1.0, 0.0]), atol=1e-6)


def test_points_that_hold_all_of_the_target_leave_nothing_and_still_give_numbers():
    target_probs = torch.tensor([[0.6, 0.4, 0.0]]).expand(4, 3)
    coins = torch.tensor([0.9, 0.9, 0.9]).double()
    decision = by_tree(torch.tensor([0, 1, 2]), (-1, -1, -1), None, target_probs, coins, HALF)
    assert decision.accepted.tolist() == [False, True, False]
    assert decision.p_left.tolist() == pytest.approx([0.6, 1, 0])


def test_the_shape_of_a_tree_says_who_judges_who_came_before_and_who_are_siblings():
    shape = tree_shape((-1, 0, -1, 2), torch.device("cpu"))
    assert shape.rows.tolist() == [0, 1, 0, 3] and shape.families.tolist() == [0, 1, 0, 2]
    assert shape.ancestors.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


# Greedy


@pytest.mark.parametrize(
    "draft, parents, target, kept",
    [
        ([1, 2, 3], chain(3), [1, 2, 3, 0], [0, 1, 2]),
        ([1, 2, 3], chain(3), [1, 2, 0, 0], [0, 1]),
        ([1, 2, 3], chain(3), [0, 2, 3, 0], []),
        ([], (), [2], []),
        ([1, 2, 3, 3, 0], (-1, -1, 0, 1, 1), [2, 0, 3, 0, 1, 1], [1, 3]),
        ([1, 2, 2, 0, 3], (-1, -1, -1, 1, 2), [2, 0, 3, 3, 0, 0], [1]),  # of equal siblings one
    ],
)
def test_matching_keeps_the_branch_that_the_target_takes_and_the_target_goes_on(draft, parents, target, kept):
    decision = verify_by_match(torch.tensor(draft, dtype=torch.long), parents, torch.tensor(target))
    assert decision.accepted.nonzero().flatten().tolist() == kept
    row = kept[-1] + 1 if kept else 0
    assert decision.row.tolist() == [row] and decision.next_token.item() == target[row]


# Typical acceptance


def by_typical(tokens, parents, _draft_probs, target_probs, _coins, next_u):
    return verify_by_typical(tokens, parents, target_probs, next_u)


@pytest.mark.parametrize("shape", ["chain 1", "chain 2", "(2,)", "(2, 1)", "(2, 2)"])
def test_the_distance_of_typical_acceptance_is_that_of_its_first_token(shape):
    reported = []
    for seed in range(8):
        target, drafter, parents = Model(seed, 3), Model(seed + 1000, 3), SHAPES[shape]
        emitted = distribution(outcomes(by_typical, target, drafter, parents, "chosen"), target, 1)
        _, texts, _ = next(drafts(drafter, parents, "chosen"))
        rows = torch.stack([target.rows[text] for text in [(), *texts]])
        decision = verify_by_typical(torch.tensor([text[-1] for text in texts]), parents, rows, HALF)
        enumerated = (emitted - target.joint((), 1)).abs().sum().item() / 2
        assert decision.distance.item() == pytest.approx(enumerated, abs=1e-6)
        reported.append(decision.distance.item())
    assert max(reported) > 0.1


def test_typical_acceptance_asks_less_of_a_token_where_the_target_is_unsure():
    sure = torch.tensor([0.92, 0.08 / 3, 0.08 / 3, 0.08 / 3])
    # min(0.09, 0.3·exp(−H)): the first row asks for 0.09 (H = 0.37), the second for 0.0885 (H = 1.22).
    unsure = torch.tensor([0.04, 0.32, 0.32, 0.32])

    def kept(row, token, **constants):
        decision = verify_by_typical(torch.tensor([token]), (-1,), torch.stack([row, row]), HALF, **constants)
        return decision.accepted.item()

    assert kept(sure, 0) and not kept(sure, 1)
    assert kept(unsure, 1) and not kept(unsure, 0)
    assert kept(unsure, 0, delta=0.1) and kept(sure, 1, epsilon=0.02)


def test_typical_acceptance_keeps_the_longest_path_and_the_first_of_equals_or_is_the_target():
    target_probs = torch.tensor([0.5, 0.001, 0.499]).expand(7, 3)
    # 0: kept alone, 1–2: two deep, 3–4: two deep and later, 5: unlikely below a kept one
    tokens, parents = torch.tensor([2, 0, 2, 0, 0, 1]), (-1, -1, 1, -1, 3, 0)
    decision = verify_by_typical(tokens, parents, target_probs, HALF)
    assert decision.accepted.tolist() == [False, True, True, False, False, False]
    assert decision.accept_prob.tolist() == [1, 1, 1, 1, 1, 0]
    assert torch.equal(decision.next_probs, target_probs[3]) and decision.distance.item() == pytest.approx(0.5)
    nothing = verify_by_typical(torch.tensor([1]), (-1,), target_probs[:2], HALF)
    assert nothing.distance.item() == 0 and torch.equal(nothing.next_probs, target_probs[0])


# Draws and distributions


def test_a_draw_is_the_inverse_of_the_cumulative_distribution():
    probs = torch.tensor([0.1, 0.0, 0.4, 0.5])
    for u, token in [(0.0, 0), (0.09, 0), (0.11, 2), (0.49, 2), (0.51, 3), (0.99999994, 3)]:
        assert draw(probs, torch.tensor(u)).item() == token


def test_a_token_of_probability_zero_is_never_drawn_and_the_search_for_parallel_sums_draws_the_same():
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(500, 50, generator=generator) * (torch.rand(500, 50, generator=generator) < 0.3)
    probs[:, 7] += 0.01
    probs /= probs.sum(-1, keepdim=True)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    edges = [torch.full((500, 1), u, dtype=torch.float64) for u in (0.0, 0.25, 0.5, 0.99999994)]
    for u in (*edges, torch.rand(500, 1, generator=generator).double()):
        tokens = draw(probs, u)
        assert (probs.gather(-1, tokens[:, None]) > 0).all()
        assert torch.equal(_first_above(cumulative, u * cumulative[:, -1:], probs), tokens)
    rounded_up = torch.tensor([0.5, 0.5 + 1e-16, 1.0], dtype=torch.float64)
    assert _first_above(rounded_up, HALF[None], torch.tensor([0.5, 0, 0.5])).item() == 2


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
