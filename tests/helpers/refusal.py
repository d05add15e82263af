"""What a refusal is: a sentence about a field."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specviz.records.errors import SpecvizError


@contextlib.contextmanager
def refused(field: str | None, match: str | None = None) -> Iterator[pytest.ExceptionInfo[SpecvizError]]:
    """Within it a SpecvizError must be raised, about this field; match: a pattern that its sentence contains."""
    with pytest.raises(SpecvizError, match=match) as caught:
        yield caught
    assert caught.value.field == field


def refusal(field: str, call: Callable, *args: Any, **settings: Any) -> str:
    """The sentence in which a call is refused, about this field."""
    with refused(field) as caught:
        call(*args, **settings)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message
    return message
