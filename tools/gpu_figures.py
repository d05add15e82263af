"""Figures of single runs, for `tools.gpu_bench`: seconds, phases of a round, kernels, and the bandwidth of a copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from specviz.bench.contestants import Contestant
from specviz.bench.lanes import plain_request, request_of, written
from specviz.decoding.engine import rounds
from specviz.decoding.record import collect
from specviz.models.pair import ModelPair
from specviz.passes.devices import synchronise
from specviz.records.metrics import tally
from specviz.records.prompts import Preset
from specviz.records.runs import Run

T = TypeVar("T")

PROMPT = Preset("story", "Once upon a time there was")

#: Runs before timed ones: in them passes are met and recorded, and lengths learned.
WARM = 2

#: Kernels that a profile names.
TOP = 12


@dataclass(frozen=True, slots=True)
class Timed:
    """One run's figures by name (`figures_of`), and its text."""

    figures: dict[str, float]
    token_ids: Sequence[int]


def timed_run(pair: ModelPair, contestant: Contestant, temperature: float, tokens: int, seed: int = 0) -> Timed:
    """A run as users get it."""
    seconds, run = timed(pair, lambda: decoded(pair, contestant, temperature, tokens, seed))
    return Timed(figures_of(run, seconds), run.token_ids)


def timed_peer(pair: ModelPair, contestant: Contestant, temperature: float, tokens: int) -> Timed:
    """A run by transformers, of which nothing but the whole is known."""
    request = plain_request(pair, PROMPT, temperature, tokens)
    seconds, ids = timed(pair, lambda: written(contestant, request))
    return Timed({"tokens": len(ids), "seconds": seconds, "tokens_per_second": len(ids) / seconds}, ids)


def decoded(pair: ModelPair, contestant: Contestant, temperature: float, tokens: int, seed: int = 0) -> Run:
    """As `specviz.run` does it: from the prompt's text to the record."""
    request = request_of(contestant, plain_request(pair, PROMPT, temperature, tokens, seed))
    return collect(request, list(rounds(request)))


def timed(pair: ModelPair, work: Callable[[], T]) -> tuple[float, T]:
    """Wall seconds of finished work, and its result."""
    synchronise(pair.device)
    began = time.perf_counter()
    result = work()
    synchronise(pair.device)
    return time.perf_counter() - began, result


def figures_of(run: Run, seconds: float) -> dict[str, float]:
    """Of a run that took this long, records included. The milliseconds are of a round, mean.

    `whole_ms` is its share of the whole run; `round_ms` is by the engine's own clock, and so are its parts: `draft_ms`
    and `verify_ms` are phases, `outside_ms` is what all phases spend outside the models' passes.
    """
    counts, tokens = tally(run.rounds), len(run.token_ids)
    per_round = 1000 / counts.rounds
    return {
        "tokens": tokens,
        "seconds": seconds,
        "round_seconds": counts.seconds,
        "prefill_seconds": counts.prefill,
        "tokens_per_second": tokens / seconds,
        "rounds": counts.rounds,
        "tokens_per_pass": counts.acceptance_length,
        "whole_ms": seconds * per_round,
        "round_ms": counts.seconds * per_round,
        "draft_ms": counts.draft_seconds * per_round,
        "verify_ms": counts.verify_seconds * per_round,
        "outside_ms": (counts.seconds - counts.model_seconds) * per_round,
    }


def profiled(pair: ModelPair, contestant: Contestant, tokens: int) -> dict[str, Any]:
    """The kernels of a warm, greedy run on CUDA, by a round: how many, how long they take, and the longest of them."""
    for _ in range(WARM):
        decoded(pair, contestant, 0.0, tokens)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        _, run = timed(pair, lambda: decoded(pair, contestant, 0.0, tokens))
    kernels = [one for one in profile.key_averages() if one.device_type.name == "CUDA"]
    longest = sorted(kernels, key=lambda one: -one.device_time_total)[:TOP]
    rounds = len(run.rounds)
    return {
        "title": contestant.title,
        "rounds": rounds,
        "kernels": sum(one.count for one in kernels) / rounds,
        "busy_ms": sum(one.device_time_total for one in kernels) / 1000 / rounds,
        "longest": [
            {"name": one.key[:90], "count": one.count / rounds, "ms": one.device_time_total / 1000 / rounds}
            for one in longest
        ],
    }
