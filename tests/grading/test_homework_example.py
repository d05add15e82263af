"""What lecturers are given in examples/homework: a solution that passes, and a skeleton that gives nothing away."""

import importlib.util
import json
import pathlib

from specviz.grading.judging import grade
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


def test_gradescope_gets_a_score_for_each_function(tmp_path):
    (tmp_path / "homework.py").write_text("def accept(p, q, token, u):\n    return True\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("gradescope", EXAMPLE / "teachers" / "gradescope.py")
    gradescope = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gradescope)
    results = gradescope.results(json.loads(as_json([grade(tmp_path / "homework.py", "homework.py")])))
    (test,) = results["tests"]
    assert (results["score"], test["name"], test["score"], test["max_score"]) == (0, "accept", 0, 10)
    assert test["output"].startswith("Every token passes.\nWith p = ")
