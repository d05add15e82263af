"""The exception for users: it says what is wrong and what to do about it."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable

from specviz.records.words import Translatable, fill

#: The longest quotation in an error's sentence.
MOST_QUOTED = 80


class _Short(reprlib.Repr):
    """`repr`, cut short while it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = MOST_QUOTED - 2
        self.maxlong = MOST_QUOTED

    def repr_int(self, value: int, level: int) -> str:
        # Python refuses to write more than some thousand digits.
        return f"a number of {value.bit_length()} bits" if value.bit_length() > 1000 else super().repr_int(value, level)


_SHORT = _Short()


def quoted(value: object) -> str:
    """A value as an error's sentence quotes it: at most 80 characters of its `repr`."""
    return shortened(_SHORT.repr(value))


def shortened(text: str) -> str:
    """At most 80 characters of a text."""
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 1]}…"


def first_line(error: BaseException) -> str:
    """A library's message, short enough to quote in a sentence."""
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]!r} is not known"[:200]
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    message = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return message.rstrip(".")[:200]


def require_made_by(maker: str, kind: type, name: str, value: object) -> None:
    """Raises SpecvizError (field `name`) for an argument of another kind than that which specviz's `maker` makes."""
    if not isinstance(value, kind):
        named = {"name": name, "kind": maker, "value": quoted(value)}
        raise SpecvizError("{name} must be specviz.{kind}(…), not {value}.", name, **named)


def require_text(name: str, value: object, field: str | None = None) -> None:
    """Raises SpecvizError (this field, or `name`) for an argument that is no text."""
    if not isinstance(value, str):
        raise SpecvizError("{name} must be a text, not {value}.", field or name, name=name, value=quoted(value))


class SpecvizError(ValueError, Translatable):
    """Something that the user can fix; its message is one or two plain sentences.

    template: the sentence in English, with a ``{name}`` for each of `values`, so that a page in another language can
        say the same (`Words.error`).
    field: the parameter that caused it (``"prompt"``, ``"temperature"``, ``"draft"``, ...), so that a page can show the
        sentence next to that control.
    """

    def __init__(self, template: str, field: str | None = None, **values: object):
        super().__init__(template, field)
        self.template = template
        self.field = field
        self.values = values

    @property
    def message(self) -> str:
        return fill(self.template, self.values)

    def at(self, field: str) -> SpecvizError:
        """The same sentence, about another parameter."""
        return SpecvizError(self.template, field, **self.values)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Callable[[], SpecvizError], tuple[()]]:
        # ZeroGPU sends exceptions between processes, and they are pickled by their arguments.
        return functools.partial(SpecvizError, self.template, self.field, **self.values), ()
