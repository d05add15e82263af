"""Runs for the page: batches lose nothing, closing frees the device, and everything crosses a process border."""

import dataclasses
import pickle
import types

import pytest
from tiny import tiny_pair

import specviz
from specviz.decoding.engine import rounds
from specviz.records.errors import SpecvizError
from specviz.records.settings import RunSettings
from specviz.ui import device
from specviz.ui.deployment import Deployment
from specviz.ui.orders import Order, read_form
from specviz.ui.pairs import PairName
from specviz.ui.runner import Runner

ORDER = Order(PairName(), RunSettings("Once upon", num_draft_tokens=3, max_new_tokens=40, seed=5))


@pytest.fixture
def deployment(monkeypatch):
    for name in ("TARGET", "DRAFT", "DEVICE", "DTYPE"):
        monkeypatch.delenv(f"SPECVIZ_{name}", raising=False)
    return Deployment.from_environment()


@pytest.fixture
def store():
    pair = tiny_pair("llama")
    return types.SimpleNamespace(get=lambda name, progress=None: pair, home=pair)


def test_batches_are_the_rounds_of_the_same_run_in_order(store, deployment):
    done = [one for batch in Runner(store, deployment).batches(ORDER) for one in batch]
    sampling = specviz.SamplingParams(temperature=1.0)
    run = specviz.run(store.home, "Once upon", num_draft_tokens=3, sampling=sampling, max_new_tokens=40, seed=5)
    assert [one.emitted for one in done] == [one.emitted for one in run.rounds]
    assert done[-1].stop_reason == run.stop_reason


def test_an_error_of_the_engine_reaches_the_reader_after_the_rounds_before_it(store, deployment):
    def failing(request):
        yield from list(rounds(request))[:2]
        raise SpecvizError("The device ran out of memory.", "max_new_tokens")

    seen = []
    with pytest.raises(SpecvizError, match="out of memory"):
        for batch in Runner(store, deployment).batches(ORDER, failing):
            seen += batch
    assert len(seen) == 2


def test_where_gpus_are_lent_by_the_call_orders_and_rounds_cross_the_border(store, deployment, monkeypatch):
    """A stand-in for ZeroGPU's decorator, which pickles arguments and everything yielded."""
    asked = []

    def gpu(duration):
        def decorate(function):
            def call(*arguments):
                asked.append(duration)
                for value in function(*pickle.loads(pickle.dumps(arguments))):
                    yield pickle.loads(pickle.dumps(value))

            return call

        return decorate

    monkeypatch.setattr(device, "spaces", types.SimpleNamespace(GPU=gpu))
    done = [one for batch in Runner(store, deployment).batches(ORDER) for one in batch]
    assert asked == [device.GPU_SECONDS] and done[-1].stop_reason == "length"


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"max_new_tokens": 10**6}, "max_new_tokens"),
        ({"num_draft_tokens": 60}, "num_draft_tokens"),
        ({"prompt": ""}, "prompt"),
        ({"seed": 1.5}, "seed"),
        ({"top_k": None}, "top_k"),
        ({"temperature": None}, "temperature"),
    ],
)
def test_an_order_beyond_the_pages_limits_names_the_control(store, deployment, changes, field):
    with pytest.raises(SpecvizError) as caught:
        settings = read_form(ORDER.settings.flat() | changes)
        dataclasses.replace(ORDER, settings=settings).request(store.home, deployment)
    assert caught.value.field == field


def test_a_setting_that_is_no_number_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("SPECVIZ_MAX_NEW_TOKENS", "many")
    with pytest.raises(SpecvizError, match="SPECVIZ_MAX_NEW_TOKENS"):
        Deployment.from_environment()
