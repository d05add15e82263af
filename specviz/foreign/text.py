"""Finds figures in pasted text: JSON anywhere in it, lines of a log, scrapes of /metrics.

The text is untrusted: parts that cannot be read are left out with a reason, and nothing is read more than a few times.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise, takewhile
from math import isfinite
from typing import Any

from specviz.foreign.figures import extent, logged, printed
from specviz.foreign.formats import LINES, SCRAPES, ServerFormat
from specviz.foreign.wrappings import joined, lines_within, plain
from specviz.records.errors import SpecvizError, quoted

#: How many draft positions are believed.
MOST_DEPTH = 1024

#: How many reasons for unreadable parts are kept; further ones are only counted.
MOST_REASONS = 12

#: Unreadable beginnings are tried until this many times the text has been read in vain. What a try costs at least, and
#: what one costs that nests too deep, in characters.
MOST_TRIES, LEAST_TRY, DEEP_TRY = 3, 64, 4000

#: From here on llama.cpp rounds totals, to six digits.
SIX_DIGITS = 1_000_000

#: The share by which a count may be off and still be given.
MOST_OFF = 0.05

#: How deep texts within JSON within texts are looked into.
MOST_NESTED = 4

#: How much of the text an object is looked for in at first, and how near the end of that it may end too early.
WINDOW, END = 4096, 16


@dataclass(frozen=True, slots=True)
class Reported:
    """The figures of a line of a log or of a scrape, by the names of its format."""

    name: str
    format: ServerFormat
    block: dict[str, Any]


#: What a stream of server-sent events puts around its JSON, comments too; within JSON no line begins like that.
_EVENTS = re.compile(r"^(?:data:|(?:event|id|retry)?:.*)", re.MULTILINE)

#: Where an object begins, a cut-off one too.
_OBJECT = re.compile(r'\{(?:\s*"|\s*\Z)')
_DECODER = json.JSONDecoder()
_INDENT = re.compile(r"[ \t\[,]*\Z")

#: As /metrics writes it, or as a cell of a table of Prometheus' queries.
_SAMPLE = re.compile(r"[ \t|>`]*(\w+):(\w+)(\{[^\n]*\})?[ \t|]+(.+?)(?:[ \t]+(?:-?\d{10,}|[@#].*))?[ \t|`]*$")
#: What a terminal puts on the next line, and groups of three digits, which no server writes.
_CONTINUED, _GROUPED = re.compile(r"\n[\d.]"), re.compile(r"\d{1,3}(?:\.\d{3})+")
_LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\.)*)"')
#: vllm/v1/metrics/loggers.py: the line before the one about speculation.
RUNNING = re.compile(r"Running: \d{1,9} reqs")

_TELLING = re.compile(
    "|".join(
        [
            *(f"(?:{line.begins})" for line in LINES),
            *(f"^[ \t|>`]*{server}:(?:spec_|{'|'.join(known.running)})" for server, known in SCRAPES.items()),
            RUNNING.pattern,
        ]
    ),
    re.MULTILINE,
)


def pieces(text: str, depth: int = 0) -> Iterator[dict[str, Any] | Reported | SpecvizError]:
    """The objects of a text in their order (those of an array one by one), then what its plain lines say, then what
    objects hold as strings; where something cannot be read, the reason."""
    text = plain(text)
    if (whole := joined(text)) != text and _extent(whole) > _extent(text):
        text = whole
    if re.search(r"^data:", text, re.MULTILINE):
        text = _EVENTS.sub("", text)
    lines, place, wasted, failed = _Lines(text), 0, 0, 0
    nested: list[str] = []
    while opening := _OBJECT.search(text, place):
        start = opening.start()
        lines.take(place, start)
        try:
            value, place = _object(text, start)
            held = list(lines_within(value)) if depth < MOST_NESTED else []
            nested += held
            if not held:
                yield value
        except (ValueError, RecursionError) as error:
            at, failed = start + getattr(error, "pos", 0), failed + 1
            if failed <= MOST_REASONS:
                reason = _unreadable(text, at)
            yield reason
            wasted += LEAST_TRY + at - start if at > start else DEEP_TRY
            place = _next_beginning(text, start)
            if wasted > MOST_TRIES * len(text):
                yield SpecvizError(
                    "Reading stopped after line {number}: too many JSON objects in the text are cut off.",
                    number=text.count("\n", 0, start) + 1,
                )
                break
    else:
        lines.take(place, len(text))
    yield from lines.reported()
    if nested:
        end = "\n" * nested[-1].endswith("\n")  # a last line without may be cut off
        yield from pieces("\n".join(line.removesuffix("\n") for line in nested) + end, depth + 1)


def _extent(text: str) -> int:
    """How many characters of the figures in plain lines can be read."""
    characters = 0
    for match in _TELLING.finditer(text):
        stop = text.find("\n", match.end())
        line = text[match.start() : None if stop < 0 else stop]
        sample = _SAMPLE.match(line)
        value = sample[4] if sample else ""
        characters += len(value) if finite(value) is not None else extent(line)
    return characters


def _object(text: str, start: int) -> tuple[dict[str, Any], int]:
    """The object at a place and where it ends. Looked for in ever longer parts, since an error counts the lines of what
    it was given: else many of them would take quadratic time."""
    length = WINDOW
    while True:
        part = text[start : start + length]
        try:
            value, end = _DECODER.raw_decode(part)
            return value, start + end
        except json.JSONDecodeError as error:
            early = error.pos >= len(part) - END or error.msg.startswith("Unterminated string")
            if not early or start + length >= len(text):
                raise
            length *= 4


def _unreadable(text: str, place: int) -> SpecvizError:
    start, end = text.rfind("\n", 0, place) + 1, text.find("\n", place)
    line, number = quoted(text[start : end if end >= 0 else None]), text.count("\n", 0, place) + 1
    return SpecvizError("Not valid JSON: cannot read line {number}: {line}", number=number, line=line)


def _next_beginning(text: str, start: int) -> int:
    """The line after an unreadable object on which another may begin: no deeper than it, and no end of it."""
    line = text.rfind("\n", 0, start) + 1
    indent = text[line:start]
    depth = len(indent) - len(indent.lstrip(" \t")) if _INDENT.match(indent) else 0
    match = re.compile(rf"\n[ \t]{{0,{depth}}}(?=[^\s}}\]])").search(text, start)
    return match.end() if match else len(text)


@dataclass(slots=True)
class _Lines:
    """What the plain lines of a text say, gathered: a counter only says something compared with its earlier values."""

    text: str
    #: What lines of a log and tables say, or why one cannot be read.
    logged: list[Reported | dict[str, Any] | SpecvizError] = field(default_factory=list)
    running: str = ""  # the latest line that counts requests at once, until the next about speculation
    #: By name, the latest of the lines that count from the start.
    last: dict[str, Reported] = field(default_factory=dict)
    #: The scrapes of each set of labels, in order, and the samples that the latest has.
    scrapes: dict[tuple[str, str], list[dict[tuple[str, str], float]]] = field(default_factory=dict)
    broken: set[tuple[str, str]] = field(default_factory=set)  # those with a figure that cannot be read

    def take(self, start: int, end: int) -> None:
        """Takes the lines between two places; of a line the part from where it says something."""
        self._tables(self.text[start:end])
        while match := _TELLING.search(self.text, start, end):
            stop = self.text.find("\n", match.end())
            start = len(self.text) if stop < 0 else stop
            line = self.text[match.start() : start]
            if sample := _SAMPLE.match(line):
                server, metric, labels, value = sample.groups(default="")
                self._sampled(server, metric, labels, value, rest=self.text[start : start + 2])
                continue
            if RUNNING.match(line):
                self.running = line
                continue
            before = self.text[self.text.rfind("\n", 0, match.start()) + 1 : match.start()][-1000:]
            for kind in LINES:
                if re.match(kind.begins, line):
                    self._logged(kind, line, f"{before}{self.running}")
                    self.running = ""

    def _logged(self, kind: ServerFormat, line: str, before: str) -> None:
        try:
            block = logged(kind, line, before)
        except SpecvizError as reason:
            self.logged.append(reason)
            return
        if block and kind.last:
            name = line.split(":", 1)[0].removeprefix("statistics").strip()
            self.last[name] = Reported(name, kind, block)
        elif block:
            self.logged.append(Reported("", kind, block))

    def _tables(self, text: str) -> None:
        try:
            for kind, table in printed(text):
                self.logged.append(table if kind is None else Reported("", kind, table))
        except SpecvizError as reason:
            self.logged.append(reason)

    def _sampled(self, server: str, metric: str, labels: str, value: str, rest: str) -> None:
        """One sample of a scrape. One that the latest scrape has already begins the next. A mean of 0 is none. rest: of
        the text after its line."""
        label_values, kind, figure = dict(_LABEL.findall(labels)), SCRAPES[server], finite(value)
        position = label_values.pop("position", "")
        key = server, " ".join(label_values.values())
        counters = (*kind.passes, *kind.accepted, *kind.drafted, *kind.accepted_at)
        if not (metric in (*counters, *kind.running) or (metric in kind.length and figure)):
            return
        # Only vLLM's own counters show where they end; those by position are checked by their sum.
        cut = not rest and metric not in kind.accepted_at and not value.endswith(".0")
        if metric in counters and (cut or _CONTINUED.match(rest) or _GROUPED.fullmatch(value) or figure is None):
            about = {"name": metric, "value": quoted(value)}
            self.logged.append(SpecvizError("The figure of {name} is cut off or is no number: {value}.", **about))
            self.broken.add(key)
        elif figure is not None:
            scrapes = self.scrapes.setdefault(key, [{}])
            if (metric, position) in scrapes[-1]:
                scrapes.append({})
            scrapes[-1][metric, position] = figure

    def reported(self) -> Iterator[Reported | dict[str, Any] | SpecvizError]:
        """With llama.cpp's closing statistics, its lines about single requests are left out: they repeat them."""
        for line in self.logged:
            if not (self.last and isinstance(line, Reported) and line.format.name.startswith("llama.cpp")):
                yield line
        yield from self.last.values()
        for (server, name), scrapes in self.scrapes.items():
            if (server, name) in self.broken:
                continue
            kind = SCRAPES[server]
            if kind.six_digits:
                scrapes = [_exact(scrape, kind) for scrape in scrapes]
            for block in _differences(scrapes, kind) if kind.passes else scrapes:
                figures = _placed(block)
                if figures.keys() - set(kind.running):
                    yield Reported(name, kind, figures)


def _exact(scrape: dict[tuple[str, str], float], kind: ServerFormat) -> dict[tuple[str, str], float]:
    """The scrape, with the sum of the counts by position for a total of which only six digits were written."""
    places = [count for (metric, _), count in scrape.items() if metric in kind.accepted_at]
    total = (kind.accepted[0], "")
    rounded = places and scrape.get(total, 0.0) >= SIX_DIGITS
    if rounded and abs(scrape[total] - sum(places)) <= scrape[total] * 5 / SIX_DIGITS:
        return scrape | {total: float(sum(places))}
    return scrape


def _differences(scrapes: list[dict[Any, float]], kind: ServerFormat) -> Iterator[dict[Any, float]]:
    """The counts between scrapes; for a single one, and after a restart of the server, those since its start. What is
    no count is as it was at the later scrape."""
    for before, after in pairwise(scrapes if len(scrapes) > 1 else [{}, *scrapes]):
        since = {key: value - before.get(key, 0.0) * (key[0] not in kind.running) for key, value in after.items()}
        if any(value < 0 for value in since.values()):
            since = after
        yield {
            key: value for key, value in since.items() if not (kind.six_digits and _lost(value, after[key], kind, key))
        }


def _lost(count: float, total: float, kind: ServerFormat, key: tuple[str, str]) -> bool:
    """True where the total had too few digits for the count since an earlier one to be known."""
    if key[0] in kind.accepted_at or key[0] in kind.running or total < SIX_DIGITS or total % 1:
        return False
    step = 10 ** (len(f"{total:.0f}") - 6)  # of the last digit that was written
    return total % step == 0 and step > MOST_OFF * count


def finite(value: Any) -> float | None:
    """A finite number, as JSON, a log or a scrape puts it."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) and not isinstance(value, bool) else None


def _placed(block: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """A scrape by metric, those by position as a list, which ends where a position is missing."""
    figures: dict[str, Any] = {}
    for metric, position in block:
        if not position:
            figures[metric] = block[metric, position]
        elif position == "0":
            values = (block.get((metric, str(place))) for place in range(MOST_DEPTH))
            figures[metric] = list(takewhile(lambda value: value is not None, values))
    return figures


def tokens_joined(values: Iterable[Any]) -> Iterator[Any]:
    """The values, with tokens that say each whether they were drafted (mlx-lm) made one object for each answer; where
    none was drafted, it is not known whether any could have been."""
    flags: list[bool] = []
    for value in chain(values, [None]):
        flag = value.get("from_draft") if isinstance(value, dict) else None
        if flags and not (isinstance(flag, bool) and value.get("generation_tokens") != 1):
            yield {"from_draft": flags} if any(flags) else {}
            flags = []
        if isinstance(flag, bool):
            flags.append(flag)
        elif value is not None:
            yield value
