"""Controls for every way to draft and to verify, and the Compare tab: what it runs, measures, keeps and says."""

import json
import math
import threading
from collections.abc import Iterable
from dataclasses import asdict, replace

import gradio as gr
import pytest
from counting_server import Llama
from elements import element, give
from gradio_client import Client
from handmade import a_round
from on_page import (
    GAMMA,
    assert_no_sideways_scrolling,
    boxes,
    control,
    downloaded_page,
    expect_drafter,
    order,
    set_control,
)
from playwright.sync_api import Locator, Page, expect
from refusal import refused
from small_server import serving
from tiny import byte_tokenizer, tiny_model

from specviz.bench.contest import Row
from specviz.bench.contestants import Failed
from specviz.decoding.engine import replay
from specviz.drafters import DRAFTERS
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError
from specviz.records.metrics import tally
from specviz.records.prompts import CHAT_PRESETS, PRESETS
from specviz.records.runs import Run
from specviz.records.settings import DraftParams, RunSettings
from specviz.records.words import joined, said, words
from specviz.servers.connection import KEY
from specviz.ui import ways
from specviz.ui.contest import ContestOptions, comparison_of, rows_of, texts_of
from specviz.ui.controls import Controls
from specviz.ui.desk import Desk
from specviz.ui.device import PairName, PairStore
from specviz.ui.orders import Order
from specviz.ui.runner import Runner
from specviz.ui.tabs.compare import compare, replay_order
from specviz.views import tab_messages as messages
from specviz.views.answers import comparison_answer

VIEW = element("compare")
DASH = "—"

# What is offered, said and asked for, without a browser


@pytest.fixture
def runner(pair, deployment) -> Runner:
    return Runner(PairStore(replace(deployment, passes="plain"), pair), deployment)


@pytest.fixture
def controls(runner) -> Controls:
    with gr.Blocks():
        return Controls(runner, words())


ORDER = Order(PairName(), RunSettings("Once upon", max_new_tokens=12, seed=5))
OPTIONS = ContestOptions(["draft_model", "prompt_lookup"], [2, 4], [0], [], 2)


def test_a_pair_offers_what_it_can_do_and_says_what_the_rest_lacks(pair):
    alone = ModelPair.of(pair.target, None, pair.tokenizer)
    assert "draft_model" in ways.available(pair) and "draft_model" not in ways.available(alone)
    assert "medusa" not in ways.available(pair)
    assert ways.available(alone)[-1] == "plain"
    say = words()
    assert "no draft model" in ways.about(alone, "draft_model", say)
    assert "python -m specviz.training medusa" in ways.about(pair, "medusa", say)
    assert ways.about(pair, "draft_model", say) == say("ways.draft_model_about")


def filled_in(controls: Controls, **changes) -> list:
    """The values of the controls and the pair, with these settings."""
    asked = ORDER.settings.flat() | changes
    return [*(asked[name] for name in controls.fields), asdict(PairName())]


def test_a_control_that_is_hidden_has_no_say_and_whole_numbers_are_whole(controls, pair):
    def settings(**changes):
        return controls.order(filled_in(controls, **changes), PairName(), pair).settings

    asked = {"branches": 3, "exit_layer": 1, "confidence": 0.4, "rule": "block"}
    read, copied, plain = (settings(**asked, drafter=name) for name in ("early_exit", "prompt_lookup", "plain"))
    drafting = read.drafting
    assert (drafting.branches, drafting.exit_layer, drafting.confidence) == (3, 1, 0.4)
    assert (copied.drafting, plain.drafting) == (DraftParams(), DraftParams())
    assert (copied.rule, plain.rule, plain.drafter) == ("block", "auto", None)
    numbers = settings(seed=7.0, num_draft_tokens=3.0, temperature=1.0)
    assert [type(value) for value in (numbers.seed, numbers.num_draft_tokens)] == [int, int]
    for field, value in (("seed", 1.5), ("top_k", None), ("max_new_tokens", math.nan)):
        with refused(field, "whole number"):
            settings(**{field: value})


#: A pair of which the page had heard when a button was pressed, and none.
OTHER, NONE = asdict(PairName("elsewhere")), {}


@pytest.mark.parametrize(
    ("heard", "asked", "becomes"),
    [
        (NONE, {"drafter": "draft_model"}, {"drafter": "usual"}),
        (NONE, {"drafter": "medusa"}, {"drafter": "medusa"}),
        (NONE, {"drafter": "suffix", "branches": 3}, {"drafter": "suffix", "branches": 3}),
        (OTHER, {"drafter": "medusa"}, {"drafter": "usual"}),
        (OTHER, {"drafter": "early_exit", "exit_layer": 9, "branches": 4}, {"exit_layer": 2, "branches": 1}),
        (OTHER, {"drafter": "suffix", "temperature": 0.3, "seed": 7}, {"temperature": 0.3, "seed": 7}),
        (OTHER, {"drafter": "suffix", "chat": False}, {"chat": True}),
        (NONE, {"drafter": "suffix", "prompt": PRESETS[1].prompt}, {"prompt": CHAT_PRESETS[0].prompt}),
        (NONE, {"drafter": "draft_model", "prompt": "Why so"}, {"drafter": "usual", "prompt": "Why so"}),
        (OTHER, {"drafter": "suffix", "prompt": PRESETS[1].prompt}, {"prompt": CHAT_PRESETS[0].prompt}),
        (asdict(PairName()), {"drafter": "suffix", "prompt": PRESETS[1].prompt}, {"prompt": PRESETS[1].prompt}),
        (asdict(PairName()), {"drafter": "draft_model"}, {"drafter": "draft_model"}),
        (asdict(PairName()), {"drafter": "early_exit", "exit_layer": 3}, {"exit_layer": 3}),
        (asdict(PairName()), {"drafter": "suffix", "chat": False}, {"chat": False}),
    ],
)
def test_what_was_set_for_another_pair_or_for_none_becomes_what_this_one_has(runner, controls, heard, asked, becomes):
    pair = ModelPair.of(tiny_model("llama", num_hidden_layers=8), None, byte_tokenizer(chat_template="{{ messages }}"))
    expected = {name: runner.store.usual(pair) if value == "usual" else value for name, value in becomes.items()}
    *values, _ = filled_in(controls, **asked)
    order = controls.order([*values, heard], PairName(), pair)
    assert order.settings.flat().items() >= expected.items()
    # Until it is there nobody knows: what is asked for stays as it is.
    waits = controls.order([*values, heard], PairName(), None)
    assert waits.settings.drafter == asked["drafter"]


def test_what_is_wrong_stands_at_its_control_or_at_the_tabs_own(runner, controls):
    with gr.Blocks() as page:
        button, view, own = gr.Button(), gr.HTML(), {"rule": gr.Textbox()}
    desk = Desk(page, runner, None, None, controls, words())
    mistakes = {
        "rule": {"drafter": "draft_model", "branches": 2, "rule": "block"},
        "branches": {"drafter": "draft_model", "branches": 9},
        "confidence": {"drafter": "draft_model", "branches": 1, "confidence": 1.5},
        "exit_layer": {"drafter": "early_exit", "branches": 1, "exit_layer": 5},
        "drafter": {"drafter": "medusa"},
    }
    names = [*controls.fields, "pair", "own rule"]
    for fields, added, places in (({}, [], {}), (own, ["typical"], {"rule": "own rule"})):
        action = desk.action(button, view, stream=None, waiting=None, failed=None, fields=fields)
        assert len(action.inputs) == len(action.check(*filled_in(controls), *added))
        for field, changes in mistakes.items():
            verdicts = zip(names, action.check(*filled_in(controls, **changes), *added))
            assert [name for name, one in verdicts if not one["is_valid"]] == [places.get(field, field)]


# What is compared


def names(rows: Iterable[Row]) -> list[tuple]:
    return [(row.mode, row.num_draft_tokens, row.branches, row.rule) for row in rows]


@pytest.mark.parametrize(
    ("temperature", "options", "drafting", "left_out"),
    [
        # Every drafter meets every γ.
        (
            *(1.0, OPTIONS),
            [(mode, gamma, 1, "token") for mode in ("draft_model", "prompt_lookup") for gamma in (2, 4)],
            [],
        ),
        # Branches are for those that can, and blocks for chains.
        (
            *(1.0, replace(OPTIONS, gammas=[2], widths=[0, 1, 3], rules=["block", "typical"])),
            [
                *(("draft_model", 2, 1, rule) for rule in ("token", "block", "typical")),
                *(("draft_model", 2, 3, rule) for rule in ("tree", "typical")),
                *(("prompt_lookup", 2, 1, rule) for rule in ("token", "block", "typical")),
            ],
            [("draft_model", 2, 3, "block")],
        ),
        # At temperature 0 no rule is added.
        (
            *(0.0, replace(OPTIONS, gammas=[2], rules=["block", "typical"])),
            [(mode, 2, 1, "token") for mode in ("draft_model", "prompt_lookup")],
            [(mode, 2, 1, rule) for mode in ("draft_model", "prompt_lookup") for rule in ("block", "typical")],
        ),
        # A drafter meets the γ from which on it drafts.
        (
            *(1.0, replace(OPTIONS, drafters=["draft_model", "lookahead"], gammas=[1, 2])),
            [("draft_model", 1, 1, "token"), ("draft_model", 2, 1, "token"), ("lookahead", 2, 5, "tree")],
            [],
        ),
    ],
    ids=["gammas", "branches and rules", "greedy", "least depth"],
)
def test_plain_decoding_comes_first_and_then_all_that_fits_together(
    runner, pair, temperature, options, drafting, left_out
):
    comparison = comparison_of(runner, pair, ORDER.but(temperature=temperature), options)
    assert names(comparison.contest.entries) == [("plain", None, None, None), *drafting]
    assert names(comparison.left_out) == left_out


def test_parameters_are_those_that_are_set_and_every_value_of_the_one_that_is_varied(runner, pair):
    options = ContestOptions(["early_exit", "suffix"], [2], [0], [], 1, vary="confidence=0, 0.5")
    order = ORDER.but(drafter="early_exit", exit_layer=1, confidence=0.9)
    _, *drafting = comparison_of(runner, pair, order, options).contest.entries
    found = [(row.mode, row.settings["exit_layer"], row.settings["confidence"]) for row in drafting]
    assert found == [("early_exit", 1, 0.0), ("early_exit", 1, 0.5), ("suffix", None, None)]
    told = json.loads(messages.contest_message(drafting, phase="running", text="", fraction=0.0))
    assert [words().translated(each["parameters"]) for each in told["rows"]] == [
        "exit after layer 1",
        "exit after layer 1, stops below confidence 0.5",
        "",
    ]


def test_at_temperature_0_all_rules_are_said_to_be_alike_and_two_have_nothing_to_differ_in(runner, pair):
    options = replace(OPTIONS, rules=["block", "typical"])
    told = compare(runner, ORDER.but(temperature=0.0), options, threading.Event(), "en")
    table = next(message for message in map(words().translated, map(json.loads, told)) if message["kind"] == "contest")
    assert {one["rule"] for one in table["rows"][1:]} == {"at temperature 0 all rules are the same"}
    told.close()
    with refused("temperature"):
        replay_order(ORDER.but(temperature=0.0))
    replay_order(ORDER).request(pair, runner.deployment)


@pytest.mark.parametrize(
    "order_changes, option_changes, field, sentence",
    [
        ({}, {"repeats": 5, "gammas": [1, 2, 3, 4, 6, 8]}, "drafters", "75 runs, but this page allows at most 64"),
        ({}, {"repeats": 6}, "repeats", "Enter a whole number from 1 to 5"),
        ({}, {"repeats": 2.5}, "repeats", "Enter a whole number from 1 to 5"),
        ({}, {"repeats": None}, "repeats", "Enter a whole number from 1 to 5"),
        ({}, {"drafters": []}, "drafters", "at least one"),
        ({}, {"gammas": []}, "gammas", "at least one"),
        ({}, {"gammas": [17]}, "gammas", "more than the 16"),
        ({}, {"drafters": ["medusa"]}, "drafters", "no trained medusa"),
        ({}, {"vary": "seed=1,2"}, "vary", "There is no setting 'seed' to vary"),
        ({}, {"vary": "confidence=0,high"}, "vary", "must be at least 0"),
        ({"prompt": ""}, {}, "prompt", "Write a prompt"),
        ({"top_p": 2}, {}, "top_p", "at most 1"),
        ({"chat": True}, {"prompts": "\n\nTwo fish"}, "prompts", r"Line 3 of the prompts: .* has no chat template"),
    ],
)
def test_a_comparison_that_cannot_be_names_its_control(runner, pair, order_changes, option_changes, field, sentence):
    with refused(field, sentence) as caught:
        comparison_of(runner, pair, ORDER.but(**order_changes), replace(OPTIONS, **option_changes))
    assert words("de").error(caught.value) != str(caught.value)


def test_contestants_take_turns_within_each_repeat_after_a_warm_up(runner, pair, monkeypatch):
    pieces, batches = [], runner.batches
    monkeypatch.setattr(runner, "batches", lambda *all, **others: pieces.append(all) or batches(*all, **others))
    comparison = comparison_of(runner, pair, ORDER.but(max_new_tokens=20), replace(OPTIONS, gammas=[2]))
    contest, said = comparison.contest, words().translated(list(comparison.progress()))
    assert len(pieces) == 1, "one press is one piece of work, and asks for one GPU where they are lent"
    assert [[run.repeat for run in contest.runs if run.number == number] for number in range(3)] == [[0, 1]] * 3
    assert len(contest.runs) == contest.count == 6
    fractions = [fraction for _, fraction in said]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    # How long it will take is said once runs were timed, and not guessed before.
    assert all(("s left" in text) == (fraction > 0) for text, fraction in said)
    plain, drafted, _ = contest.rows()
    assert plain.speedup_measured is None
    assert drafted.speedup_interval[0] < drafted.speedup_measured < drafted.speedup_interval[1]
    # A run that was stopped is not counted, and the finished ones are.
    halt, order = threading.Event(), ORDER.but(max_new_tokens=200, temperature=0.0)
    comparison = comparison_of(runner, pair, order, replace(OPTIONS, gammas=[2], repeats=5), halt)
    contest = comparison.contest
    for _ in comparison.progress():
        if len(contest.runs) >= 3:
            halt.set()
    assert 3 <= len(contest.runs) < contest.count and contest.row(1).speedup_measured
    # One that failed is told in its row, and the others go on.
    contest.hear(Failed(contest.entries[1].title, SpecvizError("It is full.")))
    assert [row.reason for row in rows_of(comparison, words(), True)] == ["", "It is full.", ""]


def test_the_repeats_that_servers_need_are_not_counted_against_the_page_s_limit(runner, pair):
    options = replace(OPTIONS, gammas=[1, 2, 3, 4, 6, 8], rules=["block"], repeats=2)
    most = runner.deployment.max_compare_runs
    alone = comparison_of(runner, pair, ORDER, options).contest
    beside = comparison_of(runner, pair, ORDER, replace(options, server="localhost:9")).contest
    assert alone.count <= most < beside.count and beside.repeats == 3


def test_who_failed_has_reproduced_no_text(runner, pair):
    comparison = comparison_of(runner, pair, ORDER.but(temperature=0.0), replace(OPTIONS, gammas=[2], repeats=1))
    list(comparison.progress())
    assert texts_of(comparison, pair) == {"of": 2, "partings": []}
    comparison.contest.hear(Failed(comparison.contest.entries[1].title, SpecvizError("It is full.")))
    assert texts_of(comparison, pair) == {"of": 1, "partings": []}


# Prompts of one's own

LINES = ["One fish", "Two fish and three", "Four fish", "Five of them", "Six"]
PROMPTS = "\n".join(
    json.dumps({"prompt": text, "domain": "odd" if place % 2 else "even"}) for place, text in enumerate(LINES)
)


def test_every_choice_decodes_every_prompt_and_results_are_told_by_domain(runner, pair):
    options = replace(OPTIONS, gammas=[2], repeats=1, prompts=PROMPTS)
    order = ORDER.but(temperature=0.0, prompt="")
    assert [one.settings.prompt for one in comparison_of(runner, pair, order, options).orders] == LINES
    *_, last = compare(runner, order, options, threading.Event(), "en")
    told = words().translated(json.loads(last))
    assert told["phase"] == "finished" and told["text"].startswith("5 prompts: 15 runs")
    assert [one["repeats"] for one in told["rows"]] == [5, 5, 5] and told["texts"]["of"] == 10
    head, *rows = told["domains"]
    found = {(row[0], row[1]): row for row in rows}
    assert {domain for domain, _ in found} == {"all", "even", "odd"} and len(rows) == 6
    assert [found[domain, "Draft model"][head.index("prompts")] for domain in ("all", "even", "odd")] == ["5", "3", "2"]
    # Over prompts, in both tables.
    low, high = told["rows"][1]["figures"]["speedup_interval"]
    assert found["all", "Draft model"][head.index("90\u00a0%")] == f"{low:.2f}–{high:.2f}"


@pytest.mark.parametrize("lists", [False, True])
def test_the_owner_s_key_goes_only_to_servers_that_the_owner_lists(runner, pair, deployment, monkeypatch, lists):
    monkeypatch.setenv(KEY, "sk-secret-4711")
    with serving(Llama()) as server:
        open_to = replace(deployment, servers=(server.url,) if lists else None)
        options = replace(OPTIONS, drafters=[], repeats=1, server=server.url)
        for _ in compare(Runner(runner.store, open_to), ORDER, options, threading.Event(), "en"):
            pass
        sent = {asked.headers.get("authorization") for asked in server.asked}
    assert sent == {"Bearer sk-secret-4711" if lists else None}


def test_servers_are_asked_once_it_begins_and_only_those_that_the_page_allows(runner, pair, deployment):
    with serving(Llama()) as drafting, serving(Llama(depth=0)) as plain:
        options = replace(OPTIONS, drafters=[], repeats=1, server=f"{drafting.url}, {plain.url}, localhost:9")
        comparison_of(runner, pair, ORDER, options)
        assert not drafting.asked, "whoever types is not heard elsewhere"
        *_, last = compare(runner, ORDER.but(temperature=0.0), options, threading.Event(), "en")
    told = words().translated(json.loads(last))
    host = drafting.url.removeprefix("http://")
    ours, served, other, dead = told["rows"]
    assert (served["drafter"], served["parameters"]) == ("llama.cpp", f"{host} · draft-eagle3")
    assert (served["lossless"], served["best"], served["use"]) == (None, False, None)
    assert served["figures"]["speedup_interval"] and other["figures"]["speedup_measured"] is None
    assert other["parameters"].endswith("Plain decoding") and "Nothing answers" in dead["reason"]
    assert ours["repeats"] == 3, "as an interval needs"
    assert told["texts"] is None, "a server's text is its own"
    closed = Runner(runner.store, replace(deployment, servers=("http://mine:8080",)))
    with pytest.raises(SpecvizError, match="only ask the servers that its owner lists") as refused:
        comparison_of(closed, pair, ORDER, options)
    assert refused.value.field == "server"


# Two rules on the same draws


def test_replayed_rules_are_counted_round_by_round():
    counts = messages.Replayed()
    texts = ("a", "b", "c", "d")
    for index, (token, block) in enumerate([("aaa", "aaa"), ("ard", "aaa"), ("aar", "rdd")]):
        counts.add(a_round(token, index, texts=texts), a_round(block, index, texts=texts))
    assert (counts.rounds, counts.drafted, counts.kept) == (3, 9, (6, 6))
    assert (counts.ahead, counts.behind) == (1, 1)
    assert [(one["index"], one["kept"]) for one in counts.differing] == [(1, [1, 3]), (2, [2, 0])]
    assert [one["text"] for one in counts.differing[0]["drafted"]] == ["a", "b", "c"]


def test_a_replay_judges_the_drafts_of_the_very_run_that_is_ordered(runner, pair):
    order = ORDER.but(rule="token", max_new_tokens=40)
    pairs = [one for batch in runner.batches(order, replay, "block") for one in batch]
    rounds = [one for batch in runner.batches(order) for one in batch]
    assert [token.emitted for token, _ in pairs] == [one.emitted for one in rounds]
    assert all([a.id for a in token.drafted] == [b.id for b in block.drafted] for token, block in pairs)


# Messages


def row(speedup: float | None, mode: str = "</script><b>", gamma: int | None = 4, branches: int = 1, **known) -> Row:
    usual = {"rule": "token", "temperature": 1.0, "repeats": int(speedup is not None), "speedup_measured": speedup}
    return Row(title=mode, engine="specviz", mode=mode, num_draft_tokens=gamma, branches=branches, **usual | known)


def test_the_best_is_the_fastest_lossless_one_that_was_measured():
    rows = [row(None), row(1.2), row(1.9), row(3.0, lossless=False)]
    text = messages.contest_message(rows, phase="running", text="", fraction=0.5)
    assert [one["best"] for one in json.loads(text)["rows"]] == [False, False, True, False]
    assert "<" not in text, "Gradio would look for tags in it"


def test_the_api_answers_in_sentences():
    left_out = replace(row(None), reason=said("compare.chains_only"))
    texts = {"of": 1, "partings": [{"name": joined([said("ways.medusa"), said("compare.on_prompt", number=2)], ", ")}]}
    answer = comparison_answer([row(1.2), left_out], 1, None, texts, True)
    assert [one["reason"] for one in answer["rows"]] == [None, words()("compare.chains_only")]
    assert answer["texts"] == {"of": 1, "partings": [{"name": "Medusa, prompt 2"}]}


def test_a_row_that_cannot_run_says_why_where_its_figures_would_stand_and_branches_are_named(alone):
    page = alone("compare")
    rows = [
        row(None, "medusa", branches=4, rule="tree", usual_branches=True),
        row(None, "medusa", branches=4, rule="block", usual_branches=True, reason="not run: chains only"),
        row(None, "draft_model", usual_branches=True),
    ]
    give(page, "compare", [messages.contest_message(rows, phase="finished", text="", fraction=1)])
    table, drawn = page.locator("specviz-compare [part=table]"), page.locator("specviz-compare [part=map] tbody")
    expect(table.locator("td[data-column=branches]")).to_have_text(["4drafter's choice", "1chain", "4drafter's choice"])
    expect(table.locator("td.reason")).to_have_text("not run: chains only")
    widths = table.locator("tbody tr").evaluate_all("rows => rows.map(row => row.getBoundingClientRect().width)")
    assert len(set(widths)) == 1
    expect(drawn.locator("th")).to_have_text(
        ["Medusa, 4 branches, Tree", "Medusa, 4 branches, Block verification", "Draft model"]
    )
    expect(drawn.locator("td")).to_have_text([DASH, "not run: chains only", DASH])


#: By column, what a row's cells say, but for what is small in them.
CELLS = """row => Object.fromEntries([...row.cells].map(cell => [cell.dataset.column,
  [...cell.childNodes].filter(node => node.nodeName !== 'SMALL').map(node => node.textContent).join('')]))"""


def test_table_and_map_say_what_was_measured_and_star_the_fastest(alone):
    page, figures = alone("compare"), {"tokens_per_second": 123.4, "acceptance_length": 2.345}
    drafted = figures | {"acceptance_rate": 0.615, "speedup_interval": (1.4, 2.1)}
    rows = [
        row(None, "plain", None, repeats=1, **figures),
        row(1.523, "medusa", **drafted),
        row(1.987, "suffix", **drafted),
    ]
    give(page, "compare", [messages.contest_message(rows, phase="finished", text="", fraction=1)])
    lines = page.locator("specviz-compare [part=table] tbody tr")
    shown = {line["drafter"]: line for line in (one.evaluate(CELLS) for one in lines.all())}
    assert {name: line["speedup"] for name, line in shown.items()} == {
        **{"Plain decoding": DASH, "Medusa": "1.52×", "★ Suffix": "1.99×"}
    }
    assert {line["tokens_per_second"] for line in shown.values()} == {"123"}
    assert {line["acceptance_length"] for line in shown.values()} == {"2.35"}
    assert [line["acceptance_rate"] for line in shown.values()].count(DASH) == 1
    assert all("lossless" in line["lossless"] for line in shown.values())
    expect(page.locator("specviz-compare [part=table] tr[data-best]")).to_contain_text("★ Suffix")
    expect(page.locator("specviz-compare [part=map] tbody td")).to_have_text(["1.52×", "★ 1.99×"])
    expect(page.locator("specviz-compare [part=map] tbody th")).to_have_text(["Medusa", "Suffix"])


def test_the_verdict_says_yes_or_no_first_and_its_winner_is_put_to_use(alone):
    page, data = alone("compare"), "<img src=x onerror='window.hit = 1'>"
    page.evaluate("""() => {
      document.addEventListener("specviz-can-press", (event) => event.preventDefault());
      document.addEventListener("specviz-press", (event) => { window.pressed = event.detail; });
    }""")
    use, rows = {"drafter": "mtp", "num_draft_tokens": 3}, [["MTP", "3"], ["MTP", "6"], ["Suffix", "4"]]
    told = {
        "sentence": f"Yes: {data}",
        "more": "Or",
        "load": "Up to 4",
        "flags": [["vLLM", data, data]],
        "flags_head": "There",
        "head": ["drafter", "γ"],
    }
    told |= {"rows": rows, "domains": [], "about": "How", "use": use, "faults": ["Medusa: full"]}
    give(page, "compare", [messages.message("verdict", phase="finished", text="", fraction=1.0, **told)])
    parts = page.locator("specviz-compare [part=verdict]")
    text = parts.inner_text()
    order = ["Yes:", "Or", "Use it", "Up to 4", "vLLM:", "MTP", "How", "✗ Medusa: full"]
    assert [text.index(one) for one in order] == sorted(text.index(one) for one in order)
    expect(parts.locator("tbody tr")).to_have_count(2)  # the best of each drafter
    parts.get_by_role("button", name="Use it").click()
    assert page.evaluate("window.pressed") == {"settings": use, "press": None}
    page.evaluate("document.dispatchEvent(new CustomEvent('specviz-set', { detail: { before: {} } }))")
    expect(parts).to_contain_text("Set in the controls")
    # Where nothing pays there is nothing to use.
    no = told | {"sentence": "No: nothing here", "load": "", "flags": [], "use": None}
    give(page, "compare", [messages.message("verdict", phase="finished", text="", fraction=1.0, **no)])
    expect(parts.locator("[part=answer]")).to_have_text("No: nothing here")
    expect(parts.get_by_role("button")).to_have_count(0)
    assert page.evaluate("window.hit ?? null") is None


# In the browser: controls come and go with the drafter


def test_each_drafter_brings_its_own_controls_and_says_how_it_drafts(page):
    branches, layers = words()("controls.branches"), words()("controls.exit_layer")
    number = 'input[aria-label="number input for {}"]'
    for label, shown, sentence in (
        ("Prompt lookup", (), "Copies what followed"),
        ("Early exit", (branches, layers), "own first layers guess"),
        ("Medusa", (branches,), "heads"),
        ("None: plain decoding", (), "one token per pass"),
        ("Draft model", (branches,), "smaller model"),
    ):
        page.locator("#drafter input").click()
        page.locator("#drafter").get_by_role("option", name=label, exact=True).click()
        expect(page.locator(".sv-drafting .sv-note").first).to_contain_text(sentence)
        for control_label in (branches, layers):
            visible = control_label in shown
            expect(page.locator(number.format(control_label))).to_have_count(int(visible))
        gammas = page.locator(number.format(GAMMA))
        expect(gammas).to_have_count(int(label != "None: plain decoding"))
        if label == "Medusa":
            expect(page.locator(number.format(branches))).to_have_value("4")
    # A lossy rule warns before it runs and while it is folded away.
    warning, rule = page.locator(".block.sv-warning"), page.get_by_label("Acceptance rule")
    for name, count in (("Typical", 1), ("Token by token", 0)):
        page.locator("[aria-controls=more-controls]").click()
        rule.click()
        page.get_by_role("option", name=name).click()
        page.locator("[aria-controls=more-controls]").click()
        expect(rule).to_be_hidden()
        expect(warning).to_have_count(count)


# In the browser: the Compare tab


def open_tab(page: Page, *, drafters: tuple[str, ...], gammas: tuple[str, ...]) -> Locator:
    """The Compare tab with these choices alone."""
    # Until the pair is there, all drafters are on offer, and then those that it can do with.
    expect(page.locator(".sv-pair").first).to_contain_text("storybook")
    page.get_by_role("tab", name="Compare", exact=True).click()
    page.locator("[aria-controls=compare-choices]").click()
    choices = page.locator(".sv-choice").first
    for group, wanted in (("Drafters to compare", drafters), ("Draft lengths γ to compare", gammas)):
        group_box = choices.get_by_role("group", name=group).or_(choices.locator("fieldset", has_text=group))
        for box in group_box.first.get_by_role("checkbox").all():
            box.set_checked(box.evaluate("node => node.parentElement.textContent.trim()") in wanted)
    return choices


def compared(page: Page, name: str):
    return page.evaluate(f"name => {VIEW}[name]", name)


def test_two_drafters_are_compared_from_the_button_to_the_sorted_table_and_two_rules_on_the_same_draws(page, page_url):
    set_control(page, "New tokens", 16)
    set_control(page, "Temperature (0 is greedy)", 0)
    open_tab(page, drafters=("Draft model", "Prompt lookup"), gammas=("2",))
    expect(page.locator("#compare-time")).to_contain_text("6 runs of 16 tokens, about")
    page.locator("#start-compare").click()
    page.locator("#stop-compare").wait_for()
    at = boxes(*(page.locator(button) for button in ("#stop-compare", "#start-replay")))
    page.locator("#start-compare:enabled").wait_for()
    after = boxes(*(page.locator(f"#start-{name}") for name in ("verdict", "replay")))
    assert [box["x"] for box in after] == [box["x"] for box in at]
    rows = compared(page, "rows")
    assert compared(page, "state") == "finished"
    assert [(one["drafter"], one["num_draft_tokens"], one["repeats"]) for one in rows] == [
        *(("Plain decoding", None, 2), ("Draft model", 2, 2), ("Prompt lookup", 2, 2))
    ]
    if (folded := page.locator("specviz-compare .fold")).count():  # where both are slower than plain decoding
        folded.click()
    assert page.locator("specviz-compare [part=table] tbody tr:has(th)").count() == len(rows)
    texts = compared(page, "texts")
    assert texts["of"] == 2
    sentence = "All 2 lossless runs reproduced plain decoding's text" if not texts["partings"] else "diverges at token"
    expect(page.locator("specviz-compare [part=texts]")).to_contain_text(sentence)
    assert "<title>specviz: a comparison</title>" in downloaded_page(page, "comparison")
    assert_no_sideways_scrolling(page)

    # Two rules judge the same draws of the run that is ordered.
    for label, value in (("New tokens", 48), ("Temperature (0 is greedy)", 1), ("Seed", 3)):
        set_control(page, label, value)
    page.locator("#start-replay").click()
    page.locator("#stop-compare").wait_for()
    page.locator("#start-replay:enabled").wait_for()
    replayed = compared(page, "replay")
    trace = order(Client(page_url, verbose=False), seed=3, max_new_tokens=48, temperature=1)
    counts = tally(Run.from_dict(trace).rounds)
    assert (replayed["rounds"], replayed["drafted"]) == (counts.rounds, counts.drafted)
    assert replayed["kept"][0] == counts.accepted
    differing = replayed["differing"]
    assert len(differing) == replayed["ahead"] + replayed["behind"]
    gained = sum(one["kept"][1] - one["kept"][0] for one in differing)
    assert replayed["kept"][1] - replayed["kept"][0] == gained
    for one in differing:
        table = page.locator(f'specviz-compare table[data-round="{one["index"]}"]')
        kept = [line.locator('td[data-outcome="accepted"]').count() for line in table.locator("tbody tr").all()[1:]]
        assert kept == one["kept"]
    expect(page.locator("specviz-compare [part=totals]")).to_contain_text("with the same drafts and the same coins")

    # The winner goes into the controls.
    (best,) = (one for one in rows if one["best"])
    expect(page.locator("specviz-compare [part=winner]")).to_contain_text(f"“{best['drafter']}”, γ = 2")
    page.locator("specviz-compare [part=use]").click()
    expect_drafter(page, next(name for name in DRAFTERS if best["drafter"] == words()(f"ways.{name}")))
    expect(control(page, GAMMA)).to_have_value("2")


def test_a_file_of_prompts_is_compared_by_domain_in_place_of_the_prompt_on_the_left(page):
    set_control(page, "New tokens", 8)
    choices = open_tab(page, drafters=("Prompt lookup",), gammas=("2",))
    choices.locator('input[aria-label="number input for Repeats"]').fill("1")
    chooser, note = page.locator('input[type=file][accept*=".jsonl"]'), page.locator("#prompts-note")

    def give_file(*lines: str) -> None:
        content = "\n".join(lines).encode()
        chooser.set_input_files({"name": "own.jsonl", "mimeType": "application/json", "buffer": content})

    chooser.set_input_files({"name": "own.txt", "mimeType": "text/plain", "buffer": b"\xff"})
    expect(note).to_contain_text("it is not UTF-8")
    give_file('{"prompt": "One fish"}', "Two fish")
    expect(note).to_contain_text("Line 2 of the prompts is not JSON")
    page.locator("#start-compare").click()
    expect(page.locator(".validation-error:not(textarea)")).to_contain_text("Line 2 of the prompts is not JSON")
    expect(note).to_be_hidden()  # it says the same
    assert compared(page, "state") == "empty"
    domain = "<b>sea</b> ${window.hit = 1}"
    give_file(
        json.dumps({"prompt": "One fish", "domain": domain}), json.dumps({"prompt": "Once upon", "domain": "tale"})
    )
    expect(note).to_contain_text("2 prompts in 2 domains")
    page.locator("#start-compare").click()
    page.wait_for_function(f"() => {VIEW}.state === 'finished'")
    page.locator("#start-compare:enabled").wait_for()
    rows = page.locator("specviz-compare [part=domains] tbody tr")
    assert [row.locator("td").first.inner_text() for row in rows.all()] == ["all", domain, "tale"]
    assert page.evaluate("window.hit ?? null") is None and [one["repeats"] for one in compared(page, "rows")] == [2, 2]
    assert_no_sideways_scrolling(page)
    # The choices made room for the results.
    expect(page.locator("#remove-prompts")).to_be_hidden()
    page.locator("[aria-controls=compare-choices]").click()
    page.locator("#remove-prompts").click()
    expect(page.locator("#prompts textarea")).to_have_value("")
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("#prompts")).to_contain_text("JSON Lines")
    # What may stand in it is read as a whole: a field of one line would cut a longer sentence in it.
    assert page.locator("#prompts textarea").evaluate("node => node.scrollHeight <= node.clientHeight")
    expect(page.locator("#remove-prompts")).to_have_count(0)
