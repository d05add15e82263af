"""Rounds of any engine: what its loop knows is shown as ours is, and what it does not know is not known."""

import json
import pathlib
import re
import runpy

import pytest
import torch
from elements import chip, unfold
from playwright.sync_api import Page
from refusal import refused

import specviz
from specviz.foreign.rounds import opened
from specviz.records import links
from specviz.records.metrics import tally
from specviz.records.runs import Run
from specviz.views.pages import run_page
from specviz.views.run_messages import as_json

own_loop = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "examples" / "own_loop.py"))["own_loop"]

#: What the log of any engine has: drafted ids, how many were kept, what followed.
BARE = {"tokens": [[3, 4, 5], [], [6, 7]], "kept": [2, 0, 2], "following": [8, 9, 10]}
#: A tree of two below two of three, as a log of any engine has it: the second branch is kept, and then all is refused.
TREE = {
    "tokens": [[3, 4, 5, 6, 7, 8], [3]],
    "parents": [[-1, -1, -1, 0, 1, 1], None],
    "kept": [[1], 1],
    "following": [9, 10],
}
TEXTS = {3: "the", 4: " quick", 5: " red", 6: " fox", 7: " jumps", 8: " brown", 9: " and", 10: " over"}


def test_a_loop_of_forty_lines_is_shown_as_the_engine_records_it():
    pair, gamma = specviz.load_pair(dtype="float32"), 4
    random, waiting = torch.Generator().manual_seed(7), []

    def coin() -> float:
        if not waiting:
            waiting.extend(torch.rand(2 * gamma + 1, generator=random).tolist())
        return waiting.pop(0)

    run = specviz.run(pair, "Once upon a time", num_draft_tokens=gamma, max_new_tokens=64, seed=7)
    whole = [one for one in run.rounds if len(one.drafted) == gamma and not one.dropped]
    log = own_loop(pair.target, pair.draft, list(run.prompt.ids), len(whole), gamma, coin)
    given = json.loads(json.dumps(log | {"schema": "specviz.rounds/1"}))
    shown = specviz.show(**given, texts=lambda ids: pair.texts.chip(ids[0]))
    assert {one.accepted for one in whole} >= {0, gamma} or len({one.accepted for one in whole}) > 2
    for ours, theirs in zip(whole, shown.rounds, strict=True):
        assert (theirs.emitted, theirs.next.kind, theirs.next.id) == (ours.emitted, ours.next.kind, ours.next.id)
        assert (theirs.next.u, theirs.next.prob) == pytest.approx((ours.next.u, ours.next.prob), abs=1e-4)
        for one, other in zip(theirs.drafted, ours.drafted, strict=True):
            assert [one.id, one.text, one.parent, one.outcome] == [other.id, other.text, other.parent, other.outcome]
            for name in ("p", "q", "u", "accept_prob"):
                assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-4)
        for row, due in zip(theirs.top, ours.top, strict=True):
            for name in ("p", "q", "residual"):
                assert dict(getattr(row, name)) == pytest.approx(dict(getattr(due, name)), abs=1e-4)
    listed = {id for one in shown.rounds for row in one.top for id, _ in (*row.p, *row.q, *row.residual)}
    assert listed <= shown.vocabulary.keys() and all(shown.vocabulary[id] == run.vocabulary[id] for id in listed)
    ours, theirs = tally(whole), tally(shown.rounds)
    assert (theirs.acceptance_rate, theirs.acceptance_length) == (ours.acceptance_rate, ours.acceptance_length)
    assert theirs.conditional_position_rates() == ours.conditional_position_rates()


@pytest.mark.parametrize("greedy", [False, True])
def test_a_bare_log_is_kept_and_counted_and_times_are_not_made_up(greedy, tmp_path):
    run = specviz.show(**BARE, texts=TEXTS, greedy=greedy, engine="a log")
    counts = tally(run.rounds)
    assert (counts.drafted, counts.judged, counts.accepted, counts.tokens) == (5, 5, 4, 7)
    assert counts.tokens_per_second is None and run.seconds == 0
    assert run.text == "the quick brown and fox jumps over"
    run.save(tmp_path / "trace.json")
    assert Run.load(tmp_path / "trace.json") == run
    assert "<iframe" in run._repr_html_()
    (row,) = specviz.runs_table([run]).to_dict("records")
    assert row["seed"] is None and row["temperature"] == (0.0 if greedy else None)
    refused = run.rounds[0].drafted[2]
    assert (refused.p, refused.q) == ((0.0, 1.0) if greedy else (None, None)) and refused.outcome == "rejected"


def test_part_of_it_may_be_known():
    run = specviz.show(
        **BARE, p=[[0.5, 0.4, 0.1], None, [0.2, 0.9]], q=[[0.5, 0.8, 0.4], [], None], u=[[0.1, 0.3, None]] + 2 * [None]
    )
    first, second, third = run.rounds[0].drafted
    assert (first.accept_prob, second.accept_prob, third.accept_prob) == (1.0, 0.5, 0.25)
    assert third.u is None and run.rounds[2].drafted[0].q is None and run.rounds[2].drafted[0].accept_prob is None
    timed = specviz.show(**BARE, seconds=[[0.1, 0.3, 0.1], None, [0, 0.5, 0]])
    assert timed.seconds == 1.0 and tally(timed.rounds).draft_seconds == 0.1


def test_a_tree_is_shown_by_who_continues_whom_and_as_much_of_it_is_known_as_was_recorded():
    run = specviz.show(**TREE, texts=TEXTS)
    tree, chain = run.rounds
    assert [one.parent for one in tree.drafted] == TREE["parents"][0] and chain.drafted[0].parent == -1
    refused, discarded = "rejected", "discarded"
    assert [one.outcome for one in tree.drafted] == [refused, "accepted", discarded, discarded, refused, refused]
    assert (tree.emitted, tree.next.kind, run.text) == ((4, 9), "recovered", " quick andthe over")
    assert run.num_draft_tokens == 2 and tally(run.rounds).accepted_at == [2, 0]
    p = [[0.0, 0.5, 0.25, 0.25], [0.0, 0.25, 0.25, 0.5], [0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]]
    q = [[0.0, 0.25, 0.5, 0.25]] * 2 + [[0.0, 0.0, 0.0, 1.0]]
    rows = {"tokens": [[1, 2, 3]], "parents": [[-1, -1, 0]], "following": [1], "p": [p], "q": [q]}
    # Of one refused token what is left of p follows; of several their engine's rule decides it.
    (one,) = specviz.show(**rows, kept=[[0]], u=[[0.1, None, 0.9]]).rounds
    assert [(token.p, token.q) for token in one.drafted] == [(0.5, 0.25), (0.25, 0.5), (0.5, 1.0)]
    assert [token.accept_prob for token in one.drafted] == [1.0, None, 0.5] and one.next.prob == 0.5
    assert dict(one.top[1].residual) == {1: 0.5, 2: 0.5} and one.top[1].q == ((3, 1.0),) and not one.top[2].q
    (none,) = specviz.show(**rows, kept=[[]], u=[[0.9, 0.9, None]]).rounds
    assert [token.accept_prob for token in none.drafted] == [1.0, None, None] and none.next.prob is None
    greedy = specviz.show(**TREE, greedy=True).rounds[0]
    assert [token.p for token in greedy.drafted] == [0.0, 1.0, None, None, 0.0, 0.0]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"schema": "specviz.rounds/1", "tokens": [[1]]}, "'kept' is missing or unknown"),
        (BARE | {"colour": 3}, "'colour' is missing or unknown"),
        (BARE | {"schema": "specviz.rounds/2"}, "its schema is 'specviz.rounds/2'"),
        (BARE | {"tokens": 5}, "tokens must be a list with one entry per round, not 5."),
        (BARE | {"tokens": [5, [], []]}, "Round 1: tokens must be a list of whole numbers from 0 up, not 5."),
        (BARE | {"texts": 5}, "texts must be an object from ids to texts, not 5."),
        (BARE | {"greedy": "no"}, "greedy must be true or false, not 'no'."),
        (BARE | {"prompt": None}, "prompt must be text, not None."),
        ({"schema": "specviz.run/2"}, "This is not a trace of this version of specviz: its schema is 'specviz.run/2'"),
        ([1, 2], "This is not a specviz trace"),
    ],
)
def test_a_file_of_rounds_is_opened_as_a_trace_is_or_refused_in_a_sentence(data, said, tmp_path):
    file = tmp_path / "rounds.json"
    for given in (BARE, TREE, BARE | {"schema": "specviz.rounds/1", "texts": {"3": "the"}}):
        file.write_text(json.dumps(given))
        run = opened(file)
        assert run == specviz.show(**given)
        run.save(file)
        assert opened(file) == run
    file.write_text(json.dumps(data))
    with refused("trace") as caught:
        opened(file)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"parents": [[-1, 1, 0], None, None]}, "Round 1: parents must be before each token: from -1 to 0"),
        ({"parents": [[-1], None, None]}, "Round 1: parents must be 3 values, not [-1]."),
        ({"parents": [[-1, -1, 0], None, None]}, "Round 1: kept must be a list of places, not 2."),
        ({"parents": [[-1, -1, 0], None, None], "kept": [[1, 2], 0, 2]}, "Round 1: kept must be the places of a path"),
        ({"kept": ["2", 0, 2]}, "Round 1: kept must be a whole number from 0 to 3, not '2'."),
        ({"p": [[[0.5, None]] * 4, None, None]}, "Round 1: p must be rows over the whole vocabulary"),
        ({"u": [5, None, None]}, "Round 1: u must be a list of numbers from 0 to 1, not 5."),
        ({"following": [2**70, 9, 10]}, "Round 1: following must be a whole number from 0 up"),
        ({"kept": [4, 0, 2]}, "Round 1: kept must be a whole number from 0 to 3, not 4."),
        ({"kept": [2, 0]}, "kept has 2 rounds, but tokens has 3."),
        ({"tokens": [[3, 4, "5"], [], [6, 7]]}, "Round 1: tokens must be a list of whole numbers from 0 up, not '5'."),
        ({"u": [None, None, [0.5]]}, "Round 3: u must be 2 values, not [0.5]."),
        ({"p": [None, None, [0.5, 1.5]]}, "Round 3: p must be a list of numbers from 0 to 1, not 1.5."),
        ({"p": [None, None, [[0.5] * 2] * 3]}, "Round 3: p must be rows over the whole vocabulary that sum to 1"),
        ({"p": [None, None, [[1.0, *[0.0] * 20]] * 2]}, "Round 3: p must be 3 rows, not '2 rows'."),
        ({"seconds": [[1, 2], None, None]}, "Round 1: seconds must be three times"),
        ({"seconds": [[0, 1e-320, 0], None, None]}, "Round 1: seconds must be three times"),
        ({"schema": "specviz.rounds/2"}, "its schema is 'specviz.rounds/2'"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(changed, said):
    with refused("trace") as caught:
        specviz.show(**BARE | changed)
    assert said in str(caught.value)


def test_settings_that_no_form_has_are_left_out_of_what_is_shared():
    run = Run.from_dict(
        specviz.show(**BARE).to_dict() | {"settings": {"branches": "many", "confidence": -3, "bits": 8}}
    )
    settings = links.settings_of_run(run)
    assert (settings["branches"], settings["confidence"], settings["bits"], settings["rule"]) == (None, 0.0, 8, "auto")
    assert as_json(links.share(run))


@pytest.fixture
def shown(new_page, tmp_path):
    """Opens the page of a run of another engine."""

    def opened_page(language: str = "en", window: dict | None = None, **given) -> Page:
        path = tmp_path / "page.html"
        path.write_text(run_page(specviz.show(**given, texts=TEXTS, engine="a log"), language), encoding="utf-8")
        page = new_page(**window or {})
        page.goto(path.as_uri())
        page.locator("specviz-run [data-state=finished]").wait_for()
        return page

    return opened_page


def test_of_times_that_nobody_knows_no_axes_are_drawn(shown):
    page = shown(**BARE)
    drawn = page.locator("specviz-charts svg").evaluate_all(
        "all => all.map((one) => one.querySelectorAll('text').length)"
    )
    assert len(drawn) == 4 and drawn[3] == 1 and min(drawn[:3]) > 3, "the fourth has its title alone"


def test_a_greedy_draft_of_another_engine_is_not_called_a_copy(shown):
    page = shown(**TREE, greedy=True)
    unfold(page, 0)
    for index, said in ((0, "The two differ"), (1, "a match, accepted"), (2, ""), (4, "The two differ"), ("next", "")):
        chip(page, 0, index).click()
        text = page.locator("specviz-run [part=say]").inner_text()
        assert said in text and "copied" not in text


PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}


@pytest.mark.parametrize(("language", "window", "given"), [("de", PHONE, BARE), ("en", {}, BARE), ("en", {}, TREE)])
def test_the_page_says_what_is_not_known(shown, language, window, given):
    page = shown(language, window, **given)
    told = {"en": ("not recorded", "how it was drawn"), "de": ("nicht aufgezeichnet", "wie es gezogen wurde")}[language]
    if given is TREE:
        unfold(page, 0)
    chip(page, 0, given["tokens"][0].index(7 if given is TREE else 5)).click()
    say = page.locator("specviz-run [part=say]")
    assert told[0] in say.inner_text()
    if given is TREE:
        assert page.locator("specviz-run [part=siblings] td").all_inner_texts() == 2 * [*5 * ["–"], "✗"]
    assert "undefined" not in say.inner_text() and "NaN" not in say.inner_text()
    close = page.locator("specviz-run .steer .out")
    if window:
        close.click()
    chip(page, 0, "next").click()
    assert told[1] in say.inner_text()
    if window:
        close.click()
    page.locator("specviz-run [part=to_start]").click()
    for _ in range(14):
        page.locator("specviz-run [part=forward]").click()
        text = page.evaluate("() => document.querySelector('specviz-run').shadowRoot.querySelector('.view').innerText")
        assert not re.search("NaN|undefined|null", text)
