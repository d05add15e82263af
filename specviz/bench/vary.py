"""Settings of a run at several values: ``confidence=0,0.3; bits=4,8``. Loads no torch."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specviz.records.errors import SpecvizError, quoted
from specviz.records.settings import DRAFTING, SETTINGS

#: The settings that can be varied: those of how it is drafted, in which contestants differ, and those of what is
#: decoded, which all share. Prompts and drafters are chosen otherwise, and coins set by hand are one run's.
OF_CONTESTANTS = ("num_draft_tokens", "rule", *DRAFTING)
OF_TASKS = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "seed")

Values = Mapping[str, Sequence[Any]]


def read_vary(text: object, names: Sequence[str] = (*OF_CONTESTANTS, *OF_TASKS)) -> dict[str, list[Any]]:
    """The values of each setting that a text names, ``NAME=A,B; NAME=A,B``, in its order and each once.

    Raises SpecvizError (field ``vary``) for what is not a text, a name that is not one of `names`, or a value that it
    cannot have.
    """
    if not isinstance(text, str):
        raise SpecvizError("Enter a text such as confidence=0,0.3, not {value}.", "vary", value=quoted(text))
    settings: dict[str, list[Any]] = {}
    for part in filter(str.strip, text.split(";")):
        name, _, values = part.partition("=")
        name = name.strip().replace("-", "_")
        if name not in names:
            raise SpecvizError(
                "There is no setting {name} to vary; choose from {names}.",
                "vary",
                name=quoted(name),
                names=", ".join(names),
            )
        read = [_value(name, value.strip()) for value in values.split(",")]
        settings[name] = list(dict.fromkeys([*settings.get(name, ()), *read]))
    return settings


def _value(name: str, text: str) -> Any:
    row = SETTINGS[name]
    value: Any = text
    if row.kind is bool:
        value = {"true": True, "false": False}.get(text, text)
    elif text not in row.choices:
        with contextlib.suppress(ValueError):  # which the check refuses
            value = row.kind(text)
    try:
        row.check(name, value)
    except SpecvizError as error:
        raise error.at("vary") from error
    return value


def each_of(values: Values, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every combination of the values of those settings that are among `names`; an empty one if none is."""
    chosen = {name: values[name] for name in names if name in values}
    for combination in itertools.product(*chosen.values()):
        yield dict(zip(chosen, combination))
