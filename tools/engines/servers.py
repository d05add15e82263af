"""Starting a real engine on the embedded pair, and asking it."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from specviz.records.assets import EMBEDDED

#: Tokens that are drafted a round.
GAMMA = 4

#: Seconds that an engine may take to start. vLLM imports for half a minute where nothing else runs.
PATIENCE = {"llama.cpp": 60.0, "vLLM": 300.0}

#: How an engine's server is started.
COMMANDS = {"llama.cpp": ["llama-server"], "vLLM": ["python", "-m", "vllm.entrypoints.openai.api_server"]}

#: The drafters that an engine has a name for: llama.cpp's ``--spec-type``, vLLM's ``method``.
LLAMA_CPP = {"draft_model": "draft-simple", "eagle": "draft-eagle3", "parallel": "draft-dspark", "mtp": "draft-mtp"}
VLLM = {"draft_model": "draft_model", "eagle": "eagle3", "parallel": "dspark", "mtp": "mtp", "medusa": "medusa"}

#: What makes vLLM run on any processor, in as little memory as this pair needs, without a word to others.
VLLM_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


class NotStarted(Exception):
    """An engine that ended before it answered: its own words."""


def llama_server() -> str | None:
    """The command of llama.cpp's server: what ``SPECVIZ_LLAMA_SERVER`` names, or else one on the PATH."""
    return os.environ.get("SPECVIZ_LLAMA_SERVER") or shutil.which("llama-server")


def vllm_python() -> str | None:
    """A Python that has vLLM: what ``SPECVIZ_VLLM`` names, or else this one."""
    if named := os.environ.get("SPECVIZ_VLLM"):
        return named
    return sys.executable if importlib.util.find_spec("vllm") else None


def folder_of(drafter: str | None) -> str:
    """Where its model lies among the embedded ones; the target's for plain decoding."""
    return {None: "target", "draft_model": "draft"}.get(drafter) or str(drafter)


def options_of(engine: str, drafter: str | None) -> list[str]:
    """Options of a server that drafts so, started where its files lie. KeyError: the engine has no name for that."""
    if engine == "llama.cpp":
        options = ["-m", "target.gguf", "-c", "1024", "-np", "1", "-t", "1", "--metrics"]
        if drafter is None:
            return options
        drafting = ["--spec-type", LLAMA_CPP[drafter], "-md", f"{folder_of(drafter)}.gguf"]
        return [*options, *drafting, "--spec-draft-n-max", str(GAMMA)]
    options = ["--model", "target", "--served-model-name", "storybook", "--dtype", "float32", "--max-model-len", "512"]
    options += ["--max-num-seqs", "4", "--enforce-eager", "--no-enable-prefix-caching"]
    if drafter is None:
        return options
    speculation = {"method": VLLM[drafter], "model": folder_of(drafter), "num_speculative_tokens": GAMMA}
    return [*options, "--speculative-config", json.dumps(speculation)]


@contextlib.contextmanager
def running(engine: str, drafter: str | None, files: pathlib.Path, further: Sequence[str] = ()) -> Iterator[int]:
    """The port of an engine's server that drafts so.

    files: where llama.cpp's GGUF files lie; those that are not there are written. Raises NotStarted.
    """
    options = [*options_of(engine, drafter), *further]
    if engine == "llama.cpp":
        command, folder, settings = shlex.split(llama_server() or COMMANDS[engine][0]), files, {}
        write_missing(files, drafter)
    else:
        command, folder, settings = [vllm_python() or sys.executable, *COMMANDS[engine][1:]], EMBEDDED, VLLM_SETTINGS
    with _running([*command, *options], folder, settings, PATIENCE[engine]) as port:
        yield port


def write_missing(folder: pathlib.Path, drafter: str | None, exact: bool = False) -> None:
    """Writes the GGUF files of the target and of what drafts for it, as far as they are not there: see `write_gguf`."""
    from tools.engines.gguf_files import write_gguf  # loads torch, which most tests of a page do without

    for name in {"target", folder_of(drafter)}:
        if not (file := folder / f"{name}.gguf").exists():
            write_gguf(EMBEDDED / name, file, EMBEDDED / "target", exact)


@contextlib.contextmanager
def _running(command: Sequence[str], folder: pathlib.Path, settings: dict[str, str], patience: float) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        # A session of its own: vLLM's workers are processes too, and end with it.
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | settings,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_it_answers(process, port, log, patience)
            yield port
        finally:
            _end(process)


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: IO[str], patience: float) -> None:
    """Raises NotStarted, with what the engine wrote, if it ends or is silent for so many seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            if ask(port, "/health").status == 200:
                return
        time.sleep(0.2)
    log.seek(0)
    raise NotStarted(log.read())


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends an engine with all of its processes."""
    for way in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, way)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    lines: list[str]
    arrived: list[int]  # milliseconds after the question, for each line

    @property
    def content_type(self) -> str:
        return next((value for name, value in self.headers.items() if name.lower() == "content-type"), "")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def json(self) -> Any:
        return json.loads(self.text)

    def events(self) -> list[Any]:
        """Of a stream: the JSON after each ``data:``."""
        found = (line.removeprefix("data:").strip() for line in self.lines if line.startswith("data:"))
        return [json.loads(event) for event in found if event != "[DONE]"]


def ask(port: int, path: str, body: dict[str, Any] | None = None) -> Answer:
    """Asks a server on this machine, with POST if there is something to say. Raises OSError if it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    with contextlib.closing(connection):
        sent = None if body is None else json.dumps(body)
        start = time.monotonic()
        connection.request("GET" if body is None else "POST", path, sent, {"Content-Type": "application/json"})
        response = connection.getresponse()
        lines, arrived = [], []
        for line in response:
            lines.append(line.decode("utf-8").rstrip("\r\n"))
            arrived.append(round(1000 * (time.monotonic() - start)))
        return Answer(response.status, dict(response.getheaders()), lines, arrived)
