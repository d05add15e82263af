"""The line for the models: first come, first served, told how long it takes, and left at any moment."""

import contextlib
import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from elements import give
from handmade import a_run, rounds_of
from on_page import choose_drafter, set_control, settle, start, state, wait_for_rounds
from playwright.sync_api import expect
from running import ROOT
from tiny import tiny_pair

from specviz.records.errors import SpecvizError
from specviz.records.words import LANGUAGES, Words, words
from specviz.ui import runner as line_module
from specviz.ui.api.endpoints import ENDPOINTS
from specviz.ui.components import BROWSER
from specviz.ui.deployment import Deployment
from specviz.ui.desk import Action, _in_turn
from specviz.ui.device import PairName, PairStore
from specviz.ui.line import Line, Visit, name_of
from specviz.ui.page import TABS
from specviz.ui.runs import Visitors
from specviz.views import run_messages as messages

SAY = words()


def test_turns_come_in_the_order_in_which_they_were_asked_for():
    line, done = Line(8), []
    asked = [threading.Event() for _ in range(4)]

    def work(number: int) -> None:
        with line.joined("generate") as turn:
            asked[number].set()
            line.reached(turn)
            done.append(number)

    with ThreadPoolExecutor(4) as threads, line.joined("race") as first:
        assert line.reached(first)
        for number, event in enumerate(asked):
            threads.submit(work, number)
            event.wait()
        assert done == []
    assert done == [0, 1, 2, 3]


def test_who_waits_is_told_what_is_under_way_how_many_come_before_and_about_how_long(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(line_module.time, "monotonic", lambda: float(next(clock)))
    line = Line(8)
    for _ in range(3):
        with line.joined("race") as turn:
            line.reached(turn)
    with line.joined("race") as running, line.joined("generate"), line.joined("generate") as last:
        assert line.reached(running) and not line.reached(last, 0)
        # A run was never timed, so nobody knows how long it takes.
        assert line.before(last) == (["race", "generate"], None)
    with line.joined("race") as running, line.joined("generate") as last:
        assert line.reached(running)
        kinds, seconds = line.before(last)
        assert kinds == ["race"] and seconds == 0.0  # it took as long already as those before it
        told = next(line.waiting(last, threading.Event(), SAY))
        assert told == f"{SAY('line.before', n=1, what=SAY('race.in_line'))} {SAY('line.seconds', seconds=1)}"


def test_leaving_needs_no_turn_and_lets_the_next_one_pass():
    line, halt = Line(8), threading.Event()
    with line.joined("race") as running:
        line.reached(running)
        with line.joined("generate") as leaving, line.joined("lossless") as last:
            waiting = line.waiting(leaving, halt, SAY)
            assert SAY("race.in_line") in next(waiting)
            halt.set()
            assert list(waiting) == [] and leaving.began is None
            assert line.before(last)[0] == ["race", "generate"]
        with line.joined("lossless") as last:
            assert line.before(last)[0] == ["race"]


def test_a_full_line_says_so():
    line = Line(1)
    refused = pytest.raises(SpecvizError, match="1 are waiting already")
    with line.joined("race"), line.joined("race"), refused, line.joined("race"):
        pytest.fail("let in")
    with line.joined("race"):
        pass


def test_one_browser_s_tabs_take_no_more_than_their_share_of_the_line():
    line = Line(16)
    with contextlib.ExitStack() as tabs:
        for _ in range(line.most_each):
            tabs.enter_context(line.joined("race", "mine"))
        told, made = in_turn(None, Visitors(), {}, halted=True, line=line)
        assert told[0].startswith(f"failed: Your tabs have {line.most_each} places") and not made
        # Everybody else finds one.
        for visitor in range(line.most - line.most_each):
            tabs.enter_context(line.joined("generate", f"visitor {visitor}"))
    with line.joined("race", "mine") as again:
        assert line.reached(again)


def in_turn(pairs, visitors, heard, halted=False, line=None) -> tuple[list[str], list]:
    """What an action shows and what it is carried out on, for a page that had heard of that pair."""
    made, visit = [], Visit("me", threading.Event(), "mine")
    if halted:
        visit.halt.set()

    def stream(visit, name, *values):
        made.append((name, pairs.loaded(name)))
        yield "done"

    action = Action(None, None, ["pair"], stream, waiting=str, failed=lambda text: f"failed: {text}")
    runner, controls = SimpleNamespace(line=line or Line(2), store=pairs), SimpleNamespace(pair="pair")
    desk = SimpleNamespace(runner=runner, visitors=visitors, controls=controls, say=SAY)
    return list(_in_turn(desk, "generate", action, visit, [heard])), made


def test_an_action_is_for_the_pair_that_its_visitor_loaded_last_and_waits_until_that_is_there(monkeypatch):
    monkeypatch.setattr("specviz.models.loading.load_pair", lambda target, *asked, **others: tiny_pair("llama"))
    monkeypatch.setenv("SPECVIZ_PASSES", "plain")
    pairs, visitors = PairStore(Deployment.from_environment()), Visitors()
    mine, theirs = PairName("mine"), PairName("theirs")
    starting = SAY("common.starting")
    # The first pair, of which the page has not heard; and once it is there.
    assert in_turn(pairs, visitors, {}) == ([starting, "done"], [(PairName(), pairs.starting_pair)])
    assert in_turn(pairs, visitors, {}) == (["done"], [(PairName(), pairs.starting_pair)])
    # One that was being loaded when the button was pressed.
    pairs.get(mine)
    visitors.pairs["me"] = mine
    assert in_turn(pairs, visitors, asdict(PairName())) == (["done"], [(mine, pairs.guest)])
    # Somebody else's has taken its place.
    pairs.get(theirs)
    assert in_turn(pairs, visitors, asdict(mine), halted=True) == ([f"failed: {SAY('line.left')}"], [])
    assert in_turn(pairs, visitors, asdict(mine)) == ([starting, "done"], [(mine, pairs.guest)])


def test_what_the_pair_cannot_be_loaded_for_is_said_in_the_place_of_what_was_asked_for(monkeypatch):
    monkeypatch.setenv("SPECVIZ_TARGET", "/no/such/folder")
    told, made = in_turn(PairStore(Deployment.from_environment()), Visitors(), {})
    assert told[0] == SAY("common.starting") and told[1].startswith("failed: There is no folder") and not made


#: All work that there is: a tab's, the API's, and what joins the line by a name of its own.
NAMED = [re.findall(r'joined\("(\w+)"\)', path.read_text()) for path in (ROOT / "specviz" / "ui").rglob("*.py")]
KINDS = {*TABS, *(endpoint.kind for endpoint in ENDPOINTS.values()), *itertools.chain.from_iterable(NAMED)}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_whoever_waits_is_told_what_for_behind_every_kind_of_work(kind, language):
    line, say = Line(8), words(language)
    with line.joined(kind) as running, line.joined("generate") as waiting:
        assert line.reached(running)
        [name, mine], _ = line.now(say)
        assert next(line.waiting(waiting, threading.Event(), say)) == say("line.before", n=1, what=name)
        assert name and mine == say("generate.in_line")


def test_work_that_has_no_name_goes_by_its_tab_s_title():
    say = Words("en", {"new": {"tab": "New tab"}, "line": SAY.areas["line"]})
    assert "“New tab”" in name_of("new", say)


# In the browser


def test_a_second_visitor_sees_what_they_wait_for_leaves_at_once_and_comes_next(visit, page_folder):
    first, second = visit(), visit()
    choose_drafter(first, "plain")
    for visitor, tokens, seed in ((first, 1000, 987_654), (second, 4, 0)):
        set_control(visitor, "New tokens", tokens)
        set_control(visitor, "Seed", seed)
    second.get_by_label("Then measure the speedup").uncheck()
    start(first)
    wait_for_rounds(first, 2)
    second.locator("#go").click()
    status = second.locator('specviz-run [part="status"]')
    expect(status).to_contain_text(SAY("line.before", n=1, what=SAY("generate.in_line")))
    names = [{one["name"]: one["value"] for one in page.context.cookies()}[BROWSER] for page in (first, second)]
    assert names[0] != names[1], "each browser has its own"
    told = [one.locator(".sv-brand p") for one in (first, second)]
    for visitors in told:
        expect(visitors).to_have_text(SAY("line.with_you", n=1))
    second.locator("#stop").click()
    expect(told[1]).to_contain_text(SAY("line.now", what=SAY("generate.in_line")))
    expect(status).to_have_text(SAY("line.left"))
    expect(second.locator("#go")).to_be_enabled()
    assert state(first, "state") == "running"
    second.locator("#go").press("Enter")
    expect(status).to_contain_text(SAY("generate.in_line"))
    first.close()
    settle(second)
    assert state(second, "state") == "finished" and len(state(second, "text")) > 0
    expect(told[1]).to_have_text(SAY("page.subtitle"))
    # A run that comes to an end, its own or a visitor's Stop, leaves a trace; the abandoned one did not get there.
    assert list(page_folder.rglob("*seed0.json"))
    assert not list(page_folder.rglob("*seed987654.json"))


def test_a_server_that_does_not_answer_is_said_beside_the_name_and_the_run_and_is_no_error(alone):
    page, run = alone("run"), a_run(rounds_of("aaa", "ard"))
    give(page, "run", [messages.opening("run", run), messages.rounds_message("run", run.rounds, run.vocabulary)])
    page.clock.install()
    asked = page.evaluate_handle(
        """async () => {
          const asked = [];
          const element = document.createElement('div');
          element.className = 'sv-head';
          element.innerHTML = '<div><p>usual</p></div>';
          document.body.append(element);
          const { join } = await import('/gradio/brand.js');
          join({ element, server: { in_line: async () => { asked.push(element.textContent); } } },
            { words: { "line.gone": "gone" }, started: "one", cookie: "name" });
          return asked;
        }"""
    )
    for _ in range(2):
        page.clock.run_for(4000)
    # Whatever it throws is an error of the page, which no page of a test may have.
    assert asked.json_value() == ["usual", "gone"]
    expect(page.locator("specviz-run [part=status]")).to_have_text(words().texts("rounds")["rounds.gone"])
    # Its clock stays with its context: no other test may be given this page.
    page.context.close()
