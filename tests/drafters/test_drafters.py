"""Every drafter under every rule: greedy text is `generate`'s, sampled text follows the target, caches are a fresh
prefill's, records can be recomputed, and what cannot be drafted or judged is refused by name.

The models have 16 tokens, so that random heads are right now and then.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from functools import lru_cache

import pytest
import torch
from scipy import stats
from tiny import (
    ARCHITECTURES,
    POSITIONS,
    InTurn,
    assert_same_rows,
    generated,
    tiny_model,
    tiny_pair,
    unprepared,
    with_heads,
)
from torch.nn.functional import one_hot

import specviz
from specviz import rules
from specviz.decoding import engine
from specviz.decoding.replay import replay
from specviz.decoding.request import prepare
from specviz.drafters import DRAFTERS
from specviz.drafters.at_once import Medusa, Parallel
from specviz.drafters.choosers import Draws
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.heads import Eagle
from specviz.drafters.registry import drafter_class
from specviz.drafters.self_drafting import EarlyExit
from specviz.models.pair import ModelPair, PairPasses
from specviz.passes.cached_model import CachedModel, has_sliding_windows
from specviz.passes.clock import Stopwatch
from specviz.passes.parallel_head import ParallelReader
from specviz.passes.trained_heads import EagleCache
from specviz.records.errors import SpecvizError
from specviz.records.runs import DraftedToken, Round, Run
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.rules.exact import residual
from specviz.rules.sampling import Warper

GREEDY = SamplingParams(temperature=0)
PROMPT = [3, 5, 7, 11, 3, 5]
SLIDING = ["mistral", "gemma2", "gemma3"]
FULL = [name for name in ARCHITECTURES if name not in SLIDING]
MODELS = ["draft_model", "early_exit", "quantised_self", "medusa", "eagle", "parallel"]
CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@lru_cache
def pair_of(architecture: str = "llama", noise: float = 0.15) -> ModelPair:
    """No token ends its texts."""
    pair = with_heads(tiny_pair(architecture, noise=noise, vocab=16))
    return dataclasses.replace(pair, eos_ids=frozenset())


def makes_trees(drafter: str, branches: int | None, pair: ModelPair) -> bool:
    return drafter_class(pair, drafter).branches(pair, DraftParams(branches=branches)) > 1


def refused_field(drafter: str, branches: int | None, pair: ModelPair) -> str | None:
    """The parameter to put right where this drafter cannot work in this way; None where it can."""
    sliding = has_sliding_windows(pair.target)
    if drafter == "lookahead":
        return "branches" if branches == 1 else "drafter" if sliding else None
    return "branches" if sliding and makes_trees(drafter, branches, pair) else None


def rules_of(drafter: str) -> list[tuple[str, int]]:
    """The lossless rules that fit the drafter, each with the branches it is tried with."""
    fitting = [] if refused_field(drafter, 1, pair_of()) else [("token", 1), ("block", 1)]
    if makes_trees(drafter, 3, pair_of()):
        fitting.append(("tree", 3))
    if drafter_class(pair_of(), drafter).draws_paths:
        fitting.append(("multi_path", 3))
    return fitting


EXACT = [(drafter, rule, branches) for drafter in DRAFTERS for rule, branches in rules_of(drafter)]


# Greedy equality


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_output_is_that_of_generate(architecture, drafter):
    pair = pair_of(architecture)
    expected = greedy_text(architecture)
    # What is left open depends on the drafter, and on whether attention slides.
    for branches in (None, 1, 3) if architecture in ("llama", "gemma3") else (1, 3):
        order = {"drafter": drafter, "num_draft_tokens": 3, "drafting": DraftParams(branches=branches)}
        if field := refused_field(drafter, branches, pair):
            with pytest.raises(SpecvizError) as caught:
                specviz.speculate(pair, PROMPT, sampling=GREEDY, **order)
            assert caught.value.field == field
            continue
        run = specviz.run(pair, PROMPT, sampling=GREEDY, max_new_tokens=len(expected), **order)
        assert list(run.token_ids) == expected, f"branches = {branches}"


@lru_cache
def greedy_text(architecture: str) -> list[int]:
    return generated(pair_of(architecture), PROMPT, 20)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_is_right_now_and_then(drafter):
    """Or else the tests of what is kept would test nothing."""
    runs = [
        specviz.run(pair_of(name), PROMPT, drafter=drafter, sampling=GREEDY, max_new_tokens=24)
        for name in ("qwen3", "gpt2")
    ]
    assert sum(one.accepted for run in runs for one in run.rounds) > 0


# The distribution of sampled text


WARPED = SamplingParams(temperature=1.3, top_k=8, top_p=0.9, min_p=0.01)

#: Hot, so that target and draft have something to disagree on.
HOT = SamplingParams(temperature=3.0)
HOT_AND_WARPED = SamplingParams(temperature=3.0, top_k=5, top_p=0.95, min_p=0.01)

FEW = 6
SHORT = [3, 5, 1, 2]


@lru_cache
def plain_speakers() -> ModelPair:
    """Target and draft of six tokens whose next one is decided by the last one more than by all before: what is wrong
    after one text is then wrong in the same way after many."""
    pair = tiny_pair("llama", noise=0.5, vocab=FEW)
    with torch.no_grad():
        for name, weights in [*pair.target.named_parameters(), *pair.draft.named_parameters()]:
            weights *= 0.2 if "o_proj" in name else 1.0
    return dataclasses.replace(with_heads(pair), eos_ids=frozenset())


def p_value(order: dict, sampling: SamplingParams, tokens: int = 400) -> float:
    """How likely chance alone makes the emitted tokens stray this far from the target's own rows: chi-square.

    Counted is how often each token follows each other one; expected is what the target's row of that place gives it.
    Rows differ from place to place, so the covariances of the counts are summed over places; were the rows all equal,
    this would be Pearson's statistic.
    """
    pair, length = plain_speakers(), 200
    excess, spread = torch.zeros(FEW, FEW).double(), torch.zeros(FEW, FEW, FEW).double()
    for seed in range(tokens // length):
        run = specviz.run(pair, SHORT, sampling=sampling, max_new_tokens=length, seed=seed, **order)
        text = torch.tensor([*SHORT, *run.token_ids])
        with torch.inference_mode():
            logits = pair.target(text[None]).logits[0, len(SHORT) - 1 : -1]
        rows = Warper(sampling).probabilities(logits).double()
        rows /= rows.sum(-1, keepdim=True)
        emitted, before = one_hot(text[len(SHORT) :], FEW).double(), one_hot(text[len(SHORT) - 1 : -1], FEW)
        assert (rows[emitted.bool()] > 0).all(), "a token to which the target gives nothing"
        excess += before.T.double() @ (emitted - rows)
        covariances = rows.diag_embed() - rows.unsqueeze(-1) * rows.unsqueeze(-2)
        spread += torch.einsum("ti,tjk->ijk", before.double(), covariances)
    statistic = torch.einsum("ij,ijk,ik", excess, torch.linalg.pinv(spread, hermitian=True, rtol=1e-6), excess)
    freedom = torch.linalg.matrix_rank(spread, hermitian=True, rtol=1e-6).sum()
    return stats.chi2.sf(statistic.item(), freedom.item())


def drafting_with(drafter: str, rule: str, branches: int, **params) -> dict:
    return {
        "drafter": drafter,
        "rule": rule,
        "num_draft_tokens": 3,
        "drafting": DraftParams(branches=branches, **params),
    }


@pytest.mark.parametrize("drafter, rule, branches", EXACT)
def test_sampled_text_follows_the_targets_distribution(drafter, rule, branches):
    sampling = HOT if rule == "block" else HOT_AND_WARPED
    assert p_value(drafting_with(drafter, rule, branches), sampling) > 0.001


def test_the_distribution_holds_with_a_target_in_four_bits():
    assert p_value(drafting_with("quantised_self", "token", 1, bits=4), HOT) > 0.001


@pytest.mark.parametrize("rule, branches", [("token", 1), ("block", 1), ("tree", 3), ("multi_path", 3)])
def test_the_distribution_holds_where_drafts_end_early(rule, branches):
    order = drafting_with("draft_model", rule, branches, confidence=0.4)
    lengths = {
        len(one.drafted)
        for one in specviz.run(plain_speakers(), SHORT, sampling=HOT, max_new_tokens=60, **order).rounds
    }
    assert len(lengths) > 2
    assert p_value(order, HOT) > 0.001


@pytest.mark.parametrize("name, branches", [("token", 1), ("block", 1), ("tree", 3), ("multi_path", 3)])
def test_a_rule_that_accepts_everything_is_found_out(name, branches, monkeypatch):
    rule = rules.rule_named(name)

    def accept_all(draft, rows, uniforms):
        """The rule with every coin at 0."""
        return rule.verify(draft, rows, dataclasses.replace(uniforms, accept=torch.zeros_like(uniforms.accept)))

    monkeypatch.setitem(rules._RULES, name, dataclasses.replace(rule, verify=accept_all))
    assert p_value(drafting_with("draft_model", name, branches), HOT) < 1e-4


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_q_that_the_token_was_not_drawn_from_is_found_out(rule, monkeypatch):
    def choose(self, row, u):
        probs = self.warper.probabilities(row)
        return probs.argmax(-1), probs

    monkeypatch.setattr(Draws, "one", choose)
    assert p_value(drafting_with("draft_model", rule, 1), HOT) < 1e-4


# What is remembered between rounds


@pytest.fixture
def made(monkeypatch):
    """Every drafter that the engine makes from here on, with the target's cache beside it."""
    built, make = [], engine.decoder_of

    def make_and_note(request, length, **options):
        decoder = make(request, length, **options)
        built.append((decoder.drafter, decoder.target))
        return decoder

    monkeypatch.setattr(engine, "decoder_of", make_and_note)
    return built


@pytest.fixture
def uneven(monkeypatch):
    """Plain steps come between the drafts, as where γ is chosen in each round."""
    monkeypatch.setattr(engine, "length_of", lambda request: InTurn())


@pytest.mark.parametrize(
    "architecture, drafter",
    [("llama", drafter) for drafter in DRAFTERS]
    + [("gemma3", drafter) for drafter in DRAFTERS if drafter != "lookahead"],
)
def test_greedy_text_is_that_of_generate_with_plain_steps_between_drafts(architecture, drafter, uneven):
    pair = pair_of(architecture)
    expected = generated(pair, PROMPT, 40)
    run = specviz.run(pair, PROMPT, drafter=drafter, sampling=GREEDY, max_new_tokens=len(expected))
    assert list(run.token_ids) == expected
    assert any(one.drafted for one in run.rounds) and not all(one.drafted for one in run.rounds[:-1])


def speculated(architecture: str, drafter: str, branches: int, prompt: list[int] = PROMPT):
    """(round, text after it) of a sampled run."""
    ids = list(prompt)
    order = drafting_with(drafter, "auto", branches)
    for one in specviz.speculate(pair_of(architecture), prompt, max_new_tokens=20, seed=4, **order):
        ids += one.emitted
        yield one, ids


@pytest.mark.parametrize(
    "architecture, drafter, branches",
    [(name, drafter, 3) for name in FULL for drafter in MODELS]
    + [(name, drafter, 1) for name in SLIDING for drafter in MODELS]
    + [("llama", drafter, 1) for drafter in MODELS],
)
def test_caches_equal_a_fresh_prefill_after_every_round(architecture, drafter, branches, made, uneven):
    accepted = 0
    for one, ids in speculated(architecture, drafter, branches):
        drafts, target = made[-1]
        accepted += one.accepted
        assert target.length == len(ids) - 1
        assert_same_rows(target, ids)
        if isinstance(drafts, DraftModel):
            assert drafts.model.length < len(ids)
            assert_same_rows(drafts.model, ids)
    assert accepted


@pytest.mark.parametrize("architecture, branches", [(name, 1) for name in ARCHITECTURES] + [(name, 3) for name in FULL])
def test_after_drafting_the_shared_layers_hold_what_the_others_hold(architecture, branches, monkeypatch, uneven):
    def propose_and_look(self, committed, budget, uniforms):
        draft = propose(self, committed, budget, uniforms)
        assert draft.parents and self.model.length == self.target.length == looked[-1]
        assert_same_rows(self.target, committed)
        assert_same_rows(self.model, committed)
        return draft

    propose = EarlyExit.propose
    monkeypatch.setattr(EarlyExit, "propose", propose_and_look)
    looked = [len(PROMPT) - 1]
    for _, ids in speculated(architecture, "early_exit", branches):
        looked.append(len(ids) - 1)
    assert len(looked) > 5


def hidden_states(pair: ModelPair, ids: list[int], layers: tuple[int, ...]) -> torch.Tensor:
    """The target's hidden states of all tokens but the last, side by side."""
    states = pair.target(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return torch.cat([states[layer][0, :-1] for layer in layers], -1)


@pytest.mark.parametrize(
    "drafter, architecture, branches",
    [("eagle", "llama", 3), ("eagle", "gpt2", 3), ("eagle", "gemma3", 1), ("mtp", "llama", 3), ("mtp", "gemma3", 1)],
)
def test_a_head_has_read_the_text_as_in_one_pass(drafter, architecture, branches, monkeypatch, uneven):
    def read_and_look(self, committed):
        row = first_row(self, committed)
        fresh, read = EagleCache(self.head), len(committed) - 1
        features = self.head.fuse(hidden_states(pair_of(architecture), committed, self.feature_layers))
        states = self.head(
            features, self.head.embed(torch.tensor(committed[1:]), self.target), torch.arange(read), fresh
        )
        assert self.reader.length == fresh.length == read
        torch.testing.assert_close(all_rows(self.reader.rows), all_rows(fresh), **CLOSE)
        torch.testing.assert_close(row, self.head.logits(states[-1:], self.target), **CLOSE)
        looked.append(read)
        return row

    looked, first_row = [], Eagle.first_row
    monkeypatch.setattr(Eagle, "first_row", read_and_look)
    rounds = [one for one, _ in speculated(architecture, drafter, branches)]
    assert len(looked) > 5 and sum(one.accepted for one in rounds)


def all_rows(rows: EagleCache) -> torch.Tensor:
    return rows.append(torch.empty(2, 0, rows.config.num_attention_heads, rows.config.head_dim))


@torch.inference_mode()
def test_a_branch_of_an_eagle_tree_is_drafted_as_if_it_stood_alone():
    pair = pair_of()
    for one, ids in itertools.islice(speculated("llama", "eagle", 3), 4):
        text = ids[: len(ids) - len(one.emitted)]
        head = pair.parts["eagle"]
        for token in one.drafted:
            rows = EagleCache(head)
            features = head.fuse(hidden_states(pair, text, head.feature_layers))
            tokens = torch.tensor(text[1:])
            for following in [*branch(one, token.parent), token]:
                start = rows.length
                states = head(features, head.embed(tokens, pair.target), torch.arange(start, start + len(tokens)), rows)
                q = head.logits(states[-1:], pair.target).softmax(-1)[0]
                features, tokens = states[-1:], torch.tensor([following.id])
            assert token.q_raw == pytest.approx(q[token.id].item(), abs=1e-4)


def branch(one: Round, index: int) -> list[DraftedToken]:
    """The draft tokens from the root to this one; none for −1."""
    return [] if index < 0 else [*branch(one, one.drafted[index].parent), one.drafted[index]]


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3"])
def test_medusa_looks_at_the_last_token_that_the_target_has_read(architecture, monkeypatch, uneven):
    def draft_and_look(self, committed):
        expected = hidden_states(pair_of(architecture), committed, self.feature_layers)[-1:]
        torch.testing.assert_close(self.features, expected, **CLOSE)
        looked.append(len(committed))
        return first_row(self, committed)

    looked, first_row = [], Medusa.first_row
    monkeypatch.setattr(Medusa, "first_row", draft_and_look)
    rounds = [one for one, _ in speculated(architecture, "medusa", 1 if architecture in SLIDING else 4)]
    assert len(looked) > 5 and sum(one.accepted for one in rounds)


@pytest.mark.parametrize("architecture, branches", [("llama", 3), ("gemma3", 1)])
def test_parallel_drafts_as_one_that_reads_the_whole_text_anew(architecture, branches, monkeypatch, uneven):
    def draft_and_look(self, committed, depths):
        rows = all_rows(self, committed, depths)
        fresh = ParallelReader(self.head, self.target)
        features = hidden_states(pair_of(architecture), committed, self.feature_layers)
        expected = fresh.read(features, torch.tensor(committed[1:]), self.most)
        assert self.reader.length == fresh.length == len(committed) - 1
        torch.testing.assert_close(rows, expected[:depths], **CLOSE)
        looked.append(depths)
        return rows

    looked, all_rows = [], Parallel.all_rows
    monkeypatch.setattr(Parallel, "all_rows", draft_and_look)
    rounds = [one for one, _ in speculated(architecture, "parallel", branches)]
    assert len(looked) > 5 and len(set(looked)) > 1 and sum(one.accepted for one in rounds)


# Trees in one pass


def a_tree(depth: int, seed: int, level_by_level: bool = False) -> tuple[int, ...]:
    """Parents of a random tree of this depth with up to three tokens at each."""
    chance, parents, level = random.Random(seed), [], [-1]
    for _ in range(depth):
        start = len(parents)
        parents += [chance.choice(level) for _ in range(chance.randint(1, 3))]
        level = range(start, len(parents))
    if level_by_level:
        return tuple(parents)
    # Any order will do in which parents stand before their children.
    order = sorted(range(len(parents)), key=lambda token: (min(path_to(parents, token)[: chance.randint(1, 2)]), token))
    place = {-1: -1} | {token: index for index, token in enumerate(order)}
    return tuple(place[parents[token]] for token in order)


def path_to(parents, token: int) -> list[int]:
    return [] if token < 0 else [*path_to(parents, parents[token]), token]


def path_by_path(model, text: list[int], tokens: torch.Tensor, parents: tuple[int, ...]) -> torch.Tensor:
    """Logits after every draft token, each branch read by itself."""
    texts = [[*text, *tokens[path_to(parents, token)].tolist()] for token in range(len(parents))]
    return torch.stack([model(torch.tensor([ids])).logits[0, -1] for ids in texts])


@pytest.mark.parametrize("architecture", FULL)
@pytest.mark.parametrize("depth", range(1, 7))
@torch.inference_mode()
def test_a_tree_in_one_pass_equals_its_branches_one_by_one(architecture, depth):
    model, parents = pair_of(architecture).target, a_tree(depth, seed=depth)
    tokens = torch.randint(16, (len(parents),), generator=torch.Generator().manual_seed(depth))
    cached = CachedModel(model, Stopwatch(CPU))
    # Depth by depth with one unread token and with two, as after a full acceptance.
    cached.prefill(PROMPT[: len(PROMPT) - depth % 2])
    logits = cached.verify(PROMPT, tokens, parents)
    torch.testing.assert_close(logits[1:], path_by_path(model, PROMPT, tokens, parents), **CLOSE)
    torch.testing.assert_close(logits[0], model(torch.tensor([PROMPT])).logits[0, -1], **CLOSE)
    kept = path_to(parents, len(parents) - 1)
    cached.keep(len(PROMPT), kept)
    assert cached.length == len(PROMPT) + len(kept)
    assert_same_rows(cached, [*PROMPT, *tokens[kept].tolist()])


@pytest.mark.parametrize("architecture", FULL)
@pytest.mark.parametrize("depth", [1, 2, 3, 6])
@torch.inference_mode()
def test_a_tree_level_by_level_equals_its_branches_one_by_one(architecture, depth):
    model, parents = pair_of(architecture).target, a_tree(depth, seed=depth, level_by_level=True)
    tokens = torch.randint(16, (len(parents),), generator=torch.Generator().manual_seed(depth))
    cached = CachedModel(model, Stopwatch(CPU))
    cached.forward(torch.tensor(PROMPT), keep=1)
    depths = torch.tensor([len(path_to(parents, token)) for token in range(len(parents))])
    levels = [
        cached.extend(tokens[depths == level], parents[: (depths <= level).sum()]) for level in range(1, depth + 1)
    ]
    torch.testing.assert_close(torch.cat(levels), path_by_path(model, PROMPT, tokens, parents), **CLOSE)


@pytest.mark.parametrize("architecture", SLIDING)
@torch.inference_mode()
def test_a_tree_is_refused_where_attention_slides_and_a_chain_is_not(architecture):
    tokens = torch.tensor([1, 2])
    for read in ("verify", "extend"):
        cached = CachedModel(pair_of(architecture).target, Stopwatch(CPU))
        cached.prefill(PROMPT)
        start = [PROMPT, tokens] if read == "verify" else [tokens]
        with pytest.raises(SpecvizError, match="chains only") as caught:
            getattr(cached, read)(*start, (-1, -1))
        assert caught.value.field == "branches"
        assert getattr(cached, read)(*start, (-1, 0)).shape[0] == (3 if read == "verify" else 2)


def test_a_tree_is_refused_before_it_starts_where_the_drafts_attention_slides():
    pair = dataclasses.replace(pair_of("llama"), draft=pair_of("mistral").draft)
    with pytest.raises(SpecvizError, match="sliding-window") as caught:
        specviz.speculate(pair, PROMPT, drafting=DraftParams(branches=2))
    assert caught.value.field == "branches"
    assert specviz.run(pair, PROMPT, max_new_tokens=6).token_ids


# Records


LOSSY = [
    ("draft_model", "typical", 1),
    ("draft_model", "typical", 3),
    ("medusa", "typical", 3),
    ("eagle", "typical", 3),
]


@lru_cache
def run_of(drafter: str, rule: str, branches: int) -> Run:
    order = drafting_with(drafter, rule, branches)
    return specviz.run(pair_of(), PROMPT, max_new_tokens=50, sampling=WARPED, seed=3, **order)


def path_of(one: Round) -> list[DraftedToken]:
    """The accepted tokens, which have to be one branch from the root on."""
    kept = [index for index, token in enumerate(one.drafted) if token.outcome == "accepted"]
    assert [one.drafted[index].parent for index in kept] == [-1, *kept][: len(kept)]
    return [one.drafted[index] for index in kept]


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
def test_what_is_emitted_is_the_accepted_branch_and_the_next_token(drafter, rule, branches):
    for one in run_of(drafter, rule, branches).rounds:
        assert [*one.emitted] == [*(token.id for token in path_of(one)), one.next.id]
        refused = [token for token in one.drafted if token.outcome == "rejected"]
        end = len(path_of(one)) and one.drafted.index(path_of(one)[-1])
        after = end if path_of(one) else -1
        assert one.next.kind == ("recovered" if any(token.parent == after for token in refused) else "bonus")
        turned = [token for token in tried(one) if rule != "multi_path" or token in weighed(one)]
        assert [token for token in one.drafted if token.outcome != "discarded"] == turned
        assert len(one.top) == len(one.drafted) + 1
        assert [bool(row.residual) for row in one.top] == [
            row == after + 1 and one.next.kind == "recovered" for row in range(len(one.top))
        ]


@pytest.mark.parametrize("drafter, rule, branches", [case for case in EXACT if case[1] in ("token", "tree")])
def test_every_decision_can_be_recomputed_from_its_record(drafter, rule, branches):
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


@torch.inference_mode()
def test_what_elder_siblings_left_can_be_recomputed_from_the_models():
    run, pair = run_of("draft_model", "tree", 3), pair_of()
    warp, ids, checked = Warper(run.sampling).probabilities, list(run.prompt.ids), 0
    for one in run.rounds:
        for token in tried(one):
            text = torch.tensor([[*ids, *(before.id for before in branch(one, token.parent))]])
            left, q = warp(pair.target(text).logits[0, -1:])[0], warp(pair.draft(text).logits[0, -1:])[0]
            siblings = [other for other in one.drafted if other.parent == token.parent]
            for elder in siblings[: siblings.index(token)]:
                left = residual(left, q / q.sum())
                q[elder.id] = 0
                checked += 1
            q = q / q.sum()
            assert token.q == pytest.approx(q[token.id].item(), abs=1e-4)
            assert (token.p if token.p_left is None else token.p_left) == pytest.approx(left[token.id].item(), abs=1e-3)
        ids += one.emitted
    assert checked > 5


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


@pytest.mark.parametrize("drafter, rule, branches", EXACT)
def test_a_lossless_rule_has_no_distance(drafter, rule, branches):
    assert all(one.distance is None for one in run_of(drafter, rule, branches).rounds)


@pytest.mark.parametrize(
    "drafter, source",
    [
        ("early_exit", "layer 1"),
        ("quantised_self", "8 bits"),
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


def test_a_parallel_drafts_first_token_is_the_texts_and_the_others_are_the_masks():
    sources = [[token.source for token in one.drafted] for one in run_of("parallel", "token", 1).rounds]
    assert ["row", "mask 1", "mask 2"] in sources


@pytest.mark.parametrize("drafter, rule, branches", EXACT + LOSSY)
def test_a_run_survives_its_file(drafter, rule, branches, tmp_path):
    run = run_of(drafter, rule, branches)
    assert run.rule == rule
    assert Run.from_dict(json.loads(json.dumps(run.to_dict()))) == run
    run.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json") == run


def timeless(run: Run) -> list[Round]:
    return [dataclasses.replace(one, seconds=None) for one in run.rounds]


@pytest.mark.parametrize("drafter, rule, branches", EXACT)
def test_one_seed_gives_one_run(drafter, rule, branches):
    order = {"max_new_tokens": 16, "sampling": WARPED, **drafting_with(drafter, rule, branches)}
    first, second, other = (specviz.run(pair_of(), PROMPT, seed=seed, **order) for seed in (3, 3, 4))
    assert timeless(first) == timeless(second)
    assert first.token_ids != other.token_ids


@pytest.mark.parametrize("drafter", [drafter for drafter in DRAFTERS if ("block", 1) in rules_of(drafter)])
def test_another_rule_judges_the_same_first_draft(drafter):
    by_token, by_block = (run_of(drafter, rule, 1).rounds[0].drafted for rule in ("token", "block"))
    assert by_token and [(token.id, token.p, token.q, token.draft_u) for token in by_token] == [
        (token.id, token.p, token.q, token.draft_u) for token in by_block
    ]
    assert all(mine.u == other.u for mine, other in zip(by_token, by_block) if mine.u is not None)


# Drafting that ends early


@pytest.mark.parametrize("drafter, branches", [(drafter, branches) for drafter in MODELS for branches in (1, 3)])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.3)], ids=["greedy", "sampled"])
def test_a_drafter_that_is_never_sure_enough_stops_after_one_token_and_says_how_sure_it_was(
    drafter, branches, sampling
):
    order = {"drafter": drafter, "num_draft_tokens": 3, "sampling": sampling, "max_new_tokens": 12}
    wary = specviz.run(pair_of(), PROMPT, drafting=DraftParams(branches, confidence=0.9999), **order)
    for one in wary.rounds[:-2]:
        assert {token.parent for token in one.drafted} == {-1}
        assert 0 < one.confidence < 0.9999
        if not sampling.greedy and branches == 1:
            assert one.confidence == one.drafted[0].q
    assert wary.settings["confidence"] == 0.9999
    bold = specviz.run(pair_of(), PROMPT, drafting=DraftParams(branches), **order)
    for one in bold.rounds[:-3]:
        assert one.confidence is None and max(len(branch(one, place)) for place in range(len(one.drafted))) == 3


# Two rules on the same draws


def test_a_block_keeps_no_fewer_tokens_than_token_by_token_on_the_same_draws():
    rounds, by_token, by_block = 0, 0, 0
    for seed in range(4):
        request = prepare(
            plain_speakers(),
            RunSettings(SHORT, num_draft_tokens=4, rule="token", sampling=HOT, max_new_tokens=220, seed=seed),
        )
        for one, other in replay(request, "block"):
            assert one.index == other.index
            assert [token.id for token in one.drafted] == [token.id for token in other.drafted]
            assert all(mine.u in (None, theirs.u) for mine, theirs in zip(one.drafted, other.drafted))
            assert [*other.emitted] == [*(token.id for token in path_of(other)), other.next.id]
            rounds, by_token, by_block = rounds + 1, by_token + one.accepted, by_block + other.accepted
    assert rounds >= 300 and by_block >= by_token


def test_a_replayed_text_is_that_of_its_own_rule():
    request = prepare(pair_of(), RunSettings(PROMPT, rule="block", max_new_tokens=20, seed=5))
    both = list(replay(request, "token"))
    own = list(engine.rounds(request))
    assert [one.drafted for one, _ in both] == [one.drafted for one in own]
    assert [one.emitted for one, _ in both] == [one.emitted for one in own]


@pytest.mark.parametrize(
    "order, rule, field",
    [
        ({"drafter": None}, "block", "drafter"),
        ({}, "typical", "rule"),
        ({"rule": "typical"}, "token", "rule"),
        ({"drafting": DraftParams(branches=2)}, "block", "rule"),
        ({"drafting": DraftParams(branches=2)}, "token", "rule"),
        ({"drafting": DraftParams(branches=2)}, "multi_path", "rule"),
        ({"drafting": DraftParams(branches=2), "rule": "multi_path"}, "tree", "rule"),
        ({}, "by ear", "rule"),
    ],
)
def test_rules_that_cannot_judge_one_draft_are_not_replayed(order, rule, field):
    with pytest.raises(SpecvizError) as caught:
        replay(prepare(pair_of(), RunSettings(PROMPT, **order)), rule)
    assert caught.value.field == field


# Bad input


@pytest.mark.parametrize("part", ["medusa", "eagle", "mtp", "parallel"])
def test_a_drafter_without_weights_says_how_to_train_them(part):
    pair = dataclasses.replace(pair_of(), parts={})
    with pytest.raises(SpecvizError, match=f"python -m specviz.training {part} --target") as caught:
        specviz.speculate(pair, PROMPT, drafter=part)
    assert caught.value.field == "drafter"


@pytest.mark.parametrize(
    "params",
    [
        {"branches": 0},
        {"branches": 9},
        {"branches": 2.5},
        {"branches": True},
        {"confidence": 1},
        {"confidence": -0.1},
        {"confidence": float("nan")},
        {"confidence": "high"},
        {"exit_layer": 0},
        {"bits": 5},
        {"bits": 8.0},
    ],
)
def test_a_way_to_draft_that_cannot_be_is_refused_by_name(params):
    with pytest.raises(SpecvizError) as caught:
        DraftParams(**params)
    assert [caught.value.field] == list(params)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "order, field",
    [
        ({"num_draft_tokens": 64, "drafting": DraftParams(branches=8)}, "branches"),
        ({"rule": "by ear"}, "rule"),
        ({"rule": "by ear", "drafter": None}, "rule"),
        ({"rule": "token", "drafting": DraftParams(branches=2)}, "rule"),
        ({"rule": "block", "drafting": DraftParams(branches=2)}, "rule"),
        ({"rule": "block", "drafter": "medusa"}, "rule"),
    ],
)
def test_what_makes_no_sense_together_is_refused_by_name(order, field, temperature):
    with pytest.raises(SpecvizError) as caught:
        specviz.speculate(pair_of(), PROMPT, sampling=SamplingParams(temperature), **order)
    assert caught.value.field == field


# Where runs end


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("wanted", [1, 2, 3, 6])
def test_no_more_is_drafted_than_can_be_kept(drafter, wanted):
    for sampling in (GREEDY, SamplingParams()):
        run = specviz.run(pair_of(), PROMPT, drafter=drafter, max_new_tokens=wanted, sampling=sampling)
        assert len(run.token_ids) == wanted and run.stop_reason == "length"
        left = wanted
        for one in run.rounds:
            assert all(len(branch(one, place)) < left for place in range(len(one.drafted))) and one.dropped == 0
            left -= len(one.emitted)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_prompt_of_one_token_is_enough(drafter):
    pair = pair_of()
    run = specviz.run(pair, PROMPT[:1], drafter=drafter, sampling=GREEDY, max_new_tokens=10)
    assert list(run.token_ids) == generated(pair, PROMPT[:1], 10)
    if drafter in ("medusa", "eagle", "mtp", "parallel"):
        # The target has not read anything yet that a head could look at.
        assert not run.rounds[0].drafted and run.rounds[1].drafted


def test_an_end_token_inside_a_kept_branch_ends_the_text_there():
    pair = pair_of("llama", noise=0)
    order = {"sampling": GREEDY, "max_new_tokens": 20, "num_draft_tokens": 3, "drafting": DraftParams(branches=3)}
    first = path_of(specviz.run(pair, PROMPT, **order).rounds[0])
    assert len(first) == 3 and first[0].id != first[1].id
    ending = dataclasses.replace(pair, eos_ids=frozenset({first[1].id}))
    run = specviz.run(ending, PROMPT, **order)
    assert run.stop_reason == "eos" and list(run.token_ids) == [first[0].id, first[1].id]
    # Acceptance was decided before the cut, and the cut is recorded apart.
    assert run.rounds[0].accepted == 3 and run.rounds[0].dropped == 2


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_full_context_ends_the_run(drafter):
    pair = dataclasses.replace(pair_of(), context_length=len(PROMPT) + 7)
    run = specviz.run(pair, PROMPT, drafter=drafter, max_new_tokens=100)
    assert run.stop_reason == "context" and len(run.token_ids) == 7


def deepest(drafted: tuple[DraftedToken, ...]) -> int:
    """How many tokens the longest branch has."""
    depths = []
    for token in drafted:
        depths.append(1 + (depths[token.parent] if token.parent >= 0 else 0))
    return max(depths, default=0)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("drafter, branches", [("draft_model", 1), ("draft_model", 3), ("hybrid", 1)])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_draft_model_with_a_shorter_context_goes_silent_and_the_text_goes_on(
    architecture, drafter, branches, prepared
):
    short = {"gpt2": "n_positions"}.get(architecture, "max_position_embeddings")
    target = tiny_model(architecture, eos_token_id=None)
    pair = ModelPair.of(target, tiny_model(architecture, **{short: 24}), pair_of().tokenizer)
    pair.eos_ids = frozenset()
    if prepared:
        pair.passes = PairPasses({"target": unprepared(pair.target), "draft": unprepared(pair.draft)})
    assert pair.context_length == POSITIONS
    for prompt in (PROMPT, PROMPT * 5):
        order = {"drafting": DraftParams(branches=branches), "max_new_tokens": 40, "sampling": GREEDY}
        run = specviz.run(pair, prompt, drafter=drafter, **order)
        assert list(run.token_ids) == generated(pair, prompt, 40)
        if drafter == "draft_model":
            read = len(prompt)
            for one in run.rounds[:-2]:
                assert deepest(one.drafted) == min(4, max(0, 25 - read))
                read += len(one.emitted)
