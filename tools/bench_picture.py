"""Draws measured speedup against the formula's from a report: ``python -m tools.bench_picture bench.json out.png``."""

from __future__ import annotations

import json
import pathlib
import tempfile

import pandas as pd
import plotly.express as px

from tools import asked
from tools.chromium import browser

WIDTH, HEIGHT = 960, 480


def main(report: pathlib.Path, picture: pathlib.Path) -> None:
    """A point for each chain on each preset, with the 90 % interval of what was measured."""
    table = pd.DataFrame(json.loads(report.read_text(encoding="utf-8"))["rows"])
    table = table[(table.engine == "specviz") & table.speedup_formula.notna() & table.speedup_interval.notna()]
    low, high = table.speedup_interval.str[0], table.speedup_interval.str[1]
    table = table.assign(
        below=table.speedup_measured - low,
        above=high - table.speedup_measured,
        temperature=table.temperature.map(lambda value: f"temperature {value:g}" if value else "greedy"),
    )
    figure = px.scatter(
        table,
        x="speedup_formula",
        y="speedup_measured",
        color="mode",
        facet_col="temperature",
        error_y="above",
        error_y_minus="below",
        template="plotly_white",
        labels={"speedup_formula": "speedup by the formula", "speedup_measured": "speedup measured", "mode": "drafter"},
    )
    ends = [0.5, max(table.speedup_formula.max(), high.max()) * 1.05]
    figure.add_shape(
        type="line", x0=ends[0], y0=ends[0], x1=ends[1], y1=ends[1], line={"dash": "dot"}, row="all", col="all"
    )
    figure.for_each_annotation(lambda title: title.update(text=title.text.partition("=")[2]))
    with tempfile.NamedTemporaryFile(suffix=".html") as page, browser() as chromium:
        figure.write_html(page.name, config={"displayModeBar": False}, default_width=WIDTH, default_height=HEIGHT)
        tab = chromium.new_page(viewport={"width": WIDTH + 16, "height": HEIGHT + 16})
        tab.goto(f"file://{page.name}")
        tab.locator(".main-svg").first.wait_for()
        tab.screenshot(path=picture)


if __name__ == "__main__":
    main(*asked(__doc__, report="written by python -m specviz bench --json", picture="to be written, .png or .svg"))
