"""A trained head as a model: reading in pieces or at once is one thing, and it is refused where it cannot be."""

import pytest
import torch
from refusal import refused
from tiny import RECIPES, stirred, tiny_model

from specviz.parts.head_passes import HeadModel
from specviz.passes.cached_model import CachedModel, tree_view
from specviz.passes.devices import Stopwatch
from specviz.training.heads import Eagle3Recipe

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def model():
    target = tiny_model("llama", layers=3)
    return HeadModel(stirred(Eagle3Recipe, target).student.eval().requires_grad_(False), target)


def inputs(n, d=48, seed=1):
    """Features and tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator), torch.randint(128, (n,), generator=generator)


def fresh(model):
    return CachedModel(model, Stopwatch(torch.device("cpu")), (-1,))


def states(reader, features, tokens, *view):
    reader.forward(tokens, 1, *view, inputs=features)
    return reader.features


#: A tree over six tokens: parent of each, −1 for the text.
PARENTS = (-1, -1, 0, 0, 1, 3)


def path_to(index):
    return [*path_to(PARENTS[index]), index] if index >= 0 else []


def test_a_tree_in_one_pass_equals_its_paths_and_the_kept_one_reads_on_as_a_chain(model):
    (text, text_tokens), (features, tokens) = inputs(5), inputs(7, seed=2)
    reader = fresh(model)
    states(reader, text, text_tokens)
    tree = states(reader, features[:6], tokens[:6], *tree_view(PARENTS, 5, 0))
    for index in range(len(PARENTS)):
        path = path_to(index)
        alone = states(fresh(model), torch.cat([text, features[path]]), torch.cat([text_tokens, tokens[path]]))
        torch.testing.assert_close(tree[index], alone[-1], **CLOSE)
    reader.keep(5, path)
    assert reader.length == 5 + len(path)
    chain = [*path, 6]
    alone = states(fresh(model), torch.cat([text, features[chain]]), torch.cat([text_tokens, tokens[chain]]))
    torch.testing.assert_close(states(reader, features[6:], tokens[6:]), alone[-1:], **CLOSE)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_target_whose_embeddings_are_narrower_than_its_states_is_refused(recipe):
    target = tiny_model("llama")
    target.set_input_embeddings(torch.nn.Embedding(128, 24))
    with refused("drafter", "choose another drafter"):
        recipe(target)
