"""The benchmark: who is measured, what is left out and why, and what the rows come to."""

import json
import statistics
from dataclasses import replace

import pytest
from tiny import tiny_pair

from specviz import bench, figures
from specviz.drafters import DRAFTERS
from specviz.errors import SpecvizError
from specviz.figures import Report, Row, RulesRow
from specviz.models import ModelPair

#: Drafters that need a trained part, which the tiny pairs have not.
TRAINED = {"medusa", "eagle"}


@pytest.fixture(autouse=True, scope="module")
def small_plan():
    """The quick plan, quicker still: what is promised does not depend on its size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "QUICK", replace(bench.QUICK, max_new_tokens=6, repeats=2, rule_rounds=12))
        yield


@pytest.fixture(scope="module")
def pair():
    return tiny_pair("llama")


@pytest.fixture(scope="module")
def sampled(pair):
    """The draft model alone, at temperature 1."""
    return bench.measure(pair, quick=True, only=["draft_model"], temperatures=(1.0,))


def modes(report):
    return {row.mode for row in report.rows if row.engine == "specviz"}


def test_every_drafter_that_the_pair_can_run_is_measured_and_the_others_say_why_not(pair):
    heard = []
    report = bench.measure(pair, quick=True, say=heard.append)
    assert modes(report) == {"plain", *DRAFTERS} - TRAINED
    assert {entry["mode"] for entry in report.left_out} == TRAINED
    for entry in report.left_out:
        assert "train one with" in entry["reason"] and any(entry["reason"] in line for line in heard)
    yardsticks = {row.mode for row in report.rows if row.engine == "transformers"}
    assert yardsticks == {"plain", "draft_model", "prompt_lookup"}
    assert {row.temperature for row in report.rows} == {0.0, 1.0}


def row_of(report, title):
    return next(row for row in report.rows if row.title == title)


def test_one_question_can_be_measured_alone(sampled):
    assert modes(sampled) == {"plain", "draft_model"}
    assert {row.temperature for row in sampled.rows} == {1.0}
    assert sampled.left_out == [] and sampled.settings["only"] == ["draft_model"]


def test_a_row_says_how_it_was_run_with_defaults_filled_in(sampled):
    chain, block, tree = (row_of(sampled, f"draft_model γ=4{ending}") for ending in ("", " block", " ×3"))
    assert [(row.rule, row.branches) for row in (chain, block, tree)] == [("token", 1), ("block", 1), ("tree", 3)]
    plain = row_of(sampled, "plain")
    assert (plain.rule, plain.branches, plain.speedup_measured) == (None, None, None)


def test_figures_of_a_row_hang_together(sampled):
    row = row_of(sampled, "draft_model γ=4")
    assert row.spread[0] <= row.tokens_per_second <= row.spread[1]
    assert row.speedup_spread[0] <= row.speedup_measured <= row.speedup_spread[1]
    assert row.tokens == 2 * 6 and 2 <= row.rounds <= 12
    assert row.cost_coefficient > 0 and row.speedup_formula > 0
    assert sum(row.phase_share.values()) == pytest.approx(1)
    tree = row_of(sampled, "draft_model γ=4 ×3")
    assert tree.speedup_formula is None and tree.drafted_per_round > tree.levels_per_round


def test_the_rules_are_compared_over_at_least_the_rounds_asked_for(sampled):
    (rules,) = sampled.rules
    assert rules.rounds >= 12 and rules.temperature == 1.0
    assert rules.accepted_block - rules.accepted_token == pytest.approx(rules.rounds * rules.difference)


def test_greedy_decoding_leaves_no_choice_of_rules(pair):
    report = bench.measure(pair, quick=True, only=["draft_model"], temperatures=(0.0,))
    assert report.rules == [] and all(row.rule != "block" for row in report.rows)


def test_a_target_that_reads_chains_only_is_measured_on_chains():
    report = bench.measure(tiny_pair("mistral"), quick=True, only=["draft_model"], temperatures=(0.0,))
    assert {row.branches for row in report.rows if row.mode == "draft_model" and row.engine == "specviz"} == {1}
    assert any("chains only" in entry["reason"] for entry in report.left_out)


@pytest.mark.parametrize("name, field", [("oracle", "only"), ("medusa", "drafter")])
def test_a_drafter_that_was_named_and_cannot_run_is_refused(pair, name, field):
    with pytest.raises(SpecvizError) as refusal:
        bench.measure(pair, quick=True, only=[name])
    assert refusal.value.field == field


def test_a_pair_without_a_draft_model_can_be_measured(pair):
    alone = ModelPair.of(pair.target, None, pair.tokenizer)
    report = bench.measure(alone, quick=True, only=["prompt_lookup"], temperatures=(0.0,))
    assert modes(report) == {"plain", "prompt_lookup"}


def test_the_file_is_readable_json_of_its_schema(sampled, tmp_path):
    figures.save(sampled, tmp_path / "bench.json")
    data = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert data["schema"] == "specviz.bench/1"
    promised = "engine mode num_draft_tokens temperature preset tokens_per_second spread acceptance_rate "
    promised += "acceptance_length cost_coefficient speedup_measured speedup_formula overhead_share peak_mb "
    promised += "branches rule exit_layer speedup_spread"
    assert set(promised.split()) <= set(data["rows"][0])
    assert data["rules"][0]["rounds"] >= 12 and data["summary"] and data["findings"]


def test_the_table_names_every_contestant_and_every_finding(sampled):
    table = figures.table(sampled)
    for text in [row.title for row in sampled.rows] + sampled.findings:
        assert text in table


# What the rows come to, on rows written by hand


def a_row(title, preset, speed, *, temperature=0.0, speedup=None, **known):
    words = title.removeprefix("transformers ").split()
    settings = {"rule": "token", "branches": 1, "rounds": 10, "acceptance_length": 1.0, "speedup_formula": None}
    return Row(
        title=title,
        engine="transformers" if title.startswith("transformers") else "specviz",
        mode=words[0],
        num_draft_tokens=int(words[1][2:]) if len(words) > 1 else None,
        temperature=temperature,
        preset=preset,
        tokens=64,
        tokens_per_second=speed,
        spread=(speed, speed),
        speedup_measured=speedup,
        speedup_spread=None,
        **(settings | known),
    )


ROWS = [
    a_row("plain", "story", 100.0),
    a_row("plain", "story_sea", 50.0),
    a_row("plain", "python", 10.0),
    a_row("eagle γ=4", "story", 300.0, speedup=3.0, speedup_formula=3.0, acceptance_length=3.0, rounds=10),
    a_row("eagle γ=4", "story_sea", 100.0, speedup=2.0, speedup_formula=2.5, acceptance_length=2.0, rounds=30),
    a_row("eagle γ=4", "python", 20.0, speedup=2.0, speedup_formula=2.0),
    a_row("draft_model γ=4", "story", 150.0, speedup=1.5, acceptance_length=2.0),
    a_row("draft_model γ=4", "python", 40.0, speedup=4.0, acceptance_length=2.0),
    a_row("eagle γ=4 ×3", "story", 250.0, speedup=2.5, acceptance_length=3.5, branches=3, rule="tree"),
    a_row("transformers plain", "story", 80.0, rounds=None, acceptance_length=None),
    a_row("transformers draft_model γ=4", "story", 100.0, speedup=1.25, rounds=None, acceptance_length=None),
]


def group(title, name="stories"):
    return next(entry for entry in figures.summaries(ROWS) if entry.title == title and entry.group == name)


def test_stories_are_one_group_and_speeds_are_taken_together_as_of_equally_long_texts():
    eagle = group("eagle γ=4")
    assert eagle.tokens_per_second == pytest.approx(2 / (1 / 300 + 1 / 100))
    assert eagle.speedup_measured == pytest.approx(eagle.tokens_per_second / statistics.harmonic_mean([100, 50]))
    assert eagle.acceptance_length == pytest.approx((3.0 * 10 + 2.0 * 30) / 40), (
        "tokens over passes, not a mean of means"
    )


def test_each_library_is_compared_with_its_own_plain_and_ours_with_its_counterpart():
    assert group("transformers draft_model γ=4").speedup_measured == pytest.approx(100 / 80)
    assert group("draft_model γ=4").against_transformers == pytest.approx(150 / 100)
    assert group("plain").speedup_measured is None and group("eagle γ=4").against_transformers is None


def test_findings_answer_what_people_ask():
    report = Report(machine={}, pair={}, settings={}, rows=ROWS)
    text = "\n".join(report.findings)
    assert "Best at temperature 0 on stories: eagle γ=4 ×3" in text
    assert "Best at temperature 0 on python: draft_model γ=4, 4.00 × plain" in text
    assert "eagle γ=4 2.25, draft_model γ=4 2.00" in text
    assert "eagle γ=4 ×3 3.50 tokens a pass" in text and "eagle γ=4 2.25 and" in text
    assert "chains of eagle: median 1.00, least 0.80 (eagle γ=4 on story_sea)" in text


def test_the_block_rule_has_no_place_in_the_theorems_check():
    block = a_row("draft_model γ=4 block", "story", 100.0, speedup=1.0, speedup_formula=2.0, rule="block")
    assert not any("formula" in line for line in Report({}, {}, {}, [a_row("plain", "story", 100.0), block]).findings)


def test_rules_are_summed_up_over_rounds_with_the_error_of_the_mean():
    row = RulesRow.of("draft_model", 4, 1.0, [(0, 2), (3, 3), (2, 1), (1, 2)])
    assert (row.rounds, row.accepted_token, row.accepted_block) == (4, 6, 8)
    assert (row.block_longer, row.token_longer) == (2, 1)
    assert row.difference == 0.5
    assert row.standard_error == pytest.approx(statistics.stdev([2, 0, -1, 1]) / 2)


def test_a_preset_is_measured_alone_and_a_wrong_one_refused():
    pair = tiny_pair("llama")
    report = bench.measure(pair, quick=True, only=["prompt_lookup"], temperatures=(0.0,), presets=["repeats"])
    assert {row.preset for row in report.rows} == {"repeats"}
    with pytest.raises(SpecvizError, match="story, story_king") as caught:
        bench.measure(pair, quick=True, presets=["sonnet"])
    assert caught.value.field == "preset"
