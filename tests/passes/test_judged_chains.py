"""What judges a draft in one call decides as the rule does, for the same reasons."""

import itertools
from dataclasses import replace

import pytest
import torch
from matrix import pairwise
from refusal import refused
from tiny import tiny_pair, with_heads
from torch import Tensor

import specviz
from specviz.decoding import decoder
from specviz.decoding.decoder import Judge, KernelJudge, judge_of
from specviz.decoding.request import prepare
from specviz.drafters import DRAFTERS
from specviz.models.pair_passes import feature_layers
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.chains import spread
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.kernels.judging import JudgedDraft
from specviz.passes.made_drafts import Choice
from specviz.passes.roles import DRAFT, TARGET
from specviz.passes.static_passes import StaticPass
from specviz.records.runs import Run
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.rules.draft import Decision, Draft, Rule, TargetRows, Uniforms, chain
from specviz.rules.exact import BLOCK, MATCH, TOKEN, TREE
from specviz.rules.sampling import Warper, draw

PROMPT = [5, 9, 33, 7, 7, 20, 11, 3]


@pytest.fixture(autouse=True, scope="module")
def kernels():
    kernel_library.load()


def uniform(*sizes: int) -> Tensor:
    return torch.rand(sizes).double()


def a_round(n: int, vocab: int, points: bool, tree: bool = False) -> tuple[Draft, Tensor, Uniforms]:
    """A draft near the target, so that some of it is kept; a fifth of the target's tokens are ruled out. points: tokens
    are copied, often the target's likeliest. tree: or else a chain; siblings are drawn without replacement."""
    logits = torch.randn(n + 1, vocab) * 4
    parents = tuple(int(torch.randint(-1, i, ())) if tree and i else i - 1 for i in range(n))
    rows = torch.tensor(parents, dtype=torch.long) + 1
    near = (logits + torch.randn(n + 1, vocab)).softmax(-1)[rows]
    q, tokens = near.clone(), torch.empty(n, dtype=torch.long)
    for i in range(n):
        elders = [j for j in range(i) if parents[j] == parents[i]][: vocab - 1]
        q[i, tokens[elders]] = 0
        q[i] /= q[i].sum()
        tokens[i] = draw(q[i], uniform(1))
    logits[:, 1:][torch.rand(n + 1, vocab - 1) < 0.2] = float("-inf")
    if points:
        tokens = torch.where(torch.rand(n) < 0.7, logits[rows].argmax(-1), tokens)
    return Draft(tokens, parents, None if points or not n else q), logits, Uniforms(uniform(9), uniform(9), uniform())


def decided(rule: Rule, temperature: float, draft: Draft, logits: Tensor, uniforms: Uniforms) -> Decision:
    return rule.decide(draft, TargetRows.of(logits, Warper(SamplingParams(temperature=temperature))), uniforms)


@pytest.mark.parametrize(
    "vocab, temperature, points, rule",
    pairwise(vocab=[3, 151, 1000], temperature=[0.6, 1.0], points=[False, True], rule=[TOKEN, BLOCK, TREE]),
)
def test_drawn_drafts_are_judged_by_the_rule(vocab, temperature, points, rule):
    torch.manual_seed(vocab)
    depths = set()
    for n, _ in itertools.product(range(6), range(20)):
        if rule is TREE and not points:
            n = min(n, vocab - 1)  # of distinct siblings
        draft, logits, uniforms = a_round(n, vocab, points, rule is TREE)
        made = JudgedDraft(draft, logits, uniforms, temperature, rule is BLOCK)
        expected = decided(rule, temperature, draft, logits, uniforms)
        assert_path(made, draft, expected)
        assert list(made.choices) == logits.argmax(-1).tolist()
        torch.testing.assert_close(made.probs(), (logits / temperature).softmax(-1), atol=1e-6, rtol=1e-5)
        given = made.decision()
        assert given.accepted.tolist() == expected.accepted.bool().tolist() and given.row == expected.row
        # A residual is a small difference of large numbers.
        for name, nearly in {"p": 1e-6, "q": 0, "accept_prob": 1e-5, "next_probs": 1e-4, "next_sums": 1e-4}.items():
            if n or name.startswith("next"):
                torch.testing.assert_close(getattr(given, name), getattr(expected, name), atol=nearly, rtol=1e-5)
        if rule is TREE and n:
            torch.testing.assert_close(given.p_left, expected.p_left, atol=1e-5, rtol=1e-4)
        depths.add(len(made.path))
    assert depths >= {0, 1, 2}


def assert_path(made: JudgedDraft, draft: Draft, expected: Decision) -> None:
    path = [place for place, kept in enumerate(expected.accepted.tolist()) if kept]
    assert made.path == tuple(path)
    assert made.tokens == (*draft.tokens[path].tolist(), expected.next_token.item())


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("vocab", [3, 151, 1000])
def test_greedy_drafts_are_matched(vocab, tree):
    torch.manual_seed(vocab)
    depths = set()
    for n, _ in itertools.product(range(6), range(20)):
        draft, logits, uniforms = a_round(n, vocab, True, tree)
        made, expected = JudgedDraft(draft, logits, uniforms, 0.0), decided(MATCH, 0.0, draft, logits, uniforms)
        assert_path(made, draft, expected)
        assert list(made.choices) == logits.argmax(-1).tolist()
        depths.add(len(made.path))
    assert depths >= {0, 1, 2}


def test_of_equal_logits_the_first_is_the_likeliest():
    draft, _, uniforms = a_round(0, 600, points=True)
    logits = torch.zeros(1, 600)
    assert JudgedDraft(draft, logits, uniforms, 0.0).tokens == (0,)
    logits[0, [300, 599]] = 1.0
    assert JudgedDraft(draft, logits, uniforms, 0.0).tokens == (300,)


def drawn_by_kernels(probs: Tensor, u: float) -> int:
    """The next token of an empty draft, from these probabilities."""
    uniforms = Uniforms(uniform(), uniform(), torch.tensor(u, dtype=torch.float64))
    return JudgedDraft(Draft.copied((), torch.device("cpu")), probs.log().unsqueeze(0), uniforms, 1.0).tokens[0]


@pytest.mark.parametrize("vocab", [1, 255, 256, 257, 5000])
def test_tokens_are_drawn_where_running_sums_would_be_and_never_without_mass(vocab):
    """Of parts of 256 sums, the one that is searched may begin or end without any."""
    torch.manual_seed(vocab)
    for share in (1.0, 0.3, 0.01):
        probs = torch.rand(vocab) * (torch.rand(vocab) < share)
        probs[torch.randint(vocab, ())] = 1.0
        probs /= probs.sum()
        coins = [0.0, 2**-24, 0.5, 1 - 2**-24, *torch.rand(60).tolist()]
        found = [drawn_by_kernels(probs, u) for u in coins]
        sums = (probs.log().softmax(-1)).cumsum(-1, dtype=torch.float64)
        for u, token in zip(coins, found, strict=True):
            before = sums[token - 1].item() if token else 0.0
            assert probs[token] > 0 and before - 1e-6 <= u * sums[-1].item() <= sums[token].item() + 1e-6
    assert drawn_by_kernels(torch.tensor([0.0, 0, 0.5, 0, 0.5, 0]), 0.0) == 2
    assert drawn_by_kernels(torch.tensor([0.0, 0, 0.5, 0, 0.5, 0]), 0.5) == 4
    assert drawn_by_kernels(torch.tensor([0.0, 0, 0.5, 0, 0.5, 0]), 1 - 2**-24) == 4


def test_a_draft_that_is_the_target_is_kept_whatever_the_coins():
    _, logits, _ = a_round(3, 20, points=False)
    probs = JudgedDraft(Draft.copied((), torch.device("cpu")), logits[:1], Uniforms(*[uniform()] * 3), 0.6).probs()
    tokens = draw(probs, uniform(1, 1))
    highest = torch.full((9,), 1 - 2**-24, dtype=torch.float64)
    draft, coins = Draft(tokens, chain(1), probs), Uniforms(highest, highest, highest[0])
    assert JudgedDraft(draft, logits[:2], coins, 0.6).path == (0,)


def test_what_the_target_rules_out_is_refused_even_by_a_coin_that_is_zero():
    logits, zeros = torch.tensor([[1.0, float("-inf"), 0.0]] * 2), torch.zeros(9, dtype=torch.float64)
    draft = Draft(torch.tensor([1]), chain(1), torch.tensor([[0.2, 0.6, 0.2]]))
    assert JudgedDraft(draft, logits, Uniforms(zeros, zeros, zeros[0]), 0.6).tokens == (0,)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_logits_that_are_not_numbers_are_refused_and_what_is_all_ruled_out_leads_to_a_token(temperature):
    draft, logits, uniforms = a_round(2, 40, points=False)
    for place in (0, 17, 39):  # in a register, and past the last whole one
        for broken in (float("nan"), float("inf")):
            wrong = logits.clone()
            wrong[-1, place] = broken
            with refused("dtype", "The target produced NaN or infinite logits"):
                JudgedDraft(draft, wrong, uniforms, temperature)
    tokens = JudgedDraft(draft, torch.full_like(logits, float("-inf")), uniforms, temperature).tokens
    assert all(0 <= token < 40 for token in tokens)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize("shared", [False, True])
def test_a_draft_from_what_are_not_numbers_is_refused(temperature, shared):
    """shared: siblings were drafted from one row, in which any place may tell."""
    draft, logits, uniforms = a_round(2, 40, points=False)
    rows = logits[:1] if shared else logits[:2]
    if temperature and not shared:
        rows = draft.probs
    for broken in (float("nan"), float("inf")):
        wrong = rows.clone()
        wrong[-1, 39 if shared else draft.tokens[-1]] = broken
        wrong_draft = replace(draft, logits=wrong, probs=wrong if temperature and not shared else None)
        with refused("dtype", "The drafter produced NaN or infinite logits"):
            JudgedDraft(wrong_draft, logits, uniforms, temperature)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("place", [3, 20, 299])
def test_a_single_nan_in_a_row_counts_as_its_largest_and_the_draft_is_refused(place, branches, temperature):
    """Not even a likelier token at the same place of another register, or in an earlier part, is drafted instead."""
    torch.manual_seed(place)
    rows, coins = torch.randn(2, 300), uniform(9)
    rows[:, 4] = 50.0
    rows[1, place] = float("nan")
    tokens, parents, logits, probs = spread(rows, Choice(branches, temperature), coins)
    if branches == 1 and not temperature:
        assert tokens.tolist() == [4, place]
    draft = Draft(tokens, parents, probs, logits)
    with refused("dtype", "The drafter produced NaN or infinite logits"):
        JudgedDraft(draft, torch.randn(len(parents) + 1, 300), Uniforms(coins, coins, coins[0]), temperature)


@pytest.mark.parametrize(
    "drafter, temperature, rule",
    [
        *pairwise(
            drafter=[None, *(name for name in DRAFTERS if name != "lookahead")],  # which drafts trees
            temperature=[0.0, 0.7, 1.0],
            rule=["token", "block"],
        ),
        *pairwise(drafter=["draft_model", "medusa", "lookahead"], temperature=[0.0, 0.7], rule=["tree"]),
    ],
)
def test_a_run_is_the_one_that_the_rule_judges(drafter, temperature, rule, monkeypatch):
    pair, few_rows = with_heads(tiny_pair("llama")), FewRows.ready()
    for role, model in ((TARGET, pair.target), (DRAFT, pair.draft)):
        layers = feature_layers(pair) if role == TARGET else ()
        pair.passes.fast[role] = FastPasses.unprepared(StaticPass(model, layers, few_rows))
    # Some draft trees unless told otherwise.
    branches = 3 if rule == "tree" else 1
    settings = {"drafter": drafter, "drafting": DraftParams(branches=branches), "seed": 3, "rule": rule}
    settings["sampling"] = SamplingParams(temperature=temperature)

    def run() -> Run:
        return specviz.run(pair, PROMPT * 3, max_new_tokens=60, **settings)

    calls = []
    monkeypatch.setattr(decoder, "JudgedDraft", lambda *given: calls.append(given) or JudgedDraft(*given))
    at_once = run()
    assert len(calls) == len(at_once.rounds)
    monkeypatch.setattr(decoder, "judge_of", lambda request: Judge(request.deciding_rule, request.warper))
    by_rule = run()
    assert len(calls) == len(at_once.rounds) and at_once.token_ids == by_rule.token_ids
    for one, other in zip(at_once.rounds, by_rule.rounds, strict=True):
        assert [each.outcome for each in one.drafted] == [each.outcome for each in other.drafted]
        assert [each.u for each in one.drafted] == [each.u for each in other.drafted]
        assert [each.p for each in one.drafted] == pytest.approx([each.p for each in other.drafted], abs=1e-6)
        assert (one.next.id, one.next.kind, one.next.u) == (other.next.id, other.next.kind, other.next.u)
        assert one.next.prob == pytest.approx(other.next.prob, abs=1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        {"rule": "block", "sampling": SamplingParams(temperature=0.7, top_p=0.9)},
        {"drafting": DraftParams(branches=3), "rule": "multi_path"},
        {"drafting": DraftParams(branches=3), "rule": "typical"},
        {"sampling": SamplingParams(temperature=0.7, top_k=5)},
    ],
)
def test_what_one_call_does_not_know_is_judged_by_the_rule(changed):
    pair = tiny_pair("llama")
    pair.passes.fast[TARGET] = FastPasses.unprepared(StaticPass(pair.target, (), FewRows.ready()))
    request = prepare(pair, RunSettings(tuple(PROMPT), **{"drafter": "draft_model"} | changed))
    assert not isinstance(judge_of(request), KernelJudge)


def test_what_little_is_left_of_a_row_is_shared_out_and_nothing_else():
    """Seven tokens take all but 1e-38 of it; the eighth has that, and those ruled out have nothing."""
    rows, coins = torch.full((1, 64), -torch.inf), torch.full((8,), 0.5, dtype=torch.float64)
    rows[0, :7], rows[0, 7] = 0, -86.9
    made = spread(rows, Choice(8, 1.0), coins)
    assert sorted(made.tokens.tolist()) == list(range(8))
    assert made.probs.isfinite().all() and made.probs[-1, 7] == 1
    draft = Draft(made.tokens, made.parents, made.probs, made.logits)
    JudgedDraft(draft, torch.zeros(9, 64), Uniforms(coins, coins, coins[0]), 1.0)  # finds numbers
