"""One style, kept by tools: ruff and mypy for Python, TypeScript's checker for the page's scripts."""

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from tools import record_types

ROOT = pathlib.Path(__file__).parent.parent

#: Patch releases only: a new minor version may find what this one does not.
TYPESCRIPT = "typescript@~7.0.2"


#: In one folder: more than that nobody takes in at a glance.
MOST_FILES = 20


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff_finds_nothing(command):
    done = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def reads_or_writes_in_any_encoding(node: ast.AST) -> bool:
    """True of a call that takes text from a file or a process in the machine's own encoding: Windows' is not UTF-8."""
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    named = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if "encoding" in named:
        return False
    if name in ("read_text", "write_text"):
        return len(node.args) < 1 + (name == "write_text")
    modes = [mode for mode in map(ast.unparse, node.args) if re.fullmatch(r"'[rwax]\+?[bt]?\+?'", mode)]
    if name in ("open", "fdopen", "TemporaryFile", "NamedTemporaryFile"):
        # What is opened without a mode may be no file, unless it is by Python's own function.
        by_python = isinstance(node.func, ast.Name) and name == "open"
        return any("b" not in mode for mode in modes) if modes else by_python
    return named.get("text") == "True"


@pytest.mark.parametrize("call", ["path.read_text()", "path.open('w')", "open(path)", "run(order, text=True)"])
def test_a_text_without_an_encoding_is_found(call):
    assert any(map(reads_or_writes_in_any_encoding, ast.walk(ast.parse(call))))


def test_every_text_is_read_and_written_in_an_encoding_of_its_own():
    files = [ROOT / "app.py", *(ROOT / "specviz").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if reads_or_writes_in_any_encoding(node)
    ]
    assert len(files) > 100 and found == []


def test_no_folder_holds_more_files_than_one_takes_in():
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    folders = Counter(str(pathlib.PurePath(path).parent) for path in found if (ROOT / path).is_file())
    assert len(folders) > 30 and {folder: n for folder, n in folders.items() if n > MOST_FILES} == {}


def test_the_colours_fonts_and_measures_that_are_asked_for_are_those_that_there_are():
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "assets" / "web").rglob("*.*s")}  # css, js
    given = set(re.findall(r"(--sv-[\w-]+)[\"\s]*[:,]", "".join(texts.values())))
    asked = set(re.findall(r"var\((--sv-[\w-]+)", "".join(texts.values())))
    assert len(asked) > 20 and asked == given


def test_the_types_of_the_program_fit():
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_types_of_the_page_s_scripts_fit():
    npx = shutil.which("npx")
    if npx is None and not os.environ.get("CI"):
        pytest.skip("There is no Node.js on this machine.")
    assert npx, "The type check needs Node.js."
    tsc = [npx, "-y", "-p", TYPESCRIPT, "tsc"]
    if not os.environ.get("CI") and subprocess.run([*tsc, "--version"], capture_output=True).returncode:
        pytest.skip("TypeScript cannot be fetched.")
    done = subprocess.run([*tsc, "-p", "assets/web"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_types_of_records_are_those_of_the_records():
    written = record_types.FILE.read_text(encoding="utf-8")
    assert written == record_types.record_types(), "python -m tools.record_types"
