"""The recipe of DSpark heads: it learns from what drafting computes, and writes what servers load."""

import json

import pytest
import torch
from refusal import refused
from tiny import tiny_model

from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.records.errors import SpecvizError
from specviz.training.dspark import DSparkRecipe
from specviz.training.losses import overlap


@pytest.fixture(scope="module")
def target():
    return tiny_model("llama").requires_grad_(False)


@pytest.fixture(scope="module")
def draft():
    return tiny_model("llama", hidden_size=32, layers=1, intermediate_size=48, head_dim=8, seed=1)


@pytest.fixture(params=["wide", "narrow"])
def recipe(request, target, draft):
    made = DSparkRecipe(target, draft if request.param == "narrow" else None)
    with torch.no_grad():
        for weight in made.student.parameters():
            if not weight.any():
                weight.normal_(std=0.1)
    return made


@torch.no_grad()
def test_the_rows_that_it_learns_from_are_what_drafting_computes(recipe, target):
    """At every depth, whatever the anchor: no slot sees the text after its own block's anchor."""
    ids = torch.randint(128, (1, 40))
    head, size = recipe.student, recipe.student.sizes.block_size
    anchors = 1 + torch.randperm(40 - size, generator=torch.Generator().manual_seed(3))
    features, every = recipe.target.read(ids).features[0], [list(one) for one in recipe.rows(ids, 3)]
    wanted = target(ids).logits[0]
    for place, anchor in enumerate(anchors[:5].tolist()):
        reading = head.for_run(CachedModel(target, Stopwatch(target.device)), {})
        reading.begin(ids[0, : anchor + 1].tolist(), features[:anchor])
        rows, hidden = head.block(reading), reading.states
        memory = head.first_memory(ids[0, anchor : anchor + 1], hidden)
        for depth in range(size):
            before = ids[0, anchor + depth : anchor + depth + 1]
            logits, memory = head.corrected(depth, rows[depth], before, hidden[depth], memory)
            torch.testing.assert_close(every[depth][0][place], logits[0], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(every[depth][1][place], wanted[anchor + depth])
            torch.testing.assert_close(every[depth][2][place], head.acceptance_forecast(before, hidden[depth])[0])


def test_its_confidence_learns_how_much_of_the_targets_distribution_it_covers(target):
    recipe, ids = DSparkRecipe(target), torch.randint(128, (2, 64))
    proj = recipe.student.confidence_head["proj"]
    optimiser = torch.optim.Adam(proj.parameters(), lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        recipe.loss(ids, 0).backward()
        optimiser.step()
    with torch.no_grad():
        for logits, wanted, foreseen in recipe.rows(ids, 0):
            assert (foreseen - overlap(logits, wanted)).abs().mean() < 0.1


def test_a_head_from_a_draft_model_knows_the_tokens_before(target, draft):
    """Trained features say which token they belong to; here those of a target that only looks them up do."""
    plain = tiny_model("llama").requires_grad_(False)
    for layer in plain.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    head = DSparkRecipe(plain, draft).student
    ids = torch.arange(20, 30)[None]
    features = torch.cat([plain(ids, output_hidden_states=True).hidden_states[i] for i in head.feature_layers], -1)
    mine, theirs = head.fc(features)[0], draft.get_input_embeddings()(ids)[0]
    assert torch.cosine_similarity(mine, theirs, dim=-1).mean() > 0.5


def test_a_draft_model_of_another_kind_is_refused_in_a_sentence(target):
    with pytest.raises(SpecvizError, match="Llama without biases"):
        DSparkRecipe(target, tiny_model("gpt2"))


@pytest.mark.parametrize(
    "settings",
    [{"sample_from_anchor": False}, {"is_causal": True}, {"dflash_config": {"output_multiplier": 2.0}}],
    ids=lambda settings: next(iter(settings)),
)
def test_a_head_whose_blocks_mean_something_else_is_not_taught_wrongly(target, tmp_path, settings):
    DSparkRecipe(target).save(tmp_path)
    assert DSparkRecipe(target, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | settings))
    with refused("start", "differently from what the recipe teaches"):
        DSparkRecipe(target, tmp_path)
