"""Published heads that draft from the target's last hidden states: each computes what its paper says."""

import dataclasses
import pathlib

import pytest
import torch
from matrix import GREEDY, PROMPT
from published_heads import MEDUSA, SPECULATORS, Expected, write_medusa, write_speculator
from tiny import generated, tiny_pair

import specviz
from specviz.drafters.registry import drafter_class
from specviz.models.pair import ModelPair
from specviz.models.trained_parts import load_parts
from specviz.records.settings import DraftParams, SamplingParams

WRITERS = {"Medusa": write_medusa, "MLP speculator": write_speculator}
HEADS = [("Medusa", layout) for layout in MEDUSA] + [("MLP speculator", layout) for layout in SPECULATORS]


def with_part(pair: ModelPair, folder: pathlib.Path, name: str = "medusa") -> ModelPair:
    parts, _ = load_parts(pair.target, folder / "none", {name: folder})
    return dataclasses.replace(pair, parts=parts, eos_ids=frozenset())


@pytest.fixture(scope="module")
def speaker() -> ModelPair:
    """Of few tokens, so that random heads are right now and then."""
    return tiny_pair("llama", vocab=16, layers=3)


@pytest.fixture
def loaded(request, speaker, tmp_path) -> tuple[ModelPair, Expected]:
    """The pair with a head in a layout, and what the head computes."""
    kind, layout = request.param
    expected = WRITERS[kind](tmp_path, speaker.target, layout)
    return with_part(speaker, tmp_path), expected


def branches_of(parents: tuple[int, ...]) -> list[list[int]]:
    """The places on the branch of each row of a draft: of the text, then of each token with children."""
    branches: dict[int, list[int]] = {-1: []}
    for place, parent in enumerate(parents):
        branches[place] = [*branches[parent], place]
    return [branches[place] for place in sorted({*parents})]


@torch.inference_mode()
@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("loaded", HEADS, indirect=True, ids=lambda case: ", ".join(case))
def test_a_head_computes_what_its_paper_says(loaded, branches, monkeypatch):
    pair, expected = loaded
    drafter, looked = drafter_class(pair, "medusa"), []
    propose = drafter.propose

    def draft_and_note(self, committed, *others):
        looked.append((list(committed), propose(self, committed, *others)))
        return looked[-1][1]

    monkeypatch.setattr(drafter, "propose", draft_and_note)
    hot = SamplingParams(temperature=3)
    settings = {"drafter": "medusa", "drafting": DraftParams(branches=branches), "sampling": hot}
    run = specviz.run(pair, PROMPT, max_new_tokens=24, num_draft_tokens=3, seed=4, **settings)
    assert len(looked) > 5 and {len(one.emitted) for one in run.rounds} > {1}
    for text, draft in looked:
        tokens = draft.tokens.tolist()
        rows = [expected(text, [tokens[place] for place in branch]) for branch in branches_of(draft.parents)]
        torch.testing.assert_close(draft.logits, torch.stack(rows), rtol=1e-4, atol=1e-4)
    assert {token.source for one in run.rounds for token in one.drafted} == {"head 1", "head 2", "head 3"}


@pytest.mark.parametrize("depth, branches", [(1, 1), (4, 3), (7, 1), (7, 3)])
@pytest.mark.parametrize("loaded", HEADS[::4], indirect=True, ids=lambda case: ", ".join(case))
def test_greedy_text_is_generates(loaded, depth, branches):
    pair, _ = loaded
    settings = {"drafter": "medusa", "drafting": DraftParams(branches=branches), "sampling": GREEDY}
    run = specviz.run(pair, PROMPT, max_new_tokens=20, num_draft_tokens=depth, **settings)
    assert list(run.token_ids) == generated(pair, PROMPT, 20)
    assert max(len(one.drafted) for one in run.rounds) == branches * min(depth, 4)
