"""A server's figures about its own speculation, as a message for the page and as a table for a terminal.

Bounded whatever was read: of many requests the quantiles and the extremes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any

from specviz.foreign.bounds import reached
from specviz.foreign.metrics import ServedRequests, read_metrics
from specviz.foreign.requests import ServedRequest, tally_of
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally
from specviz.records.words import Words, words
from specviz.theory.formulas import expected_speedup, optimal_gamma
from specviz.views.run_messages import as_json
from specviz.views.served_diagnosis import anchors_for, diagnosis_lines, findings, signs_of
from specviz.views.terminal import harmless

#: At most this many positions, values of the curve over requests, and requests at either end.
MOST_POSITIONS, MOST_VALUES, MOST_EXTREMES = 64, 101, 4

#: The longest draft that the formula is asked about.
MOST_GAMMA = 16

#: The quantiles of the table: least, tenth, half, nine tenths, most.
QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Position:
    """Counts at one draft position; None if they cannot be known."""

    share: float  # passes that accepted a token here, of all
    judged: int | None  # passes that got here and had drafted a token for it
    conditional: float | None  # accepted / judged
    between: tuple[float, float] | None = None  # what that is at least and at most, where drafts were short


@dataclass(frozen=True, slots=True)
class Served:
    """All requests together."""

    passes: int | None  # of the requests that report it
    tokens_per_pass: float | None  # 1 + accepted / passes, where both are known; of one alone, as its server rounds it
    answer_tokens_per_pass: float | None  # completion tokens / passes, of the requests that report nothing else
    acceptance_share: float | None  # accepted / drafted, whatever drafted means to the server
    nominal: bool  # whether some server counts the configured length as drafted
    lengths_known: int  # requests of which the lengths of all drafts are known
    alpha: float | None  # accepted / judged, of those requests
    alpha_between: tuple[float, float] | None  # the same of all, at least and at most, where no request tells
    positions: tuple[Position, ...]
    tokens: tuple[float, ...]  # [j]: the share of passes that made j + 1 tokens


def figures_of(served: ServedRequests) -> Served:
    """The figures of all requests, each over those that give it."""
    requests = served.requests
    counted = [request for request in requests if request.passes and request.accepted is not None]
    known = [request.outcomes for request in counted if request.outcomes is not None and request.lengths_known]
    counts = tally_of(sum(known, Counter()))
    accepted_in = Counter[int]()
    for request in counted:
        for (accepted, _), number in (request.outcomes or {}).items():
            accepted_in[accepted] += number
    most = min(max(accepted_in, default=-1), MOST_POSITIONS)
    passes = [request.passes for request in requests if request.passes is not None]
    length, shares = (requests[0].length, requests[0].shares) if len(requests) == 1 else (None, None)
    rounded = [Position(share, None, None) for share in shares or ()]
    positions = list(_positions(accepted_in, counts))
    between = None
    if counted and not known and all(request.ended for request in counted):
        positions, between = _bounded(positions, counted)
    accepted_by_pass = _ratio((request.accepted, request.passes) for request in requests)
    return Served(
        passes=sum(passes) if passes else None,
        tokens_per_pass=length if accepted_by_pass is None else 1 + accepted_by_pass,
        answer_tokens_per_pass=_ratio(
            (request.completion_tokens or None, request.passes) for request in requests if request.accepted is None
        ),
        acceptance_share=_ratio((request.accepted, request.drafted) for request in requests),
        nominal=any(request.format.nominal for request in requests if request.drafted and request.accepted is not None),
        lengths_known=len(known),
        alpha=between[0] if between and between[0] == between[1] else counts.acceptance_rate,
        alpha_between=between,
        positions=tuple(rounded[:MOST_POSITIONS] or positions),
        tokens=tuple(accepted_in[j] / accepted_in.total() for j in range(most + 1)),
    )


def _ratio(pairs: Iterable[tuple[int | None, int | None]]) -> float | None:
    """The sum of the counts over that of their totals, where both are known; None where they never are."""
    known = [(count, total) for count, total in pairs if count is not None and total]
    return sum(count for count, _ in known) / sum(total for _, total in known) if known else None


def _positions(accepted_in: Counter[int], counts: Tally) -> Iterator[Position]:
    """accepted_in: passes by the draft tokens that they accepted."""
    rates, passes = counts.conditional_position_rates(), accepted_in.total()
    for place in range(min(max(max(accepted_in, default=0), len(rates)), MOST_POSITIONS)):
        share = sum(number for accepted, number in accepted_in.items() if accepted > place) / passes
        known = place < len(rates)
        yield Position(share, counts.judged_at[place] if known else None, rates[place] if known else None)


def _bounded(
    positions: Sequence[Position], requests: Sequence[ServedRequest]
) -> tuple[list[Position], tuple[float, float] | None]:
    """The positions, and α, of requests that count by position and do not say which drafts were short."""
    bounds = [reached(request.ended or (), request.drafted or 0) for request in requests]
    passes, accepted = (
        sum(request.passes or 0 for request in requests),
        sum(request.accepted or 0 for request in requests),
    )

    def shown(place: int, position: Position) -> Position:
        here = [by_position[place] for by_position, _ in bounds if place < len(by_position)]
        least, most = map(sum, zip(*here))
        kept = position.share * passes
        if least == most:
            return Position(position.share, most, kept / most if most else None)
        return replace(position, between=(kept / most, kept / least))

    least, most = map(sum, zip(*(total for _, total in bounds)))
    return [shown(place, position) for place, position in enumerate(positions)], (accepted / most, accepted / least)


#: The figures that a message has as they are.
_FIGURES = (
    "passes",
    "tokens_per_pass",
    "answer_tokens_per_pass",
    "acceptance_share",
    "nominal",
    "alpha",
    "alpha_between",
    "tokens",
)


def served_answer(text: str, chains: bool, say: Words, speedups: str = "") -> str:
    """The message for a text that a visitor handed over: its figures, or why there are none. speedups: see
    `signs_of`."""
    try:
        return served_message(read_metrics(text, chains), say, speedups)
    except SpecvizError as error:
        return as_json({"kind": "refused", "text": say.error(error)})


def served_message(served: ServedRequests, say: Words, speedups: str = "", cost: float | None = None) -> str:
    figures, ordered = figures_of(served), _ordered(served.requests)
    signs = signs_of(served.requests, speedups, cost, served.plain)
    silent = [request for request in served.requests if request.passes is None]
    places = {_rank(value / (MOST_VALUES - 1), ordered) for value in range(MOST_VALUES)}
    return as_json(
        {"kind": "served"}
        | {name: getattr(figures, name) for name in _FIGURES}
        | {
            "servers": list(dict.fromkeys(request.format.name for request in served.requests)),
            "requests": len(served.requests) - _summaries(served.requests),
            "summaries": _summaries(served.requests),
            "without": served.without,
            "left_out": served.left_out,
            "reasons": [say.error(reason) for reason in served.reasons],
            "rounded": sum(1 for request in silent if request.length is not None),
            "uncounted": sum(1 for request in silent if request.length is None),
            "unknown": sum(1 for request in served.requests if request.passes != 0 and not request.lengths_known),
            "positions": [asdict(position) for position in figures.positions],
            "curve": [ordered[place].tokens_per_pass for place in sorted(places) if ordered],
            "quantiles": [ordered[_rank(share, ordered)].tokens_per_pass for share in QUANTILES if ordered],
            "rows": [_request_row(request) for request in _extremes(ordered)],
            "load": signs.load,
            "speedups": signs.speedups,
            "findings": findings(signs, say),
            "anchors": anchors_for(served.requests, signs),
        }
    )


def _summaries(requests: Sequence[ServedRequest]) -> int:
    """How many entries summarise many requests."""
    return sum(request.format.many for request in requests)


def _request_row(request: ServedRequest) -> dict[str, Any]:
    names = "number", "name", "passes", "tokens_per_pass"
    return {name: getattr(request, name) for name in names} | {"alpha": request.tally and request.tally.acceptance_rate}


def _ordered(requests: Sequence[ServedRequest]) -> list[ServedRequest]:
    """By tokens per pass, the least first; those without are left out."""
    return sorted((request for request in requests if request.tokens_per_pass), key=attrgetter("tokens_per_pass"))


def _rank(share: float, ordered: Sequence[ServedRequest]) -> int:
    """The nearest rank: a quantile is a request's own figure."""
    return round(share * (len(ordered) - 1))


def _extremes(ordered: Sequence[ServedRequest]) -> list[ServedRequest]:
    """The requests at either end; all of them where they are few."""
    few = len(ordered) <= 2 * MOST_EXTREMES
    return list(ordered) if few else [*ordered[:MOST_EXTREMES], *ordered[-MOST_EXTREMES:]]


def served_text(served: ServedRequests, cost: float | None = None, speedups: str = "") -> str:
    """The same for a terminal. cost: the server's c, if its owner knows it; then the γ that the formula favours too."""
    signs = signs_of(served.requests, speedups, cost, served.plain)
    figures, ordered, summaries = figures_of(served), _ordered(served.requests), _summaries(served.requests)
    of_many = f"{summaries} summaries of many requests, " if summaries else ""
    passes = (
        "target passes not counted"
        if figures.passes is None
        else f"{figures.passes} target passes that verified a draft"
    )
    of_requests = f"{figures.lengths_known} of {len(served.requests)} requests:"
    lines = [
        f"{len(served.requests) - summaries} requests, {of_many}{passes}; {served.without} entries without metrics",
        f"tokens per pass, 1 + accepted / passes:      {_number(figures.tokens_per_pass)}",
        f"response tokens per pass, if nothing else:   {_number(figures.answer_tokens_per_pass)}",
        f"accepted / drafted, as the server counts:    {_number(figures.acceptance_share)}",
        f"requests at once: least, mean, most:         {', '.join(map(_number, signs.load or [None]))}",
        f"α, accepted / judged, {of_requests:23}{_number(figures.alpha, figures.alpha_between)}",
        "",
        "position   of all passes   of those reached",
        *(
            f"{n:8}   {row.share:13.3f}   {_number(row.conditional, row.between):>16}"
            for n, row in enumerate(figures.positions, 1)
        ),
        "",
        "tokens per pass by request, " + ", ".join(f"{share:.0%}" for share in QUANTILES) + ":",
        "  ".join(_number(ordered[_rank(share, ordered)].tokens_per_pass) for share in QUANTILES if ordered),
        *(
            f"{_number(request.tokens_per_pass)}  {_number(request.passes):>9} passes  "
            f"request {request.number} {harmless(request.name)}".rstrip()
            for request in _extremes(ordered)
        ),
    ]
    lines += ["", *diagnosis_lines(signs, served.requests, words())]
    if served.left_out:
        lines += [
            "",
            f"{served.left_out} left out; the first:",
            *(harmless(str(reason)) for reason in served.reasons),
        ]
    if cost is not None and figures.alpha is not None:
        best = optimal_gamma(figures.alpha, cost, MOST_GAMMA)
        what = f"best γ up to {MOST_GAMMA} by the formula at c = {cost:g}, if verifying costs as much as one token"
        lines += ["", f"{what}: {best}, {expected_speedup(figures.alpha, best, cost):.2f}×"]
    return "\n".join(lines)


def _number(value: float | None, between: tuple[float, float] | None = None) -> str:
    if value is None and between is not None:
        return f"{between[0]:.3f} to {between[1]:.3f}"
    return "not known" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
