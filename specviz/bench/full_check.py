"""The long check: what `pair_check` leaves out because it takes minutes, other weights or another device."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from specviz.bench.model_sizes import make_pair, size_named
from specviz.bench.pair_check import Check, Finding, distribution, sampled, texts
from specviz.bench.size_benchmark import QUICK, SizeRow, measure_pair
from specviz.drafters import DRAFTERS
from specviz.models.pair import ModelPair
from specviz.models.preparation import prepare_passes
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence

#: Lossless rules, and the branches with which each is tried.
RULES = (("token", 1), ("block", 1), ("tree", 3))

DTYPES = ("float32", "bfloat16", "float16")

#: Real shapes with random weights, and an oracle that is right this often.
SIZES, ALPHA, GAMMA = ("1b", "8b"), 0.8, 4


def long_checks(load: Callable[[str], ModelPair]) -> tuple[Check, ...]:
    """load: the pair once more, in the dtype of this name."""
    return (
        (Sentence("sampling under every rule"), every_rule),
        (Sentence("comparing texts in every precision"), lambda pair: every_dtype(load)),
        (Sentence("racing the oracle at real sizes"), real_sizes),
    )


def every_rule(pair: ModelPair) -> Iterator[Finding]:
    """The distribution of two tokens for each drafter under each lossless rule that can judge its drafts."""
    for drafter, (rule, branches) in itertools.product(DRAFTERS, RULES):
        with contextlib.suppress(SpecvizError):  # not every rule judges every drafter's drafts
            yield distribution(pair, sampled(drafter, branches, rule))


def every_dtype(load: Callable[[str], ModelPair]) -> Iterator[Finding]:
    """Greedy texts in every precision that models run in."""
    for dtype in DTYPES:
        pair = load(dtype)
        for found in texts(pair):
            yield replace(found, what=Sentence("{what}, in {dtype}", what=found.what, dtype=dtype))
        pair.free()


def real_sizes(pair: ModelPair) -> Iterator[Finding]:
    """What speculation gains at sizes worth a GPU, by plain passes and by CUDA graphs."""
    if pair.device.type != "cuda":
        yield Finding("skipped", Sentence("real sizes"), Sentence("there is no CUDA device in use"))
        return
    for size in SIZES:
        sized = make_pair(size_named(size), pair.device)
        yield _oracle(sized, size)
        refused = prepare_passes(sized).reasons
        if "target" in refused:
            yield Finding("wrong", Sentence("CUDA graphs, size {size}", size=size), refused["target"])
        else:
            yield _oracle(sized, size)
        sized.free()


def _oracle(pair: ModelPair, size: str) -> Finding:
    oracle: SizeRow = next(row for row in measure_pair(pair, ALPHA, GAMMA, QUICK).rows if row.mode == "oracle")
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
