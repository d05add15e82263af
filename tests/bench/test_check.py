"""The check of a device and a pair: right ones pass, and each kind of fault is found."""

import json
import threading
import types

import pytest
import torch
from tiny import save_pair, tiny_pair

from specviz.__main__ import main
from specviz.bench import full_check, pair_check
from specviz.bench.pair_check import Finding, check_pair
from specviz.decoding.wrong_rules import accept_everything
from specviz.models.loading import load_pair
from specviz.passes.static_passes import FastPasses, StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence, words
from specviz.rules.greedy import MATCH
from specviz.ui.deployment import Deployment
from specviz.ui.models_tab import check_pair as shown
from specviz.ui.pairs import PairName
from specviz.ui.runner import Runner


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """As few runs as still find what is wrong here."""
    few = {"TEXT_TOKENS": 16, "SAMPLES": 100, "LEAST_SAMPLES": 100, "RACE_TOKENS": 12, "RACE_REPEATS": 1, "WIDEST": 5}
    for name, value in few.items():
        monkeypatch.setattr(pair_check, name, value)
    for module in (pair_check, full_check):
        monkeypatch.setattr(module, "DRAFTERS", ("draft_model", "prompt_lookup", "medusa"))


def found(pair, check=check_pair) -> dict[str, Finding]:
    return {str(one.what): one for one in check(pair) if isinstance(one, Finding)}


def test_a_right_pair_has_no_fault_and_everything_was_looked_at():
    findings = found(tiny_pair("llama"))
    assert {one.state for one in findings.values()} <= {"right", "slow", "skipped"}
    assert findings["greedy text of transformers' generate"].seen == "the same 16 tokens"
    assert findings["greedy text, draft_model with 3 branches"].state == "right"
    assert findings["greedy text, medusa"].state == "skipped", "this pair has no such heads"
    for what in ("draft_model, rule token, chain", "draft_model, rule tree, 3 branches"):
        assert findings[f"distribution, {what}"].state == "right"
    for what in ("trees, target", "trees, draft", "memory"):
        assert findings[what].state == "right"
    assert "T(5) = " in findings["a target pass"].seen
    assert any(what.startswith("a short race") for what in findings)


def test_a_race_beside_a_busy_core_is_not_told(monkeypatch):
    monkeypatch.setattr(pair_check, "LEAST_SHARE", 2.0)
    (race,) = found(tiny_pair("llama"), pair_check.race).values()
    assert race.state == "skipped" and "something else had the processor" in str(race.seen)


def test_a_text_that_leaves_plain_decodings_is_found(monkeypatch):
    monkeypatch.setattr(type(MATCH), "decide", lambda rule, *given: accept_everything(*given))
    findings = found(tiny_pair("llama"), pair_check.texts)
    assert findings["greedy text of transformers' generate"].state == "right", "plain decoding drafts nothing"
    assert findings["greedy text, draft_model"].state == "wrong"


def test_a_distribution_that_is_not_the_targets_is_found(monkeypatch):
    from specviz.decoding import lossless

    monkeypatch.setitem(lossless.LAB_RULES, "auto", lossless.LAB_RULES["everything"])
    findings = found(tiny_pair("llama", noise=0.5), pair_check.distributions)
    assert [one.state for one in findings.values()] == ["wrong", "wrong"]


def test_a_fault_while_decoding_or_sampling_is_a_fault_and_not_left_out(monkeypatch):
    def failing(*given, **others):
        raise SpecvizError("The device ran out of memory.", "max_new_tokens")

    monkeypatch.setattr(pair_check, "timed", failing)
    findings = found(tiny_pair("llama"), pair_check.texts)
    assert findings["greedy text, draft_model"].state == "wrong"
    assert (findings["greedy text, medusa"].state, findings["greedy text, medusa"].advice) == ("skipped", None)
    monkeypatch.setattr(pair_check, "exact_distribution", failing)
    checks = ((Sentence("sampling"), pair_check.distributions),)
    assert found(tiny_pair("llama"), lambda pair: pair_check.carried_out(checks, pair))["sampling"].state == "wrong"


def test_prepared_passes_that_are_wrong_are_found_and_the_other_checks_go_on():
    pair = tiny_pair("llama")
    static = StaticPass(pair.target)
    pair.passes.fast = {"target": FastPasses(static, lambda *given: [2 * each for each in static(*given)], "compiled")}
    checks = ((Sentence("comparing"), pair_check.prepared), (Sentence("looking"), pair_check.memory))
    findings = found(pair, lambda pair: pair_check.carried_out(checks, pair))
    assert findings["comparing"].state == "wrong" and "more than rounding" in str(findings["comparing"].seen)
    assert findings["memory"].state == "right"


def test_a_pair_in_half_precision_may_part_where_rounding_decides():
    pair = tiny_pair("llama", seed=5)
    for model in (pair.target, pair.draft):
        model.to(torch.bfloat16)
    pair.dtype = torch.bfloat16
    assert {one.state for one in found(pair, pair_check.texts).values()} <= {"right", "skipped"}


def test_the_command_says_what_is_wrong_and_ends_with_status_1(tmp_path, capsys, monkeypatch):
    target, draft = map(str, save_pair(tmp_path))
    order = [
        "check",
        "--target",
        target,
        "--draft",
        draft,
        "--dtype",
        "float32",
        "--json",
        str(tmp_path / "check.json"),
    ]
    monkeypatch.setattr(pair_check, "SHORT", tuple(one for one in pair_check.SHORT if one[1] is pair_check.texts))
    assert main(order) == 0
    out = capsys.readouterr().out
    assert "✓ greedy text, draft_model: the same 16 tokens" in out and "✗ 0" in out
    report = json.loads((tmp_path / "check.json").read_text())
    assert report["schema"] == "specviz.check/1" and report["pair"]["dtype"] == "float32"
    assert {one["state"] for one in report["findings"]} <= {"right", "slow", "skipped"}

    monkeypatch.setattr(type(MATCH), "decide", lambda rule, *given: accept_everything(*given))
    assert main(order) == 1
    assert "✗ greedy text, draft_model: " in capsys.readouterr().out


def test_the_long_check_tries_every_rule_and_every_precision_and_a_start_on_zerogpu(monkeypatch, tmp_path):
    monkeypatch.setattr(full_check, "DTYPES", ("float32",))
    monkeypatch.setattr(full_check, "DRAFTERS", ("draft_model", "prompt_lookup"))
    pair, asked = load_pair(*save_pair(tmp_path), dtype="float32"), []
    checks = full_check.long_checks(lambda dtype: asked.append(dtype) or tiny_pair("llama"))
    findings = found(pair, lambda pair: pair_check.carried_out(checks, pair))
    assert asked == ["float32"]
    assert {"right"} == {one.state for what, one in findings.items() if what.startswith("distribution, draft_model")}
    assert [what for what in findings if what.startswith("distribution, draft_model")] == [
        f"distribution, draft_model, rule {rule}, {'chain' if branches == 1 else f'{branches} branches'}"
        for rule, branches in full_check.RULES
    ]
    assert findings["greedy text, draft_model, in float32"].state == "right"
    assert findings["real sizes"].state == "skipped"
    assert (findings["start on ZeroGPU"].state, findings["start on ZeroGPU"].seen.values) == (
        "right",
        {"device": "cuda:0"},
    )


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_page_lists_the_findings_in_its_language(language, monkeypatch):
    say, pair = words(language), tiny_pair("llama")
    monkeypatch.setattr(pair_check, "SHORT", ((Sentence("trying trees"), pair_check.trees),))
    store = types.SimpleNamespace(get=lambda name, progress=None: pair, home=pair)
    *_, last = shown(Runner(store, Deployment.from_environment()), PairName(), threading.Event(), say)
    assert last.count("\n") == 1 and last.startswith("- ✓ **")
    assert say.step(Sentence("read as the branches alone are")) in last


def test_what_memory_does_not_hold_is_skipped_and_not_wrong(monkeypatch):
    def refusing(*asked):
        raise SpecvizError("Size 8b needs about 16 GB.", "size")

    monkeypatch.setattr(full_check, "make_pair", refusing)
    on_a_gpu = types.SimpleNamespace(device=torch.device("cuda"))
    for found_there in (full_check.real_sizes(on_a_gpu), full_check.every_dtype(refusing)):
        states = [one.state for one in found_there]
        assert states == ["skipped"] * len(states) and len(states) > 1
