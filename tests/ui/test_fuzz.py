"""Whatever a call, a link, a file or Python asks for is carried out or refused in a sentence that names its field."""

import copy
import inspect
import itertools
import json
import math
import random
import types
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

import gradio as gr
import pytest
from handmade import a_round, a_run
from refusal import refused
from tiny import tiny_pair

from specviz.bench import duel
from specviz.records import links
from specviz.records.errors import MOST_QUOTED, SpecvizError, quoted
from specviz.records.runs import Run
from specviz.records.settings import MAX_SEED, SETTINGS, RunSettings
from specviz.theory import statistics
from specviz.ui.api.calls import function_of
from specviz.ui.api.endpoints import ENDPOINTS
from specviz.ui.deployment import Deployment
from specviz.ui.device import Preparer
from specviz.ui.runner import Runner

FIELDS = list(SETTINGS)

#: What is given where something else was meant.
ODD = [
    *(math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1.5, -0.0, 0.5, 2.0),
    *(0, -1, 2, 65, 10**6, 2**53, 2**63, 2**64, 10**400, -(10**400), 10**5000, True, False, None),
    *("", "abc", "5", "1e400", "NaN", "None", "\ud800", "\0", "‮", "${x} <b>", "x" * 100_000, "é" * 3000),
    *("telepathy", "AUTO", "draft_model", "tree", "typical", "plain", "eagle", "early_exit"),
    *([], [1, 2], [0.5], [10**400], ["a"], [None], [[1]], [[] * 50] * 50, {}, {"a": 1}, {"path": "x", "meta": []}),
]


#: What makes a call of any function of the API cheap.
SMALL = {"prompt": "ab", "max_new_tokens": 2, "drafters": ["draft_model"], "gammas": [1], "repeats": 1}
SMALL |= {"runs": 3, "support": 2}


@pytest.fixture(scope="module")
def calls():
    """The API's functions, by name, on a pair that takes no time."""
    pair = tiny_pair("llama")
    given = {
        "get": lambda name: pair,
        "loaded": lambda name: pair,
        "usual": lambda pair: "draft_model",
        "undecided": lambda pair: False,
    }
    store = types.SimpleNamespace(
        **given, starting_pair=pair, is_ready=True, preparer=Preparer(Deployment.from_environment())
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TARGET", "DRAFT", "DEVICE", "DTYPE"):
            patch.delenv(f"SPECVIZ_{name}", raising=False)
        runner = Runner(store, Deployment.from_environment())
        return {name: function_of(name, one, runner) for name, one in ENDPOINTS.items()}


def small(name: str) -> dict[str, Any]:
    return {one: value for one, value in SMALL.items() if one in ENDPOINTS[name].parameters}


def carried_out(call: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """The answer, or the last of several."""
    answer = call(**arguments)
    return answer if isinstance(answer, dict) else [*answer][-1]


def asked(rng: random.Random, name: str) -> dict[str, Any]:
    """A cheap call's arguments, some of them odd."""
    changed = rng.sample([*ENDPOINTS[name].parameters], rng.choice([1, 1, 1, 2, 3]))
    return small(name) | {one: rng.choice(ODD) for one in changed}


def assert_tells(sentence: str, names=FIELDS) -> None:
    """One short line that begins with a parameter of the API and can be sent anywhere."""
    assert sentence.split(": ")[0] in names, sentence
    assert len(sentence) < 400 and "\n" not in sentence
    assert sentence.encode("utf-8")


def test_values_given_in_order_keep_their_places():
    usual = "prompt drafter num_draft_tokens temperature top_k top_p min_p max_new_tokens seed chat branches "
    usual += "exit_layer bits confidence rule coins"
    assert [name for name in ENDPOINTS["generate"].parameters if name in usual.split()] == usual.split()


@pytest.mark.parametrize(("name", "count"), [("generate", 400), ("race", 30), ("compare", 30), ("lossless", 30)])
def test_the_api_carries_out_or_names_the_parameter(calls, name, count, monkeypatch):
    monkeypatch.setattr(duel, "REPEATS", 1)
    monkeypatch.setattr(statistics, "DRAWS", 100)
    rng, done = random.Random(16), 0
    for _ in range(count):
        try:
            answer = json.dumps(carried_out(calls[name], **asked(rng, name)), allow_nan=False)
            assert name != "generate" or Run.from_dict(json.loads(answer)).text is not None
            done += 1
        except gr.Error as refusal:
            assert refusal.print_exception is False
            assert_tells(refusal.message, ENDPOINTS[name].parameters)
    assert count / 40 < done < 0.85 * count
    assert set(FIELDS) == {*inspect.signature(calls["generate"]).parameters}


@pytest.mark.parametrize("name", [name for name in ENDPOINTS if name not in ("rounds", "passes")])
def test_every_parameter_refuses_what_it_is_not_by_its_own_name(calls, name):
    wrong = {"a": [1, {"b": 10**5000}]}
    for one in ENDPOINTS[name].parameters:
        with pytest.raises(gr.Error) as refusal:
            carried_out(calls[name], **small(name) | {one: wrong})
        assert refusal.value.message.startswith(f"{one}: ") and len(refusal.value.message) < 250


def test_a_comparison_takes_each_way_once_and_refuses_what_its_tab_cannot_ask_for(calls):
    rows = carried_out(calls["compare"], **small("compare") | {"gammas": [1, 1], "rules": ["token", "token"]})["rows"]
    assert [(row["drafter"], row["rule"], row["repeats"]) for row in rows] == [
        ("plain", None, 1),
        ("draft_model", "token", 1),
    ]
    odd = {
        "drafters": [[], ["plain"], ["telepathy"], "eagle", [1]],
        "gammas": [[], [0], [True], [17], ["many"], [None], 4, [1.5]],
        "widths": [[], [-1], [9], [True], ["own"]],
        "rules": [["auto"], ["telepathy"], [[]], {}],
        "repeats": [0, 6, 1.5, True, [2]],
    }
    for name, values in odd.items():
        for value in values:
            with pytest.raises(gr.Error) as refusal:
                carried_out(calls["compare"], **small("compare") | {name: value})
            assert_tells(refusal.value.message, [name])


def test_settings_from_python_are_taken_or_refused_by_field_in_a_short_sentence():
    taken = 0
    for name, value in itertools.product([*FIELDS, "stop"], ODD):
        assert 0 < len(quoted(value)) <= MOST_QUOTED and quoted(value).encode("utf-8")
        try:
            RunSettings.of({"prompt": "ab", name: value})
            taken += 1
        except SpecvizError as error:
            assert error.field == name and len(str(error)) < 300
    assert 100 < taken < 500


def test_a_seed_is_refused_at_once_or_comes_back_from_its_link():
    for seed in (0, 5, 2**53 - 1):
        settings, errors = links.settings_of({"seed": str(RunSettings("", seed=seed).seed), "prompt": ""})
        assert settings["seed"] == seed and not errors
        assert json.loads(json.dumps(float(seed))) == seed, "as the page's numbers hold it"
    assert MAX_SEED == 2**53 - 1
    with pytest.raises(SpecvizError, match="2\\^53"):
        RunSettings("", seed=2**53)
    # A file from elsewhere may have one: it is shown, and offers no link that would be refused.
    run = a_run((a_round("aard"),))
    elsewhere = Run.from_dict(run.to_dict() | {"seed": 2**60})
    assert links.share(run)["query"] and links.share(elsewhere)["query"] is None


def test_a_link_says_which_of_its_fields_is_wrong_and_keeps_the_others():
    rng = random.Random(13)
    for _ in range(400):
        name = rng.choice(FIELDS)
        text = str(value) if not isinstance(value := rng.choice(ODD), int) else f"{value:x}"
        settings, errors = links.settings_of({"prompt": "ab", name: text})
        assert [error.field for error in errors] == ([] if name in settings else [name])
        assert all(len(str(error)) < 250 for error in errors)


def test_what_is_no_trace_is_refused_as_one():
    rng = random.Random(14)
    whole = json.loads(json.dumps(a_run(tuple(a_round("aard", index) for index in range(2))).to_dict()))
    for value in ODD:
        with refused("trace"):
            Run.from_dict(value)
    for _ in range(300):
        damaged = copy.deepcopy(whole)
        holder, key = rng.choice(places(damaged))
        holder[key] = rng.choice(ODD)
        try:
            Run.from_dict(damaged)
        except SpecvizError as error:
            assert error.field == "trace" and len(str(error)) < 400


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in nested lists and dicts: what holds it, and its key there."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *places(value[key]))]


# Through the server


def post(url: str, body: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def answer_to(url: str, body: str, version: str = "") -> str:
    """What the event of a call says: its data if it was refused, or ``complete``."""
    status, started = post(f"{url}gradio_api/call{version}/generate", body)
    if status != 200:
        return f"{status} {started['detail']}"
    with urllib.request.urlopen(f"{url}gradio_api/call/generate/{started['event_id']}") as events:
        kind, data = events.read().decode().strip().split("\n")[-2:]
    return "complete" if kind == "event: complete" else json.loads(data.removeprefix("data: "))["error"]


def test_bad_calls_leave_no_traceback_in_the_log(page_url, page_folder):
    good = {"prompt": '"ab"', "max_new_tokens": "2"}
    usual = {name: json.dumps(value) for name, value in RunSettings("ab").flat().items() if name in FIELDS} | good
    names = list(ENDPOINTS["generate"].parameters)

    def call(**changes: str) -> str:
        return answer_to(page_url, f'{{"data": [{", ".join((usual | changes)[name] for name in names)}]}}')

    assert call() == "complete"
    file = '{"path": "http://127.0.0.1:1/", "meta": {"_type": "gradio.FileData"}}'
    raw = ["NaN", "1e400", "1" + "0" * 400, '"five"', "[]", file, f"[{file}]", '{"path": "x", "meta": []}', '"\\ud800"']
    rng = random.Random(15)
    for value in raw:
        for name in rng.sample(names, 3):
            assert_tells(call(**{name: value})) if (name, value) != ("prompt", '"five"') else None
    assert_tells(answer_to(page_url, '{"data": []}'))
    assert answer_to(page_url, '{"data": ["ab", "plain"]}').startswith("num_draft_tokens: This value is missing")
    assert "unknown" in answer_to(page_url, '{"prompt": "ab", "unknown": 1}', "/v2")
    assert "prompt" in answer_to(page_url, "{}", "/v2")
    assert answer_to(page_url, '{"prompt": "ab", "max_new_tokens": 2}', "/v2") == "complete"
    assert "Traceback" not in (page_folder / "app.log").read_text(errors="replace")
