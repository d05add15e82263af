"""Models with a running state draft as exactly as others: what a refused draft did to the state is put back."""

import dataclasses

import pytest
import torch
from chi_square import FEW, SHORT, p_value
from matrix import GREEDY, HOT, PROMPT, drafting_with, pair_of
from refusal import refused
from tiny import WITH_STATES, InTurn, assert_same_rows, generated, greedy_run, tiny_model, tiny_pair, with_heads

import specviz
from specviz.decoding import engine
from specviz.drafters.draft_model import DraftModel
from specviz.models.pair import ModelPair
from specviz.passes.readers import StatefulModel
from specviz.passes.states import KeptStates, keeps_state
from specviz.records.settings import DraftParams, SamplingParams

#: Passes over other numbers of tokens sum up a state in another order.
CLOSE = 1e-3


@pytest.fixture
def made(monkeypatch):
    """Every decoder that the engine makes from here on."""
    built, make = [], engine.decoder_of
    monkeypatch.setattr(engine, "decoder_of", lambda *given: built.append(make(*given)) or built[-1])
    return built


@pytest.mark.parametrize("architecture", WITH_STATES)
@pytest.mark.parametrize("drafter, steps", [("draft_model", False), ("quantised_self", True)])
def test_after_every_round_states_are_those_of_a_fresh_prefill(architecture, drafter, steps, made, soon, monkeypatch):
    """And no more text is unread than may be read again together with a draft."""
    if steps:
        monkeypatch.setattr(engine, "depth_policy", lambda request: InTurn())
    pair, ids, again, settings = pair_of(architecture), list(PROMPT), [], drafting_with(drafter, "token", 1, bits=4)
    for one in specviz.speculate(pair, ids, sampling=HOT, max_new_tokens=24, seed=2, **settings):
        ids += one.emitted
        target, drafts = made[-1].target, made[-1].drafter
        assert len(ids) - 1 - target.length <= StatefulModel.AGAIN + 4
        assert keeps_state(pair.target) or target.length == len(ids) - 1
        assert_same_rows(target, ids, CLOSE)
        if isinstance(drafts, DraftModel):
            assert_same_rows(drafts.model, ids, CLOSE)
        again.append(one.read_again)
    assert any(again) == keeps_state(pair.target) or steps


@pytest.fixture
def soon(monkeypatch):
    """What is read again gets a pass of its own as soon as it is more than a few tokens."""
    monkeypatch.setattr(StatefulModel, "AGAIN", 3)


def test_a_round_says_what_it_read_again(tmp_path, soon):
    """The accepted tokens of the rounds whose state was put back, each with the token that ended it."""
    order = drafting_with("draft_model", "token", 1)
    run = specviz.run(pair_of("qwen3_next"), PROMPT, sampling=HOT, max_new_tokens=40, seed=2, **order)
    pending = 0
    for one in run.rounds:
        assert one.read_again == pending
        kept_whole, too_much = one.accepted == len(one.drafted), pending > StatefulModel.AGAIN
        pending = 0 if kept_whole else (0 if too_much else pending) + one.accepted + 1
    run.save(tmp_path / "run.json")
    assert specviz.Run.load(tmp_path / "run.json").rounds == run.rounds


def test_a_state_that_is_not_put_back_is_found_out(monkeypatch):
    pair = pair_of("qwen3_next")
    expected, order = generated(pair, PROMPT, 24), drafting_with("draft_model", "token", 1)
    monkeypatch.setattr(KeptStates, "put_back", lambda self: None)
    run = specviz.run(pair, PROMPT, sampling=GREEDY, max_new_tokens=24, **order)
    assert list(run.token_ids) != expected[: len(run.token_ids)]


def speakers(architecture: str) -> ModelPair:
    """Of six tokens, none of which ends a text."""
    pair = with_heads(tiny_pair(architecture, noise=0.5, vocab=FEW))
    return dataclasses.replace(pair, eos_ids=frozenset())


SPOKEN = pytest.mark.parametrize(
    "architecture, drafter, rule", [("qwen3_5", "draft_model", "token"), ("mamba2", "eagle", "block")]
)


@torch.inference_mode()
def surprise(pair: ModelPair, order: dict, length: int = 200) -> float:
    """How many standard deviations the log probability of sampled texts, by the target's own rows, lies above what
    these rows let expect. What a refused token leaves in a state differs from round to round, so that counts of tokens
    hardly change; but texts become less likely."""
    sampling, excess, variance = SamplingParams(temperature=1.0), 0.0, 0.0
    for seed in range(3):
        run = specviz.run(pair, SHORT, sampling=sampling, max_new_tokens=length, seed=seed, **order)
        text = torch.tensor([*SHORT, *run.token_ids])
        logs = pair.target(text[None]).logits[0, len(SHORT) - 1 : -1].double().log_softmax(-1)
        mean = (logs.exp() * logs).sum(-1)
        excess += (logs.gather(-1, text[len(SHORT) :, None])[:, 0] - mean).sum()
        variance += ((logs.exp() * logs.square()).sum(-1) - mean.square()).sum()
    return (excess / variance.sqrt()).item()


@SPOKEN
def test_sampled_text_follows_the_targets_distribution(architecture, drafter, rule):
    pair, order = speakers(architecture), drafting_with(drafter, rule, 1)
    assert p_value(order, HOT, 600, pair) > 0.001
    assert abs(surprise(pair, order)) < 4


@SPOKEN
def test_sampled_text_does_not_where_a_state_is_not_put_back(architecture, drafter, rule, monkeypatch):
    monkeypatch.setattr(KeptStates, "put_back", lambda self: None)
    assert surprise(speakers(architecture), drafting_with(drafter, rule, 1)) < -8


@torch.inference_mode()
def test_heads_hear_of_each_token_once(made, soon):
    """However often the target reads a token, its hidden state reaches a trained part once, and is the right one."""
    pair, ids = pair_of("qwen3_next"), list(PROMPT)
    order = drafting_with("eagle", "token", 1)
    for one in specviz.speculate(pair, ids, sampling=HOT, max_new_tokens=20, seed=4, **order):
        drafter = made[-1].drafter
        ids += one.emitted
        states = pair.target(torch.tensor([ids]), output_hidden_states=True).hidden_states
        expected = torch.cat([states[layer][0, :-1] for layer in drafter.feature_layers], -1)
        new = torch.cat(drafter.unread_features)
        torch.testing.assert_close(new, expected[-len(new) :], rtol=1e-3, atol=1e-3)
        assert drafter.reading.reader.length + len(new) == len(ids) - 1


def test_trees_are_refused_in_a_sentence():
    pair = pair_of("falcon_h1")
    for drafter in ("draft_model", "eagle"):
        with refused("branches", "keeps a running state, which has one past"):
            specviz.run(pair, PROMPT, drafter=drafter, drafting=DraftParams(branches=3))
    with refused("drafter", "reads only chains"):
        specviz.run(pair, PROMPT, drafter="lookahead")


def test_early_exits_of_a_hybrid_go_as_far_as_to_an_attention_layer():
    kinds = ["linear_attention", "full_attention"] * 2
    pair = ModelPair.of(tiny_model("qwen3_5", layers=4, layer_types=kinds), None, pair_of().tokenizer, name="hybrid")
    pair = dataclasses.replace(pair, eos_ids=frozenset())
    greedy_run(pair, PROMPT, 24, drafter="early_exit", drafting=DraftParams(exit_layer=2))
    with refused("drafter", "cannot stop after some of its layers"):
        specviz.run(pair, PROMPT, drafter="early_exit", drafting=DraftParams(exit_layer=1))
