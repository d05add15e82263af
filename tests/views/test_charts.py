"""The charts: what they draw are the tally's numbers, and they stay small however long the run."""

import dataclasses
import json
import re

import pytest
from handmade import a_round, a_run, a_tree, rounds_of

from specviz.records.metrics import tally
from specviz.records.words import words
from specviz.views.charts import MAX_POINTS, PARTS, Trail
from specviz.views.run_messages import rounds_message

RUN = a_run(rounds_of("", "aaa", "ard", "rdd", "aar"))


def charts(rounds) -> list[dict]:
    """The four charts' values as the browser gets them."""
    return [json.loads(json.dumps(chart, allow_nan=False)) for chart in Trail.of(rounds).charts().values()]


def test_the_charts_values_are_the_tallys():
    running, tokens, positions, times = charts(RUN.rounds)
    assert running["rounds"] == [1, 2, 3, 4, 5]
    assert running["rates"] == [tally(RUN.rounds[:count]).acceptance_rate for count in range(1, len(RUN.rounds) + 1)]
    assert running["parts"] == [[1, 1, 0, 0], [2, 5, 3, 3], [3, 7, 1, 2], [4, 8, 0, 1], [5, 11, 2, 3]]
    assert tokens == {"rounds": 5, "step": 1, "means": [1, 4, 2, 1, 3], "mean": 11 / 5}
    assert positions == {"accepted": [3, 2, 1], "judged": [4, 3, 2], "trees": False}
    assert charts([a_tree((-1, -1))])[2]["trees"]
    counts = tally(RUN.rounds)
    parts = [counts.draft_seconds, counts.verify_seconds, counts.accept_seconds]
    assert times["milliseconds"] == pytest.approx([1000 * part / 5 for part in parts])


def test_five_thousand_rounds_are_no_more_than_a_bounded_number_of_values():
    rounds = [a_round(("aaard", "aaaaa", "r", "")[i % 4], i) for i in range(5000)]
    rates, tokens, *_ = every = charts(rounds)
    assert all(len(json.dumps(chart)) < 20_000 for chart in every)
    counts = tally(rounds)
    assert len(rates["rounds"]) <= MAX_POINTS + 1 and rates["rounds"][-1] == 5000
    assert rates["rates"][-1] == counts.acceptance_rate
    lasts, ends, accepted, judged = zip(*rates["parts"])
    assert (lasts[-1], ends[-1], sum(accepted), sum(judged)) == (5000, counts.tokens, counts.accepted, counts.judged)
    assert len(lasts) <= PARTS and [*lasts] == sorted({*lasts})
    assert tokens["mean"] == counts.tokens / 5000
    # Bars are means of equally many neighbours, but for the last one.
    widths = [min(tokens["step"], 5000 - i * tokens["step"]) for i in range(len(tokens["means"]))]
    assert sum(widths) == 5000 and len(widths) <= MAX_POINTS
    assert sum(width * mean for width, mean in zip(widths, tokens["means"])) == pytest.approx(counts.tokens)


def test_the_size_of_a_rounds_message_does_not_depend_on_what_came_before():
    run, sent = a_run(tuple(a_round("aard", i) for i in range(1000))), set()
    figures = dict.fromkeys(("acceptance_rate", "tokens_per_second", "tokens"), 1.5)
    sizes = [
        len(rounds_message("run", run.rounds[i : i + 5], run.vocabulary, figures=figures, sent=sent))
        for i in range(0, 1000, 5)
    ]
    # The first one carries the vocabulary; after it only the digits of the round's number grow.
    assert sizes[1] < sizes[0] and max(sizes[1:]) - min(sizes[1:]) <= 6 * len("999")


def test_in_a_run_the_charts_take_turns_and_each_is_up_to_date():
    trail = Trail()
    for turn, one in enumerate(RUN.rounds):
        trail.add(one)
        now = trail.charts(turn)
        assert list(now) == [turn % 4]
        assert now[turn % 4] == Trail.of(RUN.rounds[: turn + 1]).charts()[turn % 4]


# --- the figures that the browser makes of them -----------------------------------------------------------------------


@pytest.fixture
def drawn(alone):
    """Makes figures of the charts of some rounds."""

    def figures(rounds, language: str = "en") -> list[dict]:
        figures.page = page = alone("charts", language)
        script = """charts => import("/charts/figures.js").then(({ FIGURES }) =>
            FIGURES.map((figure, place) => figure(charts[place], document.querySelector("specviz-charts").say)))"""
        return page.evaluate(script, charts(rounds))

    return figures


def widths(page, figures: list[dict]) -> dict[str, float]:
    """Pixels of each chart's title, and of each line that the pointer is told, in the font that it is drawn in."""
    script = """titles => {
      const pen = document.createElement("canvas").getContext("2d");
      return Object.fromEntries(titles.map(([text, size, family]) => {
        pen.font = `${size}px ${family}`;
        return [text, pen.measureText(text).width];
      }));
    }"""
    layouts = [chart["layout"] for chart in figures]
    hovers = [trace["hovertemplate"] for chart in figures for trace in chart["data"]]
    lines = [line for hover in hovers for line in hover.removesuffix("<extra></extra>").split("<br>")]
    titles = [(each["title"]["text"], each["title"]["font"]["size"], each["font"]["family"]) for each in layouts]
    # With numbers of a long run in them, and within the box's margin.
    told = [(re.sub(r"%{[^}]*}", "1234", line) + "__", 12, layouts[0]["font"]["family"]) for line in lines]
    return page.evaluate(script, titles + told)


def test_positions_show_the_conditional_rate_with_its_counts(drawn):
    positions = drawn(RUN.rounds)[2]
    bars = positions["data"][0]
    assert bars["x"] == [1, 2, 3]
    assert bars["y"] == tally(RUN.rounds).conditional_position_rates()
    assert bars["customdata"] == [[3, 4], [2, 3], [1, 2]]
    assert "of judged" in positions["layout"]["title"]["text"], "the screen says which of the two rates it shows"
    assert drawn(rounds_of("rdd"))[2]["data"][0]["x"] == [1], "a position that was never judged has no bar"


def test_behind_the_rate_so_far_stands_that_of_each_part_of_the_text(drawn):
    bars, line = drawn(RUN.rounds)[0]["data"]
    assert bars["y"] == [None, 1, 1 / 2, 0, 2 / 3] and line["y"][-1] == tally(RUN.rounds).acceptance_rate
    assert bars["customdata"][2] == [6, 7, 1, 2], "tokens 6 to 7 of the text: 1 accepted of 2"


@pytest.mark.parametrize("language", ["en", "de"])
def test_titles_fit_german_commas_and_nothing_yet_is_drawn_as_nothing(drawn, language):
    # Four beside each other leave each some 200 pixels, of which a character takes five to six.
    figures = drawn([a_tree((-1, -1))], language)
    titles = [chart["layout"][axis]["title"]["text"] for chart in figures for axis in ("xaxis", "yaxis")]
    assert max(map(len, titles)) <= 32, titles
    assert max(widths(drawn.page, figures).values()) <= 200
    long = drawn([a_round("aard", i) for i in range(5000)], language)
    assert max(widths(drawn.page, long).values()) <= 200
    rate, tokens, positions, times = drawn([], language)
    assert rate["data"][0]["x"] == tokens["data"][0]["x"] == positions["data"][0]["x"] == []
    assert times["data"][0]["x"] == [0, 0, 0] and times["data"][0]["text"] == []
    figures = drawn(RUN.rounds, language)
    assert {chart["layout"]["separators"][0] for chart in figures} == {"," if language == "de" else "."}
    numbers = [*figures[3]["data"][0]["text"], *(figures[place]["layout"]["title"]["text"] for place in (1, 3))]
    assert all("." not in text for text in numbers) == (language == "de")


def test_times_that_nobody_knows_are_said_to_be_unknown_and_draw_no_bars(drawn):
    rounds = [dataclasses.replace(one, seconds=None) for one in RUN.rounds]
    times = drawn(rounds)[3]
    assert times["data"] == [] and times["layout"]["title"]["text"] == words()("charts.time_unknown")
    assert not times["layout"]["xaxis"]["visible"]
