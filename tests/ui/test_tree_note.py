"""Beside a tree's branches stands what its pass takes, and what it has to make; after runs, which of two was ahead."""

import threading
from dataclasses import replace

import pytest
from on_page import GAMMA, generate, set_control
from playwright.sync_api import expect
from tiny import tiny_pair

from specviz.decoding.engine import rounds
from specviz.decoding.request import Request, prepare
from specviz.models.pair_passes import PairPasses
from specviz.records.runs import Round
from specviz.records.settings import AUTO, DraftParams, RunSettings, SamplingParams
from specviz.records.words import words
from specviz.ui.runner import Visit
from specviz.ui.shown_runs import LiveRun, LiveRuns
from specviz.ui.tree_note import said_of_tree

BRANCHES = words()("controls.branches")

#: A plain step takes a second, and each further token half as long: also beyond the widths that were timed.
TIMED = {1: 1.0, 5: 3.0, 9: 5.0}


@pytest.fixture
def pair():
    made = replace(tiny_pair("llama", vocab=16), eos_ids=frozenset())
    return replace(made, passes=PairPasses(seconds_by_width=dict(TIMED)))


def asked(pair, branches=3, drafter="draft_model", depth=4, prompt=(3, 5, 7), confidence=0.0) -> Request:
    drafting, sampling = DraftParams(branches, confidence=confidence), SamplingParams(temperature=1.0)
    return prepare(pair, RunSettings(prompt, drafter, depth, sampling, max_new_tokens=64, drafting=drafting))


def lasting(one: Round, seconds: float) -> Round:
    return replace(one, seconds=replace(one.seconds, total=seconds, prefill=0.0))


def ran(request: Request, seconds: float) -> LiveRun:
    """As if each of its rounds had taken so long."""
    live = LiveRuns().open(request, Visit("me", threading.Event()), words())
    live.add([lasting(one, seconds) for one in rounds(request)])
    live.over.set()
    return live


def told(request: Request, *runs: LiveRun) -> tuple[dict, dict]:
    """The two sentences: of its pass, and of what it has to make."""
    return tuple(said_of_tree(request, runs)["parts"])


def test_before_anything_ran_a_tree_is_held_against_plain_decoding(pair):
    tree_pass, needs = told(asked(pair))
    # Over 1 + 3 · 4 tokens: 7 s, against 3 s of the chain's 5 and 1 s of a plain step.
    assert (tree_pass["nodes"], tree_pass["times"], tree_pass["widest"]) == (12, pytest.approx(7 / 3), 9)
    assert (needs["say"], needs["needed"], needs["most"]) == ("controls.tree_never", pytest.approx(7), 5)
    assert told(asked(pair, branches=2, depth=2))[1]["say"] == "controls.tree_needs"  # 3 of 3 tokens


def test_once_a_chain_ran_a_tree_has_to_make_up_for_what_its_pass_takes_longer(pair):
    chain = ran(asked(pair, branches=1), 4.0)
    counts = chain.trail.counts
    needs = told(asked(pair), chain)[1]
    assert needs["rival"]["made"] == pytest.approx(1 + counts.accepted / counts.rounds)
    assert needs["needed"] == pytest.approx(needs["rival"]["made"] * (4 + 7 - 3) / 4)
    for other in (ran(asked(pair, branches=1, depth=3), 4.0), ran(asked(pair), 4.0)):
        assert told(asked(pair), other)[1]["needed"] == pytest.approx(7), "no chain of these settings"


@pytest.mark.parametrize("share, ahead", [(1.2, "chain"), (0.8, "tree"), (1.0, "neither")])
def test_once_both_ran_it_says_which_was_ahead(pair, share, ahead):
    chain, tree = ran(asked(pair, branches=1), 4.0), ran(asked(pair), 4.0)
    # The time in which its tokens are as many a second as the chain's, and more or less of it.
    even = 4.0 * tree.trail.counts.tokens / tree.trail.counts.rounds * chain.trail.counts.rounds
    tree = ran(asked(pair), share * even / chain.trail.counts.tokens)
    assert told(asked(pair), chain, tree)[1]["ahead"] == {"say": f"controls.ahead_{ahead}"}
    elsewhere = ran(asked(pair, prompt=(2, 4, 6)), 4.0)
    assert "ahead" not in told(asked(pair), chain, elsewhere)[1], "of another text"


@pytest.mark.parametrize(
    "settings",
    [{"branches": 1}, {"depth": AUTO}, {"drafter": "suffix"}],
    ids=["a chain", "chosen in each round", "copies as much as it finds"],
)
def test_nothing_is_said_of_what_is_not_a_fixed_tree(pair, settings):
    assert said_of_tree(asked(pair, **settings), []) == ""


def test_before_passes_were_timed_it_says_so_and_where_a_wide_pass_is_free_it_asks_for_nothing(pair):
    pair.passes.seconds_by_width = {}
    assert said_of_tree(asked(pair), []) == {"say": "controls.tree_unknown"}
    pair.passes.seconds_by_width = {1: 1.0, 9: 1.0}
    assert said_of_tree(asked(pair), [])["times"] == 1


def test_the_note_follows_the_controls_and_the_runs(page):
    note = page.locator("#tree-note")
    expect(note).to_be_hidden()
    set_control(page, BRANCHES, 3)
    expect(note).to_contain_text("12 draft tokens")
    set_control(page, GAMMA, 2)
    expect(note).to_contain_text("6 draft tokens")
    for branches, sentence in ((1, None), (3, "Run here with the same prompt and settings")):
        set_control(page, BRANCHES, branches)
        generate(page, new_tokens=64)
        expect(note).to_contain_text(sentence) if sentence else expect(note).to_be_hidden()
    # Set by another part of the page.
    asked = {"settings": {"num_draft_tokens": AUTO}, "press": None, "measure": None}
    page.evaluate("detail => document.dispatchEvent(new CustomEvent('specviz-press', { detail }))", asked)
    expect(note).to_be_hidden()
