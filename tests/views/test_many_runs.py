"""A page that is open for long: what it holds does not grow with the number of runs that it has shown."""

import pytest
from elements import VIEW, give
from handmade import a_run, rounds_of
from on_page import wait_until_drawn
from playwright.sync_api import Page

from specviz.records.runs import Run
from specviz.views import run_messages as messages

#: Runs before the page is looked at, and again as many; of many small batches, as from a slow model.
RUNS, BATCHES = 5, 40


def batches(key: str, run: Run) -> list[str]:
    rounds = [messages.rounds_message(key, [one], run.vocabulary) for one in run.rounds]
    return [messages.opening(key, run), *rounds, messages.end_message(key, total=len(run.rounds), reason="over")]


@pytest.fixture
def held(alone):
    """Shows runs; how many nodes and listeners the page then holds."""
    page: Page = alone("run")
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")
    run = a_run(rounds_of(*["aard"] * BATCHES))

    def show(name: str) -> dict[str, float]:
        for number in range(RUNS):
            give(page, "run", batches(f"{name}{number}", run))
            page.wait_for_function(f"() => {VIEW}.state === 'finished'")
            wait_until_drawn(page)
        for _ in range(2):  # the first may leave what it has only just unlinked
            devtools.send("HeapProfiler.collectGarbage")
        metrics = {one["name"]: one["value"] for one in devtools.send("Performance.getMetrics")["metrics"]}
        return {name: metrics[name] for name in ("Nodes", "JSEventListeners")}

    yield show
    devtools.detach()


def test_twice_as_many_runs_leave_no_more_nodes_and_listeners(held):
    assert held("first") == held("second")
