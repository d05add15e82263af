"""What the tests of the page's server share: a pair that takes no time, and who runs it."""

import os
import types

import pytest
from tiny import tiny_pair

from specviz.models.pair import ModelPair
from specviz.ui.deployment import Deployment
from specviz.ui.runner import Runner


@pytest.fixture
def pair() -> ModelPair:
    return tiny_pair("llama")


@pytest.fixture
def deployment(monkeypatch) -> Deployment:
    """The one of a machine where nothing is set."""
    for name in [name for name in os.environ if name.startswith("SPECVIZ_")]:
        monkeypatch.delenv(name)
    return Deployment.from_environment()


@pytest.fixture
def store(pair) -> types.SimpleNamespace:
    """In a store's place: it has this pair, whatever it is asked for."""
    return types.SimpleNamespace(get=lambda name, progress=None: pair, loaded=lambda name: pair, home=pair)


@pytest.fixture
def runner(store, deployment) -> Runner:
    return Runner(store, deployment)
