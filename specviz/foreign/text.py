"""Finds figures in pasted text: JSON anywhere in it, lines of a log, scrapes of /metrics.

The text is untrusted: parts that cannot be read are left out with a reason, and nothing is read more than a few times.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, takewhile
from math import isfinite
from typing import Any

from specviz.foreign.formats import LINES, SCRAPES, ServerFormat
from specviz.records.errors import SpecvizError, quoted

#: How many draft positions are believed.
MOST_DEPTH = 1024

#: How many reasons for unreadable parts are kept; further ones are only counted.
MOST_REASONS = 12

#: Unreadable beginnings are tried until this many times the text has been read in vain. What a try costs at least, and
#: what one costs that nests too deep, in characters.
MOST_TRIES, LEAST_TRY, DEEP_TRY = 3, 64, 4000

#: How much of the text an object is looked for in at first, and how near the end of that it may end too early.
WINDOW, END = 4096, 16


@dataclass(frozen=True, slots=True)
class Reported:
    """The figures of a line of a log or of a scrape, by the names of its format."""

    name: str
    format: ServerFormat
    block: dict[str, Any]


def decoded(data: bytes) -> str:
    """The text of a file in UTF-8, UTF-16 or UTF-32, with a byte order mark or without."""
    return data.decode(json.detect_encoding(data), errors="replace")


#: What a stream of server-sent events puts around its JSON, comments too; within JSON no line begins like that.
_EVENTS = re.compile(r"^(?:data:|(?:event|id|retry)?:.*)", re.MULTILINE)

#: Where an object begins, a cut-off one too.
_OBJECT = re.compile(r'\{(?:\s*"|\s*\Z)')
_DECODER = json.JSONDecoder()
_INDENT = re.compile(r"[ \t\[,]*\Z")

_SAMPLE = re.compile(r"(\w+):(\w+)(\{[^\n]*\})?[ \t]+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\.)*)"')
#: vllm/v1/metrics/loggers.py: the line before the one about speculation.
RUNNING = re.compile(r"Running: \d{1,9} reqs")

_TELLING = re.compile(
    "|".join(
        [
            *(f"(?:{line.begins})" for line in LINES),
            *(f"^{server}:(?:spec_|{'|'.join(known.running)})" for server, known in SCRAPES.items()),
            RUNNING.pattern,
        ]
    ),
    re.MULTILINE,
)


def pieces(text: str) -> Iterator[dict[str, Any] | Reported | SpecvizError]:
    """The objects of a text in their order (those of an array one by one), then what its plain lines say; where
    something cannot be read, the reason."""
    text = text.lstrip("\ufeff")
    if re.search(r"^data:", text, re.MULTILINE):
        text = _EVENTS.sub("", text)
    lines, place, wasted, failed = _Lines(text), 0, 0, 0
    while opening := _OBJECT.search(text, place):
        start = opening.start()
        lines.take(place, start)
        try:
            value, place = _object(text, start)
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
    logged: list[Reported] = field(default_factory=list)
    running: str = ""  # the latest line that counts requests at once, until the next about speculation
    #: By name, the latest of the lines that count from the start.
    last: dict[str, Reported] = field(default_factory=dict)
    #: The scrapes of each set of labels, in order, and the samples that the latest has.
    scrapes: dict[tuple[str, str], list[dict[tuple[str, str], float]]] = field(default_factory=dict)

    def take(self, start: int, end: int) -> None:
        """Takes the lines between two places; of a line the part from where it says something."""
        while match := _TELLING.search(self.text, start, end):
            stop = self.text.find("\n", match.end())
            start = len(self.text) if stop < 0 else stop
            line = self.text[match.start() : start]
            if sample := _SAMPLE.match(line):
                self._sampled(*sample.groups(default=""))
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
        names = (*kind.passes, *kind.accepted, *kind.drafted, *kind.shares, *kind.length)
        block = {name: value for name in names if (value := _figure(name, line))}
        if block:
            block |= {name: value for name in kind.running if (value := _figure(name, before))}
        if block and kind.last:
            name = line.split(":", 1)[0].removeprefix("statistics").strip()
            self.last[name] = Reported(name, kind, block)
        elif block:
            self.logged.append(Reported("", kind, block))

    def _sampled(self, server: str, metric: str, labels: str, value: str) -> None:
        """One sample of a scrape. One that the latest scrape has already begins the next. A mean of 0 is none."""
        label_values, kind, figure = dict(_LABEL.findall(labels)), SCRAPES[server], finite(value)
        position = label_values.pop("position", "")
        counters = (*kind.passes, *kind.accepted, *kind.drafted, *kind.accepted_at, *kind.running)
        if figure is None or not (metric in counters or (metric in kind.length and figure)):
            return
        scrapes = self.scrapes.setdefault((server, " ".join(label_values.values())), [{}])
        if (metric, position) in scrapes[-1]:
            scrapes.append({})
        scrapes[-1][metric, position] = figure

    def reported(self) -> Iterator[Reported]:
        """With llama.cpp's closing statistics, its lines about single requests are left out: they repeat them."""
        for line in self.logged:
            if not self.last or not line.format.name.startswith("llama.cpp"):
                yield line
        yield from self.last.values()
        for (server, name), scrapes in self.scrapes.items():
            kind = SCRAPES[server]
            for block in _differences(scrapes, kind.running) if kind.passes else scrapes:
                figures = _placed(block)
                if kind.six_digits and figures.keys() & set(kind.accepted_at):  # whose sum is exact
                    figures = {metric: value for metric, value in figures.items() if metric not in kind.accepted}
                if figures.keys() - set(kind.running):
                    yield Reported(name, kind, figures)


def _figure(name: str, line: str) -> str | None:
    """The figure of that name in a line, as ``name: 3``, ``name = 3``, ``name = (0.8, 0.6)`` or ``3 name``; of several
    counts without a comma the last."""
    label = re.escape(name)
    match = re.search(rf"\b(\d{{1,16}}) {label}\b|{label}(?::| =) *\(?(\d[\d., ]{{0,20000}})", line)
    value = (match[1] or match[2]).strip(" ,.") if match else None
    return value.split()[-1] if value and "," not in value else value


def _differences(scrapes: list[dict[Any, float]], gauges: Sequence[str]) -> Iterator[dict[Any, float]]:
    """The counts between scrapes; for a single one, and after a restart of the server, those since its start. gauges:
    are no counts, and as they were at the later scrape."""
    for before, after in pairwise(scrapes if len(scrapes) > 1 else [{}, *scrapes]):
        since = {key: value - before.get(key, 0.0) * (key[0] not in gauges) for key, value in after.items()}
        yield after if any(value < 0 for value in since.values()) else since


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
