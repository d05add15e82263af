"""After every round the caches hold what one pass over the text would leave in a fresh one."""

from collections.abc import Callable

import pytest
import torch
from matrix import FULL, MODELS, PROMPT, SLIDING, drafting_with, pair_of, pairwise, prepared_pair, refused_field
from tiny import ARCHITECTURES, InTurn, assert_same_rows

import specviz
from specviz.decoding import engine
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.heads import HeadDrafter
from specviz.drafters.self_drafting import EarlyExit
from specviz.models.pair import ModelPair
from specviz.parts.head_passes import HeadModel
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.records.settings import SamplingParams

CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture
def made(monkeypatch):
    """Every drafter that the engine makes from here on, with the target's cache beside it."""
    built, make = [], engine.decoder_of

    def make_and_note(*given):
        decoder = make(*given)
        built.append((decoder.drafter, decoder.target))
        return decoder

    monkeypatch.setattr(engine, "decoder_of", make_and_note)
    return built


@pytest.fixture(autouse=True)
def uneven(monkeypatch):
    """Plain steps come between the drafts, as where γ is chosen in each round."""
    monkeypatch.setattr(engine, "depth_policy", lambda request: InTurn())


def speculated(pair: ModelPair, drafter: str | None, branches: int, temperature: float = 1.0):
    """(round, text after it) of a run."""
    ids, sampling = list(PROMPT), SamplingParams(temperature=temperature)
    order = drafting_with(drafter, "auto", branches)
    for one in specviz.speculate(pair, PROMPT, max_new_tokens=20, seed=4, sampling=sampling, **order):
        ids += one.emitted
        yield one, ids


CASES = pairwise(
    architecture=list(ARCHITECTURES),
    drafter=[None, *MODELS, "lookahead", "suffix"],
    passes=["plain", "static", "kernels", "graphs"],
    branches=[1, 3],
    temperature=[0.0, 1.0],
)


@pytest.mark.parametrize("architecture, drafter, passes, branches, temperature", CASES)
def test_caches_equal_a_fresh_prefill_after_every_round(architecture, drafter, passes, branches, temperature, made):
    if refused_field(drafter, branches, pair_of(architecture)):
        branches = 3 if drafter == "lookahead" and architecture in FULL else 1
        drafter = "draft_model" if drafter == "lookahead" and architecture in SLIDING else drafter
    accepted = 0
    for one, ids in speculated(prepared_pair(architecture, passes), drafter, branches, temperature):
        drafts, target = made[-1]
        accepted += one.accepted
        assert target.length == len(ids) - 1
        assert_same_rows(target, ids)
        if isinstance(drafts, DraftModel):
            assert drafts.model.length < len(ids)
            assert_same_rows(drafts.model, ids)
    assert accepted or drafter not in ("draft_model", "early_exit", "quantised_self")


@pytest.mark.parametrize("architecture, branches", [(name, 1) for name in SLIDING] + [(name, 3) for name in FULL])
def test_after_drafting_the_shared_layers_hold_what_the_others_hold(architecture, branches, monkeypatch):
    def propose_and_look(self, committed, budget, uniforms):
        draft = propose(self, committed, budget, uniforms)
        assert draft.parents and self.model.length == self.target.length == looked[-1]
        assert_same_rows(self.target, committed)
        assert_same_rows(self.model, committed)
        return draft

    propose = EarlyExit.propose
    monkeypatch.setattr(EarlyExit, "propose", propose_and_look)
    looked = [len(PROMPT) - 1]
    for _, ids in speculated(pair_of(architecture), "early_exit", branches):
        looked.append(len(ids) - 1)
    assert len(looked) > 5


def hidden_states(pair: ModelPair, ids: list[int], layers: tuple[int, ...]) -> torch.Tensor:
    """The target's hidden states of all tokens but the last, side by side."""
    states = pair.target(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return torch.cat([states[layer][0, :-1] for layer in layers], -1)


def looked_at(monkeypatch: pytest.MonkeyPatch, look: Callable[..., None]) -> list[int]:
    """The depths of all drafts from now on, whose first rows are looked at with the drafter and the text before."""
    depths, levels = [], HeadDrafter.rows_by_level

    def looking(self, committed, depth):
        made = levels(self, committed, depth)
        return None if made is None else passed_on(self, list(committed), depth, made)

    def passed_on(self, committed, depth, made):
        rows = next(made)
        look(self, committed, rows)
        depths.append(depth)
        while True:
            rows = made.send((yield rows))

    monkeypatch.setattr(HeadDrafter, "rows_by_level", looking)
    return depths


@pytest.mark.parametrize(
    "drafter, architecture, branches", [("eagle", "gpt2", 3), ("eagle", "gemma3", 1), ("mtp", "llama", 3)]
)
def test_a_head_has_read_the_text_as_in_one_pass(drafter, architecture, branches, monkeypatch):
    def look(self, committed, row):
        model = HeadModel(self.part, pair_of(architecture).target)
        fresh, read = CachedModel(model, Stopwatch(CPU), (-1,)), self.reading.reader
        features = self.part.fuse(hidden_states(pair_of(architecture), committed, self.feature_layers))
        expected = fresh.forward(torch.tensor(committed[1:]), 1, inputs=features)
        assert read.length == fresh.length == len(committed) - 1
        torch.testing.assert_close(read.rows(), fresh.rows(), **CLOSE)
        torch.testing.assert_close(row, expected, **CLOSE)

    looked = looked_at(monkeypatch, look)
    rounds = [one for one, _ in speculated(pair_of(architecture), drafter, branches)]
    assert len(looked) > 5 and sum(one.accepted for one in rounds)


@pytest.mark.parametrize("architecture, branches", [("llama", 3), ("gemma3", 1)])
def test_parallel_drafts_as_one_that_reads_the_whole_text_anew(architecture, branches, monkeypatch):
    def look(self, committed, rows):
        fresh = self.part.for_run(CachedModel(pair_of(architecture).target, Stopwatch(CPU)), {})
        fresh.begin(committed, hidden_states(pair_of(architecture), committed, self.feature_layers))
        torch.testing.assert_close(rows, next(self.part.rows_by_level(fresh, 1)), **CLOSE)
        torch.testing.assert_close(self.reading.states, fresh.states, **CLOSE)
        assert self.reading.reader.length == fresh.reader.length == len(committed) - 1

    looked = looked_at(monkeypatch, look)
    rounds = [one for one, _ in speculated(pair_of(architecture), "parallel", branches)]
    assert len(looked) > 5 and len(set(looked)) > 1 and sum(one.accepted for one in rounds)
