"""The API for programs: what docs/python.md shows is what it does, for Gradio's client, for curl and as tools."""

import ast
import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from gradio import queueing
from gradio_client import Client
from gradio_client.exceptions import AppError
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from refusal import refused
from running import ROOT, wait_until
from tiny import tiny_pair

from specviz.bench import pass_times
from specviz.models.pair import ModelPair
from specviz.records.metrics import tally
from specviz.records.runs import Run
from specviz.records.words import words
from specviz.theory import statistics
from specviz.ui.api.calls import Page, add_endpoints
from specviz.ui.api.endpoints import ENDPOINTS
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairStore
from specviz.ui.page import LOOK_FOR_EVENTS, launch
from specviz.ui.runner import Runner

SECTION = (ROOT / "docs" / "python.md").read_text(encoding="utf-8").partition("## The page's API")[2]


def example(language: str, url: str) -> str:
    """The documented example in a language, about the page at `url`."""
    [code] = re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)
    assert "http://127.0.0.1:7860" in code
    return code.replace("http://127.0.0.1:7860", url.rstrip("/"))


@pytest.fixture(scope="module")
def runner() -> Runner:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECVIZ_MAX_NEW_TOKENS", "128")
        patch.setenv("SPECVIZ_PASSES", "plain")
        deployment = Deployment.from_environment()
        return Runner(PairStore(deployment, tiny_pair("llama")), deployment)


@pytest.fixture(scope="module")
def url(runner) -> Iterator[str]:
    """A server of the API alone, on a pair that takes no time."""
    with Page(analytics_enabled=False) as page:
        add_endpoints(runner)
    launch(page, prevent_thread_lock=True, quiet=True, mcp_server=True)
    yield page.local_url
    page.close()


@pytest.fixture(scope="module")
def shown(url) -> dict:
    """What the example's names hold once it has run."""
    names = {"print": lambda *values: printed.append(values)}
    printed: list[tuple] = []
    with pytest.MonkeyPatch.context() as patch:
        # Less of what takes long.
        patch.setattr(statistics, "DRAWS", 100)
        patch.setattr(pass_times, "measure_passes", partial(pass_times.measure_passes, widths=(1, 2), repeats=2))
        exec(example("python", url), names)
    return names | {"printed": printed}


def test_the_table_names_every_function_and_what_it_takes_beyond_the_settings_of_a_run():
    rows = dict(re.findall(r"^\| `/(\w+)` \| (.*?) \|", SECTION, re.M))
    assert rows.keys() == ENDPOINTS.keys()
    settings = set(ENDPOINTS["generate"].parameters)
    for name, row in rows.items():
        assert set(ENDPOINTS[name].parameters) - settings <= set(re.findall(r"`(\w+)`", row))
    assert ENDPOINTS["generate"].parameters == ENDPOINTS["rounds"].parameters == ENDPOINTS["race"].parameters
    run, test = (set(ENDPOINTS[name].parameters) for name in ("generate", "lossless"))
    assert (run - test, test - run) == ({"coins"}, {"runs", "support"}) and not ENDPOINTS["passes"].parameters


def test_a_run_comes_whole_or_round_by_round(shown):
    run = Run.from_dict(shown["trace"])
    assert len(run.token_ids) == 32 and shown["message"]["rounds"] == {}
    followed = Run.from_dict(shown["message"]["trace"])
    assert followed.text == run.text
    rounds = [(str(one.index), list(one.pieces)) for one in followed.rounds]
    assert shown["printed"][: len(rounds)] == rounds


@pytest.mark.parametrize("name", ["generate", "race", "lossless"])
def test_who_names_no_drafter_gets_one_that_the_pair_has(runner, name):
    pair = runner.store.starting_pair
    alone = PairStore(runner.deployment, ModelPair.of(pair.target, None, pair.tokenizer))
    given = {one: parameter.default for one, parameter in ENDPOINTS[name].parameters.items()}
    given |= {"prompt": "abcabc", "max_new_tokens": 4, "runs": 20}

    def answer(store: PairStore, **asked) -> str:
        *_, last = ENDPOINTS[name].begin(Runner(store, runner.deployment), given | asked, lambda text, fraction: None)
        return json.dumps(last).lower().replace(" ", "_")

    chosen = alone.usual(alone.starting_pair)
    assert chosen != runner.store.usual(pair) == "draft_model"
    assert chosen in answer(alone) and "draft_model" in answer(runner.store)
    with refused("drafter", "no draft model"):
        answer(alone, drafter="draft_model")


def test_a_race_a_comparison_a_test_and_passes_answer_as_documented(shown):
    race = shown["race"]
    assert race["machine"] and race["identical"] is True
    for side in (race["plain"], race["speculative"]):
        seconds, tokens = zip(*side["clock"])
        assert list(seconds) == sorted(seconds) and tokens[-1] == side["tokens"] > 9
        assert seconds[-1] == pytest.approx(side["seconds"]) and len(tokens) == side["target_passes"]
    assert race["low"] < race["high"] and (race["speedup"] is None or race["low"] < race["speedup"] < race["high"])

    table = shown["table"]
    ways = [(row["drafter"], row["num_draft_tokens"]) for row in table["rows"]]
    assert ways == [("plain", None), ("suffix", 2), ("suffix", 4)] and table["finished"]
    assert all(row["repeats"] == table["repeats"] == 2 for row in table["rows"])
    speeds = [row["figures"]["speedup_measured"] for row in table["rows"]]
    assert speeds[0] is None and table["rows"][1 + speeds[1:].index(max(speeds[1:]))]["fastest"]

    last = shown["answer"]
    assert last["runs"] == last["asked"] == 100 and last["finished"]
    assert sum(one["count"] for one in last["outcomes"]) + last["outside"] == 100
    assert sum(one["p"] for one in last["outcomes"]) == pytest.approx(1, abs=1e-3)
    assert last["verdict"]["state"] == "same" and last["test"]["p_value"] >= 0.001
    assert last["verdict"]["sentence"] == shown["printed"][-2][0]

    first = shown["target"]["points"][0]
    assert (first["width"], first["ratio"]) == (1, 1.0) and first["seconds"] > 0


def test_curl_gets_the_trace_as_an_event(url):
    done = subprocess.run(["bash", "-c", example("bash", url)], capture_output=True, text=True, check=True)
    *_, event, data = done.stdout.strip().split("\n")
    assert event == "event: complete"
    [trace] = json.loads(data.removeprefix("data: "))
    assert len(Run.from_dict(trace).token_ids) == 8


def test_a_caller_is_refused_and_hears_what_comes_before(url, runner):
    client = Client(url, verbose=False)
    with pytest.raises(AppError, match=r"^max_new_tokens: 129 tokens are more than the 128"):
        client.predict("ab", max_new_tokens=129, api_name="/race")
    with runner.line.joined("race") as turn:  # tells how long a race takes
        runner.line.reached(turn)
    with runner.line.joined("race") as turn:
        runner.line.reached(turn)
        job = client.submit("ab", max_new_tokens=2, api_name="/generate")
        wait_until(lambda: job.status().progress_data)
        [told] = job.status().progress_data
    assert re.fullmatch(r"Waiting: a race is in progress; you are next\. About \d+\ss\.", told.desc)
    assert tally(Run.from_dict(job.result()).rounds).tokens == 2


def test_whoever_leaves_ends_what_was_asked_for(url, runner):
    job = Client(url, verbose=False).submit("ab", runs=20_000, api_name="/lossless")
    wait_until(job.outputs)
    assert runner.line.now(words("en"))[0] == ["a test"]
    job.cancel()
    wait_until(lambda: runner.line.now(words("en"))[0] == [])


def test_its_functions_and_nothing_else_are_tools(url):
    server = json.loads(example("json", url))["mcpServers"]["specviz"]["url"]
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async def use():
        async with (
            streamable_http_client(server) as (reading, writing, _),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            tools = {one.name: one for one in (await session.list_tools()).tools}
            given = {"prompt": "ab", "max_new_tokens": 64, "temperature": 0.5, "num_draft_tokens": "auto"}
            done = await session.call_tool("generate", given, progress_callback=hear)
            refused = await session.call_tool("lossless", {"prompt": "ab", "runs": 10**6})
        return tools, done, refused

    # In a thread of its own: the browser's loop may be running in this one.
    with ThreadPoolExecutor(1) as thread:
        tools, done, refused = thread.submit(asyncio.run, use()).result()
    assert tools.keys() == ENDPOINTS.keys()
    schema = tools["compare"].inputSchema
    assert schema["required"] == ["prompt"] and schema["properties"].keys() == ENDPOINTS["compare"].parameters.keys()
    assert schema["properties"]["temperature"] == {"type": "number", "description": "0 is greedy", "default": 1.0}
    assert tools["generate"].description == ENDPOINTS["generate"].about
    assert not done.isError and len(Run.from_dict(ast.literal_eval(done.content[0].text)).token_ids) > 1
    assert any(one.startswith("Progress Running speculative decoding …: Step ") for one in filter(None, heard)), heard
    assert refused.isError and refused.content[0].text == "runs: Enter a whole number from 1 to 20000."


def test_a_queue_without_events_seldom_interrupts_what_runs(url, monkeypatch):
    naps = []

    class Naps:
        """asyncio, which notes for how long the queue sleeps."""

        def __getattr__(self, name: str) -> object:
            return getattr(asyncio, name)

        def sleep(self, seconds: float):
            naps.append(seconds)
            return asyncio.sleep(seconds)

    monkeypatch.setattr(queueing, "asyncio", Naps())
    wait_until(lambda: len(naps) > 10)
    assert min(naps) >= LOOK_FOR_EVENTS
