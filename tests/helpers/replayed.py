"""A server that answers as a real engine did: exchanges that ``python -m tools.engines record`` wrote down.

    def test_…(replay):
        server = replay("llama_cpp_b10434_eagle")
        … server.url … server.asked …

What a server might do wrong is made of an exchange, by `dataclasses.replace`, and given instead of the name:

    exchanges = recorded("vllm_0_32_plain")
    server = replay([replace(exchanges[4], lines=exchanges[4].lines[:9], breaks_off=True)])
"""

from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

RECORDED = pathlib.Path(__file__).parents[1] / "engines" / "recorded"


@dataclass(frozen=True)
class Exchange:
    """A request and its answer."""

    method: str
    path: str
    asked: Any  # the JSON that was sent; None: nothing
    status: int
    headers: dict[str, str]
    lines: list[str]
    arrived_ms: list[int] = field(default_factory=list)  # after the request, for each line of a stream
    breaks_off: bool = False  # the connection is cut after the last line, and not ended


def recorded(name: str) -> list[Exchange]:
    """The exchanges of a recording, in their order."""
    exchanges = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))["exchanges"]
    return [
        Exchange(
            one["request"]["method"],
            one["request"]["path"],
            one["request"].get("body"),
            one["status"],
            one["headers"],
            one["body"],
            one.get("arrived_ms", []),
        )
        for one in exchanges
    ]


@dataclass
class Replayed:
    """A server on this machine. Of several answers to a path it gives the one to the most similar question; those to
    one and the same question come in turn, and the last one stays."""

    exchanges: Sequence[Exchange]
    paced: bool  # whether lines come as late as they came
    url: str = ""
    asked: list[tuple[str, str, Any]] = field(default_factory=list)  # method, path and JSON of each request

    def answer(self, method: str, path: str, body: Any) -> Exchange | None:
        turns = self.asked.count((method, path, body))
        self.asked.append((method, path, body))
        there = [one for one in self.exchanges if (one.method, one.path) == (method, path)]
        if not there:
            return None
        nearest = max(_alike(one.asked, body) for one in there)
        same = [one for one in there if _alike(one.asked, body) == nearest]
        return same[min(turns, len(same) - 1)]


def _alike(recorded: Any, asked: Any) -> int:
    """How many fields of a question are as they were, less those that are not."""
    recorded, asked = recorded or {}, asked or {}
    same = sum(asked.get(name) == value for name, value in recorded.items())
    return 2 * same - len(recorded.keys() | asked.keys())


@contextlib.contextmanager
def replaying(exchanges: Sequence[Exchange], paced: bool = False) -> Iterator[Replayed]:
    replayed = Replayed(exchanges, paced)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            exchange = replayed.answer(self.command, self.path, json.loads(sent) if sent else None)
            with contextlib.suppress(ConnectionError):  # a reader may leave before the end
                self.send(exchange or Exchange("", "", None, 404, {}, []))

        do_GET = do_POST = answer

        def version_string(self) -> str:
            return next((value for name, value in self.server_says.items() if name.lower() == "server"), "replayed")

        def send(self, exchange: Exchange) -> None:
            self.server_says = exchange.headers
            self.send_response(exchange.status)
            for name, value in exchange.headers.items():
                if name.lower() not in ("server", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            begun = time.monotonic()
            for place, line in enumerate(exchange.lines):
                if replayed.paced and exchange.arrived_ms:
                    time.sleep(max(0.0, begun + exchange.arrived_ms[place] / 1000 - time.monotonic()))
                last = place == len(exchange.lines) - 1 and not exchange.arrived_ms
                self.chunk(line.encode() + (b"" if last else b"\n"))
            if exchange.breaks_off:
                self.close_connection = True
            else:
                self.wfile.write(b"0\r\n\r\n")

        def chunk(self, content: bytes) -> None:
            if content:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
                self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """Tests are told by `Replayed.asked`."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        replayed.url = f"http://127.0.0.1:{server.server_port}"
        running = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        running.start()
        yield replayed
        server.shutdown()
        running.join()


@pytest.fixture
def replay() -> Iterator[Callable[..., Replayed]]:
    """Starts a server that answers as recorded: by the name of a recording, or by exchanges."""
    with contextlib.ExitStack() as servers:

        def start(exchanges: str | Sequence[Exchange], paced: bool = False) -> Replayed:
            known = recorded(exchanges) if isinstance(exchanges, str) else exchanges
            return servers.enter_context(replaying(known, paced))

        yield start
