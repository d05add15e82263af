"""`gain`: what a class learned, from its answers to the five questions before and after a lesson."""

import argparse
import csv
import os
import pathlib
from collections.abc import Sequence

from specviz.commands.output import read
from specviz.records.errors import SpecvizError
from specviz.records.tables import aligned
from specviz.theory.gain import Gain, difference, normalised_gain, people_needed
from specviz.views.quiz import QUESTIONS, TAUGHT, TRANSFER

ABOUT = "what did a class learn? From its answers to the five questions; also two groups compared"

#: What gains are computed of, by the items.
PARTS = {"all five": QUESTIONS, "taught": TAUGHT, "transfer": TRANSFER} | {item: (item,) for item in QUESTIONS}


def add_options(parser: argparse.ArgumentParser) -> None:
    tables = "tables (CSV) that the page saved, or folders of them"
    parser.add_argument("answers", nargs="+", type=pathlib.Path, metavar="FILE", help=tables)
    parser.add_argument("--against", nargs="+", type=pathlib.Path, metavar="FILE", help="those of another group")


def main(options: argparse.Namespace) -> int:
    groups = [_gains(paths, field) for field in ("answers", "against") if (paths := getattr(options, field))]
    whole = groups[0]["all five"]
    if options.against:
        pairs = [(part, gain, groups[1][part]) for part, gain in groups[0].items()]
        differences = {part: difference(one, other) for part, one, other in pairs if one and other}
        rows = [[part, *_written(gain)] for part, gain in differences.items()]
        print(aligned([["", "difference", "95 %"], *rows], left=1), end="\n\n")
        whole = differences.get("all five")
    if whole and whole.spread:
        needed = ", ".join(f"{people_needed(size, whole.spread)} for {size}" for size in (0.1, 0.2, 0.3, 0.5))
        print(f"People in each of two groups to see a difference between their gains (α 0.05, power 0.8): {needed}")
    return 0


def _gains(paths: Sequence[pathlib.Path], field: str) -> dict[str, Gain | None]:
    """The gains of a group by part, which are printed too."""
    everybody = _people(paths, field)
    people = [answered for answered in everybody if len(answered) == len(QUESTIONS)]
    if not people:
        raise SpecvizError("Nobody in these files has answered all five questions both times.", field)
    gains, rows = {}, [["", "before", "after", "gain", "95 %"]]
    for part, items in PARTS.items():
        shares = [[sum(person[item][phase] for item in items) / len(items) for person in people] for phase in (0, 1)]
        gains[part] = normalised_gain(*shares)
        rows.append([part, *(f"{sum(share) / len(share):.2f}" for share in shares), *_written(gains[part])])
    print(f"{paths[0]}: {len(people)} of {len(everybody)} people answered everything twice")
    print(aligned(rows, left=1), end="\n\n")
    return gains


def _people(paths: Sequence[pathlib.Path], field: str) -> list[dict[str, tuple[int, int]]]:
    """What each person answered twice: by item, 1 for a right answer, before and after."""
    people: dict[str, dict[str, tuple[int, int]]] = {}
    for file in [file for path in paths for file in (sorted(path.glob("*.csv")) if os.path.isdir(path) else [path])]:
        lines = read(file, field).splitlines()
        # A spreadsheet may have put semicolons; tables that were put together have their first line again.
        rows = csv.DictReader(lines, delimiter=";" if ";" in "".join(lines[:1]) else ",")
        other = SpecvizError("{file} is not a table of answers that the page saved.", field, file=file)
        try:
            if rows.fieldnames and not {"person", "item", "before", "after"} <= {*rows.fieldnames}:
                raise other
            answers = [row for row in rows if row.get("item") != "item"]
        except csv.Error as error:
            raise other from error
        for row in answers:
            marks = row.get("before"), row.get("after")
            if row.get("item") not in QUESTIONS or not row.get("person") or not {*marks} <= {"0", "1", ""}:
                raise other
            answered = people.setdefault(row["person"], {})
            if "" not in marks:
                answered[row["item"]] = (int(row["before"]), int(row["after"]))
    return list(people.values())


def _written(gain: Gain | None) -> tuple[str, str]:
    interval = f"{gain.low:.2f} to {gain.high:.2f}" if gain and gain.low is not None else ""
    return f"{gain.value:.2f}" if gain else "", interval
