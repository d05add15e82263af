"""One style, kept by tools: ruff and mypy for Python, TypeScript's checker for the page's scripts."""

import os
import pathlib
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


def test_no_folder_holds_more_files_than_one_takes_in():
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    folders = Counter(str(pathlib.PurePath(path).parent) for path in found if (ROOT / path).is_file())
    assert len(folders) > 30 and {folder: n for folder, n in folders.items() if n > MOST_FILES} == {}


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
