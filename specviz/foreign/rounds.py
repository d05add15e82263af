"""Rounds of any engine, of a log or a student's own loop, as a `Run`: missing values are shown as not known.

The arguments of `show` are the fields of an open JSON file, schema ``specviz.rounds/1`` (docs/python.md).
"""

from __future__ import annotations

import heapq
import inspect
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from specviz.records.errors import SpecvizError, quoted
from specviz.records.metrics import draft_depths
from specviz.records.runs import (
    Candidates,
    DraftedToken,
    NextToken,
    Outcome,
    PairInfo,
    Prompt,
    Round,
    Run,
    Seconds,
    check_schema,
    read_json,
)
from specviz.records.settings import MAX_SEED, SamplingParams

SCHEMA = "specviz.rounds/1"

#: How many of a row's likeliest tokens are kept, as of our own runs.
TOP = 5

Texts = Mapping[Any, str] | Callable[[list[int]], str] | None
#: By round: of each draft token a probability; or that of every token, in a row of p before the first draft token and
#: after each, in a row of q for each draft token, from which it was drawn.
Probabilities = Sequence[Sequence[float] | Sequence[Sequence[float]] | None] | None
#: Rows over the whole vocabulary.
Rows = list[list[float]]


def show(
    tokens: Sequence[Sequence[int]],
    kept: Sequence[int | Sequence[int]],
    following: Sequence[int],
    *,
    parents: Sequence[Sequence[int] | None] | None = None,
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

    tokens: by round, the ids of a drafted chain, empty for a plain step. kept: how many the target accepted; in a
    tree their places among the tokens, along the path. following: the id that the target supplied after them. parents:
    in a tree the place of the token that each one continues, −1 for the text; parents stand before their children,
    siblings in the order in which they were tried. p, q: of target and drafter, as sampled from; see `Probabilities`.
    u: the coins that judged the draft tokens. following_u: the draws of the last ones. seconds: of drafting, verifying
    and the rest. texts: by id, or a tokenizer's ``decode``. greedy: at temperature 0 tokens are compared, and neither p
    nor q nor u is needed. Raises SpecvizError (field ``trace``) that names the place.
    """
    check_schema(schema, SCHEMA)
    tokens = _listed_values("tokens", tokens)
    arguments: dict[str, Any] = {"kept": kept, "following": following, "parents": parents, "p": p, "q": q, "u": u}
    arguments |= {"following_u": following_u, "seconds": seconds}
    columns = {name: _column(name, values, len(tokens)) for name, values in arguments.items()}
    rounds: list[Round] = []
    vocabulary: dict[int, str] = {}

    def text_of(id: int) -> str:
        if id not in vocabulary:
            vocabulary[id] = _text(texts, id)
        return vocabulary[id]

    for index, drafted in enumerate(tokens):
        given = {name: values[index] for name, values in columns.items()}
        ids = [_id(index, one) for one in _list(index, "tokens", drafted)]
        rounds.append(_round(index, ids, given, greedy, text_of))
    for id in {id for one in rounds for row in one.top for id, _ in (*row.p, *row.q, *row.residual)}:
        text_of(id)
    emitted = [id for one in rounds for id in one.emitted]
    return Run(
        pair=PairInfo(str(engine), "", 0, None, None, "", ""),
        drafter=str(drafter),
        settings={},
        num_draft_tokens=1 + max((depth for one in rounds for depth in draft_depths(one)), default=-1),
        sampling=SamplingParams(temperature=0.0 if greedy else 1.0),
        seed=-1,  # that no page can hold: nobody can make this run again
        max_new_tokens=len(emitted),
        prompt=Prompt(str(prompt), ()),
        rounds=tuple(rounds),
        stop_reason="length",
        text="".join(piece for one in rounds for piece in one.pieces),
        token_ids=tuple(emitted),
        vocabulary=vocabulary,
        engine=str(engine),
    )


def opened(path: str | pathlib.Path) -> Run:
    """The run in a file: a trace of ours, or rounds of another engine. Raises SpecvizError (field ``trace``)."""
    data, known = read_json(path), inspect.signature(show).parameters
    needed = [name for name, one in known.items() if one.default is one.empty]
    named = isinstance(data, dict) and str(data.get("schema")).startswith(SCHEMA[:-1])
    if not (named or (isinstance(data, dict) and set(needed) <= data.keys())):
        return Run.from_dict(data)
    for name in [*(name for name in needed if name not in data), *(name for name in data if name not in known)]:
        raise SpecvizError(
            "Rounds of another engine have {names} and optionally {others}; {name} is missing or unknown.",
            "trace",
            names=", ".join(needed),
            others=", ".join(name for name in known if name not in needed),
            name=quoted(name),
        )
    return show(**data)


def _round(index: int, ids: list[int], given: Mapping[str, Any], greedy: bool, text_of: Callable[[int], str]) -> Round:
    following, parents = _id(index, given["following"]), _parents(index, given["parents"], len(ids))
    kept = _kept(index, given["kept"], parents)
    p, p_rows = _probabilities(index, "p", given["p"], ids, [parent + 1 for parent in parents])
    q, q_rows = _probabilities(index, "q", given["q"], ids, range(len(ids)))
    if p_rows and following >= len(p_rows[0]):
        raise _wrong(index, "following", f"below {len(p_rows[0])}, the length of the rows of p", following)
    coins = _values(index, "u", given["u"], len(ids))
    outcomes, last = _outcomes(parents, kept), kept[-1] if kept else -1
    children: dict[int, list[int]] = {}
    for place, parent in enumerate(parents):
        children.setdefault(parent, []).append(place)
    if greedy:
        p, q = [_CERTAIN[outcome] for outcome in outcomes], [1.0] * len(ids)
    # For a sibling tried after others the engine's rule says what is left of p.
    alone = [
        outcomes[place] != "discarded" and (greedy or children[parents[place]][0] == place) for place in range(len(ids))
    ]
    bounds = [_threshold(*pair) if known else None for known, pair in zip(alone, zip(p, q))]
    drafted = [
        DraftedToken(
            id, text_of(id), parents[place], p[place], q[place], None, None, coins[place], bounds[place], outcome
        )
        for place, (id, outcome) in enumerate(zip(ids, outcomes))
    ]
    refused = [place for place in children.get(last, ()) if outcomes[place] == "rejected"]
    row = p_rows[last + 1] if p_rows else None
    left = _residual(row, q_rows[refused[0]]) if row and q_rows and len(refused) == 1 else None
    law = left if refused else row
    draws = None if given["following_u"] is None else [given["following_u"]]
    decided = (*(ids[place] for place in kept), following)
    return Round(
        index=index,
        drafted=tuple(drafted),
        next=NextToken(
            following,
            text_of(following),
            "recovered" if refused else "bonus",
            u=_values(index, "following_u", draws, 1)[0],
            prob=1.0 if greedy else law[following] if law else None,
        ),
        emitted=decided,
        pieces=tuple(map(text_of, decided)),
        top=tuple(
            _listed(place, p_rows, q_rows, ids, children.get(place, []), left if place == last else None)
            for place in range(-1, len(ids))
        ),
        seconds=_seconds(index, given["seconds"]),
    )


#: p at temperature 0, by what became of a token.
_CERTAIN: dict[Outcome, float | None] = {"accepted": 1.0, "rejected": 0.0, "discarded": None}


def _outcomes(parents: Sequence[int], kept: Sequence[int]) -> list[Outcome]:
    """Rejected means tried and refused: it continues what was kept, and none of its elder siblings was."""
    path, continued = {-1, *kept}, set()
    outcomes: list[Outcome] = []
    for place, parent in enumerate(parents):
        tried = parent in path and parent not in continued
        outcomes.append("accepted" if place in path else "rejected" if tried else "discarded")
        if place in path:
            continued.add(parent)
    return outcomes


def _threshold(p: float | None, q: float | None) -> float | None:
    """min(1, p/q), below which a coin must fall."""
    return None if p is None or not q else min(1.0, p / q)


def _residual(p: Sequence[float], q: Sequence[float]) -> list[float] | None:
    left = [max(0.0, one - other) for one, other in zip_longest(p, q, fillvalue=0.0)]
    total = sum(left)
    return [one / total for one in left] if total else None


def _listed(
    place: int, p: Rows | None, q: Rows | None, ids: Sequence[int], after: list[int], residual: Sequence[float] | None
) -> Candidates:
    """The likeliest of target and drafter after a place, −1 for the text, and the tokens that were drafted there."""
    if not p:
        return Candidates(p=())
    rows = [p[place + 1], *([q[after[0]]] if q and after else [])]
    listed = {id for row in rows for id in _leading(row)} | {ids[child] for child in after}
    p_pairs, q_pairs = (*(_pairs(row, listed) for row in rows), ())[:2]
    return Candidates(p_pairs, q_pairs, _pairs(residual, _leading(residual)) if residual else ())


def _leading(row: Sequence[float]) -> list[int]:
    return heapq.nlargest(TOP, range(len(row)), row.__getitem__)


def _pairs(row: Sequence[float], ids: Iterable[int]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(((id, row[id]) for id in ids if id < len(row) and row[id] > 0), key=lambda one: -one[1]))


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


def _listed_values(name: str, values: Any) -> Sequence[Any]:
    values = _plain(values)
    if not isinstance(values, (list, tuple)):
        raise SpecvizError(
            "{name} must be a list with one entry per round, not {value}.", "trace", name=name, value=quoted(values)
        )
    return values


def _list(index: int, name: str, values: Any) -> list[Any]:
    values = _plain(values)
    if not isinstance(values, (list, tuple)):
        raise _wrong(index, name, "a list", values)
    return [_plain(value) for value in values]


def _column(name: str, values: Any, rounds: int) -> Sequence[Any]:
    if values is None:
        return [None] * rounds
    values = _listed_values(name, values)
    if len(values) != rounds:
        raise SpecvizError(
            "{name} has {found} rounds, but tokens has {expected}.",
            "trace",
            name=name,
            found=len(values),
            expected=rounds,
        )
    return values


def _id(index: int, value: Any) -> int:
    value = _plain(value)
    if type(value) is not int or not 0 <= value <= MAX_SEED:
        raise _wrong(index, "a token", "a whole number from 0 up", value)
    return value


def _parents(index: int, given: Any, count: int) -> list[int]:
    if given is None:
        return list(range(-1, count - 1))
    parents = _list(index, "parents", given)
    if len(parents) != count:
        raise _wrong(index, "parents", f"{count} values", parents)
    for place, parent in enumerate(parents):
        if type(parent) is not int or not -1 <= parent < place:
            raise _wrong(index, "parents", f"before each token: from -1 to {place - 1} at place {place}", parent)
    return parents


def _kept(index: int, given: Any, parents: list[int]) -> list[int]:
    """The places of the kept tokens along their path. Of a chain their number says as much."""
    kept, chain = _plain(given), parents == list(range(-1, len(parents) - 1))
    if chain and type(kept) is int and 0 <= kept <= len(parents):
        return list(range(kept))
    if chain and not isinstance(kept, (list, tuple)):
        raise _wrong(index, "kept", f"a whole number from 0 to {len(parents)}", kept)
    path, last = _list(index, "kept", kept), -1
    for place in path:
        if type(place) is not int or not 0 <= place < len(parents) or parents[place] != last:
            raise _wrong(index, "kept", "the places of a path, each continuing the one before", path)
        last = place
    return path


def _values(index: int, name: str, values: Any, count: int) -> list[float | None]:
    """Numbers from 0 to 1, or nothing where they are not known."""
    values = [None] * count if values is None else _list(index, name, values)
    if len(values) != count:
        raise _wrong(index, name, f"{count} values", values)
    for value in values:
        if value is not None and not (isinstance(value, (int, float)) and 0 <= value <= 1):
            raise _wrong(index, name, "numbers from 0 to 1", value)
    return values


def _probabilities(
    index: int, name: str, given: Any, ids: Sequence[int], places: Sequence[int]
) -> tuple[list[float | None], Rows | None]:
    """Of each draft token, and the whole rows where they are given. places: of each token's row among them."""
    rows = None if given is None else _list(index, name, given)
    if not rows or not isinstance(rows[0], (list, tuple)):
        return _values(index, name, rows, len(ids)), None
    least = len(ids) + (name == "p")
    if len(rows) < least:
        raise _wrong(index, name, f"{least} rows", f"{len(rows)} rows")
    for row in rows:
        total = sum(one or 0.0 for one in _values(index, name, row, len(_list(index, name, row))))
        if None in row or not abs(total - 1) < 0.01 or not max(ids, default=0) < len(row) == len(rows[0]):
            raise _wrong(index, name, "rows over the whole vocabulary that sum to 1", total)
    return [rows[place][id] for place, id in zip(places, ids)], rows


def _seconds(index: int, given: Any) -> Seconds | None:
    if given is None:
        return None
    times = _list(index, "seconds", given)
    if len(times) != 3 or not all(isinstance(one, (int, float)) and 0 <= one < 1e6 for one in times) or not sum(times):
        raise _wrong(index, "seconds", "three times: drafting, verifying, the rest", times)
    draft, verify, rest = times
    return Seconds(draft, verify, rest, total=sum(times), models=draft + verify)


def _text(texts: Texts, id: int) -> str:
    if callable(texts):
        return texts([id])
    if texts is not None and not isinstance(texts, Mapping):
        raise SpecvizError("texts must be an object from ids to texts, not {value}.", "trace", value=quoted(texts))
    return f"#{id} " if texts is None else str(texts.get(id, texts.get(str(id), f"#{id} ")))
