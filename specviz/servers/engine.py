"""An engine as it is asked for an answer: OpenAI's interface, on which the engines of `engines` build."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from specviz.records.errors import shortened
from specviz.servers.answers import Answer, Ask, End, Piece
from specviz.servers.connection import Connection

#: Log probabilities of a place that vLLM gives unless it is started to give more.
MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class About:
    """What runs at an address, as far as it says; None where it does not."""

    engine: str
    url: str
    version: str | None = None
    model: str | None = None
    drafter: str | None = None  # in the engine's own words; "none" where it says that there is none
    depth: int | None = None  # γ
    slots: int | None = None  # requests that it answers at once
    context: int | None = None  # tokens
    sampling: dict[str, Any] = field(default_factory=dict)  # its defaults, where a request names no others


class Asked(Protocol):
    """A server, as `specviz.servers.server.Server` is one."""

    @property
    def engine(self) -> Engine: ...

    def about(self) -> About: ...


class Engine:
    """An engine that speaks OpenAI's interface, and the base of all others."""

    name: ClassVar[str] = "OpenAI"
    owners: ClassVar[frozenset[str]] = frozenset()  # how it calls itself in its list of models
    takes_ids: ClassVar[bool] = False  # whether a prompt may be token ids
    names_ids: ClassVar[bool] = False  # whether it says which tokens it made
    names_end: ClassVar[bool] = True  # whether the end token is one of them
    takes_depth: ClassVar[bool] = False  # whether a request can say how deep to draft
    judges_prompts: ClassVar[bool] = False  # whether it gives log probabilities of a prompt's tokens
    path: ClassVar[str] = "/v1/completions"
    streamed: ClassVar[dict[str, Any]] = {}  # what a streamed answer is asked for besides

    def __init__(self, connection: Connection, models: list[dict[str, Any]], model: str | None = None):
        self.connection, self.models = connection, models
        names = [str(row["id"]) for row in models if isinstance(row.get("id"), str)]
        if model and names and model not in names:
            raise connection.complaint(
                "{server} has no model named {model}; it has {models}.",
                "server_model",
                model=shortened(model),
                models=shortened(", ".join(names)),
            )
        self.model = model or (names[0] if names else None)

    def about(self) -> About:
        row = next((row for row in self.models if row.get("id") == self.model), {})
        return About(
            self.name,
            self.connection.address.shown,
            self.version(),
            self.model,
            context=count_of(row.get("max_model_len")),
        )

    @property
    def query(self) -> dict[str, str]:
        """What is asked of it with every look at what it says of itself."""
        return {}

    def version(self) -> str | None:
        values = self.connection.fact("/version")
        return str(values["version"]) if isinstance(values, dict) and "version" in values else None

    def body(self, ask: Ask) -> dict[str, Any]:
        """The request for an answer, but for whether it is streamed."""
        body: dict[str, Any] = {"prompt": prompt_of(ask), "max_tokens": ask.max_new_tokens, "seed": ask.seed}
        body |= {"temperature": ask.temperature}
        body |= {"model": self.model} if self.model else {}
        return body | ({"top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0} if ask.neutral else {})

    def stream(self, ask: Ask) -> Generator[Piece, None, None]:
        """The answer as it comes. Raises SpecvizError where it breaks off or ends without saying why."""
        began, ended = time.perf_counter(), None
        for event in self.connection.events(self.path, self.body(ask) | self.streamed | {"stream": True}):
            for piece in self.pieces(event, time.perf_counter() - began):
                ended = piece.end or ended
                yield piece
        if ended is None:
            raise self.connection.complaint(
                "{server} ended its answer before it was complete. Was it stopped or restarted?"
            )

    def answer(self, ask: Ask) -> Answer:
        """The answer as a whole."""
        began = time.perf_counter()
        values = self.connection.json(self.path, self.body(ask) | {"stream": False})
        if not isinstance(values, dict):
            raise self.connection.complaint(
                "{server} has nothing at {path}, where {engine} answers.", path=self.path, engine=self.name
            )
        return Answer(ask, list(self.pieces(values, time.perf_counter() - began)))

    def drafter_in(self, answer: Answer) -> str | None:
        """The drafter that an answer names, if it does."""
        return None

    def samplers_in(self, answer: Answer) -> dict[str, float] | None:
        """Which samplers beside the temperature an answer says were on, with their settings; None if it does not."""
        return None

    def pieces(self, event: dict[str, Any], at: float) -> Iterator[Piece]:
        """What an event says, or a whole answer."""
        choice = first_of(event.get("choices"))
        ids, end = ids_of(choice.get("token_ids")), end_of(choice.get("finish_reason") or None)
        text, usage = choice.get("text"), event.get("usage")
        made = count_of(usage.get("completion_tokens")) if isinstance(usage, dict) else None
        if text or ids or end:
            text = text if isinstance(text, str) else ""
            listed = choice.get("logprobs")
            each = listed.get("tokens") if isinstance(listed, dict) else None
            texts = tuple(map(str, each)) if isinstance(each, list) and "".join(map(str, each)) == text else ()
            yield Piece(at, text, ids, made=made, end=end, said=event if end else {}, texts=texts)

    def tokenise(self, prompt: str) -> tuple[int, ...] | None:
        """The prompt's tokens; None where the engine does not say."""
        return None

    def log_probs_of(self, ids: tuple[int, ...]) -> list[dict[int, float]]:
        """Of each token of a text the likeliest ones in its place, with their log probabilities, without speculation.

        Only where it `judges_prompts`.
        """
        raise NotImplementedError(f"{self.name} gives no log probabilities of a prompt.")

    def scrape(self) -> str | None:
        """Its /metrics; None without, or where a proxy answers for it with a page."""
        text = self.connection.text("/metrics", self.query)
        return None if text is None or text.lstrip().startswith("<") else text


#: Why an answer ended, in the engines' words.
ENDS: dict[str, End] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "eosFound"), "end"),
    **dict.fromkeys(("length", "limit", "maxPredictedTokensReached"), "length"),
    **dict.fromkeys(("word", "stopStringFound"), "stop"),
}


def end_of(reason: Any) -> End | None:
    """Why an answer ended, by its last event; None while it goes on. A filter or an abort breaks it off."""
    return None if reason is None else ENDS.get(str(reason), "broken")


def prompt_of(ask: Ask) -> str | list[int]:
    return ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)


def object_of(value: Any) -> dict[str, Any]:
    """The object that a server should have said; nothing where it said something else, as proxies do."""
    return value if isinstance(value, dict) else {}


def first_of(values: Any) -> dict[str, Any]:
    return values[0] if isinstance(values, list) and values and isinstance(values[0], dict) else {}


def ids_of(values: Any) -> tuple[int, ...]:
    return tuple(id for id in values if type(id) is int) if isinstance(values, list) else ()


def count_of(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
