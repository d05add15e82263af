"""Exchanges with real servers, recorded for tests, which replay them (`tests/helpers/replayed.py`)."""

from __future__ import annotations

import datetime
import json
import pathlib
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from specviz.records.settings import PLAIN
from tools.engines.servers import COMMANDS, Answer, ask, options_of, running

#: The headers that say what a body is and who sent it.
HEADERS = ("content-type", "server", "transfer-encoding")

#: Lines of counters that nobody here reads: histograms, when a counter was made, and what any program has.
UNREAD = re.compile(r"^(# \w+ )?((python|process|http)_|\S+_(bucket|created)\b)")

#: A path and what is sent there; None: nothing, the path is fetched.
Question = tuple[str, dict[str, Any] | None]

PROMPT = "Once upon a time there was a little girl who lived in a"

#: More tokens than there is room for.
TOO_LONG = {"prompt": "no " * 1200}

STREAM = {"prompt": PROMPT, "stream": True, "return_tokens": True, "timings_per_token": True, "seed": 1}
LLAMA_CPP: list[Question] = [
    ("/health", None),
    ("/props", None),
    ("/v1/models", None),
    ("/slots", None),
    ("/metrics", None),
    ("/completion", STREAM | {"n_predict": 32, "temperature": 0, "samplers": ["top_k"], "top_k": 1}),
    (
        "/completion",
        STREAM | {"n_predict": 12, "temperature": 1.0, "samplers": ["temperature"], "n_probs": 3},
    ),
    ("/completion", {"prompt": PROMPT, "n_predict": 12, "return_tokens": True}),
    ("/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "stream": True}),
    ("/tokenize", {"content": PROMPT}),
    ("/completion", TOO_LONG),
    ("/completion", {"n_predict": 4}),
    ("/slots", None),
    ("/metrics", None),
    ("/version", None),
]

NAMED = {"model": "storybook"}
VLLM_STREAM = NAMED | {"prompt": PROMPT, "stream": True, "return_token_ids": True}
VLLM_STREAM |= {"stream_options": {"include_usage": True}}
VLLM: list[Question] = [
    ("/health", None),
    ("/version", None),
    ("/v1/models", None),
    ("/metrics", None),
    ("/v1/completions", VLLM_STREAM | {"max_tokens": 32, "temperature": 0}),
    ("/v1/completions", VLLM_STREAM | {"max_tokens": 12, "temperature": 1.0, "seed": 1, "logprobs": 3}),
    ("/v1/completions", NAMED | {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "prompt_logprobs": 0}),
    ("/tokenize", NAMED | {"prompt": PROMPT}),
    ("/v1/completions", {"model": "another", "prompt": PROMPT}),
    ("/v1/completions", NAMED | TOO_LONG),
    ("/metrics", None),
    ("/props", None),
]


def record(engine: str, drafter: str | None, file: pathlib.Path) -> None:
    """Starts the engine, asks it everything, and writes down what it answered."""
    questions = LLAMA_CPP if engine == "llama.cpp" else VLLM
    with tempfile.TemporaryDirectory() as files, running(engine, drafter, pathlib.Path(files)) as port:
        exchanges = list(_exchanges(port, questions))
    recording = {
        "engine": engine,
        "started_by": shlex.join([*COMMANDS[engine], *options_of(engine, drafter)]),
        "recorded_by": f"python -m tools.engines record {engine} {drafter or PLAIN} {file.name}",
        "date": datetime.date.today().isoformat(),
        "exchanges": exchanges,
    }
    written = json.dumps(recording, indent=1, ensure_ascii=False)
    # A line of the file for each line of a body, but one for all the times.
    written = re.sub(r"\[[\d,\s]+\]", lambda found: re.sub(r"\s+", " ", found[0]), written)
    file.write_text(written + "\n", encoding="utf-8")


def _exchanges(port: int, questions: Sequence[Question]) -> Iterator[dict[str, Any]]:
    for path, body in questions:
        request = {"method": "GET", "path": path} if body is None else {"method": "POST", "path": path, "body": body}
        yield {"request": request, **_recorded(ask(port, path, body))}


def _recorded(answer: Answer) -> dict[str, Any]:
    """The times of a stream's lines are kept as well: tokens that arrive together may be of one round."""
    headers = {name: value for name, value in answer.headers.items() if name.lower() in HEADERS}
    is_counters = answer.content_type.startswith("text/plain")
    lines = [line for line in answer.lines if not (is_counters and UNREAD.match(line))]
    timed = {"arrived_ms": answer.arrived} if answer.content_type.startswith("text/event-stream") else {}
    return {"status": answer.status, "headers": headers, "body": lines, **timed}
