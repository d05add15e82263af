"""What inference servers say about their own speculative decoding, request by request where they do.

Only what a server gives is read; what follows from it exactly is filled in, nothing else (docs/metrics.md). A request
that cannot be read is left out with its reason, and the others are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from specviz.records.errors import SpecvizError, quoted, shortened
from specviz.records.metrics import Tally
from specviz.records.server_counts import Outcomes, ServedRequest, request_of
from specviz.records.server_formats import BENCH, FORMATS, OWN, RUN, SCHEMA, Format, tokens_joined
from specviz.records.server_text import MOST_REASONS, Told, pieces

#: The longest text that is read: some ten thousand requests with every pass of theirs.
MOST_CHARACTERS = 10_000_000

#: What is added up where a format tells step by step what was counted.
_SUMMED = ("passes", "accepted", "drafted")

#: By the name of a field, the formats that it may be a mark of.
_MARKS = {name: [kind for kind in FORMATS if name in kind.marked] for kind in FORMATS for name in kind.marked}


@dataclass(slots=True)
class ServedRequests:
    requests: list[ServedRequest] = field(default_factory=list)
    without: int = 0  # entries that say nothing of speculation
    left_out: int = 0  # what could not be read
    reasons: list[SpecvizError] = field(default_factory=list)  # why, of the first ones and of the last

    def leave_out(self, reason: SpecvizError) -> None:
        self.left_out += 1
        self.reasons[MOST_REASONS - 1 :] = [reason.at("metrics")]


def read_metrics(text: str, chains: bool = False) -> ServedRequests:
    """The requests in a text: answers of a server as JSON of any number, or as they were streamed; its log; scrapes of
    its /metrics; results of a benchmark; traces of runs here.

    chains: whoever asks vouches that every pass drafted one chain as long as the server is configured to draft, so that
    nominal lengths are real ones. Raises SpecvizError for what is too long or holds no metrics, or none that can be.
    """
    if len(text) > MOST_CHARACTERS:
        raise SpecvizError(
            "This is more than can be read at once: at most {most} characters.", "metrics", most=MOST_CHARACTERS
        )
    if not text.strip("\ufeff \t\r\n"):
        raise SpecvizError("There is nothing to read.", "metrics")
    reader = _Reader(chains)
    for piece in tokens_joined(pieces(text)):
        try:
            reader.take(piece)
        except SpecvizError as reason:
            reader.found.leave_out(reason)
    found = reader.found
    if found.requests:
        return found
    if found.reasons:
        raise found.reasons[0]
    raise SpecvizError(
        "No speculative metrics here. Answers hold them if vLLM was started with --per-request-spec-decode-metrics, "
        "SGLang was asked for return_meta_info, and llama.cpp, LM Studio, TensorRT-LLM or mlx-lm had a drafter. A log "
        "or /metrics of vLLM, SGLang (--enable-metrics) or llama.cpp (--metrics) will do as well, a result of vllm "
        "bench serve, records of AIPerf, a trace or benchmark of specviz, and for all else {schema}.",
        "metrics",
        schema=SCHEMA,
    )


def tally_of(outcomes: Outcomes) -> Tally:
    """The counts of passes whose drafts' lengths are known, as of a run's rounds: chains, judged up to the first
    rejection."""
    counts = Tally()
    for (accepted, drafted), passes in outcomes.items():
        judged = min(drafted, accepted + 1)
        counts.rounds += passes
        counts.rounds_by_depth[drafted] += passes
        counts.drafted += passes * drafted
        counts.judged += passes * judged
        counts.accepted += passes * accepted
        missing = drafted - len(counts.judged_at)
        counts.judged_at += [0] * missing
        counts.accepted_at += [0] * missing
        for position in range(judged):
            counts.judged_at[position] += passes
            counts.accepted_at[position] += passes * (position < accepted)
    return counts


@dataclass(slots=True)
class _Reader:
    """Takes what a text holds piece by piece."""

    chains: bool
    found: ServedRequests = field(default_factory=ServedRequests)
    number: int = 0  # of the latest request, those left out too
    #: Where in `found` something later replaces: an answer that is being streamed, by its id; the sum of a format.
    places: dict[str, int] = field(default_factory=dict)

    def take(self, piece: dict[str, Any] | Told | SpecvizError) -> None:
        if isinstance(piece, SpecvizError):
            self.found.leave_out(piece)
        elif isinstance(piece, Told):
            self._add(piece.name, None, piece.format, piece.block)
        else:
            blocks, chunk = list(_blocks(piece)), _is_chunk(piece)
            for block in blocks:
                self._add(*block, chunk)
            self.found.without += not blocks and not chunk

    def _add(self, name: str, tokens: Any, kind: Format, block: dict[str, Any], chunk: bool = False) -> None:
        requests, key = self.found.requests, name if chunk else kind.name if kind.summed else ""
        place = self.places.get(key) if key else None
        self.number += place is None
        number = self.number if place is None else requests[place].number
        try:
            one = request_of(number, shortened(name), tokens, kind, block, self.chains)
        except SpecvizError as reason:
            self.found.leave_out(reason)
            return
        if place is not None:
            before = requests[place]
            counts = {} if chunk else {name: getattr(before, name) + getattr(one, name) for name in _SUMMED}
            requests[place] = replace(one, **counts)
            return
        if key:
            self.places[key] = len(requests)
        requests.append(one)


def _blocks(entry: Any) -> Iterator[tuple[str, Any, Format, dict[str, Any]]]:
    """The objects with metrics, wherever they lie: the request's id and its tokens by what is around them, whose format
    it is, the object."""
    waiting: list[tuple[Any, str, Any, Format | None]] = [(entry, "", None, None)]
    while waiting:
        value, name, tokens, own = waiting.pop()
        if isinstance(value, list):
            waiting += [(one, name, tokens, own) for one in reversed(list(tokens_joined(value)))]
        if not isinstance(value, dict):
            continue
        name, tokens = _named(value) or name, _tokens(value, tokens)
        kind = own or _format_of(value)
        if kind is not None:
            yield name, tokens, kind, value
            continue
        inner, own = _own(value) if "schema" in value else (None, None)
        children = inner if inner is not None else list(_children(value))
        waiting += [(one, name, tokens, own) for one in reversed(children)]


def _format_of(value: dict[str, Any]) -> Format | None:
    marks = [name for name in value.keys() & _MARKS.keys() if value[name] is not None]
    kinds = (kind for name in marks for kind in _MARKS[name] if value.keys() >= set(kind.beside))
    return min(kinds, key=FORMATS.index, default=None)


def _children(value: dict[str, Any]) -> Iterator[Any]:
    """SGLang can say the same of one answer twice, in `sglext` and in its choices."""
    extension = value.get("sglext")
    twice = isinstance(extension, dict) and extension.get("spec_tokens_details") is not None
    return (one for name, one in value.items() if not (twice and name == "choices"))


def _own(value: dict[str, Any]) -> tuple[list[Any] | None, Format | None]:
    """What a file of this program holds, and its format; None for a file of another kind."""
    schema = value["schema"]
    if schema == "specviz.run/1":
        return [value], RUN
    if schema == "specviz.bench/1" and isinstance(value.get("rows"), list):
        return [row for row in value["rows"] if isinstance(row, dict) and row.get("acceptance_length")], BENCH
    if not isinstance(schema, str) or not schema.startswith("specviz.metrics"):
        return None, None
    requests = value.get("requests")
    if schema != SCHEMA or not isinstance(requests, list):
        raise SpecvizError(
            "A file of metrics has the schema {schema} and a list named requests; this one says {found}.",
            "metrics",
            schema=SCHEMA,
            found=quoted(schema),
        )
    return requests, OWN


def _named(value: dict[str, Any]) -> str:
    beside = value.get("metadata")
    names = [value.get(key) for key in ("id", "rid", "request_id", "x_request_id", "title")]
    names += [beside.get("x_request_id")] if isinstance(beside, dict) else []
    return shortened(next((str(name) for name in names if isinstance(name, (str, int))), ""))


def _tokens(value: dict[str, Any], outer: Any) -> Any:
    usage = value.get("usage")
    inside = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return next((one for one in (value.get("completion_tokens"), inside) if one is not None), outer)


def _is_chunk(entry: dict[str, Any]) -> bool:
    """Of an answer that was streamed, only the last piece has metrics, or all of them count from the start."""
    return str(entry.get("object")).endswith(".chunk") or entry.get("stop") is False
