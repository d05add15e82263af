"""How each engine is asked for an answer, and what it says of itself and of its drafts.

An engine is a class here and a row of `ENGINES`. Names are those of the engines' own interfaces. llama.cpp's and vLLM's
are seen in recorded exchanges (tests/engines); SGLang's, TensorRT-LLM's, LM Studio's and Ollama's are read from their
sources and documents.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from specviz.records.errors import shortened
from specviz.servers.answers import Answer, Ask, End, Piece
from specviz.servers.connection import Connection
from specviz.servers.counters import depth_of

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


class Engine:
    """An engine that speaks OpenAI's interface, and the base of all others."""

    name: ClassVar[str] = "OpenAI"
    owners: ClassVar[frozenset[str]] = frozenset()  # how it calls itself in its list of models
    takes_ids: ClassVar[bool] = False  # whether a prompt may be token ids
    names_ids: ClassVar[bool] = False  # whether it says which tokens it made
    takes_depth: ClassVar[bool] = False  # whether γ may be asked for by request
    path: ClassVar[str] = "/v1/completions"

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
            context=_count(row.get("max_model_len")),
        )

    def version(self) -> str | None:
        values = self.connection.json("/version")
        return str(values["version"]) if isinstance(values, dict) and "version" in values else None

    def body(self, ask: Ask) -> dict[str, Any]:
        """The request for an answer, but for whether it is streamed."""
        body: dict[str, Any] = {"prompt": _prompt(ask), "max_tokens": ask.max_new_tokens, "seed": ask.seed}
        body |= {"temperature": ask.temperature}
        body |= {"model": self.model} if self.model else {}
        return body | ({"top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0} if ask.neutral else {})

    def stream(self, ask: Ask) -> Generator[Piece, None, None]:
        """The answer as it comes. Raises SpecvizError where it breaks off or ends without saying why."""
        began, ended = time.perf_counter(), None
        for event in self.connection.events(self.path, self.body(ask) | {"stream": True}):
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

    def pieces(self, event: dict[str, Any], at: float) -> Iterator[Piece]:
        """What an event says, or a whole answer."""
        choice = _first(event.get("choices"))
        ids, end = _ids(choice.get("token_ids")), _END.get(str(choice.get("finish_reason")))
        text, usage = choice.get("text"), event.get("usage")
        made = _count(usage.get("completion_tokens")) if isinstance(usage, dict) else None
        if text or ids or end:
            text = text if isinstance(text, str) else ""
            yield Piece(at, text, ids, made=made, end=end, said=event if end else {})

    def tokenise(self, prompt: str) -> tuple[int, ...] | None:
        """The prompt's tokens; None where the engine does not say."""
        return None

    def log_probs_of(self, ids: tuple[int, ...]) -> list[dict[int, float]]:
        """Of each token of a text the likeliest ones in its place, with their log probabilities, without speculation.

        Raises SpecvizError where the engine does not say.
        """
        raise self.connection.complaint(
            "{engine} gives no log probabilities of a prompt: name the model that it serves, or a second server "
            "without speculation.",
            engine=self.name,
        )

    def scrape(self) -> str | None:
        """Its /metrics; None without."""
        return self.connection.text("/metrics")


#: Why an answer ended, in the engines' words.
_END: dict[str, End] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "eosFound"), "end"),
    **dict.fromkeys(("length", "limit", "maxPredictedTokensReached"), "length"),
    **dict.fromkeys(("word", "stopStringFound"), "stop"),
}


class LlamaCpp(Engine):
    """llama.cpp's server: `timings` at every token count drafted and accepted tokens so far."""

    name, owners = "llama.cpp", frozenset({"llamacpp"})
    takes_ids = names_ids = True
    path = "/completion"

    def about(self) -> About:
        props, slots = self.connection.json("/props") or {}, self.connection.json("/slots") or []
        defaults = props.get("default_generation_settings", {})
        params = defaults.get("params", {})
        drafts = [slot.get("speculative") for slot in slots if isinstance(slot, dict)]
        named = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty")
        return About(
            self.name,
            self.connection.address.shown,
            props.get("build_info"),
            self.model,
            drafter=None if not drafts else "speculative" if any(drafts) else "none",
            slots=_count(props.get("total_slots")),
            context=_count(defaults.get("n_ctx")),
            sampling={name: round(float(params[name]), 4) for name in named if name in params}
            | {"samplers": params.get("samplers")},
        )

    def body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {"prompt": _prompt(ask), "n_predict": ask.max_new_tokens, "seed": ask.seed}
        body |= {"temperature": ask.temperature, "timings_per_token": True, "return_tokens": True}
        if ask.neutral:
            body |= {"samplers": ["temperature"], "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
            body |= {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "dry_multiplier": 0.0}
        return body | ({} if ask.depth is None else {"speculative.n_max": ask.depth})

    def stream(self, ask: Ask) -> Generator[Piece, None, None]:
        """A token that ends inside a character has no event of its own; the count of tokens shows it."""
        count = 0
        for piece in super().stream(ask):
            missing = max(0, (piece.made or 0) - count - len(piece.ids)) if piece.ids else 0
            count += missing + len(piece.ids)
            yield replace(piece, ids=(None,) * missing + piece.ids) if missing else piece

    def pieces(self, event: dict[str, Any], at: float) -> Iterator[Piece]:
        end = _END.get(str(event.get("stop_type"))) if event.get("stop") else None
        timings = event.get("timings") or {}
        milliseconds = timings.get("predicted_ms")
        yield Piece(
            at,
            str(event.get("content", "")),
            _ids(event.get("tokens")),
            # At a token before the first draft there is no count yet.
            _count(timings.get("draft_n", 0)),
            _count(timings.get("draft_n_accepted", 0)),
            seconds=milliseconds / 1e3 if isinstance(milliseconds, (int, float)) else None,
            made=_count(event.get("tokens_predicted")),
            end=end,
            said=event if end else {},
        )

    def drafter_in(self, answer: Answer) -> str | None:
        settings = answer.pieces[-1].said.get("generation_settings") if answer.pieces else None
        types = settings.get("speculative.types") if isinstance(settings, dict) else None
        drafting = [name for name in str(types or "").split(",") if name not in ("", "none")]
        return ",".join(drafting) or ("none" if types else None)


class Vllm(Engine):
    """vLLM: the tokens of one pass arrive together."""

    name, owners = "vLLM", frozenset({"vllm"})
    takes_ids = names_ids = True

    def about(self) -> About:
        """Its counters say whether it drafts, and how deep."""
        about, scrape = super().about(), self.scrape()
        depth = depth_of(scrape)
        return about if scrape is None else replace(about, drafter="speculative" if depth else "none", depth=depth or 0)

    def body(self, ask: Ask) -> dict[str, Any]:
        neutral = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0} if ask.neutral else {}
        return super().body(ask) | {"return_token_ids": True} | neutral

    def tokenise(self, prompt: str) -> tuple[int, ...] | None:
        return _ids((self.connection.json("/tokenize", {"model": self.model, "prompt": prompt}) or {}).get("tokens"))

    def log_probs_of(self, ids: tuple[int, ...]) -> list[dict[int, float]]:
        """vLLM lists the token that stands there, too, however unlikely."""
        body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": MOST_LISTED}
        values = self.connection.json(self.path, body | {"temperature": 0.0})
        rows = _first((values or {}).get("choices")).get("prompt_logprobs") or []
        return [
            {int(id): float(said["logprob"]) for id, said in (row or {}).items() if said["rank"] <= MOST_LISTED}
            for row in rows
        ]


class Sglang(Engine):
    """SGLang's own interface, which counts verifications."""

    name, owners = "SGLang", frozenset({"sglang"})
    takes_ids = names_ids = True
    path = "/generate"

    def about(self) -> About:
        info = self.connection.json("/server_info") or self.connection.json("/get_server_info") or {}
        return About(
            self.name,
            self.connection.address.shown,
            info.get("version"),
            self.model,
            drafter=info.get("speculative_algorithm") or "none",
            # A tree's number of tokens counts the one that stands already.
            depth=_count(info.get("speculative_num_steps")),
            slots=_count(info.get("max_running_requests")),
            context=_count(info.get("context_length")),
        )

    def body(self, ask: Ask) -> dict[str, Any]:
        sampling: dict[str, Any] = {"max_new_tokens": ask.max_new_tokens, "temperature": ask.temperature}
        sampling |= {"sampling_seed": ask.seed}
        if ask.neutral:
            sampling |= {"top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
            sampling |= {"frequency_penalty": 0.0, "presence_penalty": 0.0}
        prompt = {"text": ask.prompt} if isinstance(ask.prompt, str) else {"input_ids": list(ask.prompt)}
        return prompt | {"sampling_params": sampling}

    def stream(self, ask: Ask) -> Generator[Piece, None, None]:
        """SGLang repeats the whole answer in every event, unless it was started to send what is new."""
        text, ids = "", tuple[int | None, ...]()
        for piece in super().stream(ask):
            whole = piece.ids[: len(ids)] == ids and piece.text.startswith(text)
            if whole:
                text, ids, piece = (
                    piece.text,
                    piece.ids,
                    replace(piece, text=piece.text[len(text) :], ids=piece.ids[len(ids) :]),
                )
            yield piece

    def pieces(self, event: dict[str, Any], at: float) -> Iterator[Piece]:
        meta = event.get("meta_info") or {}
        reason = meta.get("finish_reason")
        end = _END.get(str(reason.get("type"))) if isinstance(reason, dict) else None
        ids = _ids(event.get("output_ids"))
        yield Piece(
            at,
            str(event.get("text", "")),
            ids,
            passes=_count(meta.get("spec_verify_ct")),
            end=end,
            said=event if end else {},
        )


class TensorRt(Engine):
    """TensorRT-LLM's `trtllm-serve`."""

    name, owners = "TensorRT-LLM", frozenset({"tensorrt_llm"})


class LmStudio(Engine):
    """LM Studio: counts drafts in the last event's `stats`."""

    name, owners = "LM Studio", frozenset({"organization_owner"})
    path = "/api/v0/completions"


class Ollama(Engine):
    """Ollama: a line each token, and nothing about drafts."""

    name, owners = "Ollama", frozenset({"library"})
    path = "/api/generate"

    def version(self) -> str | None:
        return str((self.connection.json("/api/version") or {}).get("version") or "") or None

    def body(self, ask: Ask) -> dict[str, Any]:
        options: dict[str, Any] = {"num_predict": ask.max_new_tokens, "temperature": ask.temperature, "seed": ask.seed}
        if ask.neutral:
            options |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0}
        return {"model": self.model, "prompt": _prompt(ask), "raw": True, "options": options}

    def pieces(self, event: dict[str, Any], at: float) -> Iterator[Piece]:
        end = _END.get(str(event.get("done_reason"))) if event.get("done") else None
        made = _count(event.get("eval_count"))
        yield Piece(at, str(event.get("response", "")), made=made, end=end, said=event if end else {})


ENGINES: tuple[type[Engine], ...] = (LlamaCpp, Vllm, Sglang, TensorRt, LmStudio, Ollama)


def engine_at(connection: Connection, model: str | None = None) -> Engine:
    """The engine that answers there, by how it calls itself in its list of models.

    Raises SpecvizError (field ``server`` or ``server_key``) where nothing does that speaks a known interface.
    """
    listed = connection.json("/v1/models")
    rows = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(rows, list):
        raise connection.complaint(
            "{server} answers, but has no list of models at /v1/models, as inference servers do. Is this its root?"
        )
    models = [row for row in rows if isinstance(row, dict)]
    owners = {row.get("owned_by") for row in models}
    kind = next((engine for engine in ENGINES if engine.owners & owners), Engine)
    return kind(connection, models, model)


def _prompt(ask: Ask) -> str | list[int]:
    return ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)


def _first(values: Any) -> dict[str, Any]:
    return values[0] if isinstance(values, list) and values and isinstance(values[0], dict) else {}


def _ids(values: Any) -> tuple[int, ...]:
    return tuple(id for id in values if type(id) is int) if isinstance(values, list) else ()


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
