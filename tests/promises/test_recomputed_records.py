"""A record holds what decided: every verdict, draw and emitted token can be recomputed from it."""

import dataclasses
import json
from functools import lru_cache

import pytest
import torch
from matrix import EXACT, GREEDY, PROMPT, branch, drafting_with, pair_of, path_of

import specviz
from specviz.records.runs import DraftedToken, Round, Run
from specviz.records.settings import SamplingParams
from specviz.rules.exact import residual
from specviz.rules.sampling import Warper

WARPED = SamplingParams(temperature=1.3, top_k=8, top_p=0.9, min_p=0.01)

LOSSY = [(drafter, "typical", branches) for drafter, branches in (("draft_model", 1), ("draft_model", 3), ("eagle", 3))]


@lru_cache
def run_of(drafter: str, rule: str, branches: int) -> Run:
    order = drafting_with(drafter, rule, branches)
    return specviz.run(pair_of(), PROMPT, max_new_tokens=50, sampling=WARPED, seed=3, **order)


def tried(one: Round) -> list[DraftedToken]:
    """Whose turn came: their parent was kept and no elder sibling."""
    places = [-1, *(index for index, token in enumerate(one.drafted) if token.outcome == "accepted")]
    taken = {one.drafted[place].parent: place for place in places[1:]}
    return [
        token
        for index, token in enumerate(one.drafted)
        if token.parent in places and index <= taken.get(token.parent, index)
    ]


def weighed(one: Round) -> list[DraftedToken]:
    """All tokens of a chain; of several paths, those of the one that was picked."""
    return [token for token in one.drafted if token.accept_prob is not None]


@pytest.mark.parametrize("drafter, rule, branches", EXACT + LOSSY)
def test_what_is_emitted_is_the_accepted_branch_and_the_next_token(drafter, rule, branches, tmp_path):
    run = run_of(drafter, rule, branches)
    for one in run.rounds:
        assert [*one.emitted] == [*(token.id for token in path_of(one)), one.next.id]
        refused = [token for token in one.drafted if token.outcome == "rejected"]
        end = len(path_of(one)) and one.drafted.index(path_of(one)[-1])
        after = end if path_of(one) else -1
        assert one.next.kind == ("recovered" if any(token.parent == after for token in refused) else "bonus")
        turned = [token for token in tried(one) if rule != "multi_path" or token in weighed(one)]
        assert [token for token in one.drafted if token.outcome != "discarded"] == turned
        assert len(one.top) == len(one.drafted) + 1
        for row, listed in enumerate(one.top):
            assert bool(listed.residual) == (row == after + 1 and one.next.kind == "recovered")
            for likeliest in (listed.p, listed.q, listed.residual, listed.p_raw, listed.q_raw):
                assert list(likeliest) == sorted(likeliest, key=lambda pair: -pair[1])
        assert (one.distance is None) == (rule != "typical" or not one.drafted)
    assert run.rule == rule
    assert Run.from_dict(json.loads(json.dumps(run.to_dict()))) == run
    run.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json") == run


@pytest.mark.parametrize("drafter, rule, branches", [case for case in EXACT if case[1] in ("token", "tree")])
def test_every_decision_follows_from_its_coin(drafter, rule, branches):
    outcomes = set()
    for one in run_of(drafter, rule, branches).rounds:
        for token in one.drafted:
            outcomes.add(token.outcome)
            if token.outcome == "discarded":
                assert token.u is None and token.accept_prob is None and token.p_left is None
                continue
            share = token.p if token.p_left is None else token.p_left
            assert token.accept_prob == pytest.approx(min(1.0, share / token.q), rel=1e-6)
            assert (token.u < token.accept_prob) == (token.outcome == "accepted")
    assert {"accepted", "rejected"} <= outcomes


@pytest.mark.parametrize("drafter, rule, branches", [case for case in EXACT if case[1] in ("block", "multi_path")])
def test_a_block_is_kept_up_to_the_last_coin_that_passes(drafter, rule, branches):
    outcomes = set()
    for one in run_of(drafter, rule, branches).rounds:
        block = weighed(one)
        passed = [index + 1 for index, token in enumerate(block) if token.u < token.accept_prob]
        kept = max(passed, default=0)
        expected = ["accepted"] * kept + ["rejected"] + ["discarded"] * len(block)
        assert [token.outcome for token in block] == expected[: len(block)]
        if block:
            share = 1.0
            for token in block:
                share = min(share * token.p / token.q, 1.0)
            assert block[-1].accept_prob == pytest.approx(share, rel=1e-5)
        outcomes.update(token.outcome for token in one.drafted)
    assert {"accepted", "rejected"} <= outcomes


@pytest.mark.parametrize("rule, branches", [("token", 1), ("tree", 3)])
@torch.inference_mode()
def test_shares_and_draws_can_be_recomputed_from_the_models(rule, branches):
    """p and q from the models alone; what elder siblings left; and each u points at the token that was recorded."""
    run, pair = run_of("draft_model", rule, branches), pair_of()
    warp, ids, elders = Warper(run.sampling).probabilities, list(run.prompt.ids), 0
    for one in run.rounds:
        left, q = torch.zeros(16), torch.zeros(16)
        for token in tried(one):
            text = torch.tensor([[*ids, *(before.id for before in branch(one, token.parent))]])
            left, q = warp(pair.target(text).logits[0, -1:])[0], warp(pair.draft(text).logits[0, -1:])[0]
            siblings = [other for other in one.drafted if other.parent == token.parent]
            for elder in siblings[: siblings.index(token)]:
                left = residual(left, q / q.sum())
                q[elder.id] = 0
                elders += 1
            q = q / q.sum()
            assert token.q == pytest.approx(q[token.id].item(), abs=1e-4)
            assert (token.p if token.p_left is None else token.p_left) == pytest.approx(left[token.id].item(), abs=1e-3)
            assert covers(q, token.id, token.draft_u)
        if one.next.kind == "recovered":
            law = residual(left, q)
        else:
            law = warp(pair.target(torch.tensor([[*ids, *one.emitted[:-1]]])).logits[0, -1:])[0]
        assert one.next.prob == pytest.approx(law[one.next.id].item(), abs=1e-3)
        assert covers(law, one.next.id, one.next.u)
        ids += one.emitted
    assert (elders > 5) == (branches > 1)


def covers(probs: torch.Tensor, token: int, u: float, slack: float = 1e-3) -> bool:
    """Whether u falls on the token's stretch of the cumulative distribution, up to rounding between two passes."""
    upto = probs.double().cumsum(-1)
    return bool(upto[token] - probs[token] - slack <= u <= upto[token] + slack)


@pytest.mark.parametrize("drafter, rule, branches", LOSSY)
def test_typical_acceptance_flips_no_coin_and_says_how_far_it_strays(drafter, rule, branches):
    run = run_of(drafter, rule, branches)
    for one in run.rounds:
        for token in one.drafted:
            assert token.u is None and token.draft_u is None and token.q == 1.0
            assert token.accept_prob in ((None,) if token.outcome == "discarded" else (0.0, 1.0))
        kept = path_of(one)
        assert all(token.accept_prob == 1.0 for token in kept)
        if one.drafted:
            assert one.distance == pytest.approx(1 - kept[0].p if kept else 0.0, abs=1e-6)
    assert max(one.distance or 0.0 for one in run.rounds) > 0


def test_greedy_records_flip_no_coin_and_copied_drafts_are_point_masses():
    for one in specviz.run(pair_of(), PROMPT, sampling=GREEDY, max_new_tokens=30).rounds:
        assert one.next.u is None and one.next.prob == 1.0
        for token in one.drafted:
            assert token.u is None and token.draft_u is None and token.q == 1.0
            if token.outcome != "discarded":
                assert token.accept_prob == token.p == float(token.outcome == "accepted")
    drafted = [token for one in run_of("prompt_lookup", "token", 1).rounds for token in one.drafted]
    assert drafted and all(token.q == 1.0 and token.q_raw is None for token in drafted)


@pytest.mark.parametrize(
    "drafter, source",
    [
        ("early_exit", "layer 1"),
        ("quantised_self", "4 bits"),
        ("medusa", "head {}"),
        ("eagle", "step {}"),
        ("mtp", "step {}"),
        ("draft_model", None),
    ],
)
def test_every_token_says_what_proposed_it(drafter, source):
    for one in run_of(drafter, "tree", 3).rounds:
        for index, token in enumerate(one.drafted):
            assert token.source == (source and source.format(len(branch(one, index))))


def timeless(run: Run) -> list[Round]:
    return [dataclasses.replace(one, seconds=None) for one in run.rounds]


@pytest.mark.parametrize("drafter, rule, branches", EXACT)
def test_one_seed_gives_one_run(drafter, rule, branches):
    order = {"max_new_tokens": 16, "sampling": WARPED, **drafting_with(drafter, rule, branches)}
    first, second, other = (specviz.run(pair_of(), PROMPT, seed=seed, **order) for seed in (3, 3, 4))
    assert timeless(first) == timeless(second)
    assert first.token_ids != other.token_ids


def test_times_add_up():
    for one in run_of("draft_model", "token", 1).rounds:
        seconds = one.seconds
        assert seconds.draft + seconds.verify + seconds.accept == pytest.approx(seconds.total)
        assert 0 < seconds.models < seconds.total
        assert (seconds.prefill > 0) == (one.index == 0)
