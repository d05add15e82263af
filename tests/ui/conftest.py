"""What the tests of the page's server share: a pair that takes no time, who runs it, and a page in this process."""

import os
import types
from collections.abc import Callable, Iterator

import pytest
from running import PATIENCE
from tiny import tiny_pair

from specviz.models.pair import ModelPair
from specviz.ui import device
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairStore, Preparer
from specviz.ui.page import build, launch
from specviz.ui.runner import Runner


@pytest.fixture(autouse=True)
def _engine_is_left_free() -> Iterator[None]:
    """Behind work that a test leaves in the engine's thread the next one in this process would wait for ever."""
    yield
    try:
        device.thread.submit(lambda: None).result(PATIENCE)
    except TimeoutError:
        device.begin_thread()
        pytest.fail("The test has left work in the engine's thread.")


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
def store(pair, deployment) -> types.SimpleNamespace:
    """In a store's place: it has this pair, whatever it is asked for, and prepares nothing."""
    known = {"get": lambda name, progress=None: pair, "loaded": lambda name: pair}
    return types.SimpleNamespace(**known, starting_pair=pair, preparer=Preparer(deployment))


@pytest.fixture
def runner(store, deployment) -> Runner:
    return Runner(store, deployment)


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[str, PairStore]]]:
    """Starts a page in this process with a pair, or with what the environment names; returns its address and its store.
    Asked for before `new_page`, it closes later."""
    started = []

    def start(home: ModelPair | None = None) -> tuple[str, PairStore]:
        deployment = Deployment.from_environment()
        store = PairStore(deployment, home)
        page = launch(build(Runner(store, deployment)), prevent_thread_lock=True, quiet=True)
        started.append((page, store))
        return page.local_url, store

    yield start
    for page, store in started:
        page.close()
        store.preparer.close()
