"""Rounds of any engine, of a log or a student's own loop, as a `Run`: what they lack is not known, and is shown so.

The arguments of `show` are the fields of an open JSON file, schema ``specviz.rounds/1`` (docs/python.md).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from specviz.records.errors import SpecvizError, quoted
from specviz.records.runs import Candidates, DraftedToken, NextToken, Outcome, PairInfo, Prompt, Round, Run, Seconds
from specviz.records.settings import SamplingParams

SCHEMA = "specviz.rounds/1"

#: How many of a row's likeliest tokens are kept, as of our own runs.
TOP = 5

Texts = Mapping[Any, str] | Callable[[list[int]], str] | None
#: By round: of each draft token a probability; or of each row, one more than draft tokens, that of every token.
Probabilities = Sequence[Sequence[float] | Sequence[Sequence[float]] | None] | None


def show(
    tokens: Sequence[Sequence[int]],
    kept: Sequence[int],
    following: Sequence[int],
    *,
    p: Probabilities = None,
    q: Probabilities = None,
    u: Sequence[Sequence[float | None] | None] | None = None,
    following_u: Sequence[float | None] | None = None,
    seconds: Sequence[Sequence[float] | None] | None = None,
    texts: Texts = None,
    prompt: str = "",
    greedy: bool = False,
    engine: str = "another engine",
    drafter: str = "draft_model",
    schema: str = SCHEMA,
) -> Run:
    """A run of rounds that some engine made: it shows itself in a notebook, and `save` writes a trace or a page.

    tokens: by round, the ids of a drafted chain, empty for a plain step. kept: how many of them the target kept.
    following: the id that the target supplied after them. p, q: of target and drafter, as sampled from; see
    `Probabilities`. u: the coins that judged the draft tokens. following_u: the draws of the last ones. seconds: of
    drafting, verifying and the rest. texts: by id, or a tokenizer's ``decode``. greedy: at temperature 0 tokens are
    compared, and neither p nor q nor u is needed. Raises SpecvizError (field ``trace``) that names the place.
    """
    if schema != SCHEMA:
        raise SpecvizError(
            "This is not a specviz trace: its schema is {found}, and {expected} is expected.",
            "trace",
            found=quoted(schema),
            expected=quoted(SCHEMA),
        )
    columns = {"kept": kept, "following": following, "p": p, "q": q, "u": u, "following_u": following_u}
    columns = {name: _column(name, values, len(tokens)) for name, values in (columns | {"seconds": seconds}).items()}
    rounds, vocabulary = [], {}

    def text_of(id: int) -> str:
        if id not in vocabulary:
            vocabulary[id] = _text(texts, id)
        return vocabulary[id]

    for index, drafted in enumerate(tokens):
        given = {name: values[index] for name, values in columns.items()}
        rounds.append(_round(index, [_id(index, one) for one in drafted], given, greedy, text_of))
    for id in {id for one in rounds for row in one.top for id, _ in (*row.p, *row.q, *row.residual)}:
        text_of(id)
    emitted = [id for one in rounds for id in one.emitted]
    return Run(
        pair=PairInfo(engine, "", 0, None, None, "", ""),
        drafter=drafter,
        settings={},
        num_draft_tokens=max(map(len, tokens), default=0),
        sampling=SamplingParams(temperature=0.0 if greedy else 1.0),
        seed=-1,  # that no page can hold: nobody can make this run again
        max_new_tokens=len(emitted),
        prompt=Prompt(prompt, ()),
        rounds=tuple(rounds),
        stop_reason="length",
        text="".join(piece for one in rounds for piece in one.pieces),
        token_ids=tuple(emitted),
        vocabulary=vocabulary,
        engine=engine,
    )


def _round(index: int, ids: list[int], given: Mapping[str, Any], greedy: bool, text_of: Callable[[int], str]) -> Round:
    kept, following = given["kept"], _id(index, given["following"])
    if type(kept) is not int or not 0 <= kept <= len(ids):
        raise _wrong(index, "kept", f"a whole number from 0 to {len(ids)}", kept)
    (p, p_rows), (q, q_rows) = (_probabilities(index, name, given[name], ids) for name in ("p", "q"))
    coins = _values(index, "u", given["u"], len(ids))
    if greedy:
        p, q = [1.0 if place < kept else 0.0 if place == kept else None for place in range(len(ids))], [1.0] * len(ids)
    outcomes: list[Outcome] = [
        "accepted" if place < kept else "rejected" if place == kept else "discarded" for place in range(len(ids))
    ]
    judged = [None if outcome == "discarded" else _threshold(*pair) for outcome, pair in zip(outcomes, zip(p, q))]
    drafted = [
        DraftedToken(id, text_of(id), place - 1, p[place], q[place], None, None, coins[place], judged[place], outcome)
        for place, (id, outcome) in enumerate(zip(ids, outcomes))
    ]
    row = p_rows[kept] if p_rows else None
    left = _residual(row, q_rows[kept]) if row and kept < len(ids) and q_rows else None
    law = left if kept < len(ids) else row
    decided = (*ids[:kept], following)
    return Round(
        index=index,
        drafted=tuple(drafted),
        next=NextToken(
            following,
            text_of(following),
            "bonus" if kept == len(ids) else "recovered",
            u=_values(index, "following_u", None if given["following_u"] is None else [given["following_u"]], 1)[0],
            prob=1.0 if greedy else law[following] if law else None,
        ),
        emitted=decided,
        pieces=tuple(map(text_of, decided)),
        top=tuple(
            _listed(place, p_rows, q_rows, ids, left if place == kept else None) for place in range(len(ids) + 1)
        ),
        seconds=_seconds(index, given["seconds"]),
    )


def _threshold(p: float | None, q: float | None) -> float | None:
    """min(1, p/q), below which a coin must fall."""
    return None if p is None or not q else min(1.0, p / q)


def _residual(p: Sequence[float], q: Sequence[float]) -> list[float] | None:
    left = [max(0.0, one - other) for one, other in zip(p, q)]
    total = sum(left)
    return [one / total for one in left] if total else None


def _listed(
    place: int, p: list | None, q: list | None, ids: Sequence[int], residual: Sequence[float] | None
) -> Candidates:
    """The likeliest of target and drafter after a row, and the token that it judged."""
    if not p:
        return Candidates(p=())
    rows = [p[place], *([q[place]] if q and place < len(ids) else [])]
    listed = {id for row in rows for id in _leading(row)} | set(ids[place : place + 1])
    p_pairs, q_pairs = (*(_pairs(row, listed) for row in rows), ())[:2]
    return Candidates(p_pairs, q_pairs, _pairs(residual, _leading(residual)) if residual else ())


def _leading(row: Sequence[float]) -> list[int]:
    return heapq.nlargest(TOP, range(len(row)), row.__getitem__)


def _pairs(row: Sequence[float], ids: Iterable[int]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(((id, row[id]) for id in ids if row[id] > 0), key=lambda one: -one[1]))


# --- what is given, checked -------------------------------------------------------------------------------------------


def _wrong(index: int, name: str, expected: str, value: object) -> SpecvizError:
    return SpecvizError(
        "Round {round}: {name} must be {expected}, not {value}.",
        "trace",
        round=index + 1,
        name=name,
        expected=expected,
        value=quoted(value),
    )


def _plain(values: Any) -> Any:
    """Arrays of any library as lists."""
    return values.tolist() if hasattr(values, "tolist") else values


def _column(name: str, values: Any, rounds: int) -> Sequence[Any]:
    values = _plain(values)
    if values is None:
        return [None] * rounds
    if len(values) != rounds:
        raise SpecvizError(
            "{name} has {found} rounds, and tokens has {expected}.",
            "trace",
            name=name,
            found=len(values),
            expected=rounds,
        )
    return values


def _id(index: int, value: Any) -> int:
    value = _plain(value)
    if type(value) is not int or value < 0:
        raise _wrong(index, "a token", "a whole number from 0 up", value)
    return value


def _values(index: int, name: str, values: Any, count: int) -> list[float | None]:
    """Numbers from 0 to 1, or nothing where they are not known."""
    values = [None] * count if values is None else list(_plain(values))
    if len(values) != count:
        raise _wrong(index, name, f"{count} values", values)
    for value in values:
        if value is not None and not (isinstance(value, (int, float)) and 0 <= value <= 1):
            raise _wrong(index, name, "numbers from 0 to 1", value)
    return values


def _probabilities(index: int, name: str, given: Any, ids: Sequence[int]) -> tuple[list[float | None], list | None]:
    """Of each draft token, and the whole rows where they are given."""
    rows = _plain(given) if given is not None else None
    rows = None if rows is None else [_plain(row) for row in rows]
    if not rows or not isinstance(rows[0], (list, tuple)):
        return _values(index, name, rows, len(ids)), None
    least = len(ids) + (name == "p")
    if len(rows) < least:
        raise _wrong(index, name, f"{least} rows", f"{len(rows)} rows")
    for row in rows:
        _values(index, name, row, len(row))
        if not abs(sum(row) - 1) < 0.01 or max(ids, default=0) >= len(row):
            raise _wrong(index, name, "rows over the whole vocabulary that sum to 1", sum(row))
    return [row[id] for row, id in zip(rows, ids)], rows


def _seconds(index: int, given: Any) -> Seconds | None:
    if given is None:
        return None
    times = list(_plain(given))
    if len(times) != 3 or not all(isinstance(one, (int, float)) and 0 <= one < 1e6 for one in times) or not sum(times):
        raise _wrong(index, "seconds", "three times: drafting, verifying, the rest", times)
    return Seconds(*times, total=sum(times), models=times[0] + times[1])


def _text(texts: Texts, id: int) -> str:
    if callable(texts):
        return texts([id])
    return f"#{id} " if texts is None else str(texts.get(id, texts.get(str(id), f"#{id} ")))
