"""What the page asks of the engine, loaded on first use: a visitor sees the page before torch is there.

Nothing else in this folder imports a module that loads torch, except in functions that run when it is there.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

_HOMES = {
    "COMPARED": "decoding.exact_distribution",
    "ExactDistribution": "decoding.exact_distribution",
    "GreedyToken": "decoding.lossless",
    "LAB_RULES": "decoding.lossless",
    "Plan": "bench.turns",
    "MtpModules": "passes.mtp_layers",
    "RUN_TOKENS": "decoding.exact_distribution",
    "Preparation": "models.preparation",
    "Finding": "bench.looking",
    "REPORT_EVERY": "bench.turns",
    "WARM_UP_TOKENS": "bench.turns",
    "lane_of": "bench.turns",
    "on_each_prompt": "bench.turns",
    "runs_in_turn": "bench.turns",
    "take_turns": "bench.turns",
    "advise": "bench.advising",
    "require_chains": "bench.advising",
    "advised_chains": "bench.benchmark",
    "check_lossless": "decoding.lossless",
    "check_pair": "bench.pair_check",
    "collect": "decoding.run_record",
    "default_exit": "passes.early_exits",
    "drafter_class": "drafters.registry",
    "dtype_name": "models.placement",
    "examine": "decoding.lossless",
    "kind_of": "passes.static_passes",
    "layer_count": "passes.early_exits",
    "load_pair": "models.loading",
    "measure_batches": "bench.batch_times",
    "measure_forced": "bench.forced",
    "measure_passes": "bench.pass_times",
    "must_be_timed": "decoding.round_times",
    "name_of": "bench.machine",
    "prepare": "decoding.request",
    "prepare_passes": "models.preparation",
    "replay": "decoding.replay",
    "rounds": "decoding.engine",
    "usual": "drafters.registry",
    "rule_named": "rules",
    "vocabulary": "decoding.run_record",
    "within_reach": "models.placement",
}


#: Two threads that import parts of transformers at once may each find the other's half done: one at a time.
_importing = threading.RLock()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _importing:
        return getattr(importlib.import_module(f"specviz.{_HOMES[name]}"), name)
