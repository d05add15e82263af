"""From what a server says of one request to its counts: what cannot be is refused with its number and the field."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specviz.records.errors import SpecvizError, quoted
from specviz.records.server_formats import Format
from specviz.records.server_text import MOST_DEPTH, finite

#: The largest count that is believed.
MOST_COUNT = 10**12

#: (accepted, drafted) -> how many passes; drafted is None where nobody says it.
Outcomes = Counter[tuple[int, int | None]]

#: A count as JSON writers, logs and scrapes put it: 43, "43", 43.0, 4.3e+06.
_WHOLE = re.compile(r"\s*\d{1,16}(?:\.\d*)?(?:[eE]\+?\d{1,2})?\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request as its server counted it, or many together where it tells no more; None is what nobody said."""

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

    @property
    def tokens_per_pass(self) -> float | None:
        """1 + accepted / passes, as of a run (`Tally.acceptance_length`); else what the server makes of it."""
        if self.passes is None or self.accepted is None:
            return self.length
        return 1 + self.accepted / self.passes if self.passes else None

    @property
    def lengths_known(self) -> bool:
        """Whether it is known of every pass how many tokens it had drafted."""
        return self.outcomes is not None and all(drafted is not None for _, drafted in self.outcomes)


def request_of(number: int, name: str, tokens: Any, kind: Format, block: dict[str, Any], chains: bool) -> ServedRequest:
    """The counts of one object. tokens: of the answer, from around it; chains: as for `read_metrics`."""
    read = _Fields(number, block if kind.read is None else kind.read(block))
    vouched = _vouched(read, kind) if chains else None
    outcomes, source = _outcomes(read, kind, vouched)
    passes = read.agree(kind.passes, vouched if outcomes is None else outcomes.total(), source)
    accepted = read.agree(kind.accepted, _sum(outcomes, 0), source)
    drafted = read.agree(kind.drafted, _sum(outcomes, 1), kind.each_drafted)
    shares, length = read.shares(kind.shares), read.ratio(kind.length)
    longest, limit = _longest(read, kind)
    inside = read.count(kind.tokens)
    tokens = inside if inside is not None or tokens is None else read.whole("completion_tokens", tokens)
    _require_something(read, kind, passes, accepted, drafted, length, tokens)
    told = source if read.count(kind.accepted) is None else kind.accepted
    read.at_most(told, accepted, drafted, kind.drafted)
    if passes == 0:
        read.at_most(told, accepted, 0, kind.passes)
    if None not in (longest, passes):
        read.at_most(told, accepted, passes * longest, limit)
        read.at_most(kind.drafted, drafted, passes * longest, limit)
        read.at_most(source, _deepest(outcomes), longest, limit)
    drafts = _length(passes, drafted, longest, chains)
    if drafts is not None:
        read.at_most(source, _deepest(outcomes), drafts, kind.drafted)
        if _sum(outcomes, 1) is None and outcomes is not None:
            outcomes = Counter({(kept, drafts): count for (kept, _), count in outcomes.items()})
    rounded = tuple(shares) if shares and outcomes is None else None
    return ServedRequest(number, name, kind, passes, accepted, drafted, outcomes, tokens, length, rounded)


class _Fields:
    """The fields of one request."""

    def __init__(self, number: int, block: dict[str, Any]):
        self.number, self.block = number, block

    def at(self, name: str | None, value: Any = None, **more: object) -> dict[str, Any]:
        return {"field": "metrics", "number": self.number, "name": name, "value": quoted(value)} | more

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
        if isinstance(values, dict):
            places = {self.whole(f"{field}: a key", key, MOST_DEPTH): value for key, value in values.items()}
            values = [places.get(place, 0) for place in range(max(places, default=-1) + 1)]
        if not isinstance(values, list):
            raise SpecvizError(
                "Request {number}: {name} must be a list of counts, not {value}.", **self.at(field, values)
            )
        return [
            value if type(value) is int and 0 <= value <= most else self.whole(f"{field}[{place}]", value, most)
            for place, value in enumerate(values)
        ]

    def whole(self, field: str, value: Any, most: int = MOST_COUNT) -> int:
        number = float(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
            raise SpecvizError(
                "Request {number}: {name} must be a whole number from 0 to {most}, not {value}.",
                **self.at(field, value, most=most),
            )
        return number

    def shares(self, names: Sequence[str]) -> list[float] | None:
        field = self.named(names)
        if field is None:
            return None
        values = self.block[field]
        parts = values.split(",") if isinstance(values, str) else values
        numbers = [finite(one) for one in parts] if isinstance(parts, list) else [None]
        if len(numbers) > MOST_DEPTH or not all(one is not None and 0 <= one <= 1 for one in numbers):
            raise SpecvizError(
                "Request {number}: {name} must be a list of shares from 0 to 1, not {value}.",
                **self.at(field, values),
            )
        return numbers

    def ratio(self, names: Sequence[str]) -> float | None:
        field = self.named(names)
        number = None if field is None else finite(self.block[field])
        if field is not None and (number is None or number < 1):
            raise SpecvizError(
                "Request {number}: {name} must be a number from 1 up, not {value}.",
                **self.at(field, self.block[field]),
            )
        return number

    def agree(self, names: Sequence[str], counted: int | None, source: Sequence[str]) -> int | None:
        """A total as it is given, or else as `source` comes to; both must agree."""
        given = self.count(names)
        if None not in (given, counted) and given != counted:
            raise SpecvizError(
                "Request {number}: {name} says {given}, but {source} comes to {counted}.",
                **self.at(self.named(names), given=given, source=self.named(source), counted=counted),
            )
        return counted if given is None else given

    def at_most(self, names: Sequence[str], value: int | None, most: int | None, limit: Sequence[str]) -> None:
        """Refuses a figure above what another field allows."""
        if None not in (value, most) and value > most:
            raise SpecvizError(
                "Request {number}: {name} comes to {value}, and {limit} allows no more than {most}.",
                **self.at(self.named(names), value, limit=self.named(limit), most=most),
            )

    def alike(self, names: Sequence[str], others: Sequence[str], same: bool) -> None:
        """Refuses two fields that do not tell the same."""
        if not same:
            raise SpecvizError(
                "Request {number}: {name} and {other} do not tell of the same passes.",
                **self.at(self.named(names), other=self.named(others)),
            )


def _require_something(read: _Fields, kind: Format, passes: int | None, *others: int | float | None) -> None:
    """Refuses a request that comes to no figure: passes without what they kept, or a part of a rate."""
    accepted, drafted, length, tokens = others
    by_pass = passes == 0 or (passes is not None and (accepted, tokens) != (None, None))
    if (kind.summed or (not by_pass and length is None)) and None in (accepted, drafted):
        raise SpecvizError(
            "Request {number}: without {names} nothing can be told of it.",
            "metrics",
            number=read.number,
            names=", ".join(names[0] for names in (kind.accepted, kind.histogram, kind.drafted, kind.length) if names),
        )


def _longest(read: _Fields, kind: Format) -> tuple[int | None, Sequence[str]]:
    """γ, and the names of the field that says it."""
    places = kind.kept or kind.shares
    if kind.full and read.named(places):
        told = read.shares(kind.shares) or read.counts(kind.kept, MOST_COUNT) or ()
        return len(told), places
    return read.count(kind.longest, MOST_DEPTH), kind.longest


def _vouched(read: _Fields, kind: Format) -> int | None:
    """The passes of a log that leaves them out: drafted / γ, where somebody vouches for chains of full length."""
    longest, drafted = _longest(read, kind)[0], read.count(kind.drafted)
    if read.named(kind.passes) or not longest or not drafted or drafted % longest:
        return None
    return drafted // longest


def _outcomes(read: _Fields, kind: Format, vouched: int | None) -> tuple[Outcomes | None, Sequence[str]]:
    """What became of the passes, and the names of the field that says it: the passes one by one, a histogram, or how
    many kept each position."""
    kept, proposed = read.counts(kind.each_accepted, MOST_DEPTH), read.counts(kind.each_drafted, MOST_DEPTH)
    histogram = read.counts(kind.histogram, MOST_COUNT)
    if histogram is not None:
        longest = read.count(kind.longest, MOST_DEPTH)
        most = MOST_DEPTH if longest is None else longest
        read.at_most(kind.histogram, len(histogram) - 1, most, kind.longest if longest is not None else kind.histogram)
    counted = None if histogram is None else Counter({(j, None): count for j, count in enumerate(histogram) if count})
    if kept is None:
        return (counted, kind.histogram) if counted is not None else _from_positions(read, kind, vouched)
    if counted is not None:
        read.alike(kind.each_accepted, kind.histogram, counted == Counter((one, None) for one in kept))
    if proposed is None:
        return Counter((one, None) for one in kept), kind.each_accepted
    read.alike(kind.each_accepted, kind.each_drafted, len(kept) == len(proposed))
    one, most = next(((one, most) for one, most in zip(kept, proposed) if one > most), (0, 0))
    read.at_most(kind.each_accepted, one, most, kind.each_drafted)
    return Counter(zip(kept, proposed)), kind.each_accepted


def _from_positions(read: _Fields, kind: Format, vouched: int | None) -> tuple[Outcomes | None, Sequence[str]]:
    """The same from how many passes kept a token at each position: as many ended there as kept none at the next."""
    given = read.count(kind.passes)
    passes, accepted = vouched if given is None else given, read.count(kind.accepted)
    names, kept = kind.kept or kind.shares, read.counts(kind.kept, MOST_COUNT)
    if kept is None:
        shares = read.shares(kind.shares)
        kept = None if None in (shares, passes) else [round(share * passes) for share in shares]
        # Of rounded shares the counts are sure where no two counts round to one share.
        if kept is None or sum(kept) != accepted or passes * 2 * kind.rounding >= 1:
            return None, names
    if passes is None:
        return None, names
    reached = [passes, *kept]
    for before, after in zip(reached, kept):
        read.at_most(names, after, before, kind.passes if before is passes else names)
    ended = (before - after for before, after in zip(reached, [*kept, 0]))
    return Counter({(place, None): count for place, count in enumerate(ended) if count}), names


def _length(passes: int | None, drafted: int | None, longest: int | None, chains: bool) -> int | None:
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
