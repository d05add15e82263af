"""What inference servers report about their speculative decoding, request by request if they do.

Only a server's own figures are read; values that follow exactly are filled in, nothing else (docs/metrics.md). A
request that cannot be read is left out with its reason, and the others are read.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specviz.foreign.formats import BENCH, CONCURRENCY, FORMATS, OWN, RUN, SCHEMA, THROUGHPUT, Format
from specviz.foreign.text import MOST_DEPTH, MOST_REASONS, Reported, finite, pieces, tokens_joined
from specviz.records.errors import SpecvizError, quoted, shortened
from specviz.records.metrics import Tally

#: The longest text that is read: some ten thousand requests with every pass of theirs.
MOST_CHARACTERS = 10_000_000

#: The largest count that is believed.
MOST_COUNT = 10**12

#: The counts that are added up where a format reports step by step.
_SUMMED = ("passes", "accepted", "drafted")

#: By the name of a field, the formats that it may be a mark of.
_MARKS = {name: [kind for kind in FORMATS if name in kind.marked] for kind in FORMATS for name in kind.marked}

#: A count as JSON writers, logs and scrapes put it: 43, "43", 43.0, 4.3e+06.
_WHOLE = re.compile(r"\s*\d{1,16}(?:\.\d*)?(?:[eE]\+?\d{1,2})?\s*", re.ASCII)

#: (accepted, drafted) -> how many passes; drafted is None where it is not reported.
Outcomes = Counter[tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request as its server counted it, or many together where it says no more; figures not given are None."""

    number: int  # from 1, in the order of the text
    name: str  # the server's id for it, empty without
    format: Format
    passes: int | None
    accepted: int | None
    drafted: int | None
    outcomes: Outcomes | None
    completion_tokens: int | None
    length: float | None = None  # tokens per pass as the server rounds it
    shares: tuple[float, ...] | None = None  # kept at each position, of all passes, as the server rounds it
    running: float | None = None  # requests at once
    speed: float | None = None  # tokens a second of all of them together

    @property
    def tokens_per_pass(self) -> float | None:
        """1 + accepted / passes, as of a run (`Tally.acceptance_length`); else what the server makes of it."""
        if self.passes is None or self.accepted is None:
            return self.length
        return 1 + self.accepted / self.passes if self.passes else None

    @property
    def lengths_known(self) -> bool:
        """True if the draft length of every pass is known."""
        return self.outcomes is not None and all(drafted is not None for _, drafted in self.outcomes)


@dataclass(slots=True)
class ServedRequests:
    requests: list[ServedRequest] = field(default_factory=list)
    without: int = 0  # entries that say nothing of speculation
    plain: list[tuple[float, float]] = field(default_factory=list)  # of these, benchmarks: requests at once, tokens/s
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
        "No speculative metrics found. Responses contain them if vLLM was started with "
        "--per-request-spec-decode-metrics, SGLang was asked for return_meta_info, and llama.cpp, LM Studio, "
        "TensorRT-LLM or mlx-lm had a drafter. A log or /metrics of vLLM, SGLang (--enable-metrics) or llama.cpp "
        "(--metrics) works too, as do a result of vllm bench serve, records of AIPerf, a trace or benchmark of "
        "specviz, and {schema} for everything else.",
        "metrics",
        schema=SCHEMA,
    )


def tally_of(outcomes: Outcomes) -> Tally:
    """The counts of passes whose drafts' lengths are known, as of a run's rounds: chains, judged up to the first
    rejection."""
    counts = Tally()
    for (accepted, drafted), passes in outcomes.items():
        assert drafted is not None, "of passes whose drafts' lengths are known"
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

    def take(self, piece: dict[str, Any] | Reported | SpecvizError) -> None:
        if isinstance(piece, SpecvizError):
            self.found.leave_out(piece)
        elif isinstance(piece, Reported):
            self._add(piece.name, None, piece.format, piece.block)
        else:
            blocks = list(_blocks(piece))
            # Of an answer that was streamed, only the last piece has metrics, or all of them count from the start.
            chunk = str(piece.get("object")).endswith(".chunk") or piece.get("stop") is False
            for block in blocks:
                self._add(*block, chunk)
            speed, running = (_positive(_value(piece, names)) for names in (THROUGHPUT, CONCURRENCY))
            if not blocks and speed and running:
                self.found.plain.append((running, speed))
            else:
                self.found.without += not (blocks or chunk)

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
    """The objects with metrics, at any depth: the request's id and tokens, also from the objects around it; the format;
    the object."""
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
    if not isinstance(value.get("from_draft"), list):  # of a single token, see `tokens_joined`
        marks = [name for name in marks if name != "from_draft"]
    kinds = (kind for name in marks for kind in _MARKS[name] if value.keys() >= set(kind.beside))
    return min(kinds, key=FORMATS.index, default=None)


def _children(value: dict[str, Any]) -> Iterator[Any]:
    """SGLang can say the same of one answer twice, in `sglext` and in its choices."""
    extension = value.get("sglext")
    twice = isinstance(extension, dict) and extension.get("spec_tokens_details") is not None
    return (value for name, value in value.items() if not (twice and name == "choices"))


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
            "A file of metrics has the schema {schema} and a list named requests; this file has {found}.",
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


# --- the counts of one request ----------------------------------------------------------------------------------------


def request_of(number: int, name: str, tokens: Any, kind: Format, block: dict[str, Any], chains: bool) -> ServedRequest:
    """The counts of one object. tokens: of the answer, from around it; chains: as for `read_metrics`."""
    read = _Fields(number, kind, block)
    vouched = _vouched(read) if chains else None
    outcomes, source = _outcomes(read, vouched)
    passes = read.agree("passes", vouched if outcomes is None else outcomes.total(), source)
    accepted = read.agree("accepted", _sum(outcomes, 0), source)
    drafted = read.agree("drafted", _sum(outcomes, 1), "each_drafted")
    shares, length = read.shares(), read.ratio("length")
    longest, limit = _longest(read)
    inside = read.count("tokens")
    tokens = inside if inside is not None or tokens is None else read.whole("completion_tokens", tokens)
    _require_something(read, passes, accepted, drafted, length, tokens)
    keeps = "accepted" if read.name("accepted") else source
    deepest = max((kept for kept, _ in outcomes or ()), default=None)
    read.at_most(keeps, accepted, drafted, "drafted")
    if passes == 0:
        read.at_most(keeps, accepted, 0, "passes")
    if longest is not None and passes is not None:
        read.at_most(keeps, accepted, passes * longest, limit)
        read.at_most("drafted", drafted, passes * longest, limit)
        read.at_most(source, deepest, longest, limit)
    drafts = _length(passes, drafted, longest, chains)
    if drafts is not None:
        read.at_most(source, deepest, drafts, "drafted")
        if _sum(outcomes, 1) is None and outcomes is not None:
            outcomes = Counter({(kept, drafts): count for (kept, _), count in outcomes.items()})
    rounded = tuple(shares) if shares and outcomes is None else None
    at_once = [_positive(read.value(field)) for field in ("running", "speed")]
    return ServedRequest(number, name, kind, passes, accepted, drafted, outcomes, tokens, length, rounded, *at_once)


def _positive(value: Any) -> float | None:
    number = finite(value)
    return number if number and number > 0 else None


def _first(block: dict[str, Any], names: Sequence[str]) -> str | None:
    """The first of a field's names that has a value."""
    return next((name for name in names if block.get(name) is not None), None)


def _value(block: dict[str, Any], names: Sequence[str]) -> Any:
    """Its value; None if none has."""
    name = _first(block, names)
    return None if name is None else block[name]


class _Fields:
    """The fields of one request, by the names of `Format`."""

    def __init__(self, number: int, kind: Format, block: dict[str, Any]):
        self.number, self.kind = number, kind
        self.block = block if kind.read is None else kind.read(block)

    def name(self, field: str) -> str | None:
        """The server's name for a field."""
        return _first(self.block, getattr(self.kind, field))

    def value(self, field: str) -> Any:
        return _value(self.block, getattr(self.kind, field))

    def at(self, name: str | None, value: Any = None, **more: object) -> dict[str, Any]:
        """The place of an error, for its sentence."""
        return {"field": "metrics", "number": self.number, "name": name, "value": quoted(value)} | more

    def whole(self, name: str | None, value: Any, most: int = MOST_COUNT) -> int:
        number = float(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
            raise SpecvizError(
                "Request {number}: {name} must be a whole number from 0 to {most}, not {value}.",
                **self.at(name, value, most=most),
            )
        return number

    def count(self, field: str, most: int = MOST_COUNT) -> int | None:
        value = self.value(field)
        return None if value is None else self.whole(self.name(field), value, most)

    def counts(self, field: str, most: int) -> list[int] | None:
        name, values = self.name(field), self.value(field)
        if values is None:
            return None
        if isinstance(values, dict):
            places = {self.whole(f"{name}: a key", key, MOST_DEPTH): value for key, value in values.items()}
            values = [places.get(place, 0) for place in range(max(places, default=-1) + 1)]
        if not isinstance(values, list):
            raise SpecvizError(
                "Request {number}: {name} must be a list of counts, not {value}.", **self.at(name, values)
            )
        return [
            value if type(value) is int and 0 <= value <= most else self.whole(f"{name}[{place}]", value, most)
            for place, value in enumerate(values)
        ]

    def shares(self) -> list[float] | None:
        values = self.value("shares")
        if values is None:
            return None
        parts = values.split(",") if isinstance(values, str) else values
        listed = parts if isinstance(parts, list) else [None]
        shares = [share for part in listed if (share := finite(part)) is not None and 0 <= share <= 1]
        if len(listed) > MOST_DEPTH or len(shares) < len(listed):
            raise SpecvizError(
                "Request {number}: {name} must be a list of shares from 0 to 1, not {value}.",
                **self.at(self.name("shares"), values),
            )
        return shares

    def ratio(self, field: str) -> float | None:
        value = self.value(field)
        number = finite(value)
        if value is not None and (number is None or number < 1):
            raise SpecvizError(
                "Request {number}: {name} must be a number from 1 up, not {value}.",
                **self.at(self.name(field), value),
            )
        return number

    def agree(self, field: str, counted: int | None, source: str) -> int | None:
        """A total as it is given, or else as `source` comes to; both must agree."""
        given = self.count(field)
        if None not in (given, counted) and given != counted:
            raise SpecvizError(
                "Request {number}: {name} says {given}, but {source} comes to {counted}.",
                **self.at(self.name(field), given=given, source=self.name(source), counted=counted),
            )
        return counted if given is None else given

    def at_most(self, field: str, value: int | None, most: int | None, limit: str) -> None:
        """Refuses a figure above what another field allows."""
        if value is not None and most is not None and value > most:
            raise SpecvizError(
                "Request {number}: {name} comes to {value}, but {limit} allows at most {most}.",
                **self.at(self.name(field), value, limit=self.name(limit), most=most),
            )

    def alike(self, other: str, same: bool) -> None:
        """Refuses passes one by one if another field contradicts them."""
        if not same:
            raise SpecvizError(
                "Request {number}: {name} and {other} do not describe the same passes.",
                **self.at(self.name("each_accepted"), other=self.name(other)),
            )


def _require_something(read: _Fields, passes: int | None, *others: int | float | None) -> None:
    """Refuses a request that comes to no figure: passes without what they kept, or a part of a rate."""
    kind, (accepted, drafted, length, tokens) = read.kind, others
    by_pass = passes == 0 or (passes is not None and (accepted, tokens) != (None, None))
    if (kind.summed or (not by_pass and length is None)) and None in (accepted, drafted):
        raise SpecvizError(
            "Request {number}: nothing can be computed without {names}.",
            "metrics",
            number=read.number,
            names=", ".join(names[0] for names in (kind.accepted, kind.histogram, kind.drafted, kind.length) if names),
        )


def _longest(read: _Fields) -> tuple[int | None, str]:
    """γ, and the field that says it."""
    places = "kept" if read.kind.kept else "shares"
    if read.kind.full and read.name(places):
        return len(read.shares() or read.counts("kept", MOST_COUNT) or ()), places
    return read.count("longest", MOST_DEPTH), "longest"


def _vouched(read: _Fields) -> int | None:
    """The passes of a log that leaves them out: drafted / γ, if the caller vouches for chains of full length."""
    longest, drafted = _longest(read)[0], read.count("drafted")
    if read.name("passes") or not longest or not drafted or drafted % longest:
        return None
    return drafted // longest


def _outcomes(read: _Fields, vouched: int | None) -> tuple[Outcomes | None, str]:
    """What became of the passes, and the field that says it: the passes one by one, a histogram, or how many kept each
    position."""
    kept, proposed = read.counts("each_accepted", MOST_DEPTH), read.counts("each_drafted", MOST_DEPTH)
    histogram = read.counts("histogram", MOST_COUNT)
    counted: Outcomes | None = None
    if histogram is not None:
        longest = read.count("longest", MOST_DEPTH)
        limit = (MOST_DEPTH, "histogram") if longest is None else (longest, "longest")
        read.at_most("histogram", len(histogram) - 1, *limit)
        counted = Counter({(j, None): count for j, count in enumerate(histogram) if count})
    if kept is None:
        return (counted, "histogram") if counted is not None else _from_positions(read, vouched)
    if counted is not None:
        read.alike("histogram", counted == Counter((one, None) for one in kept))
    if proposed is None:
        return Counter((one, None) for one in kept), "each_accepted"
    read.alike("each_drafted", len(kept) == len(proposed))
    one, most = next(((one, most) for one, most in zip(kept, proposed) if one > most), (0, 0))
    read.at_most("each_accepted", one, most, "each_drafted")
    return Counter(zip(kept, proposed)), "each_accepted"


def _from_positions(read: _Fields, vouched: int | None) -> tuple[Outcomes | None, str]:
    """The same from how many passes kept a token at each position: as many ended there as kept none at the next."""
    given = read.count("passes")
    passes, accepted = vouched if given is None else given, read.count("accepted")
    field, kept = "kept" if read.kind.kept else "shares", read.counts("kept", MOST_COUNT)
    shares = read.shares() if kept is None else None
    if passes is None:
        return None, field
    if kept is None:
        kept = [round(share * passes) for share in shares or ()]
        # Rounded shares give the counts for sure if no two counts round to one share.
        if shares is None or sum(kept) != accepted or passes * 2 * read.kind.rounding >= 1:
            return None, field
    reached = [passes, *kept]
    for before, after in zip(reached, kept):
        read.at_most(field, after, before, "passes" if before is passes else field)
    ended = (before - after for before, after in zip(reached, [*kept, 0]))
    return Counter({(place, None): count for place, count in enumerate(ended) if count}), field


def _length(passes: int | None, drafted: int | None, longest: int | None, chains: bool) -> int | None:
    """How many tokens every pass drafted, if all certainly drafted the same number: γ, or as the caller vouches."""
    if not passes or drafted is None:
        return None
    if longest is not None:
        return longest if drafted == passes * longest else None
    return drafted // passes if chains and drafted % passes == 0 else None


def _sum(outcomes: Outcomes | None, which: int) -> int | None:
    """Draft tokens accepted (0) or drafted (1) in all; None if it is not known of a pass."""
    if outcomes is None:
        return None
    total = 0
    for outcome, passes in outcomes.items():
        count = outcome[which]
        if count is None:
            return None
        total += count * passes
    return total
