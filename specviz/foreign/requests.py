"""One request as its server counted it. Values that follow exactly are filled in, nothing else; counts that contradict
each other are refused."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from specviz.foreign.fields import MOST_COUNT, Fields, positive
from specviz.foreign.formats import ServerFormat
from specviz.foreign.text import MOST_DEPTH
from specviz.records.metrics import Tally
from specviz.theory.along_texts import Pass

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


def request_of(
    number: int, name: str, tokens: Any, kind: ServerFormat, block: dict[str, Any], chains: bool
) -> ServedRequest:
    """The counts of one object. tokens: of the answer, from around it; chains: as for `read_metrics`."""
    fields = Fields(number, kind, block)
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
        running=positive(fields.value("running")),
        speed=positive(fields.value("speed")),
        longest=longest,
        steps=_steps(fields, draft_length),
    )


def _check(fields: Fields, passes: int | None, accepted: int | None, drafted: int | None) -> None:
    """Raises for a line or a table whose rate, mean and counts contradict each other: a figure of it was misread."""
    shares = fields.shares()
    if accepted is not None and drafted:
        fields.close("rate", accepted / drafted, "accepted")
    if accepted is not None and passes:
        fields.close("length", 1 + accepted / passes, "accepted")
    elif accepted is not None and shares:
        fields.close("length", 1 + sum(shares), "shares", len(shares) * fields.kind.rounding)


def _require_something(fields: Fields, passes: int | None, *counts: int | float | None) -> None:
    """Raises for a request that comes to no figure: passes without what they accepted, or a part of a rate."""
    kind, (accepted, drafted, length, tokens) = fields.kind, counts
    by_pass = passes == 0 or (passes is not None and (accepted, tokens) != (None, None))
    if (kind.summed or (not by_pass and length is None)) and None in (accepted, drafted):
        needed = (names[0] for names in (kind.accepted, kind.histogram, kind.drafted, kind.length) if names)
        raise fields.complaint(
            "Request {number}: nothing can be computed without {names}.", None, names=", ".join(needed)
        )


def _longest(fields: Fields) -> tuple[int | None, str]:
    """γ, and the field that says it."""
    by_position = "accepted_at" if fields.kind.accepted_at else "shares"
    if fields.kind.full and fields.name(by_position):
        return len(fields.shares() or fields.counts("accepted_at", MOST_COUNT) or ()), by_position
    return fields.count("longest", MOST_DEPTH), "longest"


def _vouched(fields: Fields) -> int | None:
    """The passes of a log that leaves them out: drafted / γ, if the caller vouches for chains of full length."""
    longest, drafted = _longest(fields)[0], fields.count("drafted")
    if fields.name("passes") or not longest or not drafted or drafted % longest:
        return None
    return drafted // longest


def _outcomes(fields: Fields, vouched: int | None) -> tuple[Outcomes | None, str]:
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


def _steps(fields: Fields, draft_length: int | None) -> tuple[Pass, ...]:
    """The passes in order, if they are listed, of chains. draft_length: of all drafts, if it is known."""
    accepted = fields.counts("each_accepted", MOST_DEPTH) or []
    drafted = fields.counts("each_drafted", MOST_DEPTH) or ([draft_length] * len(accepted) if draft_length else [])
    return tuple(Pass(kept, min(length, kept + 1), kept + 1) for kept, length in zip(accepted, drafted))


def _from_positions(fields: Fields, vouched: int | None) -> tuple[Outcomes | None, str]:
    """The same from how many passes accepted a token at each position: as many ended there as accepted none at the
    next."""
    reported = fields.count("passes")
    passes, accepted = vouched if reported is None else reported, fields.count("accepted")
    field = "accepted_at" if fields.kind.accepted_at else "shares"
    accepted_at = fields.counts("accepted_at", MOST_COUNT)
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
