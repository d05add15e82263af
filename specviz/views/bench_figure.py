"""A benchmark report as one figure: speeds, and measured speedups beside the formula's.

Takes the report as in its JSON file, so a figure can be drawn from a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specviz.views.charts import AMBER, BLUE, GREEN, GREY

#: The report, or a part of it.
Values = dict[str, Any]

#: In pixels: total width, margins, one bar, a chart of points, space between rows.
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1200, 212, 24, 128, 56
BAR, POINTS, BETWEEN = 17, 230, 84
#: Columns of the grid, shared equally by a row's charts.
GRID = 6
CHARTS_PER_ROW = 3

INK, LINES = "#33373e", "#e3e5e9"

#: Engine -> its name in the legend and its colour.
ENGINES = {
    "specviz": ("specviz, with its full trace", GREEN),
    "transformers": ("transformers", AMBER),
}
#: Colours of drafters, in order of appearance.
PALETTE = (GREEN, BLUE, AMBER, "#a0507e", "#5d6fc0", "#7a8b2b", "#b0483f")


@dataclass(slots=True)
class Chart:
    """One chart of the figure."""

    title: str
    traces: list[go.Bar | go.Scatter]
    height: int = POINTS  # of the plot, in pixels
    x: dict[str, Any] = field(default_factory=dict)  # axis settings
    y: dict[str, Any] = field(default_factory=dict)
    lines: list[float] = field(default_factory=list)  # x of vertical lines across it
    legend: str | None = None  # name of a legend in the chart's right half, then left free by the plot


def bench_figure(report: Values) -> go.Figure:
    """report: as in its file. Every contestant has a bar for each preset and temperature it ran with."""
    speeds = _speed_charts(report["rows"])
    rows = [speeds[start : start + CHARTS_PER_ROW] for start in range(0, len(speeds), CHARTS_PER_ROW)]
    rows += [[_formula_chart(report["formula"])]] if report["formula"] else []
    heights = [max(chart.height for chart in row) for row in rows]
    inner = sum(heights) + BETWEEN * (len(rows) - 1)
    figure = make_subplots(
        rows=len(rows),
        cols=GRID,
        specs=[_spans(len(row)) for row in rows],
        row_heights=heights,
        vertical_spacing=BETWEEN / inner if len(rows) > 1 else 0,
        horizontal_spacing=0.04,
        subplot_titles=[chart.title for row in rows for chart in row],
    )
    for number, row in enumerate(rows, 1):
        for place, chart in enumerate(row):
            _draw(figure, chart, number, 1 + place * (GRID // len(row)))
    for title, axis in zip(figure.layout.annotations, figure.select_xaxes()):
        title.update(x=axis.domain[0], xanchor="left", font={"size": 13})
    figure.update_layout(_layout(report, inner))
    return figure


def _spans(charts: int) -> list[dict[str, int] | None]:
    """A row of the grid, shared by this many charts."""
    share = GRID // charts
    return [{"colspan": share} if column % share == 0 else None for column in range(GRID)]


def _draw(figure: go.Figure, chart: Chart, row: int, column: int) -> None:
    place = {"row": row, "col": column}
    for trace in chart.traces:
        figure.add_trace(trace, **place)
    figure.update_xaxes({"gridcolor": LINES, "zeroline": False} | chart.x, **place)
    figure.update_yaxes({"gridcolor": LINES, "zeroline": False} | chart.y, **place)
    if chart.legend:
        across, up = (next(axis).domain for axis in (figure.select_xaxes(**place), figure.select_yaxes(**place)))
        middle = (across[0] + across[1]) / 2
        figure.update_xaxes({"domain": [across[0], middle]}, **place)
        figure.update_layout({chart.legend: {"x": middle + 0.02, "y": up[1], "yanchor": "top"}})
    for x in chart.lines:
        figure.add_vline(x, line={"color": INK, "width": 1, "dash": "dot"}, **place)


def _layout(report: Values, inner: int) -> dict[str, Any]:
    warnings = [report[key] for key in ("busy", "unsteady") if report[key]]
    top = TOP + 18 * len(warnings)
    height = top + inner + BOTTOM
    pair, machine = report["pair"], report["machine"]
    place = f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads"
    place = place if machine["device"] == "cpu" else machine["device"]
    repeats, tokens = report["settings"]["repeats_made"], report["settings"]["max_new_tokens"]
    return {
        "template": {},
        "width": WIDTH,
        "height": height,
        "margin": {"l": LEFT, "r": RIGHT, "t": top, "b": BOTTOM},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"color": INK, "size": 12, "family": "system-ui, sans-serif"},
        "title": {
            "text": f"<b>{pair['name']}</b>, {machine['dtype']}, on {place}<br>"
            f"<span style='font-size:12px'>{repeats} interleaved repeats of {tokens} new tokens: medians, least and "
            f"most; beside each bar its speed and its ratio to the same engine's plain decoding"
            + "".join(f"<br><b>{warning}</b>" for warning in warnings)
            + "</span>",
            "font": {"size": 17},
            "x": 16 / WIDTH,
            "y": 1 - 22 / height,
            "yanchor": "top",
        },
        "bargap": 0.25,
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1 + 34 / inner, "yanchor": "bottom"},
    }


# Speeds


def _speed_charts(rows: Sequence[Values]) -> list[Chart]:
    """One chart per preset and temperature; those in one row of the figure list the same contestants."""
    settings = list(dict.fromkeys((row["temperature"], row["preset"]) for row in rows))
    charts, seen = [], set()
    for start in range(0, len(settings), CHARTS_PER_ROW):
        together = settings[start : start + CHARTS_PER_ROW]
        present = [row for row in rows if (row["temperature"], row["preset"]) in together]
        titles = _in_order(present)
        for place, (temperature, preset) in enumerate(together):
            own = [row for row in present if (row["temperature"], row["preset"]) == (temperature, preset)]
            charts.append(_speed_chart(own, titles, named=place == 0, seen=seen))
    return charts


def _in_order(rows: Sequence[Values]) -> list[str]:
    """Titles by engine and drafter; some contestants take part at only one temperature."""
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    by_kind = sorted(rows, key=lambda row: (list(ENGINES).index(row["engine"]), modes.index(row["mode"])))
    return list(dict.fromkeys(row["title"] for row in by_kind))


def _speed_chart(rows: Sequence[Values], titles: Sequence[str], named: bool, seen: set[str]) -> Chart:
    """named: whether it shows the contestants' titles. seen: engines already in the legend; grows."""
    temperature, widest = rows[0]["temperature"], max(row["spread"][1] for row in rows)
    traces = []
    for engine in ENGINES:
        own = [row for row in rows if row["engine"] == engine]
        if own:
            traces.append(_bars(engine, own, in_legend=engine not in seen))
            seen.add(engine)
    traces.append(
        go.Scatter(
            x=[1.37 * widest] * len(rows),
            y=[row["title"] for row in rows],
            text=[_beside(row) for row in rows],
            mode="text",
            textposition="middle left",
            textfont={"size": 11},
            showlegend=False,
            hoverinfo="skip",
        )
    )
    order = {"categoryorder": "array", "categoryarray": list(titles), "range": [len(titles) - 0.4, -0.6]}
    return Chart(
        title=f"{rows[0]['preset']}, {'greedy' if temperature == 0 else f'temperature {temperature:g}'}, tokens/s",
        traces=traces,
        height=BAR * len(titles),
        x={"range": [0, 1.38 * widest], "nticks": 5},
        y={**order, "showticklabels": named, "showgrid": False, "tickfont": {"size": 11}, "dtick": 1},
        lines=[row["tokens_per_second"] for row in rows if row["title"] == "plain"],
    )


def _bars(engine: str, rows: Sequence[Values], in_legend: bool) -> go.Bar:
    name, colour = ENGINES[engine]
    speeds = [row["tokens_per_second"] for row in rows]
    return go.Bar(
        orientation="h",
        name=name,
        legendgroup=engine,
        showlegend=in_legend,
        x=speeds,
        y=[row["title"] for row in rows],
        marker={"color": colour},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [row["spread"][1] - speed for row, speed in zip(rows, speeds)],
            "arrayminus": [speed - row["spread"][0] for row, speed in zip(rows, speeds)],
            "color": INK,
            "thickness": 1,
            "width": 3,
        },
        # Each engine is its own trace with one bar per contestant, so no bar has to make room for another.
        offset=-0.4,
        width=0.8,
        hovertemplate="%{y}: %{x:.0f} tokens/s<extra></extra>",
    )


def _beside(row: Values) -> str:
    ratio = row["speedup_measured"]
    return f"{row['tokens_per_second']:.0f}" if ratio is None else f"{row['tokens_per_second']:.0f} · {ratio:.2f}×"


# Measured beside formula


def _formula_chart(checks: Sequence[Values]) -> Chart:
    """Points below the diagonal fell short of the formula."""
    most = 1.05 * max(max(check["formula"], check["measured"]) for check in checks)
    traces = [go.Scatter(x=[0, most], y=[0, most], mode="lines", line={"color": GREY, "dash": "dot"}, showlegend=False)]
    for colour, mode in zip(PALETTE, dict.fromkeys(check["mode"] for check in checks)):
        own = [check for check in checks if check["mode"] == mode]
        traces.append(
            go.Scatter(
                x=[check["formula"] for check in own],
                y=[check["measured"] for check in own],
                text=[f"{check['title']}, {check['preset']}, temperature {check['temperature']:g}" for check in own],
                name=mode,
                legend="legend2",
                mode="markers",
                marker={"color": colour, "size": 8, "line": {"color": "#ffffff", "width": 1}},
                hovertemplate="%{text}: measured %{y:.2f}, formula %{x:.2f}<extra></extra>",
            )
        )
    return Chart(
        title="Speedup of chains: measured, beside the formula's from their α and c (dotted: equal)",
        traces=traces,
        height=POINTS + 60,
        x={"title": {"text": "formula"}, "range": [0, most]},
        y={"title": {"text": "measured"}, "range": [0, most]},
        legend="legend2",
    )
