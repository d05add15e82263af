"""The one exception written for users: what is wrong, and what to do about it."""

from __future__ import annotations

from specviz.records.words import fill


class SpecvizError(ValueError):
    """Something the person at the keyboard can fix; its message is one or two plain sentences.

    template: the sentence in English, with a ``{name}`` for each of `values`, so that a page in another language can
        say the same (`Words.error`).
    field: the parameter that caused it (``"prompt"``, ``"temperature"``, ``"draft"``, ...), so that a page can show the
        sentence beside that control.
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

    def __reduce__(self) -> tuple:
        # ZeroGPU sends exceptions between processes, and they are pickled by their arguments.
        return _rebuilt, (self.template, self.field, self.values)


def _rebuilt(template: str, field: str | None, values: dict[str, object]) -> SpecvizError:
    return SpecvizError(template, field, **values)
