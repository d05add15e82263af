"""Homework: right solutions pass in any style, wrong ones are told by their own mistake, and no file does harm."""

import pathlib

import pytest
from homework.hostile import HOSTILE
from homework.written import WRONG, right_files, wrong_files

from specviz.grading import student
from specviz.grading.child import FUNCTIONS
from specviz.grading.judging import Grade, grade_all, verdict_on
from specviz.grading.mistakes import wrong_solutions
from specviz.grading.questions import answers


def graded(folder: pathlib.Path, files: dict[str, str]) -> dict[str, Grade]:
    for name, source in files.items():
        (folder / name).write_text(source, encoding="utf-8")
    return {grade.file: grade for grade in grade_all([folder / name for name in files], folder)}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    return graded(tmp_path_factory.mktemp("wrong"), wrong_files())


def test_right_solutions_pass_in_any_style(tmp_path):
    for grade in graded(tmp_path, right_files(3)).values():
        assert grade.sentence == "" and grade.points == 40, grade


@pytest.mark.parametrize("place", range(len(WRONG)), ids=lambda place: f"{WRONG[place][0]}-{WRONG[place][3][:30]}")
def test_the_first_sentence_is_about_the_mistake_that_was_made(wrong, place):
    grade = wrong[f"wrong{place:02}.py"]
    assert grade.sentence.startswith(WRONG[place][3]), grade
    assert grade.points < 10


def test_a_counterexample_has_the_numbers_to_redo_it_by_hand(wrong):
    (verdict,) = wrong["wrong01.py"].verdicts
    assert verdict.counterexample == [
        "With p = [0.25, 0.75], q = [0.5, 0.5], token = 0: it must pass for u below 0.5, and passes for u below 0.25."
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_named_mistake_is_right_or_told_from_all_others(name):
    told = set()
    for sentence, solution in wrong_solutions(name):
        if sentence not in told:
            verdict = verdict_on(name, answers(solution, name))
            if not all(right for part, right in verdict.parts.items() if part != "longer texts"):
                assert verdict.sentence == sentence
                told.add(sentence)
    assert len(told) >= {"accept": 9, "residual": 7, "verify": 20, "speculate": 22}[name], told


def test_a_law_that_is_off_by_little_is_found_and_has_a_counterexample(tmp_path):
    source = "def accept(p, q, token, u):\n    return bool(u < 0.98 * p[token] / q[token])"
    (grade,) = graded(tmp_path, {"little.py": source}).values()
    assert grade.sentence == "accept is wrong in a way that has no name here."
    assert "must pass for u below 0.5, and passes for u below 0.49" in grade.verdicts[0].counterexample[0]


# Begins as on a system without such walls, after modules that ask for the system; on one, with a narrower limit.
ELSEWHERE = """
import ctypes, json, os, runpy, sys, types, numpy
sys.platform = {platform!r}
if sys.platform == "win32":
    sys.modules["resource"] = None
else:
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
ctypes.CDLL = os.O_PATH = None
runpy.run_path({child!r}, run_name="__main__")
"""


@pytest.mark.parametrize(("platform", "limits"), [("win32", False), ("darwin", True)])
def test_without_the_systems_walls_files_are_graded_and_what_they_may_not_do_is_refused(
    tmp_path, monkeypatch, platform, limits
):
    child = tmp_path / "child.txt"
    child.write_text(ELSEWHERE.format(platform=platform, child=str(student.CHILD)), encoding="utf-8")
    monkeypatch.setattr(student, "CHILD", child)
    files = {name: HOSTILE[name][0].replace("HERE", str(tmp_path)) for name in ("writes", "forks", "goes out")}
    right = "def accept(p, q, token, u):\n    return bool(u < p[token] / q[token])"
    *refused, passed = graded(
        tmp_path, {f"{name}.py": source for name, source in (files | {"right": right}).items()}
    ).values()
    assert passed.points == 10 and passed.walls == {"limits": limits, "network": False, "files": False}
    assert [HOSTILE[name][1] in grade.sentence for name, grade in zip(files, refused)] == [True] * 3


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder, watched = tmp_path_factory.mktemp("hostile"), tmp_path_factory.mktemp("watched")
    (watched / "kept").write_text("kept", encoding="utf-8")
    files = {f"{name}.py": source.replace("HERE", str(watched)) for name, (source, _) in HOSTILE.items()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(student, "CALL_SECONDS", 2)
        grades = graded(folder, files)
    return grades, watched


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_means_harm_does_none_and_the_report_says_what_it_did(hostile, name):
    grades, watched = hostile
    grade = grades[f"{name}.py"]
    assert HOSTILE[name][1] in grade.sentence and grade.points == 0, grade
    assert [path.name for path in watched.iterdir()] == ["kept"]
