"""ZeroGPU: the page starts and works where a GPU is lent for a call, under the emulation of the real package `spaces`.

What the emulation needs of a host is stood in for in `zero_gpu_host`, the host's own service here.
"""

import http.server
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import torch
from lent import lend
from running import serving

import specviz
from specviz.models.loading import load_pair
from specviz.models.placement import place_named
from specviz.records.runs import Run
from specviz.records.words import words
from specviz.ui.lending import MOST_CHARGED

HELPERS = pathlib.Path(__file__).parents[2] / "helpers"
ROOT = HELPERS.parent.parent

#: Charged seconds that a visitor has here.
LEFT = 110


class Lending(http.server.BaseHTTPRequestHandler):
    """The service that `spaces` asks for GPUs."""

    asked: list[tuple[str, int]]  # each request's path, and the seconds it names

    def do_POST(self) -> None:
        address = urlsplit(self.path)
        seconds = int(dict(parse_qsl(address.query)).get("durationSeconds", 0))
        self.asked.append((address.path, seconds))
        answer = {"idle": True, "nvidiaIndex": 0, "nvidiaUUID": "GPU-0", "allowToken": "token"}
        if seconds > LEFT:
            answer = {"left": LEFT, "wait": "PT1H"}
        body = json.dumps(answer).encode()
        self.send_response(429 if seconds > LEFT else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: the test tells what was asked."""


@pytest.fixture(scope="module")
def asked() -> list[tuple[str, int]]:
    return []


@pytest.fixture(scope="module")
def host(asked) -> Iterator[str]:
    """The address of the service."""
    Lending.asked = asked
    with serving(Lending) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def met(host, tmp_path_factory) -> dict[str, Any]:
    """What a visitor met on a page whose pair is on the lent GPU; see `zero_gpu_page.visit`."""
    return visited(host, tmp_path_factory.mktemp("lent"), "cuda")


def visited(host: str, folder: pathlib.Path, device: str) -> dict[str, Any]:
    (folder / "cgroup").write_text("0::/container\n")
    on_zerogpu = {
        "SPACES_ZERO_GPU": "true",
        "SPACES_ZERO_DEVICE_API_URL": host,
        "ZEROGPU_OFFLOAD_DIR": str(folder / "tensors"),
        "ZEROGPU_PROC_SELF_CGROUP_PATH": str(folder / "cgroup"),
        "SPECVIZ_DEVICE": device,
        "SPECVIZ_DTYPE": "float32",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HELPERS), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",  # OpenMP's own threads do not survive a fork
        "GRADIO_ANALYTICS_ENABLED": "False",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(folder),
    }
    command = [sys.executable, HELPERS / "zero_gpu_page.py", folder / "met.json"]
    done = subprocess.run(command, env=os.environ | on_zerogpu, capture_output=True, text=True, timeout=300)
    assert (folder / "met.json").is_file(), done.stderr
    return json.loads((folder / "met.json").read_text())


def test_a_run_is_made_on_the_lent_gpu_and_its_record_is_the_one_of_any_device(met):
    trace = Run.from_dict(met["trace"])
    assert (trace.pair.device, trace.pair.passes) == ("cuda:0", "plain")
    greedy = specviz.SamplingParams(temperature=0)
    here = specviz.run(load_pair(dtype="float32"), trace.prompt.text, sampling=greedy, max_new_tokens=3)
    assert (trace.text, trace.stop_reason) == (here.text, "length")
    assert [one.emitted for one in trace.rounds] == [one.emitted for one in here.rounds]
    # The speedup is measured and ways are compared; of three tokens, the interval may be too wide.
    ended = met["run"][-1]
    assert ended["kind"] == "end" and (ended["figures"]["speedup"] or ended["note"]) and met["seconds"] > 0
    assert met["compare"][-1]["phase"] == "finished"
    assert all(row["figures"]["tokens_per_second"] > 0 for row in met["compare"][-1]["rows"])
    assert met["trees"], "they are tried where the weights still are"


def test_one_press_asks_for_a_gpu_once_and_for_the_time_that_it_needs(met, asked):
    scheduled = [seconds for path, seconds in asked if path == "/schedule"]
    # A run with its measuring, a comparison, a refusal, a failure; one that asks for too much; one that is stopped.
    assert len(scheduled) == 6 and scheduled[0] <= 30
    assert scheduled[4] == MOST_CHARGED > LEFT > scheduled[5] > max(scheduled[:4])
    # Stop ends the work in the other process: 300 tokens would take minutes under the emulation.
    assert met["stopped_after"] < 30


def test_what_is_refused_or_fails_there_is_a_sentence_here_in_the_visitors_language(met):
    say = words("de")
    assert met["refused"] == "Es gibt keine Regel 'none' zu prüfen."
    assert "no such luck" in met["failed"] and met["failed"].startswith("Das ist fehlgeschlagen")
    assert met["too_much"].startswith("Deine GPU-Zeit auf dieser Plattform reicht dafür nicht: Space app has reached")
    assert met["empty"].startswith("Schreibe zuerst einen Prompt")
    assert met["loading"] == say.error(
        specviz.SpecvizError("This page keeps the models that it started with.", "target")
    )


def test_the_embedded_pair_asks_for_no_gpu_and_its_passes_are_prepared(host, asked, tmp_path):
    asked.clear()
    met = visited(host, tmp_path, "auto")
    assert [path for path, _ in asked if path == "/schedule"] == []
    trace = Run.from_dict(met["trace"])
    assert trace.pair.device == "cpu" and trace.stop_reason == "length"
    assert not met["unprepared"], "a process that lasts compiles its passes"
    assert met["failed"].startswith("Das ist fehlgeschlagen")


def test_a_lent_gpu_takes_no_spread_model(monkeypatch):
    lend(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(specviz.SpecvizError, match="choose auto") as caught:
        place_named("spread")
    assert caught.value.field == "device"
