"""Passes over many requests: each reads its own text, and what would take too long is left out."""

from __future__ import annotations

import pickle

import pytest
import torch
from tiny import tiny_model, tiny_pair

from specviz.bench.pass_times import RequestBatch, measure_batches
from specviz.models.pair import ModelPair
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt_neox"])
def test_each_request_is_read_after_rows_of_its_own(architecture):
    model, context = tiny_model(architecture), 20
    batch = RequestBatch(model, requests=3, context=context)
    texts = torch.randint(0, 32, (3, 5), generator=torch.Generator().manual_seed(1))
    # What is timed leaves nothing behind, and what is read stays.
    batch.seconds(7)
    read = [batch.read(texts[:, :2]), batch.read(texts[:, 2:])]
    for request, text in enumerate(texts):
        alone = CachedModel(model, Stopwatch(torch.device("cpu")))
        alone.forward(torch.ones(context, dtype=torch.long), keep=1)
        alone.rewind(context)
        expected = alone.forward(text, keep=5)
        torch.testing.assert_close(torch.cat([part[request] for part in read]), expected, atol=1e-5, rtol=1e-4)


def test_all_passes_take_turns_and_the_last_message_is_complete():
    pair = tiny_pair("llama")
    shown = list(measure_batches(pair, batches=(1, 3), widths=(1, 2), context=16, repeats=2))
    assert [one.fraction for one in shown] == sorted(one.fraction for one in shown) and shown[-1].fraction == 1
    last = pickle.loads(pickle.dumps(shown[-1]))
    assert (last.target, last.context, last.kind, last.batches) == (pair.target_name, 16, "plain", (1, 3))
    asked = {("target", b, k) for b in (1, 3) for k in (1, 2)} | {("draft", b, 1) for b in (1, 3)}
    assert {(point.role, point.requests, point.width) for point in last.points} == asked
    assert {point.repeats for point in last.points} == {2} and all(point.seconds > 0 for point in last.points)


def test_the_largest_passes_of_a_slow_pair_are_left_out():
    pair = tiny_pair("llama", max_position_embeddings=16)
    alone = ModelPair.of(pair.target, None, pair.tokenizer)
    [*_, last] = measure_batches(alone, budget=0.0)
    # The first pass is always made; of a small model, none that fills more than half of its positions.
    assert [(point.requests, point.width, point.repeats) for point in last.points] == [(1, 1, 1)]
    [*_, last] = measure_batches(alone, batches=(1, 2), repeats=1)
    assert {point.width for point in last.points} == {1, 2, 3, 5} and last.context == 11
