"""The mistakes that have a name: the sentence that a report begins with, and the right solution with it built in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from specviz.grading.solutions import RIGHT, Row, Solution, draw, passes, residual, same, scaled

#: The temperatures that are tried on one side, as powers of its probabilities.
POWERS = (2.0, 1 / 0.6, 1 / 0.7, 1.25, 1 / 0.9, 0.5, 1 / 1.5, 1 / 1.2)

#: More tokens than are drafted.
MANY = 100

#: Which parts matter to one function alone; to `speculate` all ways that say nothing of `missing`.
_BOTH = {"warped_p", "warped_q"}
_PARTS = {
    "accept": {"passing"} | _BOTH,
    "residual": {"after"} | _BOTH,
    "verify": {"passing", "after", "bonus", "missing", "drawing", "coin", "coins"}
    | {"judged", "replaced", "going_on", "counted"}
    | _BOTH,
}


def _difference(p: Row, q: Row) -> Row:
    return [a - b for a, b in zip(p, q)]


def _clipped(p: Row, q: Row) -> Row:
    return [max(0.0, part) for part in _difference(p, q)]


def _softmax(row: Row) -> Row:
    return scaled([math.exp(part) for part in row], row)


def _by_size(p: Row, q: Row) -> Row:
    """p − q, divided by what its parts would sum to without their signs."""
    total = sum(map(abs, _difference(p, q)))
    return [part / total for part in _difference(p, q)] if total else p


def _unscaled(beyond: Callable[[int], int], strict: bool = True) -> Callable[[Row, float], int]:
    """A draw that takes a row for one that sums to 1. beyond: the id where no sum exceeds u, of how many there are."""

    def drawn(probs: Row, u: float) -> int:
        total = 0.0
        for id, part in enumerate(probs):
            total += part
            if total > u or (total == u and not strict):
                return id
        return beyond(len(probs))

    return drawn


def _last(ids: int) -> int:
    return ids - 1


def _best(row: Row) -> int:
    return max(range(len(row)), key=lambda id: row[id])


def _one_hot(row: Row) -> Row:
    return [float(id == _best(row)) for id in range(len(row))]


def _warped(part: str) -> tuple[dict[str, Any], ...]:
    def by(power: float) -> Callable[[Row], Row]:
        return lambda row: scaled([share**power for share in row], row)

    return tuple({part: by(power)} for power in POWERS)


def _rows_off(by: int) -> tuple[dict[str, Any], ...]:
    """Rows too late, which end, or too early: then there is the first, or what a negative index finds."""
    late = {"judged": lambda place, rows: min(place + by, rows - 1)}
    early = ({"judged": lambda place, rows: max(0, place - by)}, {"judged": lambda place, rows: (place - by) % rows})
    return (late, late | {"replaced": by}, *early)


def _begun(since: int) -> tuple[dict[str, Any], ...]:
    """Rows that begin elsewhere. Near the end it matters whether as many tokens are drafted as ever."""
    return ({"since": since}, {"since": since, "spared": -MANY})


def _passing_after(warped_p: Callable[[Row], Row] = same, warped_q: Callable[[Row], Row] = same) -> Any:
    return lambda p, q, token, u: passes(warped_p(p), warped_q(q), token, u)


_DRAWS: tuple[dict[str, Any], ...] = (
    {},
    {"drawing": _unscaled(_last)},
    {"drawing": _unscaled(lambda ids: 0)},
    {"drawing": _unscaled(lambda ids: ids), "missing": None},
)
_LIKELIEST = {"passing": lambda p, q, token, u: token == _best(p)}
_SWAPPED = {"passing": lambda p, q, token, u: passes(q, p, token, u)}
_NOT_STRICT = {"passing": lambda p, q, token, u: u <= p[token] / q[token]}
_BACKWARDS = {"after": lambda p, q: residual(q, p)}
_NO_BONUS = {"bonus": lambda p, q: None}
_SHORT = _NO_BONUS | {"extra": 0}

#: What a coin of 0 shows.
STRICT = "It says ≤ where it must say <: a coin can be exactly 0, and then a token without probability comes."

#: By sentence, the ways in which it is made. Of ways that look alike the first one is named.
MISTAKES: dict[str, tuple[dict[str, Any], ...]] = {
    "The residual is not clipped: where q is larger than p, it must be 0.": (
        *({"after": _difference} | way for way in _DRAWS),
        *({"after": _by_size} | way for way in _DRAWS),
        {"after": lambda p, q: scaled([abs(part) for part in _difference(p, q)], p)},
    ),
    "The residual is not normalised: max(0, p − q) must be divided by its sum.": tuple(
        {"after": _clipped} | way for way in _DRAWS
    ),
    "The residual is put through a softmax: max(0, p − q) must be divided by its sum.": (
        {"after": lambda p, q: _softmax(_difference(p, q))},
        {"after": lambda p, q: _softmax(_clipped(p, q))},
    ),
    "The residual where p equals q is 0 / 0: p itself must take its place.": (
        {"after": lambda p, q: scaled(_clipped(p, q), [float("nan")] * len(p))},
        {"after": lambda p, q: scaled(_clipped(p, q), [0.0] * len(p))},
        {"after": lambda p, q: scaled(_clipped(p, q), [1 / len(p)] * len(p))},
    ),
    "After a rejection the next token is drawn from p, not from the residual.": ({"after": lambda p, q: p},),
    "After a rejection the next token is drawn from q, not from the residual.": ({"after": lambda p, q: q},),
    "p and q are swapped.": (_SWAPPED, _BACKWARDS, _SWAPPED | _BACKWARDS),
    "q is left out: a token passes with probability p, which is right for argmax drafts only.": (
        {"passing": lambda p, q, token, u: u < p[token]},
    ),
    "Every token passes.": ({"passing": lambda p, q, token, u: True},),
    "No token passes.": ({"passing": lambda p, q, token, u: False},),
    "Tokens are accepted by argmax: only the target's likeliest passes, whatever the coin says.": (
        _LIKELIEST,
        _LIKELIEST | {"after": lambda p, q: p},
        _LIKELIEST | {"after": lambda p, q: _one_hot(p)},
        _LIKELIEST | {"after": lambda p, q: _one_hot(p), "bonus": lambda p, q: _one_hot(p[-1])},
    ),
    "Tokens pass without a coin, where p is at least q.": ({"passing": lambda p, q, token, u: p[token] >= q[token]},),
    "The coin is read the wrong way round: a token must pass where u is below p/q.": (
        {"passing": lambda p, q, token, u: not passes(p, q, token, u)},
        {"passing": lambda p, q, token, u: passes(p, q, token, 1 - u)},
    ),
    STRICT: (
        _NOT_STRICT,
        {"drawing": _unscaled(_last, strict=False)},
        _NOT_STRICT | {"drawing": _unscaled(_last, strict=False)},
    ),
    "The bonus token is missing: a draft that was wholly accepted is followed by one more token.": (
        _NO_BONUS | {"missing": None},
        _NO_BONUS | {"missing": -1},
    ),
    # Both take the same passes for the same texts.
    "The bonus token is missing, or a draft is one token short: a round gives one token less than it could.": (
        _SHORT,
        {"extra": -1},
    ),
    "The bonus token is drawn from q: it must come from p's last row.": ({"bonus": lambda p, q: (q or p)[-1]},),
    "The bonus token is drawn from the wrong row of p: it must come from the last one.": (
        {"bonus": lambda p, q: p[-2:][0]},
        {"bonus": lambda p, q: p[0]},
    ),
    "It goes on after a rejection: what was drafted after a rejected token must be thrown away.": tuple(
        {"going_on": way} for way in ("count", "first", "last", "in place", "in place, no bonus")
    ),
    "It is off by one row: row i of p judges token i.": (*_rows_off(1), *_begun(-1)),
    "It is off by two rows: row i of p judges token i.": (*_rows_off(2), *_begun(-2)),
    "After a rejection the residual is off by one row: it must be that of the rejected token.": ({"replaced": 1},),
    "A coin is used twice: the coin that rejected a token draws the next one too.": (
        {"coin": lambda us, u, accepted: [*us, u][accepted]},
        {"coin": lambda us, u, accepted: us[min(accepted, len(us) - 1)] if us else u},
        {"coin": lambda us, u, accepted: us[0] if us else u},
    ),
    "A coin is used twice: the coin that drew a draft token judges it too.": (
        {"judging_coin": lambda drawn, judged: drawn},
    ),
    "One coin judges all tokens of a draft: each needs one of its own.": ({"coins": lambda us: us[:1] * len(us)},),
    "The next token is the likeliest one: it must be drawn.": ({"drawing": lambda probs, u: _best(probs)},),
    "The next token is drawn in another order: it is the first id whose cumulative probability exceeds u.": (
        {"drawing": lambda probs, u: len(probs) - 1 - draw(probs[::-1], u)},
        {"drawing": lambda probs, u: draw(probs, 1 - u)},
    ),
    "The next token is counted as accepted.": ({"counted": 1},),
    "The next token is appended twice.": (
        {"appended": lambda rejected: 1 + rejected},
        {"appended": lambda rejected: 2},
    ),
    "The drafts are greedy, but judged by a soft q: their q is 1 at one token.": ({"drawn": _one_hot},),
    "A temperature is on one side only: p or q was sharpened or flattened, and the other was not.": (
        *_warped("warped_p"),
        *_warped("warped_q"),
        *({"passing": _passing_after(**way)} for way in _warped("warped_p") + _warped("warped_q")),
    ),
    "Drafts are drawn at another temperature than the one at which q judges them.": _warped("drawn"),
    "The cache is not rewound: the text after a rejection follows a prefix that still has the rejected tokens.": (
        {"rewinds": False},
    ),
    "The target is asked once for each token: one pass must judge the whole draft.": (
        {"one_by_one": True},
        {"one_by_one": True, "spared": -MANY},
    ),
    "One token more is drafted than asked for.": ({"extra": 1},),
    "It gives more than max_new_tokens: a length that is reached within a draft cuts it.": ({"cuts": False},),
}


def wrong_solutions(name: str) -> Iterator[tuple[str, Solution]]:
    """The mistakes that one of the functions can have, each with a solution that makes it.

    With a mistake it does make a difference whether `speculate` spares the last draft token.
    """
    for sentence, ways in MISTAKES.items():
        for way in ways:
            if name != "speculate" and way.keys() <= _PARTS[name]:
                yield sentence, replace(RIGHT, **way)
            if name == "speculate" and "missing" not in way:
                yield sentence, replace(RIGHT, **way)
                if way is not _SHORT:  # it would never end
                    yield sentence, replace(RIGHT, **{"spared": 1} | way)
