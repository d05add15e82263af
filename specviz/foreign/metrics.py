"""What inference servers report about their speculative decoding, request by request if they do.

Only a server's own figures are read (docs/metrics.md). A request that cannot be read is left out with its reason, and
the others are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from specviz.foreign.fields import positive, value_of
from specviz.foreign.formats import BENCH, CONCURRENCY, FORMATS, OWN, RUN, SCHEMA, THROUGHPUT, ServerFormat
from specviz.foreign.nothing import why_none
from specviz.foreign.requests import ServedRequest, request_of
from specviz.foreign.text import MOST_REASONS, Reported, pieces, tokens_joined
from specviz.records.errors import SpecvizError, quoted, shortened

#: The longest text that is read: some ten thousand requests with every pass of theirs.
MOST_CHARACTERS = 10_000_000

#: The counts that are added up where a format reports step by step.
_SUMMED = ("passes", "accepted", "drafted")

#: By the name of a field, the formats that it may be a mark of.
_MARKS = {name: [kind for kind in FORMATS if name in kind.marked] for kind in FORMATS for name in kind.marked}


@dataclass(slots=True)
class ServedRequests:
    requests: list[ServedRequest] = field(default_factory=list)
    without: int = 0  # entries that say nothing of speculation
    plain: list[tuple[float, float]] = field(default_factory=list)  # benchmarks among them: requests at once, tokens/s
    left_out: int = 0  # what could not be read
    reasons: list[SpecvizError] = field(default_factory=list)  # why, of the first ones and of the last

    def leave_out(self, reason: SpecvizError) -> None:
        self.left_out += 1
        self.reasons[MOST_REASONS - 1 :] = [reason.at("metrics")]


def read_metrics(text: str, chains: bool = False) -> ServedRequests:
    """The requests in a text: answers of a server as JSON of any number, or as they were streamed; its log; scrapes of
    its /metrics; results of a benchmark; traces of runs here.

    chains: the caller vouches that every pass drafted one chain as long as the server is configured to draft, so that
    nominal lengths are real ones. Raises SpecvizError for a text that is too long or has no readable metrics.
    """
    if len(text) > MOST_CHARACTERS:
        raise SpecvizError(
            "The text is too long: at most {most} characters can be read at once.", "metrics", most=MOST_CHARACTERS
        )
    if not text.strip("\ufeff \t\r\n"):
        raise SpecvizError("Paste something first.", "metrics")
    served = served_in(text, chains)
    if served.requests:
        return served
    if served.reasons:
        raise served.reasons[0]
    raise why_none(text)


def served_in(text: str, chains: bool = False) -> ServedRequests:
    """The same, which may be none."""
    reader = _Reader(chains)
    for piece in tokens_joined(pieces(text)):
        try:
            reader.take(piece)
        except SpecvizError as reason:
            reader.served.leave_out(reason)
    return reader.served


@dataclass(slots=True)
class _Reader:
    """Takes what a text holds piece by piece."""

    chains: bool
    served: ServedRequests = field(default_factory=ServedRequests)
    number: int = 0  # of the latest request, those left out too
    #: Where in `served` something later replaces: an answer that is being streamed, by its id; the sum of a format.
    places: dict[str, int] = field(default_factory=dict)

    def take(self, piece: dict[str, Any] | Reported | SpecvizError) -> None:
        if isinstance(piece, SpecvizError):
            self.served.leave_out(piece)
        elif isinstance(piece, Reported):
            self._add(piece.name, None, piece.format, piece.block)
        else:
            blocks = list(_blocks(piece))
            # Of an answer that was streamed, only the last piece has metrics, or all of them count from the start.
            chunk = str(piece.get("object")).endswith(".chunk") or piece.get("stop") is False
            for block in blocks:
                self._add(*block, chunk)
            speed, running = (positive(value_of(piece, names)) for names in (THROUGHPUT, CONCURRENCY))
            if not blocks and speed and running:
                self.served.plain.append((running, speed))
            else:
                self.served.without += not (blocks or chunk)

    def _add(self, name: str, tokens: Any, kind: ServerFormat, block: dict[str, Any], chunk: bool = False) -> None:
        requests, key = self.served.requests, name if chunk else kind.name if kind.summed else ""
        place = self.places.get(key) if key else None
        self.number += place is None
        number = self.number if place is None else requests[place].number
        try:
            request = request_of(number, shortened(name), tokens, kind, block, self.chains)
        except SpecvizError as reason:
            self.served.leave_out(reason)
            return
        if place is not None:
            earlier = requests[place]
            counts = {} if chunk else {name: getattr(earlier, name) + getattr(request, name) for name in _SUMMED}
            requests[place] = replace(request, **counts)
            return
        if key:
            self.places[key] = len(requests)
        requests.append(request)


def _blocks(entry: Any) -> Iterator[tuple[str, Any, ServerFormat, dict[str, Any]]]:
    """The objects with metrics, at any depth: the request's id and tokens, also from the objects around it; the format;
    the object."""
    waiting: list[tuple[Any, str, Any, ServerFormat | None]] = [(entry, "", None, None)]
    while waiting:
        value, name, tokens, kind = waiting.pop()
        if isinstance(value, list):
            waiting += [(child, name, tokens, kind) for child in reversed(list(tokens_joined(value)))]
        if not isinstance(value, dict):
            continue
        name, tokens = _name_of(value) or name, _tokens(value, tokens)
        kind = kind or _format_of(value)
        if kind is not None:
            yield name, tokens, kind, value
            continue
        entries, kind = _own_file(value) if "schema" in value else (None, None)
        children = list(_children(value)) if entries is None else entries
        waiting += [(child, name, tokens, kind) for child in reversed(children)]


def _format_of(value: dict[str, Any]) -> ServerFormat | None:
    marks = [name for name in value.keys() & _MARKS.keys() if value[name] is not None]
    if not isinstance(value.get("from_draft"), list):  # of a single token, see `tokens_joined`
        marks = [name for name in marks if name != "from_draft"]
    kinds = (kind for name in marks for kind in _MARKS[name] if value.keys() >= set(kind.required))
    return min(kinds, key=FORMATS.index, default=None)


def _children(value: dict[str, Any]) -> Iterator[Any]:
    """SGLang can say the same of one answer twice, in `sglext` and in its choices."""
    extension = value.get("sglext")
    twice = isinstance(extension, dict) and extension.get("spec_tokens_details") is not None
    return (child for name, child in value.items() if not (twice and name == "choices"))


def _own_file(value: dict[str, Any]) -> tuple[list[Any] | None, ServerFormat | None]:
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
            "A file of metrics has the schema {schema} and a list named requests; this file has {found}.",
            "metrics",
            schema=SCHEMA,
            found=quoted(schema),
        )
    return requests, OWN


def _name_of(value: dict[str, Any]) -> str:
    metadata = value.get("metadata")
    names = [value.get(key) for key in ("id", "rid", "request_id", "x_request_id", "title")]
    names += [metadata.get("x_request_id")] if isinstance(metadata, dict) else []
    return shortened(next((str(name) for name in names if isinstance(name, (str, int))), ""))


def _tokens(value: dict[str, Any], outer: Any) -> Any:
    usage = value.get("usage")
    in_usage = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return next((tokens for tokens in (value.get("completion_tokens"), in_usage) if tokens is not None), outer)
