"""What cannot be meant at the Python door is refused in a sentence about the argument, not by a Python error."""

import pathlib

import numpy
import pytest
from refusal import refused
from small_server import Asked, Reply, SmallServer, serving
from tiny import tiny_pair

import specviz
from specviz.models.hub import token_given
from specviz.servers.answers import Ask
from specviz.servers.server import Server

#: Of no kind that a text, a number, a list or a path could be.
STRANGE = [object(), 1 + 2j, ..., {1}]

#: Never asked: what is wrong is found before.
NOBODY = "http://localhost:9"


def a_run():
    return specviz.show(tokens=[[3, 4], []], kept=[1, 0], following=[8, 9])


@pytest.mark.parametrize("value", [*STRANGE, None, 3, b"bytes", ["a"], numpy.array([1])])
def test_what_names_no_file_is_refused(value):
    for door in (a_run().save, specviz.Run.load):
        with refused("path", "named by a text or a path"):
            door(value)


@pytest.mark.parametrize("value", [*STRANGE[:3], None, 3])
def test_what_is_no_list_of_runs_is_refused_a_single_run_too(value):
    for runs in (value, a_run()):
        with refused("runs", "must be a list of runs"):
            specviz.runs_table(runs)


@pytest.mark.parametrize("value", [*STRANGE, None, 3, "text", [None], ["user"], {"role": "user", "content": "a"}])
def test_what_is_no_conversation_is_refused(value):
    with refused("chat", "is a list of messages"):
        tiny_pair("llama").conversation(value)


@pytest.mark.parametrize("value", [*STRANGE, None, 3, b"ab", iter([1, 2]), numpy.array(3)])
def test_what_is_no_prompt_is_refused_by_pairs_and_servers(value):
    for door in (tiny_pair("llama").encode, Server(NOBODY).run, Ask):
        with refused("prompt", "is a text or a list of token ids"):
            door(value)


@pytest.mark.parametrize("value", [[], (), [None], [1.5], [True], "", numpy.array([])])
def test_a_prompt_of_nothing_or_of_no_whole_numbers_is_refused(value):
    for door in (tiny_pair("llama").encode, Server(NOBODY).run):
        with refused("prompt"):
            door(value)


@pytest.mark.parametrize("value", [*STRANGE, 3, b"key", ["key"], pathlib.Path("key")])
def test_a_key_a_model_and_a_revision_are_texts(value):
    for name in ("key", "model"):
        with refused(f"server_{name}", "must be a text"):
            Server(NOBODY, **{name: value})
    for name in ("revision", "draft_revision", "token"):
        with refused(name, "must be a text"):
            specviz.load_pair("no/such", **{name: value})


@pytest.mark.parametrize("token", ["hf_…", "hf_é", "hf_a\nb"])
def test_a_token_that_no_request_can_hold_is_refused_also_from_the_environment(token, monkeypatch):
    with refused("token", "letters, digits and signs"):
        specviz.load_pair("no/such", token=token)
    monkeypatch.setenv("HF_TOKEN", token)
    with refused("token", "HF_TOKEN"):
        specviz.load_pair("no/such")
    monkeypatch.setenv("HF_TOKEN", " hf_a\n")
    assert token_given() == "hf_a", "the end of a line is no part of it"


@pytest.mark.parametrize("value", [*STRANGE, None, "3", b"3", float("nan"), float("inf"), -1, ["2"]])
def test_a_server_is_asked_for_nothing_that_is_no_number(value):
    server = Server(NOBODY)
    for name in ("max_new_tokens", "temperature", "seed"):
        with refused(name):
            server.run("Once", **{name: value})
    if value is not None:
        with refused("depth", "must be a whole number"):
            server.run("Once", depth=value)
    with refused("neutral", "must be true or false"):
        server.run("Once", neutral=value)
    for name in ("prompts", "tokens", "loads", "depths", "budget"):
        with refused(name):
            server.speed(**{name: value})


@pytest.mark.parametrize("value", [*STRANGE, None, "3", float("nan"), -1])
def test_samples_are_drawn_in_numbers_and_judged_by_a_pair(value):
    with serving(SmallServer({"/v1/models": Reply.json({"data": [{"id": "m", "owned_by": "llamacpp"}]})})) as server:
        for name in ("answers", "temperature"):
            with refused(name):
                Server(server.url).lossless(**{name: value})
        if value is not None:
            with refused("reference", "by a pair"):
                Server(server.url).lossless(value)


@pytest.mark.parametrize("value", [*STRANGE, None, "Once", ["Once"]])
def test_a_server_watches_and_answers_requests_only(value):
    for door in (Server(NOBODY).watch, Server(NOBODY).answer):
        with refused("prompt", "is an Ask"):
            door(value)


def test_numbers_and_ids_of_numpy_are_sent_as_numbers():
    def reply(asked: Asked) -> Reply:
        return Reply.json({"content": "a", "tokens": [1], "stop": True, "stop_type": "limit"})

    replies = {"/v1/models": Reply.json({"data": [{"id": "m", "owned_by": "llamacpp"}]}), "/completion": reply}
    with serving(SmallServer(replies)) as server:
        Server(server.url).run(numpy.array([5, 6]), numpy.int64(2), numpy.float32(0.5), numpy.int64(3))
        (body,) = [asked.body for asked in server.asked if asked.body]
    assert (body["prompt"], body["n_predict"], body["temperature"], body["seed"]) == ([5, 6], 2, 0.5, 3)


@pytest.mark.parametrize("name", ["prompt", "engine", "drafter"])
@pytest.mark.parametrize("value", [*STRANGE, None, 3])
def test_names_of_rounds_are_texts(name, value):
    with refused("trace", f"{name} must be text"):
        specviz.show([[3]], [1], [8], **{name: value})


@pytest.mark.parametrize("value", [*STRANGE, None, 1, numpy.array([True])])
def test_rounds_are_greedy_or_not(value):
    with refused("trace", "greedy must be true or false"):
        specviz.show([[3]], [1], [8], greedy=value)
    assert specviz.show([[3]], [1], [8], greedy=numpy.bool_(True)).sampling.greedy


def test_rounds_are_kept_with_half_a_character_in_their_texts_and_refused_without_any(tmp_path):
    half = "a\ud83d"
    for texts in ({3: half, 8: half}, lambda ids: half):
        run = specviz.show([[3]], [1], [8], texts=texts, prompt=half)
        run.save(tmp_path / "run.json")
        assert specviz.Run.load(tmp_path / "run.json").text == "a\ufffda\ufffd"
    with refused("trace", "texts must give a text for token 3"):
        specviz.show([[3]], [1], [8], texts=lambda ids: None)
