"""The mistakes that have a name: the sentence that a report begins with, and the right solution with it built in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from specviz.grading.solutions import RIGHT, Row, Solution, draw, one_hot, passes, scaled, sharper, uncovered

#: What a coin of 0 shows.
STRICT = "It says ≤ where it must say <: a coin can be exactly 0, and then a token without probability comes."

#: The temperatures that are tried on one side, as powers of its probabilities.
POWERS = (2.0, 1 / 0.6, 1 / 0.7, 1.25, 1 / 0.9, 0.5, 1 / 1.5, 1 / 1.2)

#: Which fields matter to one function alone; all of them to `speculate`.
_VERIFY = {"bonus", "drawing", "next_coin", "judged_row", "after_row", "going_on", "counted", "missing"}
_FIELDS = {
    "accept": {"passing", "target_row", "draft_row"},
    "residual": {"after", "target_row", "draft_row"},
    "verify": {"passing", "after", "target_row", "draft_row"} | _VERIFY,
}


def _difference(p: Row, q: Row) -> Row:
    return [a - b for a, b in zip(p, q)]


def _by_size(p: Row, q: Row) -> Row:
    """p − q, scaled as if its parts were all positive."""
    total = sum(map(abs, _difference(p, q)))
    return [part / total for part in _difference(p, q)] if total else p


def _clipped(p: Row, q: Row) -> Row:
    return [max(0.0, part) for part in _difference(p, q)]


def _raw(last: bool, strict: bool = True) -> Any:
    """A draw that takes a row for one that sums to 1; where no sum exceeds u, the last id or the first."""

    def drawn(probs: Row, u: float) -> int:
        total = 0.0
        for id, part in enumerate(probs):
            total += part
            if total > u or (total == u and not strict):
                return id
        return len(probs) - 1 if last else 0

    return drawn


def _backwards(probs: Row, u: float) -> int:
    return len(probs) - 1 - draw(probs[::-1], u)


_RAW = ({"drawing": _raw(True)}, {"drawing": _raw(False)})

#: By sentence, the ways in which it is made. Of ways that look alike the first one is named.
MISTAKES: dict[str, tuple[dict[str, Any], ...]] = {
    "The residual is not clipped: where q is larger than p, it must be 0.": (
        {"after": _difference},
        *({"after": _difference} | raw for raw in _RAW),
        {"after": _by_size},
        *({"after": _by_size} | raw for raw in _RAW),
        {"after": lambda p, q: scaled([abs(part) for part in _difference(p, q)], p)},
    ),
    "The residual is not normalised: max(0, p − q) must be divided by its sum.": (
        {"after": _clipped},
        *({"after": _clipped} | raw for raw in _RAW),
    ),
    "The residual where p equals q is 0 / 0: p itself must take its place.": (
        {"after": lambda p, q: [part / sum(_clipped(p, q)) if p != q else float("nan") for part in _clipped(p, q)]},
        {"after": lambda p, q: scaled(_clipped(p, q), [0.0] * len(p))},
        {"after": lambda p, q: scaled(_clipped(p, q), [1 / len(p)] * len(p))},
    ),
    "After a rejection the next token is drawn from p, not from the residual.": ({"after": lambda p, q: p},),
    "After a rejection the next token is drawn from q, not from the residual.": ({"after": lambda p, q: q},),
    "p and q are swapped.": (
        {"passing": lambda p, q, token, u: passes(q, p, token, u) if p[token] else True},
        {"after": lambda p, q: uncovered(q, p)},
        {
            "passing": lambda p, q, token, u: passes(q, p, token, u) if p[token] else True,
            "after": lambda p, q: uncovered(q, p),
        },
    ),
    "q is left out: a token passes with probability p, which is right for argmax drafts only.": (
        {"passing": lambda p, q, token, u: u < p[token]},
    ),
    "Every token passes.": ({"passing": lambda p, q, token, u: True},),
    "No token passes.": ({"passing": lambda p, q, token, u: False},),
    "Tokens are accepted by argmax: only the target's likeliest passes, whatever the coin says.": (
        {"passing": lambda p, q, token, u: token == one_hot(p).index(1)},
        {"passing": lambda p, q, token, u: token == one_hot(p).index(1), "after": lambda p, q: one_hot(p)},
        {"passing": lambda p, q, token, u: token == one_hot(p).index(1), "after": lambda p, q: p},
        {
            "passing": lambda p, q, token, u: token == one_hot(p).index(1),
            "after": lambda p, q: one_hot(p),
            "bonus": lambda p, q: one_hot(p[-1]),
        },
    ),
    "Tokens pass without a coin, where p is at least q.": ({"passing": lambda p, q, token, u: p[token] >= q[token]},),
    "The coin is read the wrong way round: a token must pass where u is below p/q.": (
        {"passing": lambda p, q, token, u: not passes(p, q, token, u)},
        {"passing": lambda p, q, token, u: passes(p, q, token, 1 - u)},
    ),
    STRICT: (
        {"passing": lambda p, q, token, u: u <= p[token] / q[token]},
        {"drawing": _raw(True, strict=False)},
        {"passing": lambda p, q, token, u: u <= p[token] / q[token], "drawing": _raw(True, strict=False)},
    ),
    "The bonus token is missing: a draft that was wholly accepted is followed by one more token.": (
        {"bonus": lambda p, q: None, "missing": None},
        {"bonus": lambda p, q: None, "missing": -1},
        {"bonus": lambda p, q: None, "least": 1},
    ),
    "The bonus token is drawn from q: it must come from p's last row.": ({"bonus": lambda p, q: q[-1] if q else p[-1]},),
    "The bonus token is drawn from the wrong row of p: it must come from the last one.": (
        {"bonus": lambda p, q: p[-2:][0]},
        {"bonus": lambda p, q: p[0]},
    ),
    "It goes on after a rejection: what was drafted after a rejected token must be thrown away.": (
        *({"going_on": way} for way in ("count", "first", "in place", "in place, no bonus")),
    ),
    "It is off by one row: row i of p judges token i.": (
        {"judged_row": 1},
        {"judged_row": 1, "after_row": 1},
        {"judged_row": -1},
    ),
    "After a rejection the residual is off by one row: it must be that of the rejected token.": ({"after_row": 1},),
    "A coin is used twice: the coin that rejected a token draws the next one too.": (
        {"next_coin": lambda us, u, accepted: us[accepted] if accepted < len(us) else u},
        {"next_coin": lambda us, u, accepted: us[min(accepted, len(us) - 1)] if us else u},
        {"next_coin": lambda us, u, accepted: us[0] if us else u},
    ),
    "A coin is used twice: the coin that drew a draft token judges it too.": (
        {"judging_coin": lambda drawn, judged: drawn},
    ),
    "The next token is the likeliest one: it must be drawn.": (
        {"drawing": lambda probs, u: one_hot(probs).index(1)},
    ),
    "The next token is drawn in another order: it is the first id whose cumulative probability exceeds u.": (
        {"drawing": _backwards},
        {"drawing": lambda probs, u: draw(probs, 1 - u)},
    ),
    "The next token is counted as accepted.": ({"counted": 1},),
    "The drafts are greedy, but judged by a soft q: their q is 1 at one token.": ({"drawn_row": one_hot},),
    "A temperature is on one side only: p was sharpened or flattened, and q was not.": (
        *({"target_row": sharper(power)} for power in POWERS),
    ),
    "A temperature is on one side only: q was sharpened or flattened, and p was not.": (
        *({"draft_row": sharper(power)} for power in POWERS),
    ),
    "Drafts are drawn at another temperature than the one at which q judges them.": (
        *({"drawn_row": sharper(power)} for power in POWERS),
    ),
    "The cache is not rewound: the text after a rejection follows a prefix that still has the rejected tokens.": (
        {"rewinds": False},
    ),
    "The target is asked once for each token: one pass must judge the whole draft.": ({"one_by_one": True},),
    "One token more is drafted than asked for.": ({"extra": 1},),
    "One token less is drafted than asked for.": ({"extra": -1},),
    "It gives more than max_new_tokens: a length that is reached within a draft cuts it.": ({"cuts": False},),
    "It gives back the prompt too: only new ids are asked for.": ({"repeats_prompt": True},),
}


def wrong_solutions(name: str) -> Iterator[tuple[str, Solution]]:
    """The mistakes that one of the functions can have, each with a solution that makes it."""
    for sentence, ways in MISTAKES.items():
        for way in ways:
            if way.keys() <= _FIELDS[name] if name in _FIELDS else "missing" not in way:
                yield sentence, replace(RIGHT, **way)
