"""What a refusal is: a sentence about a field."""

import contextlib
from collections.abc import Iterator

import pytest

from specviz.records.errors import SpecvizError


@contextlib.contextmanager
def refused(field: str | None, match: str | None = None) -> Iterator[pytest.ExceptionInfo[SpecvizError]]:
    """Within it a SpecvizError must be raised, about this field; match: a pattern that its sentence contains."""
    with pytest.raises(SpecvizError, match=match) as caught:
        yield caught
    assert caught.value.field == field
