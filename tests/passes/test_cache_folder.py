"""Where what is built here goes: nobody is left without, whatever their home is."""

import os
import pathlib
import pwd
import tempfile

import pytest
from refusal import refused
from tiny import tiny_model

from specviz.__main__ import main
from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.kernel_library import cache_folder, lasts, writable_folder
from specviz.passes.programs import Program, forget_old
from specviz.passes.static_passes import StaticPass


def nobody(number):
    raise KeyError(number)


#: By name, the environment of a user without a cache folder.
HOMES = {
    "none": {},
    "no folder": {"HOME": os.devnull},
    "a relative cache": {"XDG_CACHE_HOME": "cache"},
    "somebody else's": {"HOME": "/home of another"},
}


@pytest.fixture(params=HOMES)
def without_cache(request, tmp_path, monkeypatch):
    """A user whom the system does not know, as of a container started under a number."""
    for name in ("SPECVIZ_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in HOMES[request.param].items():
        monkeypatch.setenv(name, value)
    if request.param == "somebody else's":
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # which the system's root never sees
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(kernel_library, "_loaded", [])
    kernel_library._temporary_folder.cache_clear()
    yield tmp_path
    kernel_library._temporary_folder.cache_clear()


def test_without_a_cache_folder_there_is_one_until_the_process_ends(without_cache, caplog):
    folder = writable_folder()
    assert folder.parent == without_cache and folder == cache_folder() == writable_folder() and not lasts()
    assert caplog.text.count("Compiled passes are not kept") == 1, "it is said once"
    kernel_library._temporary_folder().cleanup()
    assert not folder.exists()


@pytest.mark.parametrize("without_cache", ["none"], indirect=True)
def test_without_a_cache_folder_a_run_is_plain_and_nothing_is_compiled_in_vain(without_cache, capsys):
    assert main(["run", "Once", "--max-new-tokens", "4"]) == 0
    assert "plain passes" in capsys.readouterr().err
    assert main(["compile"]) == 2
    assert "set SPECVIZ_CACHE" in capsys.readouterr().err
    assert not list(without_cache.iterdir())


def test_without_any_folder_it_is_said(without_cache, monkeypatch):
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *_: (_ for _ in ()).throw(FileNotFoundError("no temporary folder")))
    with refused("passes", "There is no folder for compiled passes"):
        cache_folder()


def test_without_a_temporary_folder_no_command_begins(monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [os.devnull])
    assert main(["run", "Once"]) == 2
    assert "There is no temporary folder to write to" in capsys.readouterr().err


def test_half_a_program_is_a_reason_and_the_pair_runs_without_it(tmp_path):
    file = tmp_path / "half.pt2"
    file.write_bytes(b"PK\x03\x04 cut short")
    with refused("passes", "cannot be loaded: .*Delete .*half.pt2 to have the pass compiled again"):
        Program(StaticPass(tiny_model("llama")), file)


def test_what_another_process_has_removed_already_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    (tmp_path / "old.pt2").write_bytes(b"0" * 10)
    monkeypatch.setattr(pathlib.Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError("gone")))
    forget_old(keep_bytes=5)


def test_a_folder_that_was_filled_beforehand_may_be_read_only(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: pathlib.Path(os.devnull, "file").touch())
    assert cache_folder() == tmp_path and lasts()
    with refused("passes", "Compiled passes cannot be written"):
        writable_folder()
