"""What lecturers are given in examples/homework: a solution that passes, and a skeleton that gives nothing away."""

import importlib.util
import json
import pathlib

from specviz.grading.child import FUNCTIONS
from specviz.grading.judging import POINTS, grade, grade_all
from specviz.views.grades import as_json

EXAMPLE = pathlib.Path(__file__).parent.parent.parent / "examples" / "homework"


def test_the_solution_passes_and_is_not_where_students_look():
    assert grade(EXAMPLE / "teachers" / "solution.py", "solution.py").points == 40
    assert {path.name for path in (EXAMPLE / "students").iterdir()} == {
        "assignment.md",
        "homework.ipynb",
        "homework.py",
    }


def test_the_skeleton_has_all_functions_and_none_is_written_in_the_notebook_as_in_the_file():
    skeleton = EXAMPLE / "students" / "homework.py"
    verdicts = grade(skeleton, "homework.py").verdicts
    assert [verdict.sentence.split(" in line")[0] for verdict in verdicts] == [
        f"{name} raised NotImplementedError" for name in ("accept", "residual", "verify", "speculate")
    ]
    cells = json.loads((EXAMPLE / "students" / "homework.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(cell in skeleton.read_text(encoding="utf-8") for cell in code) and len(code) == 5


def test_nbgrader_can_read_the_notebook():
    """What the third version of its cells' schema requires, and names that no two share."""
    cells = json.loads((EXAMPLE / "students" / "homework.ipynb").read_text(encoding="utf-8"))["cells"]
    marked = [cell["metadata"]["nbgrader"] for cell in cells if "nbgrader" in cell["metadata"]]
    assert [cell["grade_id"] for cell in marked] == list(FUNCTIONS)
    rest = {"schema_version": 3, "grade": True, "locked": False, "solution": True, "task": False, "points": POINTS}
    assert all(cell == rest | {"grade_id": cell["grade_id"]} for cell in marked)


def test_gradescope_gets_a_score_for_each_function_of_the_best_file(tmp_path):
    spec = importlib.util.spec_from_file_location("gradescope", EXAMPLE / "teachers" / "gradescope.py")
    gradescope = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gradescope)
    for name, returned in {"best": "bool(u < p[token] / q[token])", "wrong": "True"}.items():
        path = tmp_path / f"{name}.py"
        path.write_text(f"def accept(p, q, token, u):\n    return {returned}\n", encoding="utf-8")
    best, wrong = json.loads(as_json(list(grade_all(sorted(tmp_path.iterdir()), tmp_path))))["files"]
    results = gradescope.results([wrong, best, best])
    assert results["score"] == sum(test["score"] for test in results["tests"]) == POINTS
    assert [test["status"] for test in results["tests"]] == ["passed", "failed", "failed", "failed"]
    test, *_ = gradescope.results([wrong])["tests"]
    assert (test["name"], test["score"], test["max_score"], test["status"]) == ("accept", 0, POINTS, "failed")
    assert test["output"].startswith("Every token passes.\nWith p = ")
    assert gradescope.results([])["score"] == 0
