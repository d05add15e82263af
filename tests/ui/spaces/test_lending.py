"""GPUs that are lent by the call: who asks for one, for how long, and what a refusal means."""

import importlib.resources
import json
import time
import types
from dataclasses import replace

import gradio as gr
import pytest
import torch
from lent import lend
from tiny import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.bench.duel import LENT_BUDGET, runs_of
from specviz.models import sources
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError
from specviz.records.settings import RunSettings
from specviz.ui import lending
from specviz.ui.device import PairName
from specviz.ui.lending import (
    MARGIN,
    MOST_CHARGED,
    charged_per_second,
    gains_from_gpu,
    refusal,
    seconds_for,
    start_seconds,
)
from specviz.ui.orders import Order
from specviz.ui.runner import TIMING, Runner

#: As the page opens with it.
SETTINGS = RunSettings("Once upon a time", max_new_tokens=128)
ORDER = Order(PairName(), SETTINGS)

#: What the package `spaces` knows: its cards' factors, and the larger half of today's.
_KNOWN = json.loads(importlib.resources.files("spaces").joinpath("zero", "configs.json").read_text())
CARDS = [*((card["duration_factor"], "large") for card in _KNOWN), (1.5, "xlarge")]


@pytest.mark.parametrize(("factor", "size"), CARDS)
def test_nobody_is_asked_for_more_seconds_than_a_visitor_has(store, monkeypatch, factor, size):
    lend(monkeypatch, factor=factor, size=size)
    endless = replace(SETTINGS, max_new_tokens=10**7)
    asked = seconds_for(store.starting_pair, 10, [endless], 0.0)
    charged = asked * (2 if size == "xlarge" else factor)
    assert charged == asked * charged_per_second()
    assert MOST_CHARGED - 2 < charged <= MOST_CHARGED == 120


@pytest.fixture
def large_pairs() -> list[ModelPair]:
    """Targets of 1.5 and 8 billion parameters with draft models as they are usual, without weights."""
    sizes = ((1536, 8960, 28), (896, 4864, 24)), ((4096, 14336, 32), (2048, 8192, 16))
    return [ModelPair.of(llama(*target), llama(*draft), byte_tokenizer()) for target, draft in sizes]


def llama(width: int, inner: int, layers: int) -> LlamaForCausalLM:
    config = LlamaConfig(hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, vocab_size=128_256)
    with torch.device("meta"):
        return LlamaForCausalLM(config).to(torch.bfloat16)


def test_the_press_that_a_page_opens_with_charges_half_a_minute_at_most(large_pairs, monkeypatch):
    lend(monkeypatch)
    for pair in large_pairs:
        asked = seconds_for(pair, 20, [SETTINGS, *runs_of(SETTINGS, False)], TIMING + LENT_BUDGET)
        assert start_seconds(pair) < asked and asked * charged_per_second() <= 30


def test_what_is_asked_for_follows_the_runs_and_the_passes_that_were_measured(large_pairs, monkeypatch):
    lend(monkeypatch, factor=0.01)  # so that nothing is cut off
    pair, settings = large_pairs[1], replace(SETTINGS, max_new_tokens=2000, drafter="draft_model")

    def seconds(*runs, prompt=10):
        return seconds_for(pair, prompt, runs, 0.0)

    plain = replace(settings, drafter=None)
    assert seconds(plain) < seconds(settings) < seconds(replace(settings, num_draft_tokens=8))
    assert seconds(settings) < seconds(settings, plain) and seconds(settings) < seconds(settings, prompt=10**6)
    halved = replace(settings, drafter="early_exit")
    assert seconds(halved) < seconds(replace(halved, drafter="quantised_self"))
    pair.passes.seconds_by_width[1] = 0.010
    expected = start_seconds(pair) + 2000 * MARGIN * 0.010
    assert seconds(plain) == pytest.approx(expected, abs=1)


def test_only_a_target_that_gains_from_a_lent_gpu_asks_for_one(monkeypatch):
    sizes = {"of 135 million": (30, 0.135e9), "of 1.5 billion": (28, 1.5e9)}

    def found(name, *_):
        layers, count = sizes[name]
        config = LlamaConfig(num_hidden_layers=layers)
        return types.SimpleNamespace(config=config, weight_bytes=lambda dtype: int(count * dtype.itemsize))

    monkeypatch.setattr(sources, "find_model", found)
    assert [gains_from_gpu(name) for name in (None, *sizes)] == [False, False, True]


def test_work_that_takes_longer_than_it_asked_for_ends_with_a_sentence_and_keeps_what_it_has(
    store, deployment, monkeypatch
):
    lend(monkeypatch)
    monkeypatch.setattr(lending, "MOST_CHARGED", 6)  # four seconds of today's card, three of them for the process
    work, seen = Runner(store, deployment).batches(ORDER, endless), []
    with pytest.raises(SpecvizError, match="The 4 seconds for which the platform lent a GPU are up"):
        for batch in work:
            seen += batch
    assert seen


def endless(request):
    while True:
        time.sleep(0.01)
        yield "a round"


@pytest.mark.parametrize(
    ("title", "message", "way_out"),
    [
        ("ZeroGPU quota exceeded", "You have exceeded your ZeroGPU quota (30s requested vs. 2s left).", "Sign in"),
        ("ZeroGPU illegal duration", "The requested GPU duration (180s) is larger than the maximum allowed", "fewer"),
        ("ZeroGPU client error", "No GPU was available", "in a minute"),
        ("ZeroGPU queue timeout", "No GPU was available after 60s", "even without a GPU"),
        ("ZeroGPU client error", "Expired ZeroGPU proxy token", "Reload the page"),
    ],
)
def test_a_refusal_of_the_platform_is_a_sentence_with_its_words_and_the_way_out(title, message, way_out):
    said = str(refusal(gr.Error(message, title=title)))
    assert message.rstrip(".") in said and way_out in said and ".." not in said
