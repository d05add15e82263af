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
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from small_server import Asked, Reply, SmallServer, serving

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


class Replayed(SmallServer):
    """Of several answers to a path it gives the one to the most similar question; those to one and the same question
    come in turn, and the last one stays. paced: whether lines come as late as they came."""

    def __init__(self, exchanges: Sequence[Exchange], paced: bool = False):
        super().__init__({})
        self.exchanges, self.paced = exchanges, paced

    def reply(self, asked: Asked) -> Reply:
        question = (asked.method, asked.path, asked.body)
        turns = sum((before.method, before.path, before.body) == question for before in self.asked)
        self.asked.append(asked)
        there = [known for known in self.exchanges if (known.method, known.path) == question[:2]]
        if not there:
            return Reply(status=404)
        nearest = max(_alike(known.asked, asked.body) for known in there)
        same = [known for known in there if _alike(known.asked, asked.body) == nearest]
        exchange = same[min(turns, len(same) - 1)]
        headers = {name: value for name, value in exchange.headers.items() if name.lower() != "transfer-encoding"}
        return Reply(self.parts(exchange), exchange.status, headers)

    def parts(self, exchange: Exchange) -> Iterator[bytes | float | None]:
        """Its lines and, if it is paced, the pauses between them."""
        last = len(exchange.lines) - 1
        for place, line in enumerate(exchange.lines):
            if self.paced and exchange.arrived_ms:
                yield (exchange.arrived_ms[place] - (exchange.arrived_ms[place - 1] if place else 0)) / 1000
            yield line.encode() + (b"" if place == last and not exchange.arrived_ms else b"\n")
        if exchange.breaks_off:
            yield None


def _alike(recorded: Any, asked: Any) -> int:
    """How many fields of a question are as they were, less those that are not."""
    recorded, asked = recorded or {}, asked or {}
    same = sum(asked.get(name) == value for name, value in recorded.items())
    return 2 * same - len(recorded.keys() | asked.keys())


@pytest.fixture
def replay() -> Iterator[Callable[..., Replayed]]:
    """Starts a server that answers as recorded: by the name of a recording, or by exchanges."""
    with contextlib.ExitStack() as servers:

        def start(exchanges: str | Sequence[Exchange], paced: bool = False) -> Replayed:
            known = recorded(exchanges) if isinstance(exchanges, str) else exchanges
            return servers.enter_context(serving(Replayed(known, paced)))

        yield start
