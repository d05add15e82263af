"""What other systems lack, pretended: each lack takes a slower way, and says so."""

import ctypes
import os
import pathlib
import sys

import pytest
from refusal import refused

from specviz.bench import machine
from specviz.passes import model_twins
from specviz.passes.kernels import kernel_library


@pytest.fixture
def unbuilt(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel_library, "_loaded", [])


def test_a_compiler_that_does_not_know_an_option_says_so(unbuilt, tmp_path, monkeypatch):
    """Our kernels are not built, and the reason names what it does not know."""
    clang = tmp_path / "clang++"
    clang.write_text("#!/bin/sh\necho \"clang++: error: unsupported option '-march=native'\" >&2\nexit 1\n", "utf-8")
    clang.chmod(0o700)
    monkeypatch.setenv("CXX", str(clang))
    with refused("passes", "The C.. compiler failed: .*unsupported option '-march=native'"):
        kernel_library.load()


def test_without_a_compiler_that_is_the_reason(unbuilt, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with refused("passes", r"There is no C\+\+ compiler"):
        kernel_library.load()


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_system_without_linux_s_calls_and_files_is_described_all_the_same(system, monkeypatch):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: pytest.fail("only Linux has malloc_trim"))
    read, is_file = pathlib.Path.read_text, pathlib.Path.is_file

    def elsewhere(path, *arguments, **named):
        if str(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(path)
        return read(path, *arguments, **named)

    monkeypatch.setattr(pathlib.Path, "read_text", elsewhere)
    monkeypatch.setattr(pathlib.Path, "is_file", lambda path: not str(path).startswith("/proc") and is_file(path))
    model_twins.trim()
    assert machine._affinity() == list(range(os.cpu_count())) and machine._processor()
    assert isinstance(kernel_library.processor(), str)
