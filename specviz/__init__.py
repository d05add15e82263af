"""specviz: real speculative decoding, shown round by round.

Names are loaded on first use, so that plain parts (records, metrics, theory, views) work without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specviz.drafters import DRAFTERS
    from specviz.engine import replay, run, speculate
    from specviz.errors import SpecvizError
    from specviz.models import ModelPair, load_pair
    from specviz.records import DraftParams, Round, Run, SamplingParams
    from specviz.rules import RULES

__all__ = [
    "DRAFTERS",
    "RULES",
    "DraftParams",
    "ModelPair",
    "Round",
    "Run",
    "SamplingParams",
    "SpecvizError",
    "load_pair",
    "replay",
    "run",
    "speculate",
]

__version__ = "0.1.0"

_HOMES = {
    "DRAFTERS": "drafters",
    "RULES": "rules",
    "DraftParams": "records",
    "ModelPair": "models",
    "Round": "records",
    "Run": "records",
    "SamplingParams": "records",
    "SpecvizError": "errors",
    "load_pair": "models",
    "replay": "engine",
    "run": "engine",
    "speculate": "engine",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'specviz' has no attribute {name!r}")
    return getattr(importlib.import_module(f"specviz.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
