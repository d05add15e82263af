"""Real engines for tests: llama.cpp's server, which CI brings along, and vLLM where it is installed.

A test takes the fixture `llama_cpp` or `vllm` and starts one by a drafter's name: ``with llama_cpp("eagle") as port``.
"""

import functools
import os
import pathlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tools.engines.servers import llama_server, running, vllm_python

#: Starts an engine: a drafter, or None, to the port of its server.
Start = Callable[..., AbstractContextManager[int]]


@pytest.fixture(scope="session")
def gguf_files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Where the embedded models lie as GGUF files, once a server needed them."""
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="session")
def llama_cpp(gguf_files: pathlib.Path) -> Start:
    """Having no llama-server is a failure in CI: nothing would be known of the engine any more."""
    if llama_server() is None:
        missing = "There is no llama-server: put one on the PATH, or name it in SPECVIZ_LLAMA_SERVER."
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    return functools.partial(running, "llama.cpp", files=gguf_files)


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Start:
    if vllm_python() is None:
        pytest.skip("There is no vLLM: install it, or name a Python that has it in SPECVIZ_VLLM.")
    return functools.partial(running, "vLLM", files=tmp_path_factory.mktemp("vllm"))
