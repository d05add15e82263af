"""specviz: real speculative decoding, shown round by round.

Names load on first use, so the plain parts (records, theory, views) work without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specviz.decoding.engine import run, speculate
    from specviz.drafters import DRAFTERS
    from specviz.foreign.rounds import show
    from specviz.models.loading import load_pair
    from specviz.models.pair import ModelPair
    from specviz.records.errors import SpecvizError
    from specviz.records.runs import Round, Run
    from specviz.records.settings import DraftParams, SamplingParams
    from specviz.records.tables import runs_table
    from specviz.rules import RULES
    from specviz.servers.server import Server
    from specviz.views.pages import run_frame, run_page

__all__ = [
    "DRAFTERS",
    "RULES",
    "DraftParams",
    "ModelPair",
    "Round",
    "Run",
    "SamplingParams",
    "Server",
    "SpecvizError",
    "load_pair",
    "run",
    "run_frame",
    "run_page",
    "runs_table",
    "show",
    "speculate",
]

__version__ = "0.1.0"

_HOMES = {
    "DRAFTERS": "drafters",
    "RULES": "rules",
    "DraftParams": "records.settings",
    "ModelPair": "models.pair",
    "Round": "records.runs",
    "Run": "records.runs",
    "SamplingParams": "records.settings",
    "Server": "servers.server",
    "SpecvizError": "records.errors",
    "load_pair": "models.loading",
    "run": "decoding.engine",
    "run_frame": "views.pages",
    "run_page": "views.pages",
    "runs_table": "records.tables",
    "show": "foreign.rounds",
    "speculate": "decoding.engine",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'specviz' has no attribute {name!r}")
    importlib.import_module("specviz.views.pages")  # by which a run shows itself: views lie above records
    return getattr(importlib.import_module(f"specviz.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
