"""Grades: for a terminal, as a table for a class, as JSON, CSV and JUnit's XML."""

from __future__ import annotations

import csv
import io
import json
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args
from xml.etree import ElementTree

from pydantic import TypeAdapter, ValidationError

from specviz.grading.child import FUNCTIONS
from specviz.grading.judging import POINTS, Grade
from specviz.records.errors import SpecvizError, shortened
from specviz.records.tables import aligned
from specviz.views.terminal import harmless

Schema = Literal["specviz.grade/1"]
[SCHEMA] = get_args(Schema)


@dataclass(frozen=True)
class Report:
    """What is read of a file with grades."""

    schema: Schema
    files: list[Grade]


_REPORT = TypeAdapter(Report)

#: What a system may hold a student's process to, and what to say where it does not.
WALLS = {
    "limits": "limits of memory and processor time",
    "network": "a network of its own",
    "files": "a wall around files",
}


def grade_lines(grade: Grade) -> Iterator[str]:
    """One file: what is wrong, first the mistake, then its smallest counterexample."""
    yield f"{grade.file}: {_short(grade.points)} of {POINTS * len(FUNCTIONS)} points"
    if grade.fault:
        yield f"✗ {grade.fault}"
    for verdict in grade.verdicts:
        wrong = [part for part, right in verdict.parts.items() if not right]
        yield f"{'✗' if wrong else '✓'} {verdict.function}: {_short(verdict.points)} of {POINTS}" + (
            f", wrong: {', '.join(wrong)}" if wrong else ""
        )
        yield from (f"    {line}" for line in (verdict.sentence, *verdict.counterexample) if line)
    if lacking := [name for name in FUNCTIONS if name not in {verdict.function for verdict in grade.verdicts}]:
        yield f"Not there: {', '.join(lacking)}"
    if grade.tried:
        yield f"It tried to {', to '.join(grade.tried)}, which homework may not."


def class_table(grades: Sequence[Grade]) -> str:
    """A row for each file: points by function, and the first sentence."""
    return aligned([[*cells, shortened(sentence)] for *cells, sentence in _rows(grades)])


def wall_line(grades: Sequence[Grade]) -> str:
    """What this system does not hold students' files to; empty if it holds them to all."""
    walls = next((grade.walls for grade in grades if grade.walls), {})
    lacking = [name for wall, name in WALLS.items() if not walls.get(wall, not walls)]
    if not lacking:
        return ""
    return f"This system lacks {', '.join(lacking)}: run files of people you do not trust in a container."


def as_json(grades: Sequence[Grade]) -> str:
    files = [asdict(grade) | {"points": grade.points, "sentence": grade.sentence} for grade in grades]
    return json.dumps({"schema": SCHEMA, "most": POINTS * len(FUNCTIONS), "files": files}, ensure_ascii=False, indent=1)


def of_json(path: pathlib.Path) -> list[Grade]:
    """The grades that `as_json` wrote. Raises SpecvizError if the file holds none."""
    try:
        return _REPORT.validate_json(path.read_bytes()).files
    except ValidationError as error:
        raise SpecvizError("This is not a report written by grade --json.") from error


def as_csv(grades: Sequence[Grade]) -> str:
    """The class's table; no cell is a formula, whatever a file is called."""
    written = io.StringIO()
    for row in _rows(grades):
        cells = [f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell for cell in row]
        csv.writer(written, lineterminator="\n").writerow(cells)
    return written.getvalue()


def as_junit(grades: Sequence[Grade]) -> str:
    """A suite for each file, a case for each part of a function; as in Jenkins' schema, junit-10.xsd."""
    suites = ElementTree.Element("testsuites")
    for grade in grades:
        suite = ElementTree.SubElement(suites, "testsuite", name=harmless(grade.file))
        if grade.fault:
            _case(suite, "file", "loads", harmless(grade.fault), "")
        for verdict in grade.verdicts:
            for part, right in verdict.parts.items():
                told = "" if right else harmless(verdict.sentence)
                _case(suite, verdict.function, part, told, harmless("\n".join(verdict.counterexample)))
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(len(suite.findall("*/failure"))))
        suite.set("errors", "0")
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True).decode()


def _case(suite: ElementTree.Element, function: str, part: str, failure: str, text: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=function, name=part)
    if failure:
        ElementTree.SubElement(case, "failure", message=failure).text = text


def _rows(grades: Sequence[Grade]) -> list[list[str]]:
    rows = [["file", *FUNCTIONS, "points", "first"]]
    for grade in grades:
        points = {verdict.function: _short(verdict.points) for verdict in grade.verdicts}
        cells = [grade.file, *(points.get(name, "") for name in FUNCTIONS), _short(grade.points), grade.sentence]
        rows.append([harmless(cell).replace("\n", " ") for cell in cells])
    return rows


def _short(points: float) -> str:
    return f"{round(points, 1):g}"
