"""What inference servers report about their speculative decoding, request by request if they do.

Only a server's own figures are read; values that follow exactly are filled in, nothing else (docs/metrics.md). A
request that cannot be read is left out with its reason, and the others are read.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specviz.foreign.formats import BENCH, CONCURRENCY, FORMATS, OWN, RUN, SCHEMA, THROUGHPUT, ServerFormat
from specviz.foreign.nothing import why_none
from specviz.foreign.text import MOST_DEPTH, MOST_REASONS, Reported, finite, pieces, tokens_joined
from specviz.records.errors import SpecvizError, quoted, shortened
from specviz.records.metrics import Tally
from specviz.theory.along_texts import Pass

#: The longest text that is read: some ten thousand requests with every pass of theirs.
MOST_CHARACTERS = 10_000_000

#: The largest count that is believed.
MOST_COUNT = 10**12

#: The counts that are added up where a format reports step by step.
_SUMMED = ("passes", "accepted", "drafted")

#: By the name of a field, the formats that it may be a mark of.
_MARKS = {name: [kind for kind in FORMATS if name in kind.marked] for kind in FORMATS for name in kind.marked}

#: A count as JSON writers, logs and scrapes put it: 43, "43", 43.0, 4.3e+06. Three decimals may be thousands.
_WHOLE = re.compile(r"\s*\d{1,16}(?:\.(?!\d{3}\s*$)\d*)?(?:[eE]\+?\d{1,2})?\s*", re.ASCII)

#: A share in a list of a log.
_SHARE = re.compile(r"[01](?:\.\d*)?|\d{1,3}\.\d{2}", re.ASCII)

#: (accepted, drafted) -> how many passes; drafted is None where it is not reported.
Outcomes = Counter[tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request as its server counted it, or many together where it says no more; figures not given are None."""

    number: int  # from 1, in the order of the text
    name: str  # the server's id for it, empty without
    format: ServerFormat
    passes: int | None
    accepted: int | None
    drafted: int | None
    outcomes: Outcomes | None
    completion_tokens: int | None
    length: float | None = None  # tokens per pass as the server rounds it
    shares: tuple[float, ...] | None = None  # by position, of passes that accepted there, as the server rounds them
    running: float | None = None  # requests at once
    speed: float | None = None  # tokens a second of all requests together
    longest: int | None = None  # γ
    steps: tuple[Pass, ...] = ()  # the passes in order, where the length of each draft is known

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

    @property
    def tally(self) -> Tally | None:
        """Its counts, if the draft length of every pass is known."""
        return tally_of(self.outcomes) if self.outcomes is not None and self.lengths_known else None

    @property
    def ended(self) -> list[int] | None:
        """[j]: passes that accepted j of γ tokens, where each drafted at least one; else None."""
        if self.outcomes is None or not (self.format.accepted_at and self.longest and self.drafted):
            return None
        kept = [0] * (self.longest + 1)
        for (accepted, _), passes in self.outcomes.items():
            kept[accepted] += passes
        return kept


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
            speed, running = (_positive(_value(piece, names)) for names in (THROUGHPUT, CONCURRENCY))
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


# --- the counts of one request ----------------------------------------------------------------------------------------


def request_of(
    number: int, name: str, tokens: Any, kind: ServerFormat, block: dict[str, Any], chains: bool
) -> ServedRequest:
    """The counts of one object. tokens: of the answer, from around it; chains: as for `read_metrics`."""
    fields = _Fields(number, kind, block)
    vouched = _vouched(fields) if chains else None
    outcomes, source = _outcomes(fields, vouched)
    passes = fields.agree("passes", vouched if outcomes is None else outcomes.total(), source)
    accepted = fields.agree("accepted", _sum(outcomes, 0), source)
    drafted = fields.agree("drafted", _sum(outcomes, 1), "each_drafted")
    shares, length = fields.shares(), fields.ratio("length")
    longest, limit = _longest(fields)
    counted_tokens = fields.count("tokens")
    if counted_tokens is None and tokens is not None:
        counted_tokens = fields.whole("completion_tokens", tokens)
    _require_something(fields, passes, accepted, drafted, length, counted_tokens)
    _check(fields, passes, accepted, drafted)
    accepted_field = "accepted" if fields.name("accepted") else source
    deepest = max((place for place, _ in outcomes or ()), default=None)
    fields.at_most(accepted_field, accepted, drafted, "drafted")
    if passes == 0:
        fields.at_most(accepted_field, accepted, 0, "passes")
    if longest is not None and passes is not None:
        fields.at_most(accepted_field, accepted, passes * longest, limit)
        fields.at_most("drafted", drafted, passes * longest, limit)
        fields.at_most(source, deepest, longest, limit)
    draft_length = _length(passes, drafted, longest, chains)
    if draft_length is not None:
        fields.at_most(source, deepest, draft_length, "drafted")
        if _sum(outcomes, 1) is None and outcomes is not None:
            outcomes = Counter({(place, draft_length): count for (place, _), count in outcomes.items()})
    return ServedRequest(
        *(number, name, kind, passes, accepted, drafted, outcomes, counted_tokens, length),
        shares=tuple(shares) if shares and outcomes is None else None,
        running=_positive(fields.value("running")),
        speed=_positive(fields.value("speed")),
        longest=longest,
        steps=_steps(fields, draft_length),
    )


def _positive(value: Any) -> float | None:
    number = finite(value)
    return number if number and number > 0 else None


def _value(block: dict[str, Any], names: Sequence[str]) -> Any:
    """The first value that a field has under any of its names; None if it has none."""
    return next((block[name] for name in names if block.get(name) is not None), None)


class _Fields:
    """The fields of one request, by the names of `ServerFormat`."""

    def __init__(self, number: int, kind: ServerFormat, block: dict[str, Any]):
        self.number, self.kind = number, kind
        self.block = block if kind.convert is None else kind.convert(block)

    def name(self, field: str) -> str | None:
        """The server's name for a field; None where it has no value."""
        return next((name for name in getattr(self.kind, field) if self.block.get(name) is not None), None)

    def value(self, field: str) -> Any:
        return _value(self.block, getattr(self.kind, field))

    def complaint(self, template: str, name: str | None, value: Any = None, **values: object) -> SpecvizError:
        return SpecvizError(template, "metrics", number=self.number, name=name, value=quoted(value), **values)

    def whole(self, name: str | None, value: Any, most: int = MOST_COUNT) -> int:
        number = float(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
            raise self.complaint(
                "Request {number}: {name} must be a whole number from 0 to {most}, not {value}.", name, value, most=most
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
            raise self.complaint("Request {number}: {name} must be a list of counts, not {value}.", name, values)
        return [
            value if type(value) is int and 0 <= value <= most else self.whole(f"{name}[{place}]", value, most)
            for place, value in enumerate(values)
        ]

    def shares(self) -> list[float] | None:
        values = self.value("shares")
        if values is None:
            return None
        parts = values.split(",") if isinstance(values, str) else values if isinstance(values, list) else [None]
        unit = 100 if self.kind.percent else 1
        written = [part for part in parts if not isinstance(part, str) or _SHARE.fullmatch(part.strip())]
        shares = [number / unit for part in written if (number := finite(part)) is not None and 0 <= number <= unit]
        if len(parts) > MOST_DEPTH or len(shares) < len(parts):
            raise self.complaint(
                "Request {number}: {name} must be a list of shares from 0 to 1, not {value}.",
                self.name("shares"),
                values,
            )
        return shares

    def ratio(self, field: str) -> float | None:
        value = self.value(field)
        number = finite(value)
        if value is not None and (number is None or number < 1):
            raise self.complaint(
                "Request {number}: {name} must be a number from 1 up, not {value}.", self.name(field), value
            )
        return number

    def close(self, field: str, counted: float, source: str, rounding: float = 0.0) -> None:
        """Raises for a figure, if there is one, that the counts do not come to as far as it is written out."""
        name, written = self.name(field), str(self.value(field))
        unit = 0.01 if written.endswith("%") or str(name).endswith("(%)") else 1.0
        number = finite(written.rstrip("%"))
        half = 0.51 * unit * 10.0 ** -len(written.rstrip("%").partition(".")[2])
        if number is not None and abs(unit * number - counted) > half + rounding:
            raise self.complaint(
                "Request {number}: {name} says {given}, but {source} comes to {counted}.",
                name,
                given=written,
                source=self.name(source),
                counted=f"{counted:.4g}",
            )

    def agree(self, field: str, counted: int | None, source: str) -> int | None:
        """A total as it is reported, or else as `source` comes to; both must agree."""
        reported = self.count(field)
        if None not in (reported, counted) and reported != counted:
            raise self.complaint(
                "Request {number}: {name} says {given}, but {source} comes to {counted}.",
                self.name(field),
                given=reported,
                source=self.name(source),
                counted=counted,
            )
        return counted if reported is None else reported

    def at_most(self, field: str, value: int | None, most: int | None, limit: str) -> None:
        """Raises for a figure above what another field allows."""
        if value is not None and most is not None and value > most:
            raise self.complaint(
                "Request {number}: {name} comes to {value}, but {limit} allows at most {most}.",
                self.name(field),
                value,
                limit=self.name(limit),
                most=most,
            )


def _check(fields: _Fields, passes: int | None, accepted: int | None, drafted: int | None) -> None:
    """Raises for a line or a table whose rate, mean and counts contradict each other: a figure of it was misread."""
    shares = fields.shares()
    if accepted is not None and drafted:
        fields.close("rate", accepted / drafted, "accepted")
    if accepted is not None and passes:
        fields.close("length", 1 + accepted / passes, "accepted")
    elif accepted is not None and shares:
        fields.close("length", 1 + sum(shares), "shares", len(shares) * fields.kind.rounding)


def _require_something(fields: _Fields, passes: int | None, *counts: int | float | None) -> None:
    """Raises for a request that comes to no figure: passes without what they accepted, or a part of a rate."""
    kind, (accepted, drafted, length, tokens) = fields.kind, counts
    by_pass = passes == 0 or (passes is not None and (accepted, tokens) != (None, None))
    if (kind.summed or (not by_pass and length is None)) and None in (accepted, drafted):
        needed = (names[0] for names in (kind.accepted, kind.histogram, kind.drafted, kind.length) if names)
        raise fields.complaint(
            "Request {number}: nothing can be computed without {names}.", None, names=", ".join(needed)
        )


def _longest(fields: _Fields) -> tuple[int | None, str]:
    """γ, and the field that says it."""
    by_position = "accepted_at" if fields.kind.accepted_at else "shares"
    if fields.kind.full and fields.name(by_position):
        return len(fields.shares() or fields.counts("accepted_at", MOST_COUNT) or ()), by_position
    return fields.count("longest", MOST_DEPTH), "longest"


def _vouched(fields: _Fields) -> int | None:
    """The passes of a log that leaves them out: drafted / γ, if the caller vouches for chains of full length."""
    longest, drafted = _longest(fields)[0], fields.count("drafted")
    if fields.name("passes") or not longest or not drafted or drafted % longest:
        return None
    return drafted // longest


def _outcomes(fields: _Fields, vouched: int | None) -> tuple[Outcomes | None, str]:
    """What became of the passes, and the field that says it: the passes one by one, a histogram, or how many passes
    accepted a token at each position."""
    accepted, drafted = fields.counts("each_accepted", MOST_DEPTH), fields.counts("each_drafted", MOST_DEPTH)
    histogram = fields.counts("histogram", MOST_COUNT)
    counted: Outcomes | None = None
    if histogram is not None:
        longest = fields.count("longest", MOST_DEPTH)
        limit = (MOST_DEPTH, "histogram") if longest is None else (longest, "longest")
        fields.at_most("histogram", len(histogram) - 1, *limit)
        counted = Counter({(j, None): count for j, count in enumerate(histogram) if count})
    if accepted is None:
        return (counted, "histogram") if counted is not None else _from_positions(fields, vouched)
    lengths_unknown: Outcomes = Counter((count, None) for count in accepted)
    if counted not in (None, lengths_unknown) or (drafted is not None and len(accepted) != len(drafted)):
        other = "each_drafted" if counted in (None, lengths_unknown) else "histogram"
        raise fields.complaint(
            "Request {number}: {name} and {other} do not describe the same passes.",
            fields.name("each_accepted"),
            other=fields.name(other),
        )
    if drafted is None:
        return lengths_unknown, "each_accepted"
    count, most = next(((count, most) for count, most in zip(accepted, drafted) if count > most), (0, 0))
    fields.at_most("each_accepted", count, most, "each_drafted")
    return Counter(zip(accepted, drafted)), "each_accepted"


def _steps(fields: _Fields, draft_length: int | None) -> tuple[Pass, ...]:
    """The passes in order, if they are listed, of chains. draft_length: of all drafts, if it is known."""
    accepted = fields.counts("each_accepted", MOST_DEPTH) or []
    drafted = fields.counts("each_drafted", MOST_DEPTH) or ([draft_length] * len(accepted) if draft_length else [])
    return tuple(Pass(kept, min(length, kept + 1), kept + 1) for kept, length in zip(accepted, drafted))


def _from_positions(fields: _Fields, vouched: int | None) -> tuple[Outcomes | None, str]:
    """The same from how many passes accepted a token at each position: as many ended there as accepted none at the
    next."""
    reported = fields.count("passes")
    passes, accepted = vouched if reported is None else reported, fields.count("accepted")
    field, accepted_at = (
        "accepted_at" if fields.kind.accepted_at else "shares",
        fields.counts("accepted_at", MOST_COUNT),
    )
    shares = fields.shares() if accepted_at is None else None
    if passes is None:
        return None, field
    if accepted_at is None:
        accepted_at = [round(share * passes) for share in shares or ()]
        # Rounded shares give the counts for sure if no two counts round to one share.
        if shares is None or sum(accepted_at) != accepted or passes * 2 * fields.kind.rounding >= 1:
            return None, field
    reached = [passes, *accepted_at]
    for before, after in zip(reached, accepted_at):
        fields.at_most(field, after, before, "passes" if before is passes else field)
    ended = (before - after for before, after in zip(reached, [*accepted_at, 0]))
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
    if outcomes is None or any(outcome[which] is None for outcome in outcomes):
        return None
    return sum((outcome[which] or 0) * passes for outcome, passes in outcomes.items())
