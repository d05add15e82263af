"""`grade`: students' homework, run apart and compared with the exact law; which mistake it is, and how to see it."""

import argparse
import os
import pathlib

from specviz.commands.output import progress, write_all
from specviz.records.errors import SpecvizError
from specviz.views.terminal import harmless

ABOUT = "a student's accept, residual, verify or speculate: is its law exact, and if not, which mistake is it?"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "a Python file that defines any of the functions, or a folder with a file for each student"
    add("homework", type=pathlib.Path, metavar="FILE", help=what)
    what = "write all verdicts to this file; those on one student can be opened on the page, under Lossless?"
    add("--json", type=pathlib.Path, metavar="OUT", help=what)
    add("--csv", type=pathlib.Path, metavar="OUT", help="write the table of a class to this file")
    add("--junit", type=pathlib.Path, metavar="OUT", help="write the verdicts as JUnit's XML to this file")


def main(options: argparse.Namespace) -> int:
    """Exit status 1 if any function is wrong."""
    from specviz.grading.judging import grade_all
    from specviz.views import grades as written

    files, grades = _files(options.homework), []
    try:
        for grade in grade_all(files, options.homework, counted=options.json is not None and len(files) == 1):
            grades.append(grade)
            if len(files) > 1:
                progress(f"{len(grades)} of {len(files)}: {grade.file}")
            else:
                print("\n".join(map(harmless, written.grade_lines(grade))))
        if len(files) > 1:
            print(written.class_table(grades))
        if line := written.wall_line(grades):
            progress(line)
    finally:
        texts = {"json": written.as_json, "csv": written.as_csv, "junit": written.as_junit}
        write_all(options, {option: text(grades) for option, text in texts.items()})
    return int(any(grade.sentence for grade in grades))


def _files(homework: pathlib.Path) -> list[pathlib.Path]:
    """The files to grade. Raises SpecvizError (field ``homework``) if there are none."""
    files = sorted(homework.rglob("*.py")) if os.path.isdir(homework) else [homework]
    if not files:
        raise SpecvizError("In {folder} there is no Python file.", "homework", folder=homework)
    try:
        files[0].open("rb").close()
    except OSError as error:
        raise SpecvizError("The file cannot be read: {reason}.", "homework", reason=error.strerror) from error
    return files
