"""A run is shown at a reader's speed, in a real browser on a clock of the test's own."""

import itertools
from dataclasses import replace

import pytest
from elements import VIEW, give
from handmade import a_round, a_run
from playwright.sync_api import Page, expect

from specviz.records.runs import Round, Run
from specviz.records.words import words
from specviz.views import run_messages as messages

#: A quarter of a second for all of it.
ROUNDS = tuple(a_round("aard"[: 1 + index % 4], index) for index in range(48))

#: Where the reader is, the last round with a token or a chip on the page, and what is written about the speed.
SEEN = f"""() => {{
  const shadow = {VIEW}.shadowRoot;
  const rounds = [...shadow.querySelectorAll('.text .t, .list .chip')]
    .filter((node) => node.checkVisibility({{visibilityProperty: true}})).map((node) => Number(node.dataset.round));
  return {{place: {VIEW}.place, last: Math.max(-1, ...rounds),
    slowed: shadow.querySelector('[part=slowed]').textContent,
    sealed: shadow.querySelector('[part=strip]').hasAttribute('data-sealed')}};
}}"""


@pytest.fixture
def watch(alone):
    """Opens the view to a reader who watches, gives it a live run, and stops the clock."""

    def open_page(*rounds: Round, over: bool = True, **options) -> Page:
        page = alone("run", watches=True, **options)
        stop_the_clock(page)
        begin(page, a_run(rounds), over)
        return page

    return open_page


def stop_the_clock(page: Page) -> None:
    page.clock.install(time=0)
    page.clock.pause_at(1000)


def begin(page: Page, run: Run, over: bool = True, key: str = "live") -> None:
    total = len(run.rounds)
    end = [messages.end_message(key, total=total, reason="")] if over else []
    give(page, "run", [messages.opening(key, run), messages.rounds_message(key, run.rounds, run.vocabulary), *end])
    page.clock.run_for(200)


def watched(page: Page, seconds: float, every: int = 100) -> list[dict]:
    """What is seen every so many milliseconds, for so long."""
    told = []
    for _ in range(int(1000 * seconds / every)):
        page.clock.run_for(every)
        told.append(page.evaluate(SEEN))
    return told


def test_a_run_that_was_faster_than_its_reader_is_shown_from_its_first_round_in_about_15_seconds(watch):
    page = watch(*ROUNDS)
    told = watched(page, 20)
    assert told[0]["place"] == {"round": 0, "stage": 0, "kind": "start"}
    # Each round that stays: at least five of them for half a second or more.
    stays = {
        place: len(list(alike))
        for place, alike in itertools.groupby(told, lambda seen: (seen["place"] or {}).get("round"))
    }
    assert sum(steps >= 5 for index, steps in stays.items() if index is not None) >= 5
    order = [seen["place"]["round"] for seen in told if seen["place"]]
    assert order == sorted(order) and order[-1] == 47 and 12 <= len(order) / 10 <= 17
    # The first rounds are told stage by stage, the others at once.
    stages = [
        {seen["place"]["kind"] for seen in told if seen["place"] and seen["place"]["round"] == index}
        for index in range(8)
    ]
    assert {"draft", "pass", "decide", "next"} <= stages[0] & stages[1]
    assert all(kinds == {"next"} for kinds in stages[2:])
    # Nothing of what is to come is seen, and what is seen is said to be slowed; then all of it, and no such word.
    assert all(seen["last"] <= seen["place"]["round"] for seen in told if seen["place"])
    shown, measured = len(order) / 10, sum(one.seconds.total for one in ROUNDS)
    times = float(told[5]["slowed"].split()[2])
    assert times == pytest.approx(shown / measured, rel=0.1)
    assert told[5]["sealed"] and not told[-1]["sealed"]
    assert told[-1]["place"] is None and told[-1]["slowed"] == "" and told[-1]["last"] == 47


def test_who_skips_twice_is_not_made_to_watch_again_until_asking_for_it(watch):
    page = watch(*ROUNDS)
    end = page.locator('[part="to_end"]')
    for key in ("second", "third"):
        expect(end).to_have_text("Skip to the end")
        end.click()
        page.clock.run_for(100)
        assert page.evaluate(SEEN)["place"] is None
        begin(page, a_run(ROUNDS), key=key)
    assert page.evaluate(SEEN)["place"] is None
    expect(end).to_have_text("Watch again")
    end.click()
    assert watched(page, 1)[-1]["place"]["round"] == 0
    begin(page, a_run(ROUNDS), key="fourth")
    assert watched(page, 1)[-1]["place"]["round"] == 0


def test_pointing_at_a_token_or_moving_by_hand_stops_the_show_where_it_is(watch):
    page = watch(*ROUNDS)
    watched(page, 8)
    page.locator(".text .t:visible").first.click()
    here = page.evaluate(SEEN)["place"]
    assert watched(page, 3)[-1]["place"] == here
    page.locator('[part="play"]').click()
    assert watched(page, 3)[-1]["place"]["round"] > here["round"]
    page.locator('[part="back"]').click()
    here = watched(page, 0.2)[-1]["place"]
    assert watched(page, 3)[-1]["place"] == here


def test_a_run_slower_than_its_show_is_followed_live(watch):
    page = watch(ROUNDS[0], over=False)
    assert watched(page, 12)[-1]["place"]["round"] == 0  # the second round is told, too
    for count, place in ((2, 1), (3, None), (4, None)):
        given = [messages.rounds_message("live", ROUNDS[count - 1 : count], a_run(ROUNDS).vocabulary)]
        give(page, "run", given)
        seen = watched(page, 1 if place else 6)
        assert (seen[-1]["place"] or {}).get("round") == place and seen[-1]["last"] == count - 1


def test_without_motion_a_run_waits_at_its_start_for_steps(watch):
    page = watch(*ROUNDS, reduced_motion="reduce")
    assert watched(page, 5)[-1]["place"] == {"round": 0, "stage": 0, "kind": "start"}
    page.locator('[part="forward"]').click()
    assert watched(page, 5)[-1]["place"] == {"round": 0, "stage": 1, "kind": "draft"}


def test_a_run_from_a_file_is_not_played(alone):
    page = alone("run", watches=True)
    stop_the_clock(page)
    run = a_run(ROUNDS)
    parts = [messages.opening("kept", run), messages.rounds_message("kept", run.rounds, run.vocabulary)]
    parts.append(messages.end_message("kept", total=len(ROUNDS), reason=""))
    give(page, "run", [messages.trace_message(parts, share={}, charts={})])
    page.clock.run_for(300)
    assert page.evaluate(SEEN)["place"] is None


def test_at_a_readers_place_no_chart_is_drawn_that_has_not_come_yet(alone):
    page = alone("run", watches=True)
    stop_the_clock(page)
    page.evaluate(f"window.told = []; {VIEW}.addEventListener('specviz-charts', ({{ detail }}) => told.push(detail));")
    begin(page, a_run(ROUNDS), over=False)  # rounds, and no charts yet
    page.clock.run_for(3000)
    drawn = page.evaluate("told.map((charts) => Object.keys(charts).filter((place) => charts[place] == null))")
    assert drawn and not any(drawn)


def test_what_a_server_does_not_say_of_its_tokens_is_no_number(alone):
    unsaid = dict.fromkeys(("p", "q", "p_raw", "q_raw", "u", "accept_prob"))
    rounds = [
        replace(one, drafted=tuple(replace(token, **unsaid) for token in one.drafted), top=())
        for one in (a_round("ar"), a_round("", 1))
    ]
    page = alone("run", watches=True)
    stop_the_clock(page)
    begin(page, a_run(tuple(rounds), engine="llama.cpp b1"))
    said = set()
    for _ in range(80):
        page.clock.run_for(100)
        said.add(page.evaluate(f"{VIEW}.shadowRoot.querySelector('.overview .caption')?.textContent ?? ''"))
    assert words()("playback.say_due_elsewhere") in said
    assert any("p and q were not both recorded" in one for one in said)
    assert not any("–" in one or "NaN" in one for one in said), said
