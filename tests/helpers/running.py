"""The app of a checkout in a process of its own, and waiting for what it does."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

ROOT = pathlib.Path(__file__).parents[2]

#: Seconds the app may take to answer, and Playwright's steps to happen: generous, only a hang should reach them.
PATIENCE = 60


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[int]:
    """Answers requests in threads of this process; gives the port, of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def running_app(root: pathlib.Path, folder: pathlib.Path) -> Iterator[str]:
    """The address of the app of a checkout while it runs; it writes its log, and what it keeps, into `folder`.

    It ends when it is asked to, and then leaves nothing of its own there.
    """
    port, log = free_port(), folder / "app.log"
    environment = {
        "GRADIO_SERVER_NAME": "127.0.0.1",
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "HF_HUB_OFFLINE": "1",
        "SPECVIZ_DTYPE": "bfloat16",
        # Compiling takes a minute of both cores.
        "SPECVIZ_PASSES": "plain",
        "TMPDIR": str(folder),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPECVIZ_", "GRADIO_"))}
    # Where Gradio keeps files unless told otherwise: on a shared machine it is somebody else's folder.
    (folder / "gradio").touch()
    with log.open("wb") as output:
        app = subprocess.Popen(
            [sys.executable, "app.py"], cwd=root, env=kept | environment, stdout=output, stderr=subprocess.STDOUT
        )
    url = f"http://127.0.0.1:{port}/"
    try:
        _wait_until_it_answers(app, url, log)
        yield url
        app.terminate()
        assert app.wait(PATIENCE) == 0 and not list(folder.glob("specviz-*")), log.read_text()[-4000:]
    finally:
        app.kill()
        app.wait()


def _wait_until_it_answers(app: subprocess.Popen, url: str, log: pathlib.Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if app.poll() is not None:
            pytest.fail(f"The app ended by itself:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    pytest.fail(f"The app does not answer:\n{log.read_text()}")
