"""The fields of one request as its server wrote them: counts, shares and ratios, refused where they cannot be such."""

import re
from collections.abc import Sequence
from typing import Any

from specviz.foreign.formats import ServerFormat
from specviz.foreign.text import MOST_DEPTH, finite
from specviz.records.errors import SpecvizError, quoted

#: The largest count that is believed.
MOST_COUNT = 10**12

#: A count as JSON writers, logs and scrapes put it: 43, "43", 43.0, 4.3e+06. Three decimals may be thousands.
_WHOLE = re.compile(r"\s*\d{1,16}(?:\.(?!\d{3}\s*$)\d*)?(?:[eE]\+?\d{1,2})?\s*", re.ASCII)

#: A share in a list of a log.
_SHARE = re.compile(r"[01](?:\.\d*)?|\d{1,3}\.\d{2}", re.ASCII)


def positive(value: Any) -> float | None:
    number = finite(value)
    return number if number and number > 0 else None


def value_of(block: dict[str, Any], names: Sequence[str]) -> Any:
    """The first value that a field has under any of its names; None if it has none."""
    return next((block[name] for name in names if block.get(name) is not None), None)


class Fields:
    """The fields of one request, by the names of `ServerFormat`."""

    def __init__(self, number: int, kind: ServerFormat, block: dict[str, Any]):
        self.number, self.kind = number, kind
        self.block = block if kind.convert is None else kind.convert(block)

    def name(self, field: str) -> str | None:
        """The server's name for a field; None where it has no value."""
        return next((name for name in getattr(self.kind, field) if self.block.get(name) is not None), None)

    def value(self, field: str) -> Any:
        return value_of(self.block, getattr(self.kind, field))

    def complaint(self, template: str, name: str | None, value: Any = None, **values: object) -> SpecvizError:
        return SpecvizError(template, "metrics", number=self.number, name=name, value=quoted(value), **values)

    def whole(self, name: str | None, value: Any, most: int = MOST_COUNT) -> int:
        number = float(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
            raise self.complaint(
                "Request {number}: {name} must be a whole number from 0 to {most}, not {value}.", name, value, most=most
            )
        return number

    def count(self, field: str, most: int = MOST_COUNT) -> int | None:
        value = self.value(field)
        return None if value is None else self.whole(self.name(field), value, most)

    def counts(self, field: str, most: int) -> list[int] | None:
        name, values = self.name(field), self.value(field)
        if values is None:
            return None
        if isinstance(values, dict):
            places = {self.whole(f"{name}: a key", key, MOST_DEPTH): value for key, value in values.items()}
            values = [places.get(place, 0) for place in range(max(places, default=-1) + 1)]
        if not isinstance(values, list):
            raise self.complaint("Request {number}: {name} must be a list of counts, not {value}.", name, values)
        return [
            value if type(value) is int and 0 <= value <= most else self.whole(f"{name}[{place}]", value, most)
            for place, value in enumerate(values)
        ]

    def shares(self) -> list[float] | None:
        values = self.value("shares")
        if values is None:
            return None
        parts = values.split(",") if isinstance(values, str) else values if isinstance(values, list) else [None]
        unit = 100 if self.kind.percent else 1
        written = [part for part in parts if not isinstance(part, str) or _SHARE.fullmatch(part.strip())]
        shares = [number / unit for part in written if (number := finite(part)) is not None and 0 <= number <= unit]
        if len(parts) > MOST_DEPTH or len(shares) < len(parts):
            raise self.complaint(
                "Request {number}: {name} must be a list of shares from 0 to 1, not {value}.",
                self.name("shares"),
                values,
            )
        return shares

    def ratio(self, field: str) -> float | None:
        value = self.value(field)
        number = finite(value)
        if value is not None and (number is None or number < 1):
            raise self.complaint(
                "Request {number}: {name} must be a number from 1 up, not {value}.", self.name(field), value
            )
        return number

    def close(self, field: str, counted: float, source: str, rounding: float = 0.0) -> None:
        """Raises for a figure, if there is one, that the counts do not come to as far as it is written out."""
        name, written = self.name(field), str(self.value(field))
        unit = 0.01 if written.endswith("%") or str(name).endswith("(%)") else 1.0
        number = finite(written.rstrip("%"))
        half = 0.51 * unit * 10.0 ** -len(written.rstrip("%").partition(".")[2])
        if number is not None and abs(unit * number - counted) > half + rounding:
            raise self._contradiction(field, written, source, f"{counted:.4g}")

    def agree(self, field: str, counted: int | None, source: str) -> int | None:
        """A total as it is reported, or else as `source` comes to; both must agree."""
        reported = self.count(field)
        if None not in (reported, counted) and reported != counted:
            raise self._contradiction(field, reported, source, counted)
        return counted if reported is None else reported

    def _contradiction(self, field: str, given: object, source: str, counted: object) -> SpecvizError:
        values = {"given": given, "source": self.name(source), "counted": counted}
        return self.complaint(
            "Request {number}: {name} says {given}, but {source} comes to {counted}.", self.name(field), **values
        )

    def at_most(self, field: str, value: int | None, most: int | None, limit: str) -> None:
        """Raises for a figure above what another field allows."""
        if value is not None and most is not None and value > most:
            raise self.complaint(
                "Request {number}: {name} comes to {value}, but {limit} allows at most {most}.",
                self.name(field),
                value,
                limit=self.name(limit),
                most=most,
            )
