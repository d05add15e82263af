"""The check of a device and a pair: right ones pass, and each kind of fault is found."""

import itertools
import json
import re
import threading
from dataclasses import replace
from math import inf
from types import SimpleNamespace

import pytest
from tiny import save_pair, tiny_pair

from specviz.__main__ import main
from specviz.bench import check as pair_check
from specviz.bench import equal_texts
from specviz.bench.check import check_pair
from specviz.bench.contest import Row
from specviz.bench.contestants import Contestant
from specviz.bench.equal_texts import Finding
from specviz.commands.check import line_of
from specviz.decoding import lossless
from specviz.decoding.lossless import accept_everything
from specviz.drafters.copying import PromptLookup
from specviz.models.pair import ModelPair
from specviz.passes.fast_passes import FastPasses
from specviz.passes.roles import TARGET
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence, words
from specviz.rules.exact import MATCH
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName
from specviz.ui.runner import Runner
from specviz.ui.tabs.pair_in_use import check_pair as shown


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """As few runs as still find what is wrong here, however busy the machine is."""
    monkeypatch.setattr(equal_texts, "TEXT_TOKENS", 16)
    few = {"SAMPLES": 100, "LEAST_SAMPLES": 100, "RACE_TOKENS": 12, "RACE_REPEATS": 1}
    for name, value in (few | {"WIDTHS": (1, 2, 5), "SECONDS": 600}).items():
        monkeypatch.setattr(pair_check, name, value)
    for module in (pair_check, equal_texts):
        monkeypatch.setattr(module, "DRAFTERS", ("draft_model", "prompt_lookup", "medusa"))


def found(told) -> dict[str, Finding]:
    return {str(one.what): one for one in told if isinstance(one, Finding)}


@pytest.fixture
def only(monkeypatch):
    """Of a pair, these checks alone."""

    def run(pair, *checks) -> dict[str, Finding]:
        monkeypatch.setattr(pair_check, "short_checks", lambda seconds: checks)
        return found(check_pair(pair))

    return run


def test_a_right_pair_has_no_fault_and_everything_was_looked_at():
    findings = found(check_pair(tiny_pair("llama"), 600))
    assert {one.state for one in findings.values()} <= {"right", "slow", "skipped"}
    assert findings["greedy text of transformers' generate"].seen == "the same 16 tokens"
    assert findings["greedy text, draft_model with 3 branches"].state == "right"
    assert findings["greedy text, medusa"].state == "skipped", "this pair has no such heads"
    drawn = [what for what in findings if what.startswith("distribution, draft_model")]
    assert drawn == [
        f"distribution, draft_model, rule {rule}"
        for rule in ("token, chain", "tree, 3 branches", "block, chain", "multi_path, 3 branches")
    ], "every lossless rule"
    for what in drawn:
        assert findings[what].state == "right"
    for what in ("trees, target", "trees, draft", "memory"):
        assert findings[what].state == "right"
    assert "T(5) = " in findings["a target pass"].seen
    share = findings["share of the memory's bandwidth"]
    assert share.state == "right" and re.search(r"weights in [\d.]+ ms: .*/s, [\d.]+ % of the .* GB/s that", share.seen)
    assert any(what.startswith("a short race") for what in findings)


def test_a_share_of_the_bandwidth_that_nobody_can_count_is_left_out_with_the_reason():
    share = found(pair_check.pass_times(tiny_pair("mixtral")))["share of the memory's bandwidth"]
    assert share.state == "skipped" and "depend on the experts" in str(share.seen)


def test_the_race_is_run_with_the_drafter_to_start_with_and_pays_only_if_all_of_its_interval_does():
    (one,) = found(pair_check.race(tiny_pair("llama"), 600))
    assert one.startswith("a short race, draft_model")
    pair = tiny_pair("llama")
    (one,) = found(pair_check.race(ModelPair.of(pair.target, None, pair.tokenizer), 600))
    assert one.startswith("a short race, prompt_lookup"), "kernels that nobody prepared do not read a quantised target"

    def verdict(low, high, busy):
        known = {"speedup_measured": 1.2, "speedup_interval": low and (low, high), "acceptance_length": 2.5}
        row = Row(title="x", engine="specviz", mode="draft_model", tokens_per_second=100.0, **known)
        return pair_check._race_verdict(Sentence("a race"), row, busy)

    assert verdict(1.1, 1.3, True).state == "right" and verdict(0.9, 1.5, False).state == "slow"
    assert "(0.9 to 1.5, 90 %)" in str(verdict(0.9, 1.5, False).seen)
    few = verdict(None, None, True)
    assert few.state == "slow" and "1.2× plain decoding, in too few turns for an interval" in str(few.seen)
    assert "idle" in str(verdict(0.9, 1.5, True).advice) != str(verdict(0.9, 1.5, False).advice)


def failing(*given, **named):
    raise IndexError("out of range")


@pytest.mark.parametrize("who", ["generate", "propose", "new_tokens"])
def test_whoever_fails_is_one_fault_and_not_left_out_and_the_others_are_compared(monkeypatch, who):
    pair, honest = tiny_pair("llama"), equal_texts.new_tokens

    def new_tokens(contestant, plain):
        if contestant.mode == "prompt_lookup":
            raise SpecvizError("The device ran out of memory.", "max_new_tokens")
        return honest(contestant, plain)

    if who == "generate":
        monkeypatch.setattr(pair.target, "generate", failing, raising=False)
    elif who == "propose":
        monkeypatch.setattr(PromptLookup, "propose", failing)
    else:
        monkeypatch.setattr(equal_texts, "new_tokens", new_tokens)
    findings = found(pair_check.texts(pair, inf))
    wrong = "greedy text of transformers' generate" if who == "generate" else "greedy text, prompt_lookup"
    assert {one for one, each in findings.items() if each.state == "wrong"} == {wrong}
    assert findings["greedy text, draft_model"].state == "right"
    assert (findings["greedy text, medusa"].state, findings["greedy text, medusa"].advice) == ("skipped", None)
    if who == "propose":
        assert str(findings[wrong].seen) == "it failed with IndexError: out of range"
        drawn = found(pair_check.distributions(pair, inf))
        states = [drawn[f"distribution, {one}, rule token, chain"].state for one in ("prompt_lookup", "draft_model")]
        assert states == ["wrong", "right"]


@pytest.mark.parametrize("ties, state, n", [(1, "right", 15), (2, "right", 14), (99, "skipped", 16)])
def test_a_comparison_goes_on_past_a_near_tie_and_one_of_too_few_tokens_is_none(monkeypatch, ties, state, n):
    honest, prompts = equal_texts.agreement, []

    def agreement(contestant, tokens, due, plain, preset):
        verdict = honest(contestant, tokens, due, plain, preset)
        if contestant != Contestant.of("draft_model", equal_texts.GAMMA):
            return verdict
        prompts.append(len(plain.prompt.ids))
        return replace(verdict, place=0, margin=0.01 * len(prompts)) if len(prompts) <= ties else verdict

    monkeypatch.setattr(equal_texts, "agreement", agreement)
    findings = found(pair_check.texts(tiny_pair("llama"), inf))
    one = findings["greedy text, draft_model"]
    assert (one.state, one.seen.values["n"]) == (state, n)
    assert prompts == list(range(prompts[0], prompts[0] + min(ties, equal_texts.MOST_TIES) + 1))
    if state == "right":
        assert (one.seen.values["ties"], one.seen.values["margin"]) == (ties, 0.01 * ties)
    else:
        assert "only 0 of 16 tokens could be compared" in str(one.seen)
    assert str(pair_check.summary(list(findings.values()))).startswith("Everything checked out: ")


@pytest.mark.parametrize("token, seconds, tokens", [(0.01, 20, 16), (0.1, 3.0, 6), (0.1, 0.1, 4), (0.1, inf, 16)])
def test_texts_are_as_long_as_there_is_time_for(monkeypatch, token, seconds, tokens):
    monkeypatch.setattr(equal_texts, "LEAST_TEXT", 4)
    monkeypatch.setattr(equal_texts, "_token_seconds", lambda plain: (token, token))
    monkeypatch.setattr(equal_texts, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    # Five texts: plain decoding, transformers, the draft model as a chain and as a tree, and prompt lookup.
    texts = found(pair_check.texts(tiny_pair("llama"), seconds))
    assert {one.seen.values["n"] for one in texts.values() if one.state == "right"} == {tokens}


def test_what_there_is_no_time_for_is_left_out_and_said(monkeypatch):
    clock = itertools.count(step=10)
    monkeypatch.setattr(equal_texts, "_token_seconds", lambda plain: (0.1, 0.1))
    for module in (pair_check, equal_texts):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    for check, first in ((pair_check.texts, "greedy text of"), (pair_check.distributions, "distribution, draft_model")):
        one, *others = [each for each in check(tiny_pair("llama"), 15) if not isinstance(each.seen, SpecvizError)]
        assert str(one.what).startswith(first) and one.state == "right"
        assert others and {(each.state, str(each.seen)) for each in others} == {
            ("skipped", "no time left for this check")
        }


def test_a_check_that_fails_in_any_way_is_one_fault_and_the_others_go_on(only):
    def failing(error):
        def check(pair):
            yield Finding("right", Sentence("the half of it"), Sentence("done"))
            raise error

        return check

    refusal = SpecvizError("The device ran out of memory.", "max_new_tokens")
    checks = ((Sentence("this"), failing(refusal)), (Sentence("that"), failing(IndexError("out of\nrange"))))
    findings = only(tiny_pair("llama"), *checks, (Sentence("looking"), pair_check.memory))
    assert [(one, each.state) for one, each in findings.items()] == [
        ("the half of it", "right"),
        ("this", "wrong"),
        ("that", "wrong"),
        ("memory", "right"),
    ]
    assert findings["this"].seen == refusal
    assert line_of(findings["that"]) == "✗ that: it failed with IndexError: out of"


# Longer texts

_LONG = {"rope_theta": 10000.0, "short_factor": [1.0] * 6, "long_factor": [4.0] * 6}
LONGROPE = _LONG | {"rope_type": "longrope", "original_max_position_embeddings": 72}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "architecture, settings, expected",
    [
        ("llama", {}, [256]),
        ("mistral", {"sliding_window": 40}, [40, 256]),
        ("gemma3", {"sliding_window": 40}, [40, 256]),
        ("gpt_neo", {"window_size": 40}, [40, 256]),
        ("llama", {"rope_parameters": YARN}, [64, 256]),
        ("doge", {"keep_window_size": 72}, [72]),
        ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 72}, [72]),
    ],
)
def test_texts_are_compared_across_each_length_at_which_something_changes(architecture, settings, expected):
    pair = tiny_pair(architecture, **settings)
    assert [length for length, _ in equal_texts.switches(pair)] == expected
    findings = found(equal_texts.lengths(pair, inf))
    assert [one.state for one in findings.values()] == ["right"] * len(expected)
    for length, one in zip(expected, findings.values()):
        assert f"{length} tokens" in one.what and one.seen.values["ways"] >= 4
        assert one.seen.values["n"] == (equal_texts.BEFORE if length == expected[-1] else equal_texts.NEW)


def test_prepared_passes_that_are_wrong_are_found_at_once_or_once_their_buffers_grow(only):
    pair = tiny_pair("llama")
    static = StaticPass(pair.target)
    pair.passes.fast = {TARGET: FastPasses(static, lambda *given: [2 * each for each in static(*given)], "compiled")}
    checks = ((Sentence("comparing"), pair_check.prepared), (Sentence("looking"), pair_check.memory))
    findings = only(pair, *checks)
    assert findings["comparing"].state == "wrong" and "more than rounding" in str(findings["comparing"].seen)
    assert findings["memory"].state == "right"

    def wrong_when_large(*given):
        room = given[3].shape[-1]
        return [each if room <= 64 else -each for each in static(*given)]

    pair.passes.fast = {TARGET: FastPasses(static, wrong_when_large, "compiled")}
    assert [length for length, _ in equal_texts.switches(pair)] == [64, 256], "512 lies beyond the context"
    one = found(equal_texts.lengths(pair, inf))["texts across 64 tokens, where buffers grow"]
    assert one.state == "wrong" and "transformers plain is wrong" in str(one.seen)
    # There is no time to read so much.
    (left_out,) = found(equal_texts.lengths(tiny_pair("llama"), 0.0)).values()
    assert left_out.state == "skipped" and "reading that much would take about" in left_out.seen


def test_a_distribution_that_is_not_the_targets_is_found(monkeypatch):
    monkeypatch.setitem(lossless.LAB_RULES, "auto", lossless.LAB_RULES["everything"])
    findings = found(pair_check.distributions(tiny_pair("llama", noise=0.5), inf))
    assert {one.state for one in findings.values()} == {"wrong"}


def test_the_command_says_what_is_wrong_and_ends_with_status_1(tmp_path, capsys, monkeypatch):
    target, draft = map(str, save_pair(tmp_path))
    order = ["check", f"--target={target}", f"--draft={draft}", "--dtype=float32", f"--json={tmp_path / 'check.json'}"]
    texts = (Sentence("comparing"), lambda pair: pair_check.texts(pair, inf))
    monkeypatch.setattr(pair_check, "short_checks", lambda seconds: (texts,))
    assert main(order) == 0
    out = capsys.readouterr().out
    assert "✓ greedy text, draft_model: the same 16 tokens" in out and "✗ 0" in out
    assert "Everything checked out: 4 of 5 checks were made." in out
    report = json.loads((tmp_path / "check.json").read_text())
    assert report["schema"] == "specviz.check/1" and report["pair"]["dtype"] == "float32"
    assert {one["state"] for one in report["findings"]} <= {"right", "slow", "skipped"}

    monkeypatch.setattr(type(MATCH), "decide", lambda rule, *given: accept_everything(*given))
    assert main(order) == 1
    out = capsys.readouterr().out
    assert "✗ greedy text, draft_model: " in out
    assert "✓ greedy text of transformers' generate" in out, "plain decoding drafts nothing"


def test_ctrl_c_keeps_the_findings_so_far(tmp_path, capsys, monkeypatch):
    def interrupted(pair):
        raise KeyboardInterrupt
        yield

    checks = ((Sentence("looking"), pair_check.memory), (Sentence("trying"), interrupted))
    monkeypatch.setattr(pair_check, "short_checks", lambda seconds: checks)
    monkeypatch.setattr("specviz.commands.pairs.load", lambda *asked: tiny_pair("llama"))
    assert main(["check", "--json", str(tmp_path / "check.json")]) == 130
    assert capsys.readouterr().out.strip().splitlines()[-1].endswith(" s · interrupted")
    report = json.loads((tmp_path / "check.json").read_text())
    assert report["interrupted"] and [one["what"] for one in report["findings"]] == ["memory"]
    assert report["summary"] == "Checks made before the interruption: 1. None found anything wrong."

    monkeypatch.setattr(pair_check, "short_checks", lambda seconds: checks[1:])
    assert main(["check", "--json", str(tmp_path / "none.json")]) == 130
    assert not (tmp_path / "none.json").exists(), "a file is not replaced by nothing"


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_page_lists_the_findings_in_its_language(language, monkeypatch):
    say, pair = words(language), tiny_pair("llama")
    monkeypatch.setattr(pair_check, "short_checks", lambda seconds: ((Sentence("testing trees"), pair_check.trees),))
    store = SimpleNamespace(get=lambda name, progress=None: pair, starting_pair=pair)
    *_, last = shown(Runner(store, Deployment.from_environment()), PairName(), threading.Event(), say)
    first, _, *rows = last.splitlines()
    right = Sentence("Everything checked out: {made} of {n} checks were made.", made=2, n=2)
    assert first == f"**{say.step(right)}**"
    assert len(rows) == 2 and rows[0].startswith("- ✓ **")
    assert say.step(Sentence("read in the same way as the branches alone")) in last
