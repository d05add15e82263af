"""The charts: what they draw are the tally's numbers, and they stay small however long the run."""

import json

import pytest
from handmade import a_round, a_run, a_tree, rounds_of

from specviz.records.metrics import tally
from specviz.records.words import words
from specviz.views.charts import LABELS, MAX_POINTS, Trail

RUN = a_run(rounds_of("", "aaa", "ard", "rdd", "aar"))


def drawn(rounds):
    """The four figures as the browser gets them."""
    charts = Trail.of(rounds).charts(words())
    assert list(charts) == list(range(len(LABELS)))
    return [json.loads(json.dumps(chart, allow_nan=False)) for chart in charts.values()]


def test_the_running_rate_is_that_of_the_tally_after_each_round():
    chart = drawn(RUN.rounds)[0]["data"][0]
    assert chart["x"] == [1, 2, 3, 4, 5]
    assert chart["y"] == [tally(RUN.rounds[:count]).acceptance_rate for count in range(1, len(RUN.rounds) + 1)]
    assert chart["y"][0] is None and chart["y"][-1] == tally(RUN.rounds).acceptance_rate


def test_tokens_per_pass_are_those_emitted_and_their_mean():
    bars, mean = drawn(RUN.rounds)[1]["data"]
    assert bars["y"] == [1, 4, 2, 1, 3]
    assert mean["y"] == [11 / 5, 11 / 5]
    assert sum(bars["y"]) == tally(RUN.rounds).tokens


def test_positions_show_the_conditional_rate_with_its_counts():
    counts = tally(RUN.rounds)
    chart = drawn(RUN.rounds)[2]
    bars = chart["data"][0]
    assert bars["x"] == [1, 2, 3]
    assert bars["y"] == counts.conditional_position_rates()
    assert bars["customdata"] == [[3, 4], [2, 3], [1, 2]]
    assert "if judged" in chart["layout"]["title"]["text"], "the screen says which of the two rates it shows"


def test_of_trees_the_chart_says_that_it_counts_siblings():
    chain, tree = (drawn(rounds)[2]["layout"]["xaxis"]["title"]["text"] for rounds in (RUN.rounds, [a_tree((-1, -1))]))
    assert "sibling" in tree and "sibling" not in chain


@pytest.mark.parametrize("language", ["en", "de"])
def test_no_title_is_longer_than_its_chart_has_room_for(language):
    # Four beside each other leave each some 200 pixels, of which a character takes five to six.
    for chart in Trail.of([a_tree((-1, -1))]).charts(words(language)).values():
        titles = [chart["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
        assert max(map(len, titles)) <= 32, titles


def test_a_position_that_was_never_judged_has_no_bar():
    assert drawn(rounds_of("rdd"))[2]["data"][0]["x"] == [1]


def test_the_times_are_the_mean_round_in_milliseconds():
    counts = tally(RUN.rounds)
    bars = drawn(RUN.rounds)[3]["data"][0]
    parts = [counts.draft_seconds, counts.verify_seconds, counts.accept_seconds]
    assert bars["x"] == pytest.approx([1000 * part / 5 for part in parts])
    assert sum(bars["customdata"]) == pytest.approx(1)


def test_nothing_yet_is_drawn_as_nothing():
    rate, tokens, positions, times = drawn([])
    assert rate["data"][0]["x"] == tokens["data"][0]["x"] == positions["data"][0]["x"] == []
    assert times["data"][0]["x"] == [0, 0, 0]


def test_five_thousand_rounds_draw_no_more_than_a_bounded_number_of_points():
    rounds = [a_round(("aaard", "aaaaa", "r", "")[i % 4], i) for i in range(5000)]
    figures = drawn(rounds)
    for figure in figures:
        for trace in figure["data"]:
            assert len(trace["x"]) <= MAX_POINTS + 1
        assert len(json.dumps(figure)) < 30_000
    counts = tally(rounds)
    assert figures[0]["data"][0]["x"][-1] == 5000
    assert figures[0]["data"][0]["y"][-1] == counts.acceptance_rate
    bars, mean = figures[1]["data"]
    assert mean["y"][0] == counts.tokens / 5000
    # Bars are means of equally many neighbours, but for the last one.
    widths = [int(one.split("–")[-1]) - int(one.split("–")[0]) + 1 for one in bars["customdata"]]
    assert sum(widths) == 5000
    assert sum(width * height for width, height in zip(widths, bars["y"])) == pytest.approx(counts.tokens)


def test_german_charts_write_decimal_commas():
    charts = Trail.of(RUN.rounds).charts(words("de"))
    assert {chart["layout"]["separators"][0] for chart in charts.values()} == {","}
    assert all("." not in text for text in charts[3]["data"][0]["text"])
    assert "." not in charts[1]["layout"]["title"]["text"] + charts[3]["layout"]["title"]["text"]


def test_in_a_run_the_charts_take_turns_and_each_is_up_to_date():
    trail = Trail()
    for turn, one in enumerate(RUN.rounds):
        trail.add(one)
        drawn_now = trail.charts(words(), turn)
        assert list(drawn_now) == [turn % 4]
        assert drawn_now[turn % 4] == Trail.of(RUN.rounds[: turn + 1]).charts(words())[turn % 4]
