"""The long check: what `pair_check` leaves out because it takes minutes, other weights or another device."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

from specviz.bench.forced import measure_forced
from specviz.bench.looking import Finding, tried
from specviz.bench.model_sizes import SIZES, make_pair
from specviz.bench.pair_check import Check, distribution, named, sampled, testable, texts
from specviz.drafters import DRAFTERS
from specviz.models.pair import ModelPair
from specviz.models.preparation import prepare_passes
from specviz.records.assets import ASSETS
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence

#: Lossless rules, and the branches with which each is tried.
RULES = (("token", 1), ("block", 1), ("tree", 3), ("multi_path", 3))

DTYPES = ("float32", "bfloat16", "float16")

#: Real shapes with random weights, and an oracle that is right this often.
ALPHA, GAMMA = 0.8, 4

#: Loads a pair as a ZeroGPU Space does, where `spaces` emulates the GPU. It looks up three names that a build of torch
#: without CUDA lacks.
ZERO_GPU = """
import sys, torch
if not torch.version.cuda:
    torch.version.cuda, torch._C._cuda_init, torch.cuda._is_in_bad_fork = "12.8", lambda: None, bool
import spaces
from specviz.models.loading import load_pair
print(load_pair(*sys.argv[1:]).info().device)
"""
#: Its settings there; the address of the service that lends GPUs is never asked.
ON_ZERO_GPU = {"SPACES_ZERO_GPU": "true", "SPACES_ZERO_DEVICE_API_URL": "http://127.0.0.1:9"}


def long_checks(load: Callable[[str], ModelPair]) -> tuple[Check, ...]:
    """load: the pair once more, in the dtype of this name."""
    return (
        (Sentence("sampling under every rule"), every_rule),
        (Sentence("comparing texts in every precision"), lambda pair: every_dtype(load)),
        (Sentence("starting as on ZeroGPU"), zero_gpu),
        (Sentence("racing the oracle at real sizes"), real_sizes),
    )


def every_rule(pair: ModelPair) -> Iterator[Finding]:
    """The distribution of two tokens for each drafter under each lossless rule that can judge its drafts."""
    for drafter, (rule, branches) in itertools.product(DRAFTERS, RULES):
        request = testable(pair, sampled(drafter, branches, rule))
        if request is not None:
            yield tried(named(request), functools.partial(distribution, request))


def every_dtype(load: Callable[[str], ModelPair]) -> Iterator[Finding]:
    """Greedy texts in every precision that models run in."""
    for dtype in DTYPES:
        try:
            pair = load(dtype)
        except SpecvizError as refusal:
            # It lies beside the pair in use, and memory may not hold both.
            yield Finding("skipped", Sentence("texts in {dtype}", dtype=dtype), refusal)
            continue
        for found in texts(pair, math.inf):
            yield replace(found, what=Sentence("{what}, in {dtype}", what=found.what, dtype=dtype))
        pair.free()


def zero_gpu(pair: ModelPair) -> Iterator[Finding]:
    """Whether the pair is loaded where the package `spaces` emulates a GPU."""
    what = Sentence("start on ZeroGPU")
    if importlib.util.find_spec("spaces") is None:
        yield Finding("skipped", what, Sentence("the package spaces is not installed"))
        return
    named = [model.name_or_path for model in (pair.target, pair.draft) if model is not None]
    path = os.pathsep.join(filter(None, [str(ASSETS.parent), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-W", "ignore", "-c", ZERO_GPU, *named]
    environment = os.environ | ON_ZERO_GPU | {"PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        yield Finding("right", what, Sentence("loaded, and moved to {device}", device=done.stdout.strip()))
    else:
        reason = (done.stderr.strip().splitlines() or ["?"])[-1]
        yield Finding("wrong", what, Sentence("it ends with {reason}", reason=reason))


def real_sizes(pair: ModelPair) -> Iterator[Finding]:
    """What speculation gains at sizes worth a GPU, by plain passes and by CUDA graphs."""
    if pair.device.type != "cuda":
        yield Finding("skipped", Sentence("real sizes"), Sentence("there is no CUDA device in use"))
        return
    for size in SIZES:
        try:
            sized = make_pair(size, pair.device)
        except SpecvizError as refusal:
            yield Finding("skipped", Sentence("size {size}", size=size.name), refusal)
            continue
        try:
            yield _oracle(sized, size.name)
            refused = prepare_passes(sized).reasons
            if "target" in refused:
                yield Finding("wrong", Sentence("CUDA graphs, size {size}", size=size.name), refused["target"])
            else:
                yield _oracle(sized, size.name)
        finally:
            sized.free()


def _oracle(pair: ModelPair, size: str) -> Finding:
    *_, found = measure_forced(pair, ALPHA, GAMMA)
    oracle = found.figures
    what = Sentence(
        "size {size}, {kind} passes, an oracle with α = {alpha}", size=size, kind=pair.passes.kind, alpha=ALPHA
    )
    seen = Sentence(
        "{speedup}× plain decoding ({formula}× by the formula), {speed} tokens a second",
        speedup=f"{oracle.speedup_measured:.2f}",
        formula=f"{oracle.speedup_formula:.2f}",
        speed=f"{oracle.tokens_per_second:.0f}",
    )
    return Finding("right" if oracle.speedup_measured > 1 else "slow", what, seen)
