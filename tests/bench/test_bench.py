"""The benchmark: who is measured, what is left out and why, and what the rows come to."""

import copy
import json
import pathlib
from dataclasses import asdict, replace

import pytest
import torch
import transformers
from refusal import refused
from tiny import tiny_pair

import specviz
from specviz.__main__ import main
from specviz.bench import benchmark, contesting, machine
from specviz.bench.contest import INTERRUPTED, Row
from specviz.bench.contestants import Contestant
from specviz.bench.contesting import new_tokens, plain_request
from specviz.bench.equal_texts import agreement
from specviz.bench.report import BenchReport, bench_text, busy, equality_lines, save, summaries, unsteady
from specviz.bench.vary import read_vary
from specviz.drafters import DRAFTERS
from specviz.drafters.copying import PromptLookup
from specviz.models import memory_share
from specviz.models.memory_share import stored_bytes, weights_read
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses
from specviz.records.errors import SpecvizError
from specviz.records.metrics import NEAR_TIE, margin
from specviz.records.prompts import PRESETS
from specviz.theory.roofline import Memory
from tools.bench_table import table

GREEDY = specviz.SamplingParams(temperature=0)

#: Drafters that need a trained part, which the tiny pairs have not.
TRAINED = {"medusa", "eagle", "mtp", "parallel"}

#: The quick plan, quicker still.
SMALL = {"max_new_tokens": 6, "repeats": 3}


@pytest.fixture(autouse=True, scope="module")
def small_plan():
    """What is promised does not depend on its size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "QUICK", replace(benchmark.QUICK, **SMALL))
        yield


def measured(pair: ModelPair, **asked) -> BenchReport:
    bench = benchmark.Benchmark.of(pair, **asked)
    bench.run()
    return bench.report()


@pytest.fixture(scope="module")
def sampled(pair):
    """The draft model alone, at temperature 1."""
    return measured(pair, quick=True, only=["draft_model"], temperatures=(1.0,))


@pytest.fixture(scope="module")
def heard():
    """Lines of progress of `both`."""
    return []


@pytest.fixture(scope="module")
def both(pair, heard):
    """Everything the pair can run, at both temperatures."""
    return measured(pair, quick=True, say=heard.append)


@pytest.fixture(scope="module")
def greedy(both):
    """Of the same, what was decoded greedily."""
    return replace(both, rows=[row for row in both.rows if row.temperature == 0])


def modes(report):
    return {row.mode for row in report.rows if row.engine == "specviz"}


def test_every_drafter_that_the_pair_can_run_is_measured_and_the_others_say_why_not(both, heard):
    report = both
    assert modes(report) == {"plain", *DRAFTERS} - TRAINED
    assert {entry["mode"] for entry in report.left_out} == TRAINED
    for entry in report.left_out:
        assert "train one with" in entry["reason"] and any(entry["reason"] in line for line in heard)
    yardsticks = {row.mode for row in report.rows if row.engine == "transformers"}
    assert yardsticks == {"plain", "draft_model", "prompt_lookup"}
    assert {row.temperature for row in report.rows} == {0.0, 1.0}
    # Greedy decoding leaves no choice of rules.
    assert not any(row.rule == "block" for row in report.rows if row.temperature == 0)


def row_of(report, title):
    return next(row for row in report.rows if row.title == title)


def test_one_question_can_be_measured_alone_and_its_rows_say_how_they_were_run(sampled):
    assert modes(sampled) == {"plain", "draft_model"} and {row.temperature for row in sampled.rows} == {1.0}
    assert sampled.left_out == [] and sampled.settings["only"] == ["draft_model"]
    chain, block, tree = (row_of(sampled, f"draft_model γ=4{ending}") for ending in ("", " block", " ×3"))
    assert [(row.rule, row.branches) for row in (chain, block, tree)] == [("token", 1), ("block", 1), ("tree", 3)]
    plain = row_of(sampled, "plain")
    assert (plain.rule, plain.branches, plain.speedup_measured) == (None, None, None)
    # Its figures hang together.
    assert chain.spread[0] <= chain.tokens_per_second <= chain.spread[1]
    assert chain.speedup_interval[0] <= chain.speedup_measured <= chain.speedup_interval[1]
    assert chain.repeats == 3 and chain.tokens == 3 * 6 and 3 <= chain.rounds <= 18
    assert chain.cost_coefficient > 0 and chain.speedup_formula > 0
    assert sum(chain.phase_share.values()) == pytest.approx(1)
    assert tree.speedup_formula is None and tree.drafted_per_round > tree.levels_per_round


def test_a_setting_is_measured_at_several_values_and_each_row_says_at_which(pair):
    vary = read_vary("confidence=0,0.9; seed=1, 2")
    report = measured(pair, quick=True, only=["draft_model"], temperatures=(0.0,), vary=vary)
    assert [row.title for row in report.rows] == [
        f"{title} seed={seed}"
        for seed in (1, 2)
        for title in ("plain", "draft_model γ=4", "draft_model γ=4 confidence=0.9")
    ]
    for plain, whole, cut in (report.rows[:3], report.rows[3:]):
        assert whole.drafted_per_round > cut.drafted_per_round and plain.settings["confidence"] is None
        assert [(row.settings["confidence"], row.settings["num_draft_tokens"]) for row in (whole, cut)] == [
            (0, 4),
            (0.9, 4),
        ]
    assert {row.settings["seed"] for row in report.rows[3:]} == {2} and report.settings["vary"] == vary


@pytest.mark.parametrize(
    "text, said",
    [
        ("speed=1", "There is no setting 'speed' to vary; choose from num_draft_tokens, rule, branches"),
        ("prompt=Once", "There is no setting 'prompt'"),
        ("confidence=1.5", r"must be at least 0 \(off\)"),
        ("bits=4,5", "bits must be one of 4, 8, not 5"),
        ("num_draft_tokens=4,", "got ''"),
    ],
)
def test_a_name_or_a_value_that_cannot_be_varied_is_refused(text, said):
    with refused("vary", said):
        read_vary(text)
    assert read_vary("bits=4; seed=1; bits=8,4") == {"bits": [4, 8], "seed": [1]}, "named twice is one list"
    assert read_vary("num-draft-tokens=auto,2 ; rule=token,block,token") == {
        "num_draft_tokens": ["auto", 2],
        "rule": ["token", "block"],
    }


def test_a_pair_is_measured_on_what_it_can_do_and_on_the_preset_asked_for(pair):
    report = measured(tiny_pair("mistral"), quick=True, only=["draft_model"], temperatures=(0.0,))
    assert {row.branches for row in report.rows if row.mode == "draft_model" and row.engine == "specviz"} == {1}
    assert any("only chains" in entry["reason"] for entry in report.left_out)
    alone = ModelPair.of(pair.target, None, pair.tokenizer)
    report = measured(alone, quick=True, only=["prompt_lookup"], temperatures=(0.0,), presets=["repeats"])
    assert modes(report) == {"plain", "prompt_lookup"} and {row.preset for row in report.rows} == {"repeats"}


@pytest.mark.parametrize(
    "asked, field, said",
    [
        ({"only": ["oracle"]}, "only", "oracle"),
        ({"only": ["medusa"]}, "drafter", "medusa"),
        ({"presets": ["sonnet"]}, "preset", "story, story_king"),
        ({"only": ["suffix"], "vary": {"bits": [4]}}, "vary", "suffix does not read bits"),
        (
            {"vary": {"rule": ["token", "block"]}, "temperatures": (0.0,)},
            "vary",
            "At temperature 0 all rules are the same",
        ),
        ({"vary": {"max_new_tokens": [4, 10**6]}}, "vary", "story leaves room for [0-9]+ new tokens, not 1000000"),
    ],
)
def test_what_is_named_and_cannot_be_measured_is_refused(pair, asked, field, said):
    with refused(field, said):
        measured(pair, quick=True, **asked)


def test_the_table_has_a_line_for_each_row_with_its_figures_and_a_dash_where_one_does_not_apply(sampled):
    text = bench_text(sampled)
    assert sampled.findings and all(finding in text for finding in sampled.findings)
    said = text.splitlines()
    start = next(index for index, line in enumerate(said) if line.split()[-2:] == ["rest", "outside"])
    lines = said[start + 1 : start + 1 + len(sampled.rows)]
    assert max(map(len, lines)) <= 160
    for line, row in zip(lines, sampled.rows):
        figures = line.partition(row.title)[2].split()
        assert len(figures) == 13
        assert figures[:2] == [f"{row.tokens_per_second:.0f}", "{:.0f}–{:.0f}".format(*row.spread)]
        assert figures[2] == ("–" if row.speedup_measured is None else f"{row.speedup_measured:.2f}")
        assert figures[9] == ("–" if row.phase_share is None else f"{row.phase_share['draft']:.0%}")


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
        **(settings | {"repeats": 3} | known),
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


def test_stories_are_one_group_and_each_library_is_compared_with_its_own_plain_decoding():
    stories = {entry["title"]: entry for entry in summaries(ROWS) if entry["group"] == "stories"}
    eagle = stories["eagle γ=4"]
    assert eagle["tokens_per_second"] == pytest.approx(2 / (1 / 300 + 1 / 100)), "as of equally long texts"
    assert eagle["speedup_measured"] == pytest.approx(6**0.5), "the geometric mean of ratios measured in turn"
    assert eagle["acceptance_length"] == pytest.approx((3.0 * 10 + 2.0 * 30) / 40), "tokens over passes"
    assert stories["transformers draft_model γ=4"]["speedup_measured"] == pytest.approx(1.25)
    assert stories["draft_model γ=4"]["against_transformers"] == pytest.approx(150 / 100)
    assert stories["plain"]["speedup_measured"] is eagle["against_transformers"] is None


def test_findings_answer_what_people_ask():
    report = BenchReport(machine={}, pair={}, settings={}, rows=ROWS)
    text = "\n".join(report.findings)
    assert "Best at temperature 0 on stories: eagle γ=4 ×3" in text
    assert "Best at temperature 0 on python: draft_model γ=4, 4.00 × plain" in text
    assert "chains of eagle: median 1.00, least 0.80 (eagle γ=4 on story_sea)" in text
    block = a_row("draft_model γ=4 block", "story", 100.0, speedup=1.0, speedup_formula=2.0, rule="block")
    assert "formula" not in "".join(replace(report, rows=[ROWS[0], block]).findings), "the theorem is about chains"


# Equal texts before any time


def test_who_cannot_even_be_described_is_left_out_and_the_others_are_measured(pair, monkeypatch):
    """Whoever fails later fails as in every contest."""

    def failing(*given, **named):
        raise IndexError("out of\nrange")

    monkeypatch.setattr(PromptLookup, "settings", classmethod(failing))
    bench = benchmark.Benchmark.of(pair, quick=True, temperatures=(0.0,))
    bench.contestants = [one for one in bench.contestants if one.mode in ("plain", "prompt_lookup", "suffix")]
    bench.run()
    report = bench.report()
    told = [*(one["title"] for one in report.failed), *(one["mode"] for one in report.left_out)]
    assert "prompt_lookup γ=4" in told or "prompt_lookup" in told
    titles = {row.title for row in report.rows}
    assert {"plain", "suffix γ=4"} <= titles and "prompt_lookup γ=4" not in titles


def test_whatever_ends_the_benchmark_the_rows_so_far_are_kept(pair, monkeypatch):
    bench = benchmark.Benchmark.of(pair, quick=True, only=["prompt_lookup"])
    compared = bench._compare_texts

    def failing(task):
        if task["temperature"]:
            raise KeyboardInterrupt
        compared(task)

    monkeypatch.setattr(bench, "_compare_texts", failing)
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    report = bench.report(interrupted=True)
    assert report.interrupted and {row.temperature for row in report.rows} == {0.0}
    assert INTERRUPTED in bench_text(report)


def test_who_writes_another_text_is_not_timed_and_ends_the_command_with_status_1(pair, monkeypatch, capsys, tmp_path):
    honest = contesting._by_transformers

    def broken(contestant, plain):
        tokens = honest(contestant, plain)
        return tokens if contestant.mode == "plain" else [*tokens[:2], (tokens[2] + 1) % 128, *tokens[3:]]

    monkeypatch.setattr(contesting, "_by_transformers", broken)
    monkeypatch.setattr("specviz.commands.pairs.load", lambda *asked: pair)
    order = ["bench", "--quick", "--only=prompt_lookup", "--temperature=0", "--passes=plain"]
    assert main([*order, f"--json={tmp_path / 'bench.json'}"]) == 1
    report = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    (failed,) = report["failed"]
    assert failed["title"] == "transformers prompt_lookup γ=4"
    assert "wrong on story: greedy token 3" in failed["reason"]
    assert {"plain", "prompt_lookup γ=4"} <= {row["title"] for row in report["rows"]}
    out, err = capsys.readouterr()
    assert failed["reason"] in err and f"✗ {failed['title']}: {failed['reason']}" in out


def test_every_greedy_contestant_has_a_verdict_and_in_float32_all_are_equal(greedy):
    rows = {(row.engine, row.title, row.preset) for row in greedy.rows}
    assert {(one.engine, one.title, one.preset) for one in greedy.equality} == rows
    assert {row.engine for row in greedy.rows} == {"specviz", "transformers"}
    assert all(one.identical and one.tokens == 6 for one in greedy.equality)


@pytest.mark.parametrize("ends", [True, False])
def test_under_a_grammar_all_write_what_fits_transformers_too(pair, ends):
    """And end where it ends, whether or not the model has an end token."""
    ending = replace(pair, eos_ids=pair.eos_ids if ends else frozenset())
    report = measured(ending, quick=True, grammar="/a(b|cd?)/")
    assert report.failed == [] and {row.settings["grammar"] for row in report.rows} == {"/a(b|cd?)/"}
    assert {row.engine for row in report.rows} == {"specviz", "transformers"}
    assert all(one.identical and one.tokens <= 3 + ends for one in report.equality)
    for row in report.rows:
        if row.mode != "plain":
            assert 2 * row.repeats <= row.tokens <= (3 + ends) * row.repeats, row.title


@pytest.fixture(scope="module")
def half(pair):
    """The pair in bfloat16, where the target's best two can be one number apart; and what plain decoding says."""
    pair = ModelPair.of(*(copy.deepcopy(model).bfloat16() for model in (pair.target, pair.draft)), pair.tokenizer)
    request = plain_request(pair, PRESETS[0], 0.0, 120)
    return request, specviz.run(pair, request.prompt.ids, drafter=None, sampling=GREEDY, max_new_tokens=120)


def other_text(request, plain, place, choice):
    """Plain decoding's text up to a place, there another token of the target's list, then the target's own text."""
    tokens = [*plain.token_ids[:place], plain.rounds[place].top[0].p_raw[choice][0]]
    rest = specviz.run(
        request.pair,
        [*request.prompt.ids, *tokens],
        drafter=None,
        sampling=GREEDY,
        max_new_tokens=request.settings.max_new_tokens - len(tokens),
    )
    return [*tokens, *rest.token_ids]


def test_in_half_precision_a_near_tie_may_part_and_nothing_else(half):
    """Neither a clear choice, nor what comes after a near-tie, nor a text that ends too soon."""
    request, plain = half
    near, *_, clear = sorted(range(len(plain.rounds) - 10), key=lambda place: margin(plain, place))
    tied = other_text(request, plain, near, choice=1)

    def judged(tokens):
        return agreement(Contestant.of("draft_model", 4), tokens, plain, request, "story")

    verdict = judged(tied)
    assert not verdict.identical and verdict.place == near
    assert verdict.margin <= NEAR_TIE and verdict.largest_gap <= NEAR_TIE
    said = "\n".join(equality_lines([verdict], "bfloat16"))
    assert f"token {near + 1} differs" in said and f"{verdict.margin:.3f}" in said
    for tokens, fault in (
        (
            other_text(request, plain, clear, choice=1),
            f"draft_model γ=4 is wrong on story: greedy token {clear + 1} is",
        ),
        ([*tied[:-1], (tied[-1] + 1) % 128], f"greedy token {len(tied)} lies .* below the target's best"),
        (plain.token_ids[:3], "greedy token 4 is ∅"),
    ):
        with pytest.raises(SpecvizError, match=fault):
            judged(tokens)


def test_generate_is_measured_without_what_a_checkpoint_brings_along(pair):
    """Its settings reach every call that leaves something open; and they are there again afterwards."""
    request = plain_request(pair, PRESETS[0], 0.0, 24)
    contestants = [
        Contestant.of(mode, (mode != "plain" and 3) or None, engine="transformers")
        for mode in ("plain", "draft_model", "prompt_lookup")
    ]
    due = new_tokens(Contestant.of("plain"), request)
    odd = transformers.GenerationConfig(repetition_penalty=1.3, max_length=5, do_sample=True, top_k=2, min_length=99)
    with pytest.MonkeyPatch.context() as patch:
        for model in (pair.target, pair.draft):
            patch.setattr(model, "generation_config", odd)
        assert [new_tokens(one, request) for one in contestants] == [due] * 3
        assert pair.target.generation_config is pair.draft.generation_config is odd


# The sections


def test_reading_a_buffer_as_large_as_the_weights_takes_a_fraction_of_the_memory_that_is_free(monkeypatch):
    made: list[int] = []

    def counted(size, device):
        made.append(size)
        return 1.0

    monkeypatch.setattr(memory_share, "read_bandwidth", counted)
    for free, most in [(64 << 30, machine.BUFFER_BYTES), (1 << 30, 1 << 28), (0, 4)]:
        monkeypatch.setattr(machine, "free_memory", lambda device, free=free: free)
        made.clear()
        machine.read_bandwidth(16 << 30, torch.device("cpu"))
        assert made == [most]


def test_the_report_says_how_near_a_pass_comes_to_the_memorys_bandwidth_or_why_that_is_not_known(pair):
    timed = PairPasses(seconds_by_width={1: 1e-3}, memory=Memory(1e9, 2**27, threads=2))
    pairs = replace(pair, passes=timed), replace(tiny_pair("mixtral"), passes=timed), tiny_pair("llama")
    rows = [a_row("plain", "story", 100.0)]
    known, unknown, untimed = (replace(benchmark.Benchmark.of(one).report(), rows=rows) for one in pairs)
    size = stored_bytes(weights_read(pair.target))
    figures = {"weight_bytes": size, "one_token_seconds": 1e-3, "bandwidth": 1e9, "share": pytest.approx(size / 1e6)}
    sentence = known.memory["sentence"]
    assert known.memory == figures | {"sentence": sentence} and f"{size / 1e4:.0f} % of the 1.0 GB/s" in sentence
    assert unknown.memory.keys() == known.memory.keys() and "mixture of experts" in unknown.memory["sentence"]
    assert {unknown.memory[name] for name in figures} == {None} and untimed.memory is None
    for one in (known, unknown):
        assert f"share of the memory's bandwidth: {one.memory['sentence']}" in bench_text(one)
    assert "bandwidth" not in bench_text(untimed)


def test_a_slow_machine_gets_fewer_repeats_and_the_report_says_so(pair, monkeypatch):
    monkeypatch.setattr(benchmark, "QUICK", replace(benchmark.QUICK, budget=0.0))
    report = measured(pair, quick=True, only=["prompt_lookup"], temperatures=(0.0,))
    assert {row.repeats for row in report.rows} == {1}
    assert "1 of 3 repeats" in report.unsteady and report.unsteady in bench_text(report)


def test_the_machine_is_described_and_a_busy_one_is_called_busy(greedy):
    known = greedy.machine
    assert known["threads"] >= 1 and known["cores"] >= 1 and known["affinity"] and known["processor"]
    assert known["load_average_start"] >= 0 and known["load_average_end"] >= 0
    quiet, loud = ({"load_average_start": load, "cores": 2} for load in (2.0, 2.1))
    assert busy(quiet) is None and "2.1 on 2 cores" in busy(loud)
    assert machine.as_ranges([3, 0, 1, 2, 8]) == "0-3,8"
    calm, shaken = a_row("plain", "story", 100.0), a_row("eagle γ=4", "story", 100.0, busy=True)
    assert unsteady([calm], {}) is None and "processor in 1 of 2 rows" in unsteady([calm, shaken], {})


# The file


def test_the_file_holds_the_whole_report_under_the_schemas_name(both, tmp_path):
    save(both, tmp_path / "bench.json")
    data = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(asdict(both))) and data["schema"] == "specviz.bench/1"
    assert all(data[one] for one in ("rows", "equality", "summary", "findings"))
    promised = "engine mode num_draft_tokens temperature preset tokens_per_second spread acceptance_rate "
    promised += "acceptance_length cost_coefficient speedup_measured speedup_formula overhead_share peak_mb "
    promised += "branches rule exit_layer bits speedup_interval busy repeats"
    assert set(promised.split()) <= set(data["rows"][0])


def test_documentation_gets_one_table_with_each_drafters_best_setting(greedy):
    rows = [
        replace(row, speedup_interval=(row.speedup_measured / 1.1, 1.1 * row.speedup_measured))
        if row.speedup_measured
        else row
        for row in ROWS
    ]
    report = BenchReport(greedy.machine, greedy.pair, greedy.settings, rows)
    caption, _, head, line, plain, *others = table(json.loads(json.dumps(asdict(report)))).splitlines()
    for fact in (greedy.machine["date"], greedy.machine["processor"], greedy.pair["name"], "stories"):
        assert str(fact) in caption
    assert head == "| | greedy | tokens a pass | speedup, 90 % |" and line.count("|") == head.count("|")
    assert plain.startswith("| `plain` | 67 tokens/s |")
    assert others[0] == "| `eagle` | γ=4 | 2.25 | 2.45× (2.29–2.62) |", "on two stories: it can be counted on"
    assert "| transformers' `draft_model` | γ=4 |  | 1.25×" in others[-1]
    assert table(json.loads(json.dumps(asdict(greedy)))).count("\n| `") == len(modes(greedy))


# Prompts of one's own


@pytest.fixture
def own_work(pair, monkeypatch, tmp_path):
    """Runs `bench` on a file of prompts, with further options; returns the status."""
    lines = [{"prompt": "Once upon a time", "domain": "stories"}, {"prompt": "def read(", "domain": "code"}]
    (tmp_path / "work.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr("specviz.commands.pairs.load", lambda *asked: pair)
    order = ["bench", "--passes", "plain", "--prompts", str(tmp_path / "work.jsonl")]
    return lambda *options: main([*order, *options])


def test_on_prompts_of_ones_own_the_command_tells_by_domain_and_writes_its_schema(own_work, tmp_path, capsys):
    path = tmp_path / "work.json"
    (tmp_path / "words").write_text("/[a-z ]*/", encoding="utf-8")
    order = f"--only suffix --max-new-tokens 8 --grammar {tmp_path / 'words'} --json {path}"
    assert own_work(*order.split()) == 0
    out, err = capsys.readouterr()
    assert err.startswith("about ") and all(domain in out for domain in ("all", "stories", "code"))
    data = json.loads(path.read_text(encoding="utf-8"))
    assert (data["schema"], data["prompts"], data["temperature"]) == ("specviz.work/1", 2, 0.0)
    assert {row["contestant"]["mode"] for row in data["rows"]} == {"suffix"}
    assert {row["settings"]["grammar"] for row in data["rows"]} == {"/[a-z ]*/"}
    assert {(row["domain"], row["prompts"]) for row in data["rows"]} == {("all", 2), ("stories", 1), ("code", 1)}
    assert set(data["rows"][0]["tokens_a_pass"]) == {"value", "low", "high"}
    assert {"speedup_measured", "speedup_interval"} <= data["rows"][0].keys() and "speedup" not in data["rows"][0]
    assert len(out.splitlines()) == 1 + len(data["rows"])


@pytest.mark.parametrize(
    "options, said, loads",
    [
        (["--quick"], "--quick: --quick cannot be combined with your own prompts", False),
        (["--preset", "story"], "--preset: --preset cannot be combined", False),
        (["--max-new-tokens", "0"], "--max-new-tokens: Ask for at least one new token", False),
        (["--grammar", "no/such/file"], "--grammar: The file cannot be read: No such file", False),
        (["--grammar", "long.txt"], "--grammar: The grammar cannot be followed", True),
        (["--prompts", "no/such/file"], "--prompts: The file of prompts cannot be read: No such file", False),
        (["--prompts", "long.txt", "--only", "suffix"], "--prompts: Line 2 of the prompts: ", True),
    ],
)
def test_what_is_wrong_with_it_is_said_and_if_it_can_be_before_a_model_is_loaded(
    own_work, monkeypatch, capsys, tmp_path, options, said, loads
):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("long.txt").write_text("Once\n" + 300 * "long ")
    if not loads:
        monkeypatch.setattr("specviz.commands.pairs.load", lambda *asked: pytest.fail("a model was loaded"))
    assert own_work(*options) == 2
    assert said in capsys.readouterr().err
