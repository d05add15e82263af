"""The pair of the tests that only measure one."""

import pytest
from tiny import tiny_pair

from specviz.models.pair import ModelPair


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return tiny_pair("llama")
