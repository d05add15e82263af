"""Trees and lossy acceptance: exact where it is promised, measured where it is not, one path in every case."""

import pytest
import torch
from enumeration import (
    SHAPES,
    Model,
    by_tree,
    distance,
    distribution,
    drafts,
    is_tried,
    outcomes,
    replaced,
    verify_by_match,
    verify_by_rejection,
    verify_by_tree,
    verify_by_typical,
)

from specviz.rules.draft import chain
from specviz.rules.exact import residual

TREES = {name: parents for name, parents in SHAPES.items() if not name.startswith("chain")}
HALF = torch.tensor(0.5, dtype=torch.float64)


def models(seed, vocab=3, zeros=False):
    return Model(seed, 3, vocab, zeros), Model(seed + 1000, 3, vocab)


@pytest.mark.parametrize("how", ["without", "chosen"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_round_of_any_tree_emits_the_target_distribution(shape, how):
    for seed, zeros in [(0, False), (1, True)]:
        assert distance(by_tree, *models(seed, zeros=zeros), SHAPES[shape], how) < 1e-6


@pytest.mark.parametrize("shape", ["(3,)", "(2, 1)"])
def test_siblings_drawn_with_replacement_emit_the_target_distribution_too(shape):
    assert distance(by_tree, *models(4), SHAPES[shape], "with") < 1e-6


def test_a_drafter_equal_to_the_target_is_always_accepted():
    target = Model(5, 3)
    kept = {len(way.kept) for way in outcomes(by_tree, target, target, (-1, -1, 0, 1), "without") if way.chance > 1e-6}
    assert kept == {2}


# Rules that are wrong on purpose: each must fail the enumeration above.


def rule_with_the_unreduced_q(tokens, parents, draft_probs, target_probs, coins, next_u):
    first = torch.tensor([parents.index(parent) for parent in parents])
    return verify_by_tree(tokens, parents, draft_probs[first], target_probs, coins, next_u)


def rule_that_tries_siblings_against_p(tokens, parents, draft_probs, target_probs, coins, next_u):
    """No refusal takes anything from the target before the next sibling; what is left at the end is right."""
    right = verify_by_tree(tokens, parents, draft_probs, target_probs, coins, next_u)
    accept_prob = (right.p / right.q).clamp_max(1)
    kept = [False] * len(parents)
    for token in range(len(parents)):
        kept[token] = is_tried(token, parents, kept) and bool(coins[token] < accept_prob[token])
    forced = torch.where(torch.tensor(kept), 0.0, 1.0).double()
    end = verify_by_tree(tokens, parents, draft_probs, target_probs, forced, next_u)
    return replaced(end, accept_prob=accept_prob, kept=torch.tensor(kept))


def rule_that_forgets_the_residual(tokens, parents, draft_probs, target_probs, coins, next_u):
    right = verify_by_tree(tokens, parents, draft_probs, target_probs, coins, next_u)
    return replaced(right, next_probs=target_probs[right.row][0])


def rule_that_forgets_the_first_refusal(tokens, parents, draft_probs, target_probs, coins, next_u):
    right = verify_by_tree(tokens, parents, draft_probs, target_probs, coins, next_u)
    row, last = int(right.row), [i for i in range(len(parents)) if parents[i] == int(right.row) - 1]
    wrong = residual(target_probs[row], draft_probs[last[-1]]) if last else target_probs[row]
    return replaced(right, next_probs=wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        rule_with_the_unreduced_q,
        rule_that_tries_siblings_against_p,
        rule_that_forgets_the_residual,
        rule_that_forgets_the_first_refusal,
    ],
)
def test_wrong_rules_for_trees_do_not_emit_the_target_distribution(wrong):
    assert distance(wrong, *models(0), TREES["(2, 1)"], "without") > 1e-3


def test_a_chosen_tree_beside_a_softmax_does_not_emit_the_target_distribution():
    target, drafter = models(0)

    def rule(tokens, parents, _draft_probs, target_probs, coins, next_u):
        row = drafter.rows[()]
        return verify_by_tree(tokens, parents, torch.stack([row, row]), target_probs, coins, next_u)

    assert distance(rule, target, drafter, (-1, -1), "chosen") > 1e-3


# What a decision says


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


def assert_is_a_path(decision, parents):
    kept = [index for index, one in enumerate(decision.kept.tolist()) if one]
    assert [parents[index] for index in kept] == [-1, *kept][: len(kept)]
    assert decision.row.tolist() == [kept[-1] + 1 if kept else 0]


@pytest.mark.parametrize("seed", range(25))
def test_whatever_the_rule_the_kept_tokens_form_one_path(seed):
    tokens, parents, draft_probs, target_probs, coins = random_tree(seed)
    assert_is_a_path(verify_by_tree(tokens, parents, draft_probs, target_probs, coins, HALF), parents)
    assert_is_a_path(verify_by_tree(tokens, parents, None, target_probs, coins, HALF), parents)
    assert_is_a_path(verify_by_typical(tokens, parents, target_probs, HALF), parents)
    assert_is_a_path(verify_by_match(tokens, parents, target_probs.argmax(-1)), parents)


@pytest.mark.parametrize("seed", range(12))
def test_a_chain_is_judged_as_rejection_judges_it(seed):
    generator = torch.Generator().manual_seed(seed)
    n, vocab = 1 + seed % 5, 9
    target_probs = (torch.randn(n + 1, vocab, generator=generator) * 2).softmax(-1)
    draft_probs = (target_probs[:n].log() + torch.randn(n, vocab, generator=generator)).softmax(-1)
    tokens = torch.multinomial(draft_probs, 1, generator=generator)[:, 0]
    coins, next_u = torch.rand(n, generator=generator).double(), torch.rand((), generator=generator).double()
    for probs in (draft_probs, None):
        token = verify_by_rejection(tokens, probs, target_probs, coins, next_u)
        tree = verify_by_tree(tokens, chain(n), probs, target_probs, coins, next_u)
        for field in ("kept", "p", "q", "accept_prob", "row", "next_token", "next_probs"):
            assert torch.equal(getattr(tree, field).double(), getattr(token, field).double()), field


def test_p_left_is_the_share_of_what_the_refused_siblings_left():
    p = torch.tensor([[0.5, 0.3, 0.2]])
    coins = torch.tensor([0.5, 0.7]).double()
    chosen = verify_by_tree(torch.tensor([0, 1]), (-1, -1), None, p.expand(3, 3), coins, HALF)
    assert torch.allclose(chosen.p_left, torch.tensor([0.5, 0.6])) and torch.equal(chosen.accept_prob, chosen.p_left)
    assert chosen.next_probs.tolist() == [0, 0, 1]
    # Drawn from (0.8, 0.1, 0.1), then from (0, 1/2, 1/2): (0, 2/3, 1/3) is left, and then (0, 1, 0).
    rows = torch.tensor([[0.8, 0.1, 0.1], [0, 0.5, 0.5]])
    drawn = verify_by_tree(torch.tensor([0, 2]), (-1, -1), rows, p.expand(3, 3), torch.tensor([0.9, 0.9]), HALF)
    assert torch.allclose(drawn.p_left, torch.tensor([0.5, 1 / 3]))
    assert torch.allclose(drawn.accept_prob, torch.tensor([0.625, 2 / 3]))
    assert torch.allclose(drawn.next_probs, torch.tensor([0.0, 1.0, 0.0]), atol=1e-6)


def test_a_token_the_target_excludes_never_passes_in_a_tree():
    tokens, parents, zero = torch.tensor([0, 2, 1]), (-1, -1, 0), torch.zeros(3)
    target_probs = torch.tensor([[0.0, 1.0, 0.0]]).expand(4, 3)
    rows = torch.tensor([[0.4, 0.2, 0.4], [0, 1 / 3, 2 / 3], [0.2, 0.4, 0.4]])
    for draft_probs in (rows, None):
        decision = verify_by_tree(tokens, parents, draft_probs, target_probs, zero, HALF)
        assert not decision.kept.any() and decision.next_token.item() == 1
        assert decision.p_left.isfinite().all()
    assert not verify_by_typical(tokens, parents, target_probs, HALF).kept.any()


def test_points_that_hold_all_of_the_target_leave_nothing_and_still_give_numbers():
    target_probs = torch.tensor([[0.6, 0.4, 0.0]]).expand(4, 3)
    coins = torch.tensor([0.9, 0.9, 0.9]).double()
    decision = verify_by_tree(torch.tensor([0, 1, 2]), (-1, -1, -1), None, target_probs, coins, HALF)
    assert decision.kept.tolist() == [False, True, False]
    assert decision.p_left.tolist() == pytest.approx([0.6, 1, 0])


# Greedy


def test_matching_tries_siblings_and_keeps_one_even_if_they_are_equal():
    tokens, parents = torch.tensor([1, 2, 2, 0, 3]), (-1, -1, -1, 1, 2)
    decision = verify_by_match(tokens, parents, torch.tensor([2, 0, 3, 3, 0, 0]))
    assert decision.kept.tolist() == [False, True, False, False, False]
    assert decision.row.tolist() == [2] and decision.next_token.item() == 3


# Typical acceptance


def by_typical(tokens, parents, _draft_probs, target_probs, _coins, next_u):
    return verify_by_typical(tokens, parents, target_probs, next_u)


@pytest.mark.parametrize("shape", ["chain 1", "chain 2", "(2,)", "(2, 1)", "(2, 2)"])
def test_the_distance_of_typical_acceptance_is_that_of_its_first_token(shape):
    reported = []
    for seed in range(8):
        target, drafter = models(seed)
        parents = SHAPES[shape]
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
    unsure = torch.tensor([0.04, 0.32, 0.32, 0.32])
    # min(0.09, 0.3·exp(−H)): the first row asks for 0.09 (H = 0.37), the second for 0.0885 (H = 1.22).
    unsure_threshold = 0.3 * torch.exp(-torch.special.entr(unsure).sum()).item()
    assert 0.04 < unsure_threshold < 0.09

    def kept(row, token, **constants):
        return verify_by_typical(torch.tensor([token]), (-1,), torch.stack([row, row]), HALF, **constants).kept.item()

    assert kept(sure, 0) and not kept(sure, 1)
    assert kept(unsure, 1) and not kept(unsure, 0)
    assert kept(unsure, 0, delta=0.1) and kept(sure, 1, epsilon=0.02)


def test_typical_acceptance_keeps_the_longest_path_and_the_first_of_equals():
    likely, unlikely = 0, 1
    target_probs = torch.tensor([0.5, 0.001, 0.499]).expand(7, 3)
    #         0: kept alone, 1–2: two deep, 3–4: two deep and later, 5: unlikely below a kept one
    tokens, parents = torch.tensor([2, 0, 2, likely, likely, unlikely]), (-1, -1, 1, -1, 3, 0)
    decision = verify_by_typical(tokens, parents, target_probs, HALF)
    assert decision.kept.tolist() == [False, True, True, False, False, False]
    assert decision.accept_prob.tolist() == [1, 1, 1, 1, 1, 0]
    assert torch.equal(decision.next_probs, target_probs[3])
    assert decision.distance.item() == pytest.approx(0.5)


def test_typical_acceptance_that_keeps_nothing_is_the_target():
    target_probs = torch.tensor([[0.96, 0.04]] * 2)
    decision = verify_by_typical(torch.tensor([1]), (-1,), target_probs, HALF)
    assert decision.distance.item() == 0 and torch.equal(decision.next_probs, target_probs[0])
