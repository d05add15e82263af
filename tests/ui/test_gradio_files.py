"""Gradio's files: nobody's page needs a folder that another user of the machine owns. (`running.py` starts every page
of these tests where Gradio's default cannot be written.)"""

import os
import pathlib
import runpy
import tempfile

import pytest
from refusal import refused

MODULE = str(pathlib.Path(__file__).parents[2] / "specviz" / "ui" / "gradio_files.py")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The system's temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("GRADIO_TEMP_DIR", raising=False)
    return tmp_path


def test_each_page_has_a_folder_of_its_own(temporary):
    folders = []
    for _ in range(2):
        made = runpy.run_path(MODULE)  # and holds it
        folders.append(pathlib.Path(os.environ.pop("GRADIO_TEMP_DIR")))
        assert folders[-1].parent == temporary and folders[-1].stat().st_mode & 0o077 == 0
        made["_own"].cleanup()
    assert folders[0] != folders[1]


def test_a_folder_that_is_named_is_made_and_stays(temporary, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(temporary / "new" / "folder"))
    runpy.run_path(MODULE)
    assert (temporary / "new" / "folder").is_dir() and len(list(temporary.iterdir())) == 1


@pytest.mark.parametrize("named, variable", [(True, "GRADIO_TEMP_DIR"), (False, "TMPDIR")])
def test_without_a_folder_it_is_said_what_to_set(named, variable, temporary, monkeypatch):
    (temporary / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "file"))
    if named:
        monkeypatch.setenv("GRADIO_TEMP_DIR", str(temporary / "file" / "folder"))
    with refused(None, f"There is no temporary folder .*: set {variable} to"):
        runpy.run_path(MODULE)
