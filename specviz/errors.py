"""The one exception a user is meant to read: what is wrong, and what to do about it."""

from __future__ import annotations


class SpecvizError(ValueError):
    """Something the person at the keyboard can put right.

    The message is one or two plain sentences. `field` names the parameter that caused it (``"prompt"``,
    ``"temperature"``, ``"draft"``, ...), so that a page can show the sentence beside that control.
    """

    def __init__(self, message: str, field: str | None = None):
        super().__init__(message, field)
        self.message = message
        self.field = field

    def __str__(self) -> str:
        return self.message
