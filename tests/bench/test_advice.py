"""Advice: measured beside plain decoding, honest where it does not pay, and with flags that servers have."""

from __future__ import annotations

import json
import shlex
import threading
import types
from dataclasses import replace

import pytest
from tiny import tiny_pair

from specviz.__main__ import _parser, main
from specviz.bench import advice, advise_command, bench_plan, benchmark
from specviz.bench.advice import FINALISTS, Offer, ranked, server_flags
from specviz.bench.benchmark import advised_chains
from specviz.bench.contestants import Standing
from specviz.drafters import DRAFTERS, PromptLookup
from specviz.models import catalog
from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair, PairPasses
from specviz.records.errors import SpecvizError
from specviz.records.settings import RunSettings
from specviz.records.stopwatch import nothing_known
from specviz.records.words import words
from specviz.ui import advising
from specviz.ui.deployment import Deployment
from specviz.ui.orders import Order
from specviz.ui.pairs import PairName
from specviz.ui.runner import Runner
from specviz.views.advice_text import advice as in_words
from specviz.views.advice_text import as_table

#: What a shell and Markdown would like to carry out.
HOSTILE = "draft'; rm -rf $HOME | <b>*x*</b>"


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return tiny_pair("llama")


def offer(mode: str, *ratios: float, gamma: int = 4, draft: str | None = None) -> Offer:
    middle = sorted(ratios)[len(ratios) // 2]
    standing = Standing(100.0, (90.0, 110.0), middle, (min(ratios), max(ratios)), acceptance_length=2.5)
    return Offer(mode, gamma, standing, len(ratios), draft)


def told(*offers: Offer, language: str = "en"):
    return in_words(offers, "a machine", "a pair", "plain passes", 0.0, words(language))


def test_who_was_measured_more_often_comes_first_and_among_them_the_fastest():
    lucky, steady, slower = offer("suffix", 3.0), offer("eagle", 1.4, 1.5, 1.6), offer("mtp", 1.2, 1.2, 1.2)
    assert ranked([lucky, slower, steady]) == [steady, slower, lucky]


@pytest.mark.parametrize(
    ("offers", "said"),
    [
        ([offer("eagle", 1.4, 1.5, 1.6)], "Use “EAGLE” with γ = 4: measured 1.50×"),
        ([offer("eagle", 0.9, 1.5, 1.6)], "not in every repeat (0.90 to 1.60)"),
        ([offer("eagle", 1.5)], "in a single short run"),
        ([offer("eagle", 0.8, 0.9, 1.6)], "Nothing beats plain decoding"),
    ],
)
def test_the_sentence_says_no_more_than_was_measured(offers, said):
    assert said in told(*offers).sentence


def test_where_nothing_pays_no_flags_are_given():
    assert told(offer("eagle", 0.9)).flags == ()
    assert len(told(offer("eagle", 1.5, 1.5)).flags) == 3


def test_every_drafter_has_flags_or_is_said_to_have_none():
    for name in DRAFTERS:
        vllm, sglang, llama = server_flags(offer(name, 1.5, gamma=3))
        assert [one.server for one in (vllm, sglang, llama)] == ["vLLM", "SGLang", "llama.cpp"]
        if vllm.flags:
            name, value = shlex.split(vllm.flags)
            assert name == "--speculative-config" and json.loads(value)["num_speculative_tokens"] == 3
        if sglang.flags:
            assert sglang.flags.startswith("--speculative-algorithm ")
            assert sglang.flags.endswith("--speculative-num-draft-tokens 4")
        assert llama.flags is None or "--spec-type" in llama.flags
    assert [one.flags for one in server_flags(offer("lookahead", 2.0))] == [None] * 3
    assert (advice.MAX_NGRAM, advice.MIN_NGRAM) == (PromptLookup.MAX_NGRAM, PromptLookup.MIN_NGRAM)


def test_a_models_name_is_one_word_for_a_shell_and_no_markdown():
    vllm, sglang, llama = server_flags(offer("draft_model", 1.5, draft=HOSTILE))
    assert json.loads(shlex.split(vllm.flags)[1])["model"] == HOSTILE
    assert HOSTILE in shlex.split(sglang.flags) and f"{HOSTILE}.gguf" in shlex.split(llama.flags)
    (other,) = {one.note for one in server_flags(replace(offer("draft_model", 1.5), translated=True))}
    assert other == "tokenizers"


@pytest.fixture
def short(monkeypatch) -> None:
    """Few and short runs; what is promised does not depend on their length."""
    heat = replace(bench_plan.HEAT, gammas=(2,), copied_gammas=(2,), max_new_tokens=6, least_share=0.0)
    monkeypatch.setattr(bench_plan, "HEAT", heat)
    monkeypatch.setattr(bench_plan, "FINAL", replace(heat, repeats=2))


def test_the_command_measures_what_is_at_hand_and_the_fastest_again(pair, short, monkeypatch):
    monkeypatch.setattr(catalog, "drafts_at_hand", lambda target: [catalog.CATALOG[0]] if target == "t" else [])
    options = _parser().parse_args(["advise", "--target", "t", "--temperature", "0.8"])
    heard: list[str] = []
    loaded = [replace(pair, passes=PairPasses())]
    offers = advise_command.measure(options, pair, lambda name: loaded[0], heard.append)
    assert loaded[0].target is None and pair.target is not None, "two pairs more would not fit everywhere"
    own, others = [one for one in offers if one.draft is None], [one for one in offers if one.draft]
    assert {one.mode for one in own} == {one.mode for one in advised_chains(pair)}
    assert [(one.mode, one.draft) for one in others] == [("draft_model", catalog.CATALOG[0].draft)]
    assert sorted(one.repeats for one in own)[-FINALISTS - 1 :] == [1, *[2] * FINALISTS]
    assert all(one.standing.speedup_measured > 0 for one in offers)
    assert any("medusa" in line for line in heard)
    text = as_table(in_words(offers, HOSTILE, "a\x1b[31m pair", "plain", 0.8, words()), words())
    assert "\x1b" not in text and "drafter" in text.splitlines()[0]


@pytest.mark.parametrize("held_up", ["suffix", "plain"])
def test_a_way_that_something_else_held_up_is_not_advised_and_beside_a_busy_core_none_is(
    pair, short, monkeypatch, held_up
):
    monkeypatch.setattr(bench_plan, "HEAT", replace(bench_plan.HEAT, least_share=0.8))
    monkeypatch.setattr(bench_plan, "FINAL", bench_plan.HEAT)
    real, shares = benchmark.timed, {held_up: 0.1}
    monkeypatch.setattr(
        benchmark, "timed", lambda one, workload: replace(real(one, workload), share=shares.get(one.mode, 1.0))
    )
    options = _parser().parse_args(["advise"])
    if held_up == "plain":
        with pytest.raises(SpecvizError, match="Something else had the processor in every run"):
            advise_command.measure(options, pair, None, lambda line: None)
    else:
        offers = advise_command.measure(options, pair, None, lambda line: None)
        assert {one.mode for one in offers} == {one.mode for one in advised_chains(pair)} - {held_up}


def test_the_command_prints_the_table_the_sentence_and_the_flags(pair, short, monkeypatch, capsys):
    monkeypatch.setattr("specviz.__main__._load", lambda options: pair)
    monkeypatch.setattr("specviz.__main__._prepare", lambda pair, compiling: None)
    assert main(["advise", "--prompt", "Once upon a time"]) == 0
    table, sentence, about, *flags = capsys.readouterr().out.strip().split("\n\n")
    assert table.startswith("drafter") and "Draft model" in table
    assert "γ = " in sentence and "tiny llama at temperature 0" in about
    assert bool(flags) == (not sentence.startswith("Nothing beats"))


def test_only_a_draft_model_that_was_downloaded_is_at_hand(monkeypatch):
    entry, here = catalog.CATALOG[0], []
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repo, name: "file" if repo in here else None)
    assert catalog.drafts_at_hand(entry.target) == []
    here.append(entry.draft)
    assert catalog.drafts_at_hand(entry.target) == [entry] and catalog.drafts_at_hand("another") == []


# On the page


@pytest.fixture
def runner(pair) -> Runner:
    store = types.SimpleNamespace(get=lambda name: pair, loaded=lambda name: pair, home=pair)
    return Runner(store, Deployment.from_environment())


ORDER = Order(PairName(draft=(HOSTILE,)), RunSettings("Once upon", max_new_tokens=6, seed=5))


def page_advice(runner: Runner, halt: threading.Event, stop_at: str = "nothing") -> list[str]:
    lines = []
    for text in advising.advise(runner, ORDER, halt, words()):
        lines.append(text)
        if stop_at in text:
            halt.set()
    return lines


def test_the_page_says_what_the_command_says(runner, pair, monkeypatch):
    chains = [
        one for one in advised_chains(pair) if one.mode in ("draft_model", "suffix") and one.num_draft_tokens == 4
    ]
    monkeypatch.setattr(advising.engine, "advised_chains", lambda pair: chains, raising=False)
    *going, last = page_advice(runner, threading.Event())
    assert any(line.startswith("100%") for line in going)
    assert "| drafter | γ |" in last and last.count("\n| ") == len(chains) + 2
    assert "<b>" not in last and "*x*" not in last


def test_stopped_it_keeps_what_was_measured(runner, pair, monkeypatch):
    chains = [one for one in advised_chains(pair) if one.mode == "suffix"]
    monkeypatch.setattr(advising.engine, "advised_chains", lambda pair: chains, raising=False)
    halt = threading.Event()
    assert page_advice(runner, halt, stop_at="Warming")[-1] == "Stopped before anything was measured."


def test_beside_a_busy_core_the_page_advises_nothing_and_says_why(runner, pair, monkeypatch):
    chains = [one for one in advised_chains(pair) if one.mode == "suffix"]
    monkeypatch.setattr(advising.engine, "advised_chains", lambda pair: chains, raising=False)
    busy = Runner(runner.store, replace(runner.deployment, least_share=2.0))
    assert page_advice(busy, threading.Event())[-1] == words().error(nothing_known())


def test_a_page_allows_the_advice_on_the_embedded_pair(runner):
    modes = {one.mode for one in advising.chains_of(runner, load_pair(device="cpu"), ORDER)}
    assert modes >= {"draft_model", "eagle", "mtp", "hybrid"}


def test_a_page_that_allows_few_runs_says_so(runner, pair):
    few = Runner(runner.store, replace(runner.deployment, max_compare_runs=3))
    with pytest.raises(SpecvizError, match="more than the 3 that this page allows"):
        advising.chains_of(few, pair, ORDER)
