"""What a server says of its own speculation, as a message for the page and as a table for a terminal.

Bounded whatever was read: of many requests the quantiles and the extremes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally
from specviz.records.server_metrics import ServedRequest, ServedRequests, read_metrics, tally_of
from specviz.records.words import Words
from specviz.theory.formulas import expected_speedup, optimal_gamma
from specviz.views.run_messages import as_json
from specviz.views.terminal import harmless

#: At most this many positions, values of the curve over requests, and requests at either end.
MOST_POSITIONS, MOST_VALUES, MOST_EXTREMES = 64, 101, 4

#: The longest draft that the formula is asked about.
MOST_GAMMA = 16

#: The quantiles of the table: least, tenth, half, nine tenths, most.
QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Position:
    """What became of one draft position; what nobody can know is None."""

    share: float  # passes that kept a token here, of all
    judged: int | None  # passes that got here and had drafted a token for it
    conditional: float | None  # kept / judged


@dataclass(frozen=True, slots=True)
class Served:
    """All requests together."""

    requests: Sequence[ServedRequest]
    without: int  # entries that say nothing of speculation
    passes: int
    tokens_per_pass: float | None  # 1 + accepted / passes, where both are known
    answer_tokens_per_pass: float | None  # completion tokens / passes, of the requests that give no more
    acceptance_share: float | None  # accepted / drafted, whatever drafted means to the server
    nominal: bool  # whether some server counts as drafted what was configured
    known: int  # requests of which the lengths of all drafts are known
    alpha: float | None  # accepted / judged, of these
    positions: tuple[Position, ...]
    tokens: tuple[float, ...]  # [j]: the share of passes that made j + 1 tokens


def together(served: ServedRequests) -> Served:
    """The figures of all requests, each over those that give it."""
    counted = [one for one in served.requests if one.tokens_per_pass is not None]
    bare = [one for one in served.requests if one.accepted is None and one.passes]
    passes, judged = sum(one.passes for one in counted), [one for one in counted if one.drafted]
    known = [one for one in counted if one.lengths_known]
    counts = tally_of(sum((one.outcomes for one in known), Counter()))
    kept = Counter[int]()
    for one in counted:
        for (accepted, _), number in (one.outcomes or {}).items():
            kept[accepted] += number
    return Served(
        requests=served.requests,
        without=served.without,
        passes=sum(one.passes for one in served.requests),
        tokens_per_pass=1 + sum(one.accepted for one in counted) / passes if passes else None,
        answer_tokens_per_pass=(
            sum(one.completion_tokens for one in bare) / sum(one.passes for one in bare) if bare else None
        ),
        acceptance_share=(sum(one.accepted for one in judged) / sum(one.drafted for one in judged) if judged else None),
        nominal=any(one.format.nominal for one in judged),
        known=len(known),
        alpha=counts.acceptance_rate,
        positions=tuple(_positions(kept, counts)),
        tokens=tuple(kept[j] / kept.total() for j in range(min(max(kept, default=-1), MOST_POSITIONS) + 1)),
    )


def _positions(kept: Counter[int], counts: Tally) -> Iterator[Position]:
    rates, passes = counts.conditional_position_rates(), kept.total()
    for place in range(min(max(max(kept, default=0), len(rates)), MOST_POSITIONS)):
        share = sum(number for accepted, number in kept.items() if accepted > place) / passes
        there = place < len(rates)
        yield Position(share, counts.judged_at[place] if there else None, rates[place] if there else None)


def served_answer(text: str, chains: bool, say: Words) -> str:
    """The message for what a visitor handed over: its figures, or why there are none."""
    try:
        return served_message(read_metrics(text, chains))
    except SpecvizError as error:
        return as_json({"kind": "refused", "text": say.error(error)})


def served_message(served: ServedRequests) -> str:
    all_of_them = together(served)
    ordered = _ordered(served.requests)
    return as_json(
        {
            "kind": "served",
            "servers": list(dict.fromkeys(one.format.name for one in served.requests)),
            "requests": len(served.requests),
            "without": served.without,
            "passes": all_of_them.passes,
            "tokens_per_pass": all_of_them.tokens_per_pass,
            "answer_tokens_per_pass": all_of_them.answer_tokens_per_pass,
            "acceptance_share": all_of_them.acceptance_share,
            "nominal": all_of_them.nominal,
            "unknown": sum(1 for one in served.requests if one.passes and not one.lengths_known),
            "alpha": all_of_them.alpha,
            "positions": [asdict(one) for one in all_of_them.positions],
            "tokens": all_of_them.tokens,
            "curve": [one.tokens_per_pass for one in _thinned(ordered, MOST_VALUES)],
            "quantiles": [ordered[_rank(share, ordered)].tokens_per_pass for share in QUANTILES if ordered],
            "rows": [_row(one) for one in _extremes(ordered)],
        }
    )


def _row(one: ServedRequest) -> dict[str, Any]:
    alpha = tally_of(one.outcomes).acceptance_rate if one.lengths_known else None
    return {
        "number": one.number,
        "name": one.name,
        "passes": one.passes,
        "tokens_per_pass": one.tokens_per_pass,
        "alpha": alpha,
    }


def _ordered(requests: Sequence[ServedRequest]) -> list[ServedRequest]:
    """By tokens per pass, the least first; those without are left out."""
    return sorted((one for one in requests if one.tokens_per_pass), key=lambda one: one.tokens_per_pass)


def _rank(share: float, ordered: Sequence[ServedRequest]) -> int:
    """The nearest rank: a quantile is a request's own figure."""
    return round(share * (len(ordered) - 1))


def _thinned(ordered: Sequence[ServedRequest], most: int) -> list[ServedRequest]:
    if len(ordered) <= most:
        return list(ordered)
    return [ordered[_rank(place / (most - 1), ordered)] for place in range(most)]


def _extremes(ordered: Sequence[ServedRequest]) -> list[ServedRequest]:
    """The requests at either end; all of them where they are few."""
    few = len(ordered) <= 2 * MOST_EXTREMES
    return list(ordered) if few else [*ordered[:MOST_EXTREMES], *ordered[-MOST_EXTREMES:]]


def served_text(served: ServedRequests, cost: float | None = None) -> str:
    """The same for a terminal. cost: the server's c, if its owner knows it; then the γ that the formula favours too."""
    found, ordered = together(served), _ordered(served.requests)
    lines = [
        f"{len(found.requests)} requests, {found.passes} target passes that verified a draft; {found.without} entries "
        "without metrics",
        f"tokens per pass, 1 + accepted / passes:      {_number(found.tokens_per_pass)}",
        f"answer tokens per pass, where nothing else:  {_number(found.answer_tokens_per_pass)}",
        f"accepted / drafted, as the server counts:    {_number(found.acceptance_share)}",
        f"α, accepted / judged, {found.known} of {len(found.requests)} requests:".ljust(45) + _number(found.alpha),
        "",
        "position   of all passes   of those reached",
        *(f"{place:8}   {one.share:13.3f}   {_number(one.conditional):>16}" for place, one in _numbered(found)),
        "",
        "tokens per pass by request, " + ", ".join(f"{share:.0%}" for share in QUANTILES) + ":",
        "  ".join(_number(ordered[_rank(share, ordered)].tokens_per_pass) for share in QUANTILES if ordered),
        *(f"{_number(one.tokens_per_pass):>8}  {one.passes:6} passes  {_named(one)}" for one in _extremes(ordered)),
    ]
    if cost is not None and found.alpha is not None:
        best = optimal_gamma(found.alpha, cost, MOST_GAMMA)
        what = f"best γ up to {MOST_GAMMA} by the formula at c = {cost:g}, if verifying costs what one token does"
        lines += ["", f"{what}: {best}, {expected_speedup(found.alpha, best, cost):.2f}×"]
    return "\n".join(lines)


def _numbered(found: Served) -> Iterator[tuple[int, Position]]:
    return enumerate(found.positions, start=1)


def _named(one: ServedRequest) -> str:
    return f"request {one.number} {harmless(one.name)}".rstrip()


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3f}"
