"""Enters the points of `specviz grade submitted --json grades.json` into nbgrader's gradebook; run where that is.

https://nbgrader.readthedocs.io/en/stable/api/gradebook.html
"""

import json
import pathlib

from nbgrader.api import Gradebook

POINTS = 10

files = json.loads(pathlib.Path("grades.json").read_text(encoding="utf-8"))["files"]
with Gradebook("sqlite:///gradebook.db") as book:
    for file in files:
        student, assignment, notebook = pathlib.PurePosixPath(file["file"]).with_suffix("").parts
        submitted = book.find_submission_notebook(notebook, assignment, student)
        parts = {verdict["function"]: list(verdict["parts"].values()) for verdict in file["verdicts"]}
        for grade in submitted.grades:
            right = parts.get(grade.name, [False])
            grade.manual_score = POINTS * sum(right) / len(right)
            grade.needs_manual_grade = False
    book.db.commit()
