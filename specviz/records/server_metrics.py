"""What inference servers say about their own speculative decoding, request by request: `FORMATS` is the table of names.

Only what a server gives is read; what follows from it exactly is filled in, nothing else (docs/metrics.md).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specviz.records.errors import SpecvizError, quoted, shortened
from specviz.records.metrics import Tally

SCHEMA = "specviz.metrics/1"

#: The longest text that is read: some ten thousand requests with every pass of theirs.
MOST_CHARACTERS = 10_000_000

#: The deepest draft that is believed, and the largest count.
MOST_DEPTH, MOST_COUNT = 1024, 10**12

#: (accepted, drafted) -> how many passes; drafted is None where nobody says it.
Outcomes = Counter[tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Format:
    """What a server calls things; of several names the first that is there counts."""

    name: str
    passes: tuple[str, ...]  # target passes that verified a draft
    accepted: tuple[str, ...]  # draft tokens kept, in all
    drafted: tuple[str, ...]  # draft tokens proposed, in all
    histogram: tuple[str, ...]  # [j]: passes that kept j draft tokens
    each_accepted: tuple[str, ...] = ()  # the same by pass, in order
    each_drafted: tuple[str, ...] = ()
    longest: tuple[str, ...] = ()  # γ: the most that a pass drafts
    #: Whether `drafted` is what was configured, passes times a constant, and not what was really proposed.
    nominal: bool = False

    def marks(self, block: dict[str, Any]) -> bool:
        """Whether an object holds what this server says of a request."""
        return any(block.get(name) is not None for name in (*self.passes, *self.histogram, *self.each_accepted))


OWN = Format(
    name=SCHEMA,
    passes=("passes",),
    accepted=("accepted",),
    drafted=("drafted",),
    histogram=("histogram",),
    each_accepted=("per_pass_accepted",),
    each_drafted=("per_pass_drafted",),
    longest=("num_draft_tokens",),
)

FORMATS = (
    # vLLM pull request 48915, docs/features/speculative_decoding/acceptance_metrics.md
    Format(
        name="vLLM",
        passes=("num_spec_steps",),
        accepted=("num_accepted_draft_tokens",),
        drafted=("num_draft_tokens",),
        histogram=("acceptance_histogram",),
        each_accepted=("per_step_accepted",),
        each_drafted=("per_step_drafted",),
        longest=("num_spec_tokens",),
    ),
    # SGLang pull requests 3152, 11441, 18332, 23530, 33518: the newest names first
    Format(
        name="SGLang",
        passes=("spec_verify_ct",),
        accepted=("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
        drafted=("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
        histogram=("spec_correct_drafts_histogram", "spec_accept_histogram"),
        nominal=True,
    ),
)


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request as its server counted it; None is what nobody said."""

    number: int  # from 1, in the order of the text
    name: str  # the server's id for it, empty without
    format: Format
    passes: int
    accepted: int | None
    drafted: int | None
    outcomes: Outcomes | None
    completion_tokens: int | None

    @property
    def tokens_per_pass(self) -> float | None:
        """1 + accepted / passes, as of a run (`Tally.acceptance_length`)."""
        return None if self.accepted is None or not self.passes else 1 + self.accepted / self.passes

    @property
    def lengths_known(self) -> bool:
        """Whether it is known of every pass how many tokens it had drafted."""
        return self.outcomes is not None and all(drafted is not None for _, drafted in self.outcomes)


@dataclass(frozen=True, slots=True)
class ServedRequests:
    requests: list[ServedRequest]
    without: int  # entries that say nothing of speculation


def read_metrics(text: str, chains: bool = False) -> ServedRequests:
    """The requests in a text: one answer, an array of them, several one after another, or what a server streamed.

    chains: whoever asks vouches that every pass drafted one chain as long as the server is configured to draft, so that
    nominal lengths are real ones. Raises SpecvizError for what is no JSON, holds no metrics, or cannot be.
    """
    if len(text) > MOST_CHARACTERS:
        raise SpecvizError(
            "This is more than can be read at once: at most {most} characters.", "metrics", most=MOST_CHARACTERS
        )
    found, without = [], 0
    for entry in _entries(text.lstrip("\ufeff")):
        blocks = list(_blocks(entry))
        for name, tokens, kind, block in blocks:
            found.append(_request(len(found) + 1, name, tokens, kind, block, chains))
        without += not blocks and not _is_chunk(entry)
    if not found:
        raise SpecvizError(
            "No speculative metrics here. vLLM gives metrics.speculative_decoding when it was started with "
            "--per-request-spec-decode-metrics, SGLang gives meta_info with spec_verify_ct, and anything else can be "
            "written as {schema}.",
            "metrics",
            schema=SCHEMA,
        )
    return ServedRequests(found, without)


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


# --- from text to objects ---------------------------------------------------------------------------------------------


#: What a stream of server-sent events puts around its JSON; within JSON no line begins like that.
_EVENTS = re.compile(r"^(data:[ \t]*(\[DONE\])?|event:.*)", re.MULTILINE)
_SPACE = re.compile(r"\s*")


def _entries(text: str) -> Iterator[Any]:
    """What the text holds, one value after another; of an array, its elements."""
    text = _EVENTS.sub("", text)
    place = _SPACE.match(text).end()
    if place == len(text):
        raise SpecvizError("There is nothing to read.", "metrics")
    decoder = json.JSONDecoder()
    while place < len(text):
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            number = text.count("\n", 0, getattr(error, "pos", place)) + 1
            line = text.split("\n")[number - 1]
            raise SpecvizError(
                "This is no JSON: line {number} cannot be read: {line}", "metrics", number=number, line=quoted(line)
            ) from error
        yield from value if isinstance(value, list) else [value]
        place = _SPACE.match(text, end).end()


def _blocks(entry: Any) -> Iterator[tuple[str, Any, Format, dict[str, Any]]]:
    """The objects with metrics, wherever they lie: the request's id and its tokens by what is around them, whose format
    it is, the object."""
    waiting: list[tuple[Any, str, Any, Format | None]] = [(entry, "", None, None)]
    while waiting:
        value, name, tokens, own = waiting.pop()
        if isinstance(value, list):
            waiting += [(one, name, tokens, own) for one in reversed(value)]
        if not isinstance(value, dict):
            continue
        name, tokens = _named(value) or name, _tokens(value, tokens)
        kind = own or next((one for one in FORMATS if one.marks(value)), None)
        if kind is not None:
            yield name, tokens, kind, value
            continue
        inner = _own_requests(value) if "schema" in value else None
        children = inner if inner is not None else list(_children(value))
        own = OWN if inner is not None else None
        waiting += [(one, name, tokens, own) for one in reversed(children)]


def _children(value: dict[str, Any]) -> Iterator[Any]:
    """SGLang can say the same of one answer twice, in `sglext` and in its choices."""
    extension = value.get("sglext")
    twice = isinstance(extension, dict) and extension.get("spec_tokens_details") is not None
    return (one for name, one in value.items() if not (twice and name == "choices"))


def _own_requests(value: dict[str, Any]) -> list[Any] | None:
    """The requests of a file of `SCHEMA`; None for a file of another kind."""
    schema = value["schema"]
    if not isinstance(schema, str) or not schema.startswith("specviz.metrics"):
        return None
    requests = value.get("requests")
    if schema != SCHEMA or not isinstance(requests, list):
        raise SpecvizError(
            "A file of metrics has the schema {schema} and a list named requests; this one says {found}.",
            "metrics",
            schema=SCHEMA,
            found=quoted(schema),
        )
    return requests


def _named(value: dict[str, Any]) -> str:
    names = (value.get(key) for key in ("id", "rid", "request_id"))
    return shortened(next((str(name) for name in names if isinstance(name, (str, int))), ""))


def _tokens(value: dict[str, Any], outer: Any) -> Any:
    usage = value.get("usage")
    inside = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return next((one for one in (value.get("completion_tokens"), inside) if one is not None), outer)


def _is_chunk(entry: Any) -> bool:
    """Of an answer that was streamed, only the last piece has metrics."""
    return isinstance(entry, dict) and str(entry.get("object")).endswith(".chunk")


# --- from an object to a request --------------------------------------------------------------------------------------


class _Fields:
    """The fields of one request; what cannot be is refused with its number and the field's name."""

    def __init__(self, number: int, block: dict[str, Any]):
        self.number, self.block = number, block

    def named(self, names: Sequence[str]) -> str | None:
        """The first of these names that says something."""
        return next((name for name in names if self.block.get(name) is not None), None)

    def count(self, names: Sequence[str], most: int = MOST_COUNT) -> int | None:
        field = self.named(names)
        return None if field is None else self.whole(field, self.block[field], most)

    def counts(self, names: Sequence[str], most: int) -> list[int] | None:
        field = self.named(names)
        if field is None:
            return None
        values = self.block[field]
        if not isinstance(values, list):
            raise SpecvizError(
                "Request {number}: {name} must be a list of counts, not {value}.",
                "metrics",
                number=self.number,
                name=field,
                value=quoted(values),
            )
        for place, value in enumerate(values):
            if type(value) is not int or not 0 <= value <= most:
                self.whole(f"{field}[{place}]", value, most)
        return values

    def whole(self, field: str, value: Any, most: int = MOST_COUNT) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise SpecvizError(
                "Request {number}: {name} must be a whole number from 0 to {most}, not {value}.",
                "metrics",
                number=self.number,
                name=field,
                most=most,
                value=quoted(value),
            )
        return value

    def agree(self, names: Sequence[str], counted: int | None, source: Sequence[str]) -> int | None:
        """A total as it is given, or else as `source` comes to; both must agree."""
        given = self.count(names)
        if None not in (given, counted) and given != counted:
            raise SpecvizError(
                "Request {number}: {name} says {given}, but {source} comes to {counted}.",
                "metrics",
                number=self.number,
                name=self.named(names),
                given=given,
                source=self.named(source),
                counted=counted,
            )
        return counted if given is None else given

    def at_most(self, names: Sequence[str], value: int | None, most: int | None, limit: Sequence[str]) -> None:
        """Refuses a figure above what another field allows."""
        if None not in (value, most) and value > most:
            raise SpecvizError(
                "Request {number}: {name} comes to {value}, and {limit} allows no more than {most}.",
                "metrics",
                number=self.number,
                name=self.named(names),
                value=value,
                limit=self.named(limit),
                most=most,
            )

    def alike(self, names: Sequence[str], others: Sequence[str], same: bool) -> None:
        """Refuses two fields that do not tell the same."""
        if not same:
            raise SpecvizError(
                "Request {number}: {name} and {other} do not tell of the same passes.",
                "metrics",
                number=self.number,
                name=self.named(names),
                other=self.named(others),
            )


def _request(number: int, name: str, tokens: Any, kind: Format, block: dict[str, Any], chains: bool) -> ServedRequest:
    read = _Fields(number, block)
    outcomes, source = _outcomes(read, kind)
    passes = read.agree(kind.passes, None if outcomes is None else outcomes.total(), source)
    accepted = read.agree(kind.accepted, _sum(outcomes, 0), source)
    drafted = read.agree(kind.drafted, _sum(outcomes, 1), kind.each_drafted)
    longest = read.count(kind.longest, MOST_DEPTH)
    tokens = None if tokens is None else read.whole("completion_tokens", tokens)
    if passes is None or (passes and accepted is None and tokens is None):
        raise SpecvizError(
            "Request {number}: {passes} needs {accepted} or {histogram} beside it, or nothing can be told.",
            "metrics",
            number=number,
            passes=kind.passes[0],
            accepted=kind.accepted[0],
            histogram=kind.histogram[0],
        )
    told = source if read.count(kind.accepted) is None else kind.accepted
    read.at_most(told, accepted, drafted, kind.drafted)
    if not passes:
        read.at_most(told, accepted, 0, kind.passes)
    if longest is not None:
        read.at_most(told, accepted, passes * longest, kind.longest)
        read.at_most(kind.drafted, drafted, passes * longest, kind.longest)
        read.at_most(source, _deepest(outcomes), longest, kind.longest)
    length = _length(kind, passes, drafted, longest, chains)
    if length is not None:
        read.at_most(source, _deepest(outcomes), length, kind.drafted)
        if _sum(outcomes, 1) is None and outcomes is not None:
            outcomes = Counter({(kept, length): count for (kept, _), count in outcomes.items()})
    return ServedRequest(number, name, kind, passes, accepted, drafted, outcomes, tokens)


def _outcomes(read: _Fields, kind: Format) -> tuple[Outcomes | None, Sequence[str]]:
    """What became of the passes, and the names of the field that says it: the passes one by one, or a histogram."""
    kept, proposed = read.counts(kind.each_accepted, MOST_DEPTH), read.counts(kind.each_drafted, MOST_DEPTH)
    histogram = read.counts(kind.histogram, MOST_COUNT)
    if histogram is not None:
        longest = read.count(kind.longest, MOST_DEPTH)
        most = MOST_DEPTH if longest is None else longest
        read.at_most(kind.histogram, len(histogram) - 1, most, kind.longest if longest is not None else kind.histogram)
    counted = None if histogram is None else Counter({(j, None): count for j, count in enumerate(histogram) if count})
    if kept is None:
        return counted, kind.histogram
    if counted is not None:
        read.alike(kind.each_accepted, kind.histogram, counted == Counter((one, None) for one in kept))
    if proposed is None:
        return Counter((one, None) for one in kept), kind.each_accepted
    read.alike(kind.each_accepted, kind.each_drafted, len(kept) == len(proposed))
    one, most = next(((one, most) for one, most in zip(kept, proposed) if one > most), (0, 0))
    read.at_most(kind.each_accepted, one, most, kind.each_drafted)
    return Counter(zip(kept, proposed)), kind.each_accepted


def _length(kind: Format, passes: int, drafted: int | None, longest: int | None, chains: bool) -> int | None:
    """How many tokens every pass had drafted, where all were alike for sure: all γ of them, or as is vouched for."""
    if not passes or drafted is None:
        return None
    if longest is not None:
        return longest if drafted == passes * longest else None
    return drafted // passes if chains and drafted % passes == 0 else None


def _sum(outcomes: Outcomes | None, which: int) -> int | None:
    """Draft tokens accepted (0) or drafted (1) in all; None where a pass does not say."""
    if outcomes is None or any(one[which] is None for one in outcomes):
        return None
    return sum(one[which] * passes for one, passes in outcomes.items())


def _deepest(outcomes: Outcomes | None) -> int | None:
    return max((accepted for accepted, _ in outcomes or ()), default=None)
