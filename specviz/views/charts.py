"""The four live charts: rounds in, plotly figures out.

The process that runs the models redraws them several times a second, so a figure is a few plain lists, bounded in
length however long the run, and skips plotly's validation. Colours have a contrast of at least 3:1 on light and dark
grounds; the page's style sheet gives text the theme's colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from specviz.records.metrics import Tally
from specviz.records.runs import Round
from specviz.records.words import Words

HEIGHT = 220
#: At most this many points or bars per chart; beyond that, neighbouring rounds share one.
MAX_POINTS = 240

GREEN, BLUE, AMBER, GREY = "#1a9c78", "#2f86c9", "#b97a1a", "#868b95"


@dataclass(slots=True)
class Trail:
    """What the charts need of the rounds so far; `add` takes constant time."""

    counts: Tally = field(default_factory=Tally)
    rates: list[float | None] = field(default_factory=list)  # α after each round; None until a token is judged
    tokens: list[int] = field(default_factory=list)  # emitted by each round

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Trail:
        trail = cls()
        for one in rounds:
            trail.add(one)
        return trail

    def add(self, one: Round) -> None:
        self.counts.add(one)
        self.rates.append(self.counts.acceptance_rate)
        self.tokens.append(len(one.emitted))

    def charts(self, say: Words, turn: int | None = None) -> dict[int, dict[str, Any]]:
        """All four charts by position on the page, ready for JSON; given a turn, only the one whose turn it is.

        During a run they take turns: drawing all each time would cost the page more than the run it shows.
        """
        places = range(len(CHARTS)) if turn is None else [turn % len(CHARTS)]
        return {place: CHARTS[place](self, say).to_plotly_json() for place in places}


#: Text keys of the charts' names, in page order, for visitors who cannot see them.
LABELS = ("charts.acceptance", "charts.tokens", "charts.position_label", "charts.time")


def acceptance_chart(trail: Trail, say: Words) -> go.Figure:
    """Running acceptance rate α: accepted / judged draft tokens, from the first round to each round."""
    rates = trail.rates
    # Every step-th point, and always the newest.
    step = _step(len(rates))
    shown = sorted({*range(step - 1, len(rates), step), len(rates) - 1}) if rates else []
    trace = {
        "type": "scatter",
        "mode": "lines" if len(rates) > 1 else "markers",
        "x": [i + 1 for i in shown],
        "y": [rates[i] for i in shown],
        "line": {"color": GREEN, "width": 2},
        "hovertemplate": _hover(say("charts.acceptance_hover")),
    }
    titles = {"x_title": say("charts.round"), "y_title": say("charts.acceptance_axis")}
    return _figure([trace], say, say("charts.acceptance"), **titles, y_range=[0, 1.02], y_format=".0%")


def tokens_per_pass_chart(trail: Trail, say: Words) -> go.Figure:
    """Tokens per target pass, with their mean. In long runs, rounds share bars that show their means."""
    counts = trail.tokens
    step = _step(len(counts))
    groups = [counts[i : i + step] for i in range(0, len(counts), step)]
    means = [sum(group) / len(group) for group in groups]
    firsts = [i * step + 1 for i in range(len(groups))]
    lasts = [first + len(group) - 1 for first, group in zip(firsts, groups)]
    hover = say("charts.tokens_hover") if step == 1 else say("charts.tokens_hover_mean")
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "x": [(first + last) / 2 for first, last in zip(firsts, lasts)],
            "y": means,
            "width": [0.8 * step] * len(means),
            "customdata": [str(first) if first == last else f"{first}–{last}" for first, last in zip(firsts, lasts)],
            "marker": {"color": BLUE},
            "hovertemplate": _hover(hover),
        }
    ]
    title = say("charts.tokens")
    if counts:
        mean = sum(counts) / len(counts)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [0.5, len(counts) + 0.5],
                "y": [mean, mean],
                "line": {"color": AMBER, "width": 2, "dash": "dash"},
                "hovertemplate": _hover(say("charts.mean", mean=say.number(mean, ".2f"))),
            }
        )
        title = say("charts.tokens_mean", mean=say.number(mean, ".2f"))
    highest = max([1, *means])
    titles = {"x_title": say("charts.round"), "y_title": say("charts.tokens_axis")}
    figure = _figure(data, say, title, **titles, y_range=[0, highest * 1.08])
    figure._layout["yaxis"].update(tick0=0, dtick=math.ceil(highest / 5))
    return figure


def position_chart(trail: Trail, say: Words) -> go.Figure:
    """Conditional acceptance rate by draft position: accepted at i / judged at i, in trees each sibling that
    was tried."""
    counts = trail.counts
    rates = counts.conditional_position_rates()
    shown = [(i + 1, rate) for i, rate in enumerate(rates) if rate is not None]
    trace = {
        "type": "bar",
        "x": [position for position, _ in shown],
        "y": [rate for _, rate in shown],
        "customdata": [[counts.accepted_at[i - 1], counts.judged_at[i - 1]] for i, _ in shown],
        "text": [f"{rate:.0%}" for _, rate in shown] if len(shown) <= 8 else [],
        "textposition": "outside",
        "textfont": {"size": 11},
        "cliponaxis": False,
        "marker": {"color": GREEN},
        "hovertemplate": _hover(say("charts.position_hover")),
    }
    axis = "charts.position_axis_in_trees" if counts.drafted_trees else "charts.position_axis"
    titles = {"x_title": say(axis), "y_title": ""}
    figure = _figure([trace], say, say("charts.position"), **titles, y_range=[0, 1.16], y_format=".0%")
    figure._layout["xaxis"].update(
        range=[0.4, max(1, len(rates)) + 0.6], tick0=1, dtick=max(1, math.ceil(len(rates) / 8))
    )
    figure._layout["yaxis"]["tickvals"] = [0, 0.5, 1]
    return figure


def time_chart(trail: Trail, say: Words) -> go.Figure:
    """Where time goes, in milliseconds per round: drafting, verifying, the rest."""
    counts = trail.counts
    number = max(1, counts.rounds)
    parts = [
        (say("charts.drafting"), counts.draft_seconds, AMBER),
        (say("charts.verifying"), counts.verify_seconds, BLUE),
        (say("charts.rest"), counts.accept_seconds, GREY),
    ]
    milliseconds = [1000 * seconds / number for _, seconds, _ in parts]
    total = sum(milliseconds)
    shares = [value / total if total else 0.0 for value in milliseconds]
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [name for name, _, _ in parts],
        "x": milliseconds,
        "customdata": shares,
        "text": [f"{say.number(value, '.1f')} ms · {share:.0%}" for value, share in zip(milliseconds, shares)]
        if counts.rounds
        else [],
        "textposition": "outside",
        "textfont": {"size": 11},
        "cliponaxis": False,
        "marker": {"color": [colour for _, _, colour in parts]},
        "hovertemplate": _hover(say("charts.time_hover")),
    }
    title = say("charts.time_total", milliseconds=say.number(total, ".1f")) if counts.rounds else say("charts.time")
    figure = _figure([trace], say, title, x_title=say("charts.time_axis"), y_title="", y_range=None)
    figure._layout["yaxis"].update(autorange="reversed", showgrid=False, ticksuffix=" ")
    # Room for the longest bar's own label.
    figure._layout["xaxis"].update(range=[0, 2.3 * max([0.001, *milliseconds])], nticks=3)
    figure._layout["margin"]["l"] = 62
    return figure


CHARTS = (acceptance_chart, tokens_per_pass_chart, position_chart, time_chart)


def _hover(text: str) -> str:
    """Hover text without plotly's second box, which names the trace."""
    return f"{text}<extra></extra>"


def _step(rounds: int) -> int:
    return max(1, math.ceil(rounds / MAX_POINTS))


def _figure(
    data: list[dict[str, Any]],
    say: Words,
    title: str,
    *,
    x_title: str,
    y_title: str,
    y_range: list[float] | None,
    y_format: str = "",
) -> go.Figure:
    axis = {"fixedrange": True, "showline": False, "zeroline": False, "tickfont": {"size": 11}}
    layout = {
        "template": {},
        "height": HEIGHT,
        "margin": {"l": 44, "r": 10, "t": 34, "b": 38},
        "title": {"text": title, "font": {"size": 13}, "x": 0.02, "xanchor": "left", "y": 0.96, "yanchor": "top"},
        "font": {"color": GREY, "size": 11},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "dragmode": False,
        "hovermode": "closest",
        # Decimals, then thousands.
        "separators": f"{say('common.decimal')}\u202f",
        "hoverlabel": {"bgcolor": "#1d1f23", "bordercolor": "#1d1f23", "font": {"color": "#ffffff", "size": 12}},
        "xaxis": {
            **axis,
            "title": {"text": x_title, "standoff": 6, "font": {"size": 11}},
            "showgrid": False,
            "nticks": 6,
        },
        "yaxis": {
            **axis,
            "title": {"text": y_title, "standoff": 6, "font": {"size": 11}},
            "gridcolor": "rgba(134,139,149,.3)",
            "nticks": 5,
        },
    }
    if y_range:
        layout["yaxis"]["range"] = y_range
    if y_format:
        layout["yaxis"]["tickformat"] = y_format
    # The dictionaries are ours and the tests read them; plotly's checks would cost more than drawing.
    return go.Figure(data=data, layout=layout, _validate=False)
