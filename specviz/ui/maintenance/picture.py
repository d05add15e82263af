"""A plotly figure as a file: HTML by plotly itself, PNG and SVG by a browser that has drawn that HTML."""

from __future__ import annotations

import pathlib
import tempfile
from urllib.request import urlopen

import plotly.graph_objects as go

from specviz.records.errors import SpecvizError
from specviz.ui.maintenance.chromium import browser

DRAWN = (".png", ".svg")

#: plotly.js writes the picture itself, as a data URL; a PNG with two pixels for one, for sharp screens.
TO_IMAGE = """([format, scale]) => {
  const figure = document.querySelector('.plotly-graph-div');
  return Plotly.toImage(figure, {format, scale, width: figure.offsetWidth, height: figure.offsetHeight});
}"""


def check_picture(path: pathlib.Path) -> None:
    """Raises SpecvizError (field ``figure``, ``page``) where `write_picture` could not write this file."""
    if path.suffix not in (".html", *DRAWN):
        raise SpecvizError("A figure is written as .html, .png or .svg, not as {name}.", "figure", name=path.name)
    if path.suffix in DRAWN:
        with browser():
            pass


def write_picture(figure: go.Figure, path: pathlib.Path) -> None:
    """The figure as the file's ending says. HTML holds plotly.js and needs nothing else."""
    if path.suffix not in DRAWN:
        figure.write_html(path, include_plotlyjs=True, config={"displaylogo": False})
        return
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        page = pathlib.Path(folder) / "figure.html"
        figure.write_html(page, include_plotlyjs=True)
        tab = chromium.new_page()
        tab.goto(page.as_uri())
        tab.wait_for_function("() => document.querySelector('.plotly-graph-div .main-svg')")
        with urlopen(tab.evaluate(TO_IMAGE, [path.suffix[1:], 2 if path.suffix == ".png" else 1])) as picture:
            path.write_bytes(picture.read())
