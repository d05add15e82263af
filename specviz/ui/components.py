"""The page's own components and its look: gr.HTML around the files of assets/web.

Templates are static and hold no data: Gradio splices a template into a JavaScript literal, where a model's text could
execute. Data reaches the script as the component's value, one JSON message at a time (specviz.views.messages).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import gradio as gr
import plotly

from specviz.views.charts import LABELS, Trail

WEB = pathlib.Path(__file__).resolve().parents[2] / "assets" / "web"


def rounds_view(missing_rounds: Callable[[dict], list[str]] | None = None, **options) -> gr.HTML:
    """The live view of a run (element id ``rounds-view``).

    missing_rounds: asked when a message was lost, with ``{"run": key, "first": i, "count": n}``: the component lacks
        rounds i to n - 1. Returns messages to apply: the run's `start_message` and one `rounds_message`. Without it,
        the gap is shown to the reader.
    """
    if missing_rounds is not None:
        options["server_functions"] = [_server_function("missing_rounds", missing_rounds)]
    return _component("rounds", **options)


def race_view(**options) -> gr.HTML:
    """Two recorded runs replayed on one clock (element id ``race-view``)."""
    return _component("race", **options)


def compare_view() -> gr.HTML:
    """Table, heat map and replayed rules of the Compare tab (element id ``compare-view``)."""
    return _component("compare")


def charts_view() -> gr.HTML:
    """The four charts (element id ``charts-view``); they draw what the live view hands on.

    plotly.js comes with the package plotly, so that the page needs no network.
    """
    plotly_js = pathlib.Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    gr.set_static_paths([plotly_js])
    frames = [
        f'<figure class="sv-chart" aria-label="{label}"><div data-chart="{place}"></div></figure>'
        for place, label in enumerate(LABELS)
    ]
    return gr.HTML(
        value=json.dumps(Trail().charts()),
        html_template=f'<div class="sv-charts">{"".join(frames)}</div>',
        js_on_load=(WEB / "charts.js").read_text(encoding="utf-8"),
        head=f'<script src="gradio_api/file={plotly_js.as_posix()}"></script>',
        elem_id="charts-view",
        elem_classes=["specviz-component"],
        apply_default_css=False,
        container=False,
        padding=False,
    )


def page_css() -> str:
    """The look of the whole page, for `launch(css=...)`."""
    return (WEB / "theme.css").read_text(encoding="utf-8")


def as_text(text: str) -> str:
    """Names of folders and models are data: none of Markdown's or HTML's signs may work."""
    return "".join(f"&#{ord(sign)};" if sign in "\\`*_{}[]<>()#+-!|&$~" else sign for sign in text)


def _server_function(name: str, function: Callable[[dict], list[str]]) -> Callable[[dict], list[str]]:
    """A plain function of that name: Gradio marks it with an attribute, which a bound method would not take."""

    def call(wanted: dict) -> list[str]:
        return function(wanted)

    call.__name__ = name
    return call


def _component(name: str, **options) -> gr.HTML:
    style = (WEB / f"{name}.css").read_text(encoding="utf-8")
    shared, script = ((WEB / f"{file}.js").read_text(encoding="utf-8") for file in ("dom", name))
    return gr.HTML(
        html_template=f'<div class="specviz-{name}"></div>',
        js_on_load=f"const STYLE = {json.dumps(style)};\n{shared}\n{script}",
        elem_id=f"{name}-view",
        elem_classes=["specviz-component"],
        apply_default_css=False,
        container=False,
        padding=False,
        **options,
    )
