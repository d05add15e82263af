"""The engines that are known: what each is asked, and what it says of itself and of its drafts.

An engine is a class here and a row of `ENGINES`. Names are those of the engines' own interfaces. llama.cpp's and vLLM's
are seen in recorded exchanges (tests/engines); SGLang's, TensorRT-LLM's, LM Studio's and Ollama's are read from their
sources and documents.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from specviz.records.settings import is_number
from specviz.servers.answers import Answer, Ask, Piece
from specviz.servers.connection import Connection
from specviz.servers.counters import depth_of
from specviz.servers.engine import (
    MOST_LISTED,
    About,
    Engine,
    count_of,
    end_of,
    first_of,
    ids_of,
    object_of,
    prompt_of,
)


class LlamaCpp(Engine):
    """llama.cpp's server: `timings` at every token count drafted and accepted tokens so far."""

    name, owners = "llama.cpp", frozenset({"llamacpp"})
    takes_ids = names_ids = takes_depth = True
    names_end = False
    path = "/completion"

    @property
    def query(self) -> dict[str, str]:
        """Of several models behind one address (its router) each is asked by name."""
        return {"model": self.model} if self.model and len(self.models) > 1 else {}

    def about(self) -> About:
        props, slots = (self.connection.fact(path, self.query) for path in ("/props", "/slots"))
        props, slots = object_of(props), slots if isinstance(slots, list) else []
        defaults = object_of(props.get("default_generation_settings"))
        params = object_of(defaults.get("params"))
        drafts = [slot.get("speculative") for slot in slots if isinstance(slot, dict)]
        named = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty")
        return About(
            self.name,
            self.connection.address.shown,
            props.get("build_info"),
            self.model,
            drafter=None if not drafts else "speculative" if any(drafts) else "none",
            slots=count_of(props.get("total_slots")),
            context=count_of(defaults.get("n_ctx")) or None,
            sampling={name: round(float(params[name]), 4) for name in named if is_number(params.get(name))}
            | {"samplers": params.get("samplers")},
        )

    def body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {"prompt": prompt_of(ask), "n_predict": ask.max_new_tokens, "seed": ask.seed}
        body |= self.query | {"temperature": ask.temperature, "timings_per_token": True, "return_tokens": True}
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
        end = end_of(event.get("stop_type", "none")) if event.get("stop") else None
        timings = object_of(event.get("timings"))
        milliseconds = timings.get("predicted_ms")
        yield Piece(
            at,
            str(event.get("content", "")),
            ids_of(event.get("tokens")),
            # At a token before the first draft there is no count yet.
            count_of(timings.get("draft_n", 0)),
            count_of(timings.get("draft_n_accepted", 0)),
            seconds=milliseconds / 1e3 if is_number(milliseconds) else None,
            made=count_of(event.get("tokens_predicted")),
            end=end,
            said=event if end else {},
        )

    def samplers_in(self, answer: Answer) -> dict[str, float] | None:
        settings = _settings_in(answer)
        chain = settings.get("samplers")
        if not isinstance(chain, list):
            return None
        values = {
            name: round(float(settings[name]), 4)
            for name, (sampler, off) in _LLAMA_CPP_SAMPLERS.items()
            if sampler in chain and is_number(settings.get(name)) and settings[name] != off
        }
        return {name: value for name, value in values.items() if value > 0 or name.endswith("penalty")}

    def drafter_in(self, answer: Answer) -> str | None:
        types = _settings_in(answer).get("speculative.types")
        drafting = [name for name in str(types or "").split(",") if name not in ("", "none")]
        return ",".join(drafting) or ("none" if types else None)


#: Settings of llama.cpp: the sampler that each belongs to, and the value that switches it off.
_LLAMA_CPP_SAMPLERS: dict[str, tuple[str, float]] = {
    "top_k": ("top_k", 0),
    "top_p": ("top_p", 1),
    "min_p": ("min_p", 0),
    "typical_p": ("typ_p", 1),
    "repeat_penalty": ("penalties", 1),
    "presence_penalty": ("penalties", 0),
    "frequency_penalty": ("penalties", 0),
    "dry_multiplier": ("dry", 0),
}


def _settings_in(answer: Answer) -> dict[str, Any]:
    settings = answer.pieces[-1].said.get("generation_settings") if answer.pieces else None
    return settings if isinstance(settings, dict) else {}


class Vllm(Engine):
    """vLLM: the tokens of one pass arrive together; the text of each comes with its log probability."""

    name, owners = "vLLM", frozenset({"vllm"})
    takes_ids = names_ids = judges_prompts = True
    streamed: ClassVar[dict[str, Any]] = {"logprobs": 0}

    def about(self) -> About:
        """Its counters say whether it drafts, and how deep; those of a proxy before it do not."""
        about, scrape = super().about(), self.scrape() or ""
        if not re.search(r"^vllm:", scrape, re.MULTILINE):
            return about
        depth = depth_of(scrape)
        return replace(about, drafter="speculative" if depth else "none", depth=depth or 0)

    def body(self, ask: Ask) -> dict[str, Any]:
        neutral = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0} if ask.neutral else {}
        return super().body(ask) | {"return_token_ids": True} | neutral

    def tokenise(self, prompt: str) -> tuple[int, ...] | None:
        values = self.connection.json("/tokenize", {"model": self.model, "prompt": prompt})
        return ids_of(object_of(values).get("tokens")) or None

    def log_probs_of(self, ids: tuple[int, ...]) -> list[dict[int, float]]:
        """vLLM lists the token that stands there, too, however unlikely."""
        body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": MOST_LISTED}
        values = self.connection.json(self.path, body | {"temperature": 0.0})
        rows = first_of(object_of(values).get("choices")).get("prompt_logprobs") or []
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
        info = object_of(self.connection.fact("/server_info") or self.connection.fact("/get_server_info"))
        return About(
            self.name,
            self.connection.address.shown,
            info.get("version"),
            self.model,
            drafter=(info.get("speculative_algorithm") or "none") if info else None,
            # A tree's number of tokens counts the one that stands already.
            depth=count_of(info.get("speculative_num_steps")),
            slots=count_of(info.get("max_running_requests")),
            context=count_of(info.get("context_length")),
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
            one_by_one = piece.made is not None and 0 < len(piece.ids) < piece.made
            if not one_by_one and piece.ids[: len(ids)] == ids and piece.text.startswith(text):
                text, ids, piece = (
                    piece.text,
                    piece.ids,
                    replace(piece, text=piece.text[len(text) :], ids=piece.ids[len(ids) :]),
                )
            yield piece

    def pieces(self, event: dict[str, Any], at: float) -> Iterator[Piece]:
        meta = object_of(event.get("meta_info"))
        reason = object_of(meta.get("finish_reason"))
        end = end_of(reason.get("type")) if reason else None
        ids = ids_of(event.get("output_ids"))
        yield Piece(
            at,
            str(event.get("text", "")),
            ids,
            passes=count_of(meta.get("spec_verify_ct")),
            made=count_of(meta.get("completion_tokens")),
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
        return str(object_of(self.connection.fact("/api/version")).get("version") or "") or None

    def body(self, ask: Ask) -> dict[str, Any]:
        options: dict[str, Any] = {"num_predict": ask.max_new_tokens, "temperature": ask.temperature, "seed": ask.seed}
        if ask.neutral:
            options |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0}
        return {"model": self.model, "prompt": prompt_of(ask), "raw": True, "options": options}

    def pieces(self, event: dict[str, Any], at: float) -> Iterator[Piece]:
        end = end_of(event.get("done_reason", "stop")) if event.get("done") else None
        made = count_of(event.get("eval_count"))
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
    chosen = [row for row in models if row.get("id") == model] if model else models[:1]
    owners = {str(row.get("owned_by")) for row in chosen or models}
    kind = next((engine for engine in ENGINES if engine.owners & owners), Engine)
    return kind(connection, models, model)
