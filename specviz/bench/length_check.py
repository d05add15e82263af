"""Greedy texts across the lengths at which something of a pair changes: windows, chunks, buffers, the context's end.

A short text never meets them, and what is wrong there is wrong for everybody who writes longer ones.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import replace

from transformers import DynamicCache, PreTrainedModel

from specviz.bench.contestants import PLAIN, Contestant
from specviz.bench.equal_texts import agreement, plain_run
from specviz.bench.looking import GAMMA, Finding, refusal_of, tried
from specviz.bench.timed_runs import Workload, written
from specviz.drafters import DRAFTERS
from specviz.models.pair import ModelPair
from specviz.passes.static_passes import BLOCK, WIDEST
from specviz.records.presets import PRESETS
from specviz.records.words import Sentence

#: New tokens of such a text, and how many of them it has before the length.
NEW, BEFORE = 20, 8

#: Prompt tokens, at most, by which it is known beforehand what reading takes.
TIMED = 192


def switches(pair: ModelPair, written_for: int = 0) -> list[tuple[int, Sentence]]:
    """The lengths, in tokens, and what changes there: of target and draft, as far as the context reaches.

    written_for: the length of the usual prompt, after which buffers grow first.
    """
    found: dict[int, Sentence] = {}
    for model in filter(None, (pair.target, pair.draft)):
        config = model.config.get_text_config()
        for length in _windows(model):
            found[length] = Sentence("texts across {n} tokens, a window of attention", n=length)
        for name in ("floor_scale", "index_topk"):
            if length := getattr(config, name, None):
                found[length] = Sentence("texts across {n} tokens, where attention changes", n=length)
        rope = getattr(config, "rope_parameters", None) or {}
        for kind in (rope, *(kind for kind in rope.values() if isinstance(kind, dict))):
            if length := kind.get("original_max_position_embeddings"):
                found[length] = Sentence("texts across {n} tokens, the context before it was extended", n=length)
    if pair.passes.fast:
        length = (written_for // BLOCK + 1) * BLOCK
        found[length] = Sentence("texts across {n} tokens, where buffers grow", n=length)
        found[WIDEST] = Sentence("texts across {n} tokens, the most that a prepared pass reads", n=WIDEST)
    if (end := pair.context_length) is not None:
        found = {length: what for length, what in found.items() if length < end}
        found[end] = Sentence("texts up to {n} tokens, where the context ends", n=end)
    return sorted(found.items())


def _windows(model: PreTrainedModel) -> set[int]:
    layers = DynamicCache(config=model.config).layers
    own = getattr(model.config, "window_size", None)  # GPT-Neo's, which its cache knows nothing of
    return {layer.sliding_window for layer in layers if layer.is_sliding} | ({own} if isinstance(own, int) else set())


def lengths(pair: ModelPair, seconds: float) -> Iterator[Finding]:
    """One finding for each of the `switches` that can be read in this time, the nearest first."""
    until = time.perf_counter() + seconds
    usual = Workload.of(replace(pair, eos_ids=frozenset()), PRESETS[0], 0.0, NEW)  # nothing ends before it has crossed
    ways = [
        Contestant(PLAIN),
        Contestant(PLAIN, engine="transformers"),
        *(Contestant(name, GAMMA) for name in DRAFTERS),
    ]
    ways = [one for one in ways if refusal_of(one, usual) is None]
    timed = min(TIMED, (pair.context_length or TIMED * 2) // 2)
    began = time.perf_counter()
    written(ways[0], _ending_at(usual, timed, 1))
    each = (time.perf_counter() - began) / timed
    for length, what in switches(pair, len(usual.prompt)):
        needed, left = len(ways) * (length + NEW) * each, until - time.perf_counter()
        if length <= BEFORE:
            continue  # the other texts have crossed it
        if needed > left:
            advice = Sentence("python -m specviz check --minutes 5 looks at more.")
            yield Finding("skipped", what, Sentence("to read so much would take about {s} s", s=round(needed)), advice)
            continue
        workload = _ending_at(usual, length - BEFORE, NEW)
        yield tried(what, functools.partial(_crossing, what, ways, workload))


def _ending_at(usual: Workload, length: int, tokens: int) -> Workload:
    """The usual prompt over and over, up to this length; and new tokens as far as the context reaches."""
    prompt, end = usual.prompt * -(-length // len(usual.prompt)), usual.pair.context_length
    room = tokens if end is None else min(tokens, end - length)
    return replace(usual, prompt=prompt[-length:], max_new_tokens=room)


def _crossing(what: Sentence, ways: list[Contestant], workload: Workload) -> Finding:
    _, *others = ways
    base = plain_run(workload)
    found = [agreement(one, written(one, workload), base, workload) for one in others]
    same = Sentence("the same {n} tokens in {ways} ways", n=len(base.token_ids), ways=len(ways))
    rounded = Sentence("the same {n} tokens in {ways} ways, up to rounding", n=len(base.token_ids), ways=len(ways))
    return Finding("right", what, same if all(one.identical for one in found) else rounded)
