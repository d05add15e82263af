"""A server's figures about its own speculation, as a message for the page and as a table for a terminal.

Bounded whatever was read: of many requests the quantiles and the extremes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specviz.foreign.metrics import ServedRequest, ServedRequests, read_metrics, tally_of
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally
from specviz.records.words import Words, words
from specviz.theory.formulas import expected_speedup, optimal_gamma
from specviz.views.run_messages import as_json
from specviz.views.served_diagnosis import beside, diagnosis_lines, findings, signs_of
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

    share: float  # passes that kept a token here, of all
    judged: int | None  # passes that got here and had drafted a token for it
    conditional: float | None  # kept / judged


@dataclass(frozen=True, slots=True)
class Served:
    """All requests together."""

    requests: Sequence[ServedRequest]
    passes: int | None  # of those that report it
    tokens_per_pass: float | None  # 1 + accepted / passes, where both are known; of one alone, as its server rounds it
    answer_tokens_per_pass: float | None  # completion tokens / passes, of the requests that report nothing else
    acceptance_share: float | None  # accepted / drafted, whatever drafted means to the server
    nominal: bool  # whether some server counts the configured length as drafted
    known: int  # requests of which the lengths of all drafts are known
    alpha: float | None  # accepted / judged, of these
    positions: tuple[Position, ...]
    tokens: tuple[float, ...]  # [j]: the share of passes that made j + 1 tokens


def together(served: ServedRequests) -> Served:
    """The figures of all requests, each over those that give it."""
    counted = [request for request in served.requests if request.passes and request.accepted is not None]
    bare = [
        request
        for request in served.requests
        if request.accepted is None and request.passes and request.completion_tokens
    ]
    judged = [request for request in served.requests if request.drafted and request.accepted is not None]
    known = [request for request in counted if request.lengths_known]
    counts = tally_of(sum((request.outcomes for request in known), Counter()))
    kept = Counter[int]()
    for request in counted:
        for (accepted, _), number in (request.outcomes or {}).items():
            kept[accepted] += number
    told = [request.passes for request in served.requests if request.passes is not None]
    passes, alone = (
        sum(request.passes for request in counted),
        served.requests[0] if len(served.requests) == 1 else None,
    )
    rounded = [Position(share, None, None) for share in (alone and alone.shares) or ()]
    return Served(
        requests=served.requests,
        passes=sum(told) if told else None,
        tokens_per_pass=1 + sum(request.accepted for request in counted) / passes if passes else alone and alone.length,
        answer_tokens_per_pass=(
            sum(request.completion_tokens for request in bare) / sum(request.passes for request in bare)
            if bare
            else None
        ),
        acceptance_share=(
            sum(request.accepted for request in judged) / sum(request.drafted for request in judged) if judged else None
        ),
        nominal=any(request.format.nominal for request in judged),
        known=len(known),
        alpha=counts.acceptance_rate,
        positions=tuple(rounded[:MOST_POSITIONS] or _positions(kept, counts)),
        tokens=tuple(kept[j] / kept.total() for j in range(min(max(kept, default=-1), MOST_POSITIONS) + 1)),
    )


def _positions(kept: Counter[int], counts: Tally) -> Iterator[Position]:
    rates, passes = counts.conditional_position_rates(), kept.total()
    for place in range(min(max(max(kept, default=0), len(rates)), MOST_POSITIONS)):
        share = sum(number for accepted, number in kept.items() if accepted > place) / passes
        there = place < len(rates)
        yield Position(share, counts.judged_at[place] if there else None, rates[place] if there else None)


#: The figures that a message has as they are.
_FIGURES = "passes", "tokens_per_pass", "answer_tokens_per_pass", "acceptance_share", "nominal", "alpha", "tokens"


def served_answer(text: str, chains: bool, say: Words, speedups: str = "") -> str:
    """The message for a text that a visitor handed over: its figures, or why there are none. speedups: see
    `signs_of`."""
    try:
        return served_message(read_metrics(text, chains), say, speedups)
    except SpecvizError as error:
        return as_json({"kind": "refused", "text": say.error(error)})


def served_message(served: ServedRequests, say: Words, speedups: str = "", cost: float | None = None) -> str:
    found, ordered = together(served), _ordered(served.requests)
    signs = signs_of(served.requests, speedups, cost, served.plain)
    silent = [request for request in served.requests if request.passes is None]
    places = {_rank(value / (MOST_VALUES - 1), ordered) for value in range(MOST_VALUES)}
    return as_json(
        {"kind": "served"}
        | {name: getattr(found, name) for name in _FIGURES}
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
            "positions": [asdict(one) for one in found.positions],
            "curve": [ordered[place].tokens_per_pass for place in sorted(places) if ordered],
            "quantiles": [ordered[_rank(share, ordered)].tokens_per_pass for share in QUANTILES if ordered],
            "rows": [_row(request) for request in _extremes(ordered)],
            "load": signs.load,
            "speedups": signs.speedups,
            "findings": findings(signs, say),
            "anchors": beside(served.requests, signs),
        }
    )


def _summaries(requests: Sequence[ServedRequest]) -> int:
    """How many of them summarise many requests."""
    return sum(request.format.many for request in requests)


def _row(one: ServedRequest) -> dict[str, Any]:
    alpha = tally_of(one.outcomes).acceptance_rate if one.lengths_known else None
    return {name: getattr(one, name) for name in ("number", "name", "passes", "tokens_per_pass")} | {"alpha": alpha}


def _ordered(requests: Sequence[ServedRequest]) -> list[ServedRequest]:
    """By tokens per pass, the least first; those without are left out."""
    return sorted((request for request in requests if request.tokens_per_pass), key=lambda one: one.tokens_per_pass)


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
    found, ordered, summaries = together(served), _ordered(served.requests), _summaries(served.requests)
    of_many = f"{summaries} summaries of many requests, " if summaries else ""
    lines = [
        f"{len(found.requests) - summaries} requests, {of_many}{_number(found.passes)} target passes that verified a "
        f"draft; {served.without} entries without metrics",
        f"tokens per pass, 1 + accepted / passes:      {_number(found.tokens_per_pass)}",
        f"response tokens per pass, if nothing else:   {_number(found.answer_tokens_per_pass)}",
        f"accepted / drafted, as the server counts:    {_number(found.acceptance_share)}",
        f"requests at once: least, mean, most:         {', '.join(map(_number, signs.load or [None]))}",
        f"α, accepted / judged, {found.known} of {len(found.requests)} requests:".ljust(45) + _number(found.alpha),
        "",
        "position   of all passes   of those reached",
        *(f"{n:8}   {one.share:13.3f}   {_number(one.conditional):>16}" for n, one in enumerate(found.positions, 1)),
        "",
        "tokens per pass by request, " + ", ".join(f"{share:.0%}" for share in QUANTILES) + ":",
        "  ".join(_number(ordered[_rank(share, ordered)].tokens_per_pass) for share in QUANTILES if ordered),
        *(
            f"{_number(request.tokens_per_pass)}  {_number(request.passes):>9} passes  {_named(request)}"
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
    if cost is not None and found.alpha is not None:
        best = optimal_gamma(found.alpha, cost, MOST_GAMMA)
        what = f"best γ up to {MOST_GAMMA} by the formula at c = {cost:g}, if verifying costs as much as one token"
        lines += ["", f"{what}: {best}, {expected_speedup(found.alpha, best, cost):.2f}×"]
    return "\n".join(lines)


def _named(one: ServedRequest) -> str:
    return f"request {one.number} {harmless(one.name)}".rstrip()


def _number(value: float | None) -> str:
    return "not known" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
