"""Figures in plain text: in a line of a log by their names, or in a table that a program printed.

A figure is read as a whole or not at all. One that a terminal wrapped, or that is written with separators of
thousands, keeps what stands there, and whoever reads it as a number refuses it.
"""

import re
from collections.abc import Iterator

from specviz.foreign.formats import CONCURRENCY, LINES, TABLES, THROUGHPUT, ServerFormat
from specviz.records.errors import SpecvizError, quoted

#: Digits and whatever may separate them, up to a word, a bracket or the like.
_AFTER = r"(?::| =)[ (]*(\d[^A-Za-z%#()/|;\"]{0,20000}%?)"
_BEFORE = "(\\d{1,20}(?:[.,'’_ \u00a0\u202f]\\d{1,20}){0,4}) "

#: How a whole number, a share or a list of shares ends where nothing of it is missing.
_NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:, \d\.\d+)*%?|\d+(?: +\d+)+")

_LABELS = sorted(
    {name for kind in TABLES for names in (kind.passes, kind.accepted, kind.drafted, kind.length) for name in names}
    | {name for kind in TABLES for names in (kind.rate, kind.running, kind.speed) for name in names},
    key=len,
    reverse=True,
)
_PLACES = [name for kind in TABLES for name in kind.shares]
_ROW = re.compile(
    rf"(?:(?<![^\s|])(?P<name>{'|'.join(map(re.escape, _LABELS))})|(?<![^\s|])(?P<places>{'|'.join(_PLACES)}) "
    r"(?P<place>\d{1,4}))\s{0,3}:[ \t|]*(?P<value>[^\s|]+(?:[ \u00a0\u202f]\d[^\s|]*)*)|(?P<end>^[=]{10,})",
    re.MULTILINE,
)


def logged(kind: ServerFormat, line: str, before: str = "") -> dict[str, str]:
    """The figures of a line of a log, as they are written, by the names of its format.

    line: from where it says something; before: what stands in front of it and in the line before. Raises SpecvizError
    for a figure that is cut off.
    """
    names = (*kind.passes, *kind.accepted, *kind.drafted, *kind.shares, *kind.length)
    decimals = dict.fromkeys(kind.shares, 1) | dict.fromkeys(kind.length, 2)
    block = {name: value for name in names if (value := _figure(name, line, decimals.get(name, 0)))}
    if block:
        block |= {name: value for name in kind.rate if (value := _figure(name, line))}
        block |= {name: value for name in kind.running if (value := _figure(name, before))}
    return block


def extent(line: str) -> int:
    """How many characters of the line are figures that can be read: fewer where it was wrapped."""
    values = 0
    for kind in (kind for kind in LINES if re.match(kind.begins, line)):
        try:
            values += sum(len(value) for value in logged(kind, line).values() if _NUMBERS.fullmatch(value))
        except SpecvizError:
            return 0
    return values


def _figure(name: str, line: str, decimals: int = 0) -> str | None:
    """The figure of that name, as ``name: 3``, ``name = 3``, ``name = (0.8, 0.6)`` or ``3 name``; of the counts
    ``name(b,g,a)`` the last. decimals: how many it has at least. Raises SpecvizError for a part of one."""
    if name not in line:
        return None
    label = re.escape(name)
    match = re.search(rf"{label}{_AFTER}|{_BEFORE}{label}(?!\w)", line)
    if match is None:
        return None
    value = (match[1] or match[2]).strip(" ,.\t\r")
    found = {len(part.partition(".")[2]) for part in value.split(",")}
    end = line.rstrip()[-1:] if match.end() == len(line) else ""
    # A whole number has a unit or a comma after it; the shares of a list have equally many decimals.
    if (
        len(found) > 1
        or min(found) < decimals
        or (max(found) == 0 and end in (*"0123456789.",))
        or (decimals and end == ",")
    ):
        raise SpecvizError(
            "A figure of the log is cut off, wrapped or not as the server writes it: {line}. Give the log itself, not "
            "a terminal's copy of it.",
            line=quoted(line[: match.end()]),
        )
    places = name.endswith("(b,g,a)") and value.split()
    return places[-1] if places and len(places) == 3 else value


def printed(text: str) -> Iterator[tuple[ServerFormat | None, dict[str, str]]]:
    """The tables of a text: of each its format and its figures by their names; of a benchmark without drafts None, and
    the names of its JSON. Raises SpecvizError where the text ends within one."""
    if not any(name in text for name in _LABELS):
        return
    table: dict[str, str] = {}
    for row in _ROW.finditer(text):
        name = row["name"] or f"{row['places']} {row['place']}"
        if row["end"] or name in table:
            yield from _told(table)
            table = {}
        if row["end"] or not row["value"][0].isdigit():
            continue
        table[name] = row["value"]
        if row.end() == len(text) and len(row["value"].partition(".")[2]) < 2:
            raise _within(row[0])
    yield from _told(table)


def _within(line: str) -> SpecvizError:
    return SpecvizError("A table is cut off: {line}. Copy all of it.", line=quoted(line))


def _told(table: dict[str, str]) -> Iterator[tuple[ServerFormat | None, dict[str, str]]]:
    for kind in TABLES:
        if len(table) > 1 and table.keys() & {*kind.passes, *(() if kind.passes else kind.length)}:
            needed = (kind.passes, kind.accepted, kind.drafted, kind.length)
            if not all(table.keys() & set(names) for names in needed if names):
                raise _within(", ".join(table))
            shares = [table.get(f"{name} {place}") for name in kind.shares for place in range(len(table))]
            known = shares[: shares.index(None)] if None in shares else shares
            yield kind, table | {name: ", ".join(filter(None, known)) for name in kind.shares if known}
            return
    speed, running = (
        next((table[name] for kind in TABLES for name in getattr(kind, field) if name in table), None)
        for field in ("speed", "running")
    )
    if speed and running:
        yield None, {THROUGHPUT[0]: speed, CONCURRENCY[0]: running}
