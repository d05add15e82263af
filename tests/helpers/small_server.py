"""A server on this machine that answers as a test says, for clients that must bear anything."""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    """What a path answers with. parts: sent one by one; a float among them is a pause in seconds, None cuts the
    connection."""

    parts: Iterable[bytes | str | float | None] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, values: Any, status: int = 200) -> Reply:
        return cls([json.dumps(values)], status)

    @classmethod
    def events(cls, values: Iterable[Any], done: bool = True) -> Reply:
        """Server-sent events."""
        return cls([*(f"data: {json.dumps(value)}\n\n" for value in values), *(["data: [DONE]\n\n"] if done else [])])


@dataclass
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class SmallServer:
    """replies: by path, or a function from the request; other paths are not found. `asked` has all requests."""

    def __init__(self, replies: dict[str, Reply | Callable[[Asked], Reply]]):
        self.replies, self.asked = replies, list[Asked]()
        self.url = ""

    def reply(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        reply = self.replies.get(asked.path, Reply(["not found"], 404))
        return reply(asked) if callable(reply) else reply


@contextlib.contextmanager
def serving(server: SmallServer, certificate: str | None = None) -> Iterator[SmallServer]:
    """Within it, the server answers at its `url`. certificate: a file with key and certificate, for https."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # which would wait 40 ms for the client between head and body

        def answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = server.reply(Asked(self.command, self.path, headers, body))
            self.send_response_only(reply.status)
            for name, value in {**reply.headers, "Transfer-Encoding": "chunked"}.items():
                self.send_header(name, value)
            self.end_headers()
            for part in reply.parts:
                if part is None:
                    self.close_connection = True
                    return
                if isinstance(part, float):
                    ended.wait(part)
                    continue
                if data := part.encode() if isinstance(part, str) else part:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            """Nothing: a test has no log."""

    ended = threading.Event()
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # A client that goes away is what some tests are about.
    listening.handle_error = lambda *_: None  # type: ignore[method-assign]
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
    server.url = f"http{'s' if certificate else ''}://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        ended.set()
        listening.shutdown()
        listening.server_close()
