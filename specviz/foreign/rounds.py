"""Rounds of any engine, of a log or a student's own loop, as a `Run`: missing values are shown as not known.

The arguments of `show` are the fields of an open JSON file, schema ``specviz.rounds/1`` (docs/python.md).
"""

from __future__ import annotations

import heapq
import inspect
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from specviz.records.errors import SpecvizError, quoted
from specviz.records.files import check_schema, read_json
from specviz.records.metrics import draft_depths
from specviz.records.runs import (
    SHORTEST,
    Candidates,
    DraftedToken,
    NextToken,
    Outcome,
    PairInfo,
    Prompt,
    Round,
    Run,
    Seconds,
)
from specviz.records.settings import MAX_SEED, SamplingParams
from specviz.records.trees import children_of, outcomes_of

SCHEMA = "specviz.rounds/1"

#: How many of a row's likeliest tokens are recorded, as in our own runs.
TOP = 5

Texts = Mapping[Any, str] | Callable[[list[int]], str] | None
#: By round: of each draft token a probability; or that of every token, in a row of p before the first draft token and
#: after each, in a row of q for each draft token, from which it was drawn.
Probabilities = Sequence[Sequence[float] | Sequence[Sequence[float]] | None] | None
#: Rows over the whole vocabulary.
Rows = list[list[float]]


def show(
    tokens: Sequence[Sequence[int | None]],
    kept: Sequence[int | Sequence[int]],
    following: Sequence[int | None],
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

    tokens: by round, the ids of a drafted chain, empty for a plain step; None in place of an id that is not known.
    kept: how many the target accepted; in a tree their places among the tokens, along the path. following: the id that
    the target supplied after them. parents: in a tree the place of the token that each one continues, −1 for the text;
    parents stand before their children, siblings in the order in which they were tried. p, q: of target and drafter, as
    sampled from; see `Probabilities`. u: the coins that judged the draft tokens. following_u: the draws of the last
    ones. seconds: of drafting, verifying and the rest. texts: by id, or a tokenizer's ``decode``. greedy: at
    temperature 0 tokens are compared, and neither p nor q nor u is needed. Raises SpecvizError (field ``trace``) that
    names the place.
    """
    check_schema(schema, SCHEMA)
    scalars = {"prompt": prompt, "engine": engine, "drafter": drafter, "greedy": _plain(greedy)}
    for name, kind, expected in _SCALARS:
        if not isinstance(scalars[name], kind):
            about = {"name": name, "expected": expected, "value": quoted(scalars[name])}
            raise SpecvizError("{name} must be {expected}, not {value}.", "trace", **about)
    prompt, engine, drafter = map(_whole_characters, (prompt, engine, drafter))
    tokens = _column("tokens", tokens)
    arguments: dict[str, Any] = {"tokens": tokens, "kept": kept, "following": following, "parents": parents}
    arguments |= {"p": p, "q": q, "u": u, "following_u": following_u, "seconds": seconds}
    columns = {name: _column(name, values, len(tokens)) for name, values in arguments.items()}
    vocabulary: dict[int, str] = {}

    def text_of(id: int | None) -> str:
        if id is None:
            return ""
        if id not in vocabulary:
            vocabulary[id] = _text(texts, id)
        return vocabulary[id]

    rounds = [
        round_of(index, {name: values[index] for name, values in columns.items()}, greedy, text_of)
        for index in range(len(tokens))
    ]
    for id in {id for round_ in rounds for row in round_.top for id, _ in (*row.p, *row.q, *row.residual)}:
        text_of(id)
    emitted = [id for round_ in rounds for id in round_.known_ids]
    return Run(
        pair=PairInfo(engine, "", 0, None, None, "", ""),
        drafter=drafter,
        settings={},
        num_draft_tokens=1 + max((depth for round_ in rounds for depth in draft_depths(round_)), default=-1),
        sampling=SamplingParams(temperature=0.0 if greedy else 1.0),
        seed=-1,  # that no page can hold: nobody can make this run again
        max_new_tokens=len(emitted),
        prompt=Prompt(prompt, ()),
        rounds=tuple(rounds),
        stop_reason="length",
        text="".join(piece for round_ in rounds for piece in round_.pieces),
        token_ids=tuple(emitted),
        vocabulary=vocabulary,
        engine=engine,
    )


#: Arguments that are not by round: their names, and what they are in a file.
_SCALARS = [*((name, str, "text") for name in ("prompt", "engine", "drafter")), ("greedy", bool, "true or false")]


def opened(path: str | pathlib.Path) -> Run:
    """The run in a file: a trace of ours, or rounds of another engine. Raises SpecvizError (field ``trace``)."""
    data, parameters = read_json(path), inspect.signature(show).parameters
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    by_schema = isinstance(data, dict) and str(data.get("schema")).startswith(SCHEMA[:-1])
    if not (by_schema or (isinstance(data, dict) and set(needed) <= data.keys())):
        return Run.from_dict(data)
    for name in [*(name for name in needed if name not in data), *(name for name in data if name not in parameters)]:
        raise SpecvizError(
            "Rounds of another engine have {names} and optionally {others}; {name} is missing or unknown.",
            "trace",
            names=", ".join(needed),
            others=", ".join(name for name in parameters if name not in needed),
            name=quoted(name),
        )
    return show(**data)


def round_of(index: int, fields: Mapping[str, Any], greedy: bool, text_of: Callable[[int | None], str]) -> Round:
    """A round from its fields, by the names of the arguments of `show`."""
    ids, following = (_checked(index, name, fields[name]) for name in ("tokens", "following"))
    parents = _parents(index, fields["parents"], len(ids))
    path = _path(index, fields["kept"], parents)
    p, p_rows = _probabilities(index, "p", fields["p"], ids, [parent + 1 for parent in parents])
    q, q_rows = _probabilities(index, "q", fields["q"], ids, range(len(ids)))
    if p_rows and following is not None and following >= len(p_rows[0]):
        raise _wrong(index, "following", f"below {len(p_rows[0])}, the length of the rows of p", following)
    coins, following_u = _checked(index, "u", fields["u"], len(ids)), fields["following_u"]
    (drawn_by,) = _checked(index, "following_u", None if following_u is None else [following_u], 1)
    outcomes, children = outcomes_of(parents, [place in path for place in range(len(ids))]), children_of(parents)
    if greedy:
        p, q = [_CERTAIN[outcome] for outcome in outcomes], [1.0] * len(ids)
    drafted = []
    for place, (id, parent, outcome) in enumerate(zip(ids, parents, outcomes)):
        # For a sibling tried after others the engine's rule says what is left of p.
        judged_by_p = outcome != "discarded" and (greedy or children[parent + 1][0] == place)
        p_of, q_of = p[place], q[place]
        bound = min(1.0, p_of / q_of) if judged_by_p and p_of is not None and q_of else None
        drafted.append(DraftedToken(id, text_of(id), parent, p_of, q_of, None, None, coins[place], bound, outcome))
    last = path[-1] if path else -1
    rejected = [place for place in children[last + 1] if outcomes[place] == "rejected"]
    row = p_rows[last + 1] if p_rows else None
    residual = _residual(row, q_rows[rejected[0]]) if row and q_rows and len(rejected) == 1 else None
    drawn_from = residual if rejected else row
    emitted = (*(ids[place] for place in path), following)
    return Round(
        index=index,
        drafted=tuple(drafted),
        next=NextToken(
            following,
            text_of(following),
            "recovered" if rejected else "bonus",
            u=drawn_by,
            prob=1.0 if greedy else drawn_from[following] if drawn_from else None,
        ),
        emitted=emitted,
        pieces=tuple(map(text_of, emitted)),
        top=tuple(
            _candidates(place, p_rows, q_rows, ids, after, residual if place == last else None)
            for place, after in enumerate(children, start=-1)
        ),
        seconds=_seconds(index, fields["seconds"]),
    )


#: p at temperature 0, by what became of a token.
_CERTAIN: dict[Outcome, float | None] = {"accepted": 1.0, "rejected": 0.0, "discarded": None}


def _residual(p: Sequence[float], q: Sequence[float]) -> list[float] | None:
    excess = [max(0.0, p_of - q_of) for p_of, q_of in zip_longest(p, q, fillvalue=0.0)]
    total = sum(excess)
    return [part / total for part in excess] if total else None


def _candidates(
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
    return tuple(sorted(((id, row[id]) for id in ids if id < len(row) and row[id] > 0), key=lambda pair: -pair[1]))


# --- the arguments, checked -------------------------------------------------------------------------------------------

_Probability = Annotated[float, Field(strict=True, ge=0, le=1)]
_Time = Annotated[float, Field(strict=True, ge=0, lt=1e6)]
_Place = Annotated[int, Field(strict=True)]
_Id = Annotated[int, Field(strict=True, ge=0, le=MAX_SEED)]

#: By argument: what it may be in a round, and that in words.
_TYPES: dict[str, tuple[Any, str]] = {
    "tokens": (list[_Id | None], "a list of whole numbers from 0 up"),
    "following": (_Id | None, "a whole number from 0 up"),
    "parents": (list[_Place], "a list of places"),
    "kept": (list[_Place], "a list of places"),
    "seconds": (tuple[_Time, _Time, _Time], "three times: drafting, verifying, the rest"),
    **dict.fromkeys(("p", "q", "u", "following_u"), (list[_Probability | None], "a list of numbers from 0 to 1")),
}
_CHECKS = {name: TypeAdapter(kind) for name, (kind, _) in _TYPES.items()}


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
    """Arrays of any library as lists, and within lists."""
    if hasattr(values, "tolist"):
        return values.tolist()
    return [_plain(value) for value in values] if isinstance(values, (list, tuple)) else values


def _column(name: str, values: Any, rounds: int | None = None) -> Sequence[Any]:
    """An argument by round. rounds: how many there are; without, the argument says it."""
    if values is None and rounds is not None:
        return [None] * rounds
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, (list, tuple)):
        raise SpecvizError(
            "{name} must be a list with one entry per round, not {value}.", "trace", name=name, value=quoted(values)
        )
    if rounds is not None and len(values) != rounds:
        raise SpecvizError(
            "{name} has {found} rounds, but tokens has {expected}.",
            "trace",
            name=name,
            found=len(values),
            expected=rounds,
        )
    return values


def _checked(index: int, name: str, value: Any, count: int | None = None) -> Any:
    """An argument's value in a round. count: how many values it must have; without any, they are not known."""
    if value is None and count is not None:
        return [None] * count
    try:
        values = _CHECKS[name].validate_python(_plain(value))
    except ValidationError as error:
        raise _wrong(index, name, _TYPES[name][1], error.errors()[0]["input"]) from error
    if count is not None and len(values) != count:
        raise _wrong(index, name, f"{count} values", values)
    return values


def _parents(index: int, parents: Any, count: int) -> list[int]:
    if parents is None:
        return list(range(-1, count - 1))
    parents = _checked(index, "parents", parents, count)
    for place, parent in enumerate(parents):
        if not -1 <= parent < place:
            raise _wrong(index, "parents", f"before each token: from -1 to {place - 1} at place {place}", parent)
    return parents


def _path(index: int, kept: Any, parents: list[int]) -> list[int]:
    """The places of the accepted tokens along their path. Of a chain their number says as much."""
    kept, chain = _plain(kept), parents == list(range(-1, len(parents) - 1))
    if chain and not isinstance(kept, list):
        if type(kept) is int and 0 <= kept <= len(parents):
            return list(range(kept))
        raise _wrong(index, "kept", f"a whole number from 0 to {len(parents)}", kept)
    path, last = _checked(index, "kept", kept), -1
    for place in path:
        if not 0 <= place < len(parents) or parents[place] != last:
            raise _wrong(index, "kept", "the places of a path, each continuing the one before", path)
        last = place
    return path


def _probabilities(
    index: int, name: str, values: Any, ids: Sequence[int], places: Sequence[int]
) -> tuple[list[float | None], Rows | None]:
    """Of each draft token, and the whole rows where they are known. places: of each token's row among them."""
    rows = _plain(values)
    if not rows or not isinstance(rows, list) or not isinstance(rows[0], list):
        return _checked(index, name, rows, len(ids)), None
    if None in ids:
        raise _wrong(index, "tokens", f"known ids where {name} has whole rows", None)
    least = len(ids) + (name == "p")
    if len(rows) < least:
        raise _wrong(index, name, f"{least} rows", f"{len(rows)} rows")
    for row in rows:
        total = sum(probability or 0.0 for probability in _checked(index, name, row))
        if None in row or not abs(total - 1) < 0.01 or not max(ids, default=0) < len(row) == len(rows[0]):
            raise _wrong(index, name, "rows over the whole vocabulary that sum to 1", total)
    return [rows[place][id] for place, id in zip(places, ids)], rows


def _seconds(index: int, times: Any) -> Seconds | None:
    if times is None:
        return None
    draft, verify, rest = _checked(index, "seconds", times)
    if draft + verify + rest < SHORTEST:
        raise _wrong(index, "seconds", _TYPES["seconds"][1], times)
    return Seconds(draft, verify, rest, total=draft + verify + rest, models=draft + verify)


def _text(texts: Texts, id: int) -> str:
    if callable(texts):
        text = texts([id])
        if not isinstance(text, str):
            raise SpecvizError(
                "texts must give a text for token {id}, not {value}.", "trace", id=id, value=quoted(text)
            )
        return _whole_characters(text)
    if texts is not None and not isinstance(texts, Mapping):
        raise SpecvizError("texts must be an object from ids to texts, not {value}.", "trace", value=quoted(texts))
    return f"#{id} " if texts is None else _whole_characters(str(texts.get(id, texts.get(str(id), f"#{id} "))))


def _whole_characters(text: str) -> str:
    """The text as a file can hold it: half of a surrogate pair, as of a token that ends within a character, is
    replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
