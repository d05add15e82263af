"""``python -m specviz grade``: one file, a class, and what tools read."""

import csv
import json
import os
from xml.etree import ElementTree

import pytest
from homework.written import ACCEPTS

from specviz.__main__ import main
from specviz.views.grades import of_json

RIGHT = f"import numpy as np\ndef accept(p, q, token, u):\n    {ACCEPTS[0]}\n"
WRONG = "def accept(p, q, token, u):\n    raise ValueError('=1+1 \\x1b[31m \\n')\n"


def test_a_right_file_is_status_0_and_a_wrong_one_1_with_its_first_sentence(tmp_path, capfd):
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(RIGHT, encoding="utf-8")
    wrong.write_text("def accept(p, q, token, u):\n    return True\n", encoding="utf-8")
    assert main(["grade", str(right)]) == 0
    out, _ = capfd.readouterr()
    assert out.splitlines()[:2] == ["right.py: 10 of 40 points", "✓ accept: 10 of 10"]
    assert main(["grade", str(wrong)]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[1] == "✗ accept: 0 of 10, wrong: law, edges" and lines[2].strip() == "Every token passes."


def test_a_class_is_a_table_and_files_that_tools_read(tmp_path, capfd):
    (tmp_path / "class" / "ann").mkdir(parents=True)
    (tmp_path / "class" / "ann" / "work.py").write_text(RIGHT, encoding="utf-8")
    (tmp_path / "class" / "=1+1.py").write_text(WRONG, encoding="utf-8")
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "junit")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    assert main(["grade", str(tmp_path / "class"), *options]) == 1
    out, _ = capfd.readouterr()
    assert "\x1b" not in out and len(out.splitlines()) == 3 and "ann/work.py" in out

    rows = list(csv.DictReader(files["csv"].open(encoding="utf-8")))
    assert [(row["file"], row["accept"], row["points"]) for row in rows] == [
        ("'=1+1.py", "0", "0"),
        ("ann/work.py", "10", "10"),
    ]
    told = json.loads(files["json"].read_text(encoding="utf-8"))
    assert told["schema"] == "specviz.grade/1" and [file["points"] for file in told["files"]] == [0, 10]
    suites = ElementTree.parse(files["junit"]).getroot()
    counts = [[suite.get(name) for name in ("tests", "failures", "errors")] for suite in suites]
    assert counts == [["2", "2", "0"], ["2", "0", "0"]]
    assert suites[0][0].find("failure").get("message").startswith("accept raised ValueError in line 2")


def test_a_name_that_is_no_text_loses_nobody_s_report(tmp_path, capfd):
    """As it comes out of an archive that another system has packed; and a student may raise one."""
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / os.fsdecode(b"m\xfcller.py")).write_text(RIGHT, encoding="utf-8")
    (folder / "other.py").write_text("def accept(p, q, token, u):\n    raise ValueError('\\udc80')\n", encoding="utf-8")
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "junit")}
    assert main(["grade", str(folder), *(f"--{name}={path}" for name, path in files.items())]) == 1
    assert [grade.points for grade in of_json(files["json"])] == [10, 0]
    assert len(files["csv"].read_text("utf-8").splitlines()) == 3 and ElementTree.parse(files["junit"])
    capfd.readouterr()


@pytest.mark.parametrize("name, sentence", [("none.py", "The file cannot be read"), (".", "there is no Python file")])
def test_nothing_to_grade_is_one_sentence_and_status_2(tmp_path, capfd, name, sentence):
    assert main(["grade", str(tmp_path / name)]) == 2
    _, err = capfd.readouterr()
    assert err.startswith("specviz: homework: ") and sentence in err
