"""What was recorded of real engines is replayed as it was said."""

import json
import pathlib
import urllib.error
import urllib.request
from dataclasses import replace
from http.client import IncompleteRead

import pytest
from replayed import RECORDED, recorded

from tools.engines.servers import ask

NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_small_and_names_no_folder_of_a_machine(name):
    file = RECORDED / f"{name}.json"
    assert file.stat().st_size < 60_000
    recording = json.loads(file.read_text(encoding="utf-8"))
    assert recording.keys() == {"engine", "started_by", "recorded_by", "date", "exchanges"}
    assert pathlib.Path(recording["recorded_by"].split()[-1]).stem == name
    assert not any(folder in file.read_text(encoding="utf-8") for folder in ("/tmp", "/root", "/work", "/home"))


def lowered(headers):
    """Servers write the names of headers as they like."""
    return {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize("name", NAMES)
def test_each_exchange_is_answered_as_it_was(replay, name):
    server, exchanges = replay(name), recorded(name)
    port = int(server.url.rsplit(":", 1)[1])
    for exchange in exchanges:
        answer = ask(port, exchange.path, exchange.asked)
        assert (answer.status, answer.lines) == (exchange.status, exchange.lines)
        assert lowered(exchange.headers).items() <= lowered(answer.headers).items()
    assert [(asked.method, asked.path) for asked in server.asked] == [(one.method, one.path) for one in exchanges]


def test_the_most_similar_question_is_answered(replay):
    server = replay("llama_cpp_b10434_eagle")
    port = int(server.url.rsplit(":", 1)[1])
    streams = [one for one in recorded("llama_cpp_b10434_eagle") if one.arrived_ms and one.path == "/completion"]
    for stream in reversed(streams):
        assert ask(port, "/completion", stream.asked | {"prompt": "Another"}).lines == stream.lines


def test_a_stream_may_break_off(replay):
    stream = next(one for one in recorded("vllm_0_32_plain") if one.arrived_ms)
    server = replay([replace(stream, lines=stream.lines[:4], breaks_off=True)])
    request = urllib.request.Request(server.url + stream.path, json.dumps(stream.asked).encode())
    with urllib.request.urlopen(request) as answer, pytest.raises(IncompleteRead):
        answer.read()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(server.url + "/elsewhere")


def test_what_is_paced_comes_as_late_as_it_came(replay):
    stream = next(one for one in recorded("llama_cpp_b10434_eagle") if one.arrived_ms)
    server = replay([stream], paced=True)
    assert ask(int(server.url.rsplit(":", 1)[1]), stream.path, stream.asked).arrived[-1] >= stream.arrived_ms[-1]
