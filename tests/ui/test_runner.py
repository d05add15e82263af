"""Runs for the page: batches lose nothing, closing frees the device, and everything crosses a process border."""

import dataclasses
import os
import threading
import time

import pytest
from lent import lend
from refusal import refused

import specviz
from specviz.decoding.engine import rounds
from specviz.records.errors import SpecvizError
from specviz.records.settings import RunSettings
from specviz.ui import device, lending
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName, Preparer
from specviz.ui.orders import Order, read_form
from specviz.ui.runner import Runner

ORDER = Order(PairName(), RunSettings("Once upon", num_draft_tokens=3, max_new_tokens=40, seed=5))


def test_batches_are_the_rounds_of_the_same_run_in_order(store, deployment):
    done = [one for batch in Runner(store, deployment).batches(ORDER) for one in batch]
    sampling = specviz.SamplingParams(temperature=1.0)
    run = specviz.run(
        store.starting_pair, "Once upon", num_draft_tokens=3, sampling=sampling, max_new_tokens=40, seed=5
    )
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


@pytest.mark.parametrize("on", [True, False], ids=["lent", "spaces is installed and ZeroGPU is off"])
def test_where_gpus_are_lent_by_the_call_orders_and_rounds_cross_the_border(store, deployment, monkeypatch, on):
    asked = lend(monkeypatch, on)
    runner = Runner(store, deployment)
    done = [one for batch in runner.batches(ORDER) for one in batch]
    assert len(asked) == on and done[-1].stop_reason == "length" and runner.last_seconds > 0
    with refused("prompt"):
        list(runner.batches(ORDER.but(prompt="")))
    assert len(asked) == on, "no GPU is asked for what would be refused there"
    assert (Preparer(deployment).refusal(store.starting_pair) is not None) == on, (
        "compiled passes are for processes that last"
    )
    assert (1 in store.starting_pair.passes.seconds_by_width) == on, "the call has timed its passes"
    assert Deployment.from_environment().allow_loading is not on


def test_what_fails_in_another_process_arrives_as_a_sentence(store, deployment, monkeypatch, caplog):
    lend(monkeypatch)
    runner = Runner(store, deployment)
    for error, sentence in ((SpecvizError("Out of {what}.", what="luck"), "Out of luck"), (KeyError("x"), "KeyError")):
        with pytest.raises(SpecvizError, match=sentence):
            list(runner.batches(ORDER, broken, error))
    assert "broken" in caplog.text, "the log has the traceback"


def broken(request, error):
    raise error
    yield


def test_the_process_of_a_call_works_in_a_thread_of_its_own(monkeypatch):
    lend(monkeypatch)
    lending.on_gpu(lambda: None, device.begin_thread)
    device.thread.submit(lambda: None).result()  # the parent's thread has begun
    if (child := os.fork()) == 0:
        done = device.thread.submit(lambda: 0)
        os._exit(done.result(timeout=5))
    assert os.waitpid(child, 0)[1] == 0


def test_work_that_hands_nothing_over_can_be_ended(store, deployment):
    ended = []

    def silent(request):
        try:
            while True:
                time.sleep(0.001)  # a round
                yield None
        finally:
            ended.append(True)

    work = Runner(store, deployment).batches(ORDER, silent)
    assert next(work) == [], "whoever listens gets a word in"
    work.close()
    assert ended


def test_work_stops_when_the_page_ends_whoever_waits_for_it(store, deployment, monkeypatch):
    monkeypatch.setattr(device, "ending", threading.Event())

    def long(request):
        for number in range(1000):
            if number == 5:
                device.ending.set()
            yield number

    assert [one for batch in Runner(store, deployment).batches(ORDER, long) for one in batch] == list(range(6))


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("SPECVIZ_MAX_NEW_TOKENS", "many", "SPECVIZ_MAX_NEW_TOKENS"),
        ("SPECVIZ_PASSES", "fast", "SPECVIZ_PASSES must be one of auto, plain, not 'fast'"),
    ],
)
def test_a_wrong_setting_of_the_deployment_is_refused_by_name(deployment, monkeypatch, name, value, said):
    assert deployment.passes == "auto"
    monkeypatch.setenv(name, value)
    with pytest.raises(SpecvizError, match=said):
        Deployment.from_environment()


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
    with refused(field):
        settings = read_form(ORDER.settings.flat() | changes)
        dataclasses.replace(ORDER, settings=settings).request(store.starting_pair, deployment)
