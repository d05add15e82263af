"""The page's own components and its look: gr.HTML around the files of assets/web.

Templates are static and hold no data: Gradio splices a template into a JavaScript literal, where a model's text could
execute. Data reaches the script as the component's value, one JSON message at a time (specviz.views.run_messages).
"""

from __future__ import annotations

import html
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gradio as gr
import plotly

from specviz.records.errors import SpecvizError
from specviz.records.presets import PRESETS
from specviz.records.recordings import RECORDINGS
from specviz.records.words import Words
from specviz.views.charts import LABELS
from specviz.views.run_messages import Charts

#: Of the runs of the tour: long enough to show something, short enough to wait for.
TOUR_TOKENS = 48
SHORT_DRAFT, LONG_DRAFT = 4, 16

WEB = pathlib.Path(__file__).resolve().parents[2] / "assets" / "web"


def rounds_view(say: Words, missing_rounds: Callable[[dict], list[str]] | None = None, **options) -> gr.HTML:
    """The live view of a run (element id ``rounds-view``).

    missing_rounds: asked when a message was lost, with ``{"run": key, "first": i, "count": n}``: the component lacks
        rounds i to n - 1. Returns messages to apply: the run's `start_message` and one `rounds_message`. Without it,
        the gap is shown to the reader.
    """
    if missing_rounds is not None:
        options["server_functions"] = [_server_function("missing_rounds", missing_rounds)]
    return _component(
        "rounds",
        say,
        scripts=("tokens", "trees", "inspector", "playback", "present"),
        styles=("inspector", "playback", "present"),
        areas=("playback",),
        **options,
    )


def race_view(say: Words, **options) -> gr.HTML:
    """Two recorded runs replayed on one clock (element id ``race-view``)."""
    return _component("race", say, areas=("passes",), **options)


def compare_view(say: Words) -> gr.HTML:
    """Table, heat map and replayed rules of the Compare tab (element id ``compare-view``)."""
    return _component("compare", say)


def why_view(say: Words, **options) -> gr.HTML:
    """The lab on why speculation works (element id ``why-view``)."""
    return _component("why", say, areas=("passes",), **options)


def lossless_view(say: Words) -> gr.HTML:
    """The test of the emitted law (element id ``lossless-view``)."""
    return _component("lossless", say)


def beside_view(say: Words) -> gr.HTML:
    """Two runs on one prompt, aligned by their text (element id ``beside-view``); the live view tells of the runs."""
    return _component("beside", say, areas=("rounds",), scripts=("tokens",))


def tour_view(say: Words, most_new_tokens: int, most_draft_tokens: int) -> gr.HTML:
    """The guided tour, and the button that starts it (element id ``tour-view``).

    most_new_tokens, most_draft_tokens: what this page allows; the tour asks for no more.
    """
    prompts = {preset.name: preset.prompt for preset in PRESETS}
    plan = {
        "prompts": prompts,
        "new_tokens": min(TOUR_TOKENS, most_new_tokens),
        "short_draft": min(SHORT_DRAFT, most_draft_tokens),
        "long_draft": min(LONG_DRAFT, most_draft_tokens),
    }
    return _component("tour", say, areas=("rounds",), scripts=("tokens",), value=json.dumps(plan))


def remote() -> gr.HTML:
    """Nothing to see: sets controls and presses buttons for other parts of the page (assets/web/remote.js)."""
    return gr.HTML(
        html_template="",
        js_on_load=(WEB / "remote.js").read_text(encoding="utf-8"),
        elem_id="remote",
        visible="hidden",
        apply_default_css=False,
        container=False,
        padding=False,
    )


def share_view(say: Words, share: Mapping[str, str | None], pair: str | None) -> gr.HTML:
    """The link to the run on the screen (element id ``share-view``).

    share: of `links.share`, of the run that the page opens with. pair: the name of the page's own pair, which
    a link is opened with; None where there is none, and nothing to link to. Submits when the page was opened by a link.
    """
    value = json.dumps({"share": share, "pair": pair})
    return _component("share", say, value=value, visible=True if pair else "hidden")


def gallery_view(say: Words, shown: str | None) -> gr.HTML:
    """The recorded runs (element id ``gallery-view``); submits the name of the chosen one. shown: the first one's."""
    cards = [
        {"name": one.name, "title": say(f"traces.{one.name}_title"), "about": say(f"traces.{one.name}_about")}
        for one in RECORDINGS
    ]
    return _component("gallery", say, value=json.dumps({"cards": cards, "shown": shown}))


def fold_switch(label: str, controls: str) -> gr.HTML:
    """A button that shows and hides the block with the element id `controls`, which is hidden at first.

    Gradio's own accordion makes what it holds when it is first opened, and loses what is typed while it does.
    """
    return gr.HTML(
        html_template=f'<button type="button" class="sv-fold" aria-expanded="false" aria-controls="{controls}">'
        f"{html.escape(label)}</button>",
        js_on_load=(WEB / "fold.js").read_text(encoding="utf-8"),
        elem_classes=["specviz-component"],
        apply_default_css=False,
        container=False,
        padding=False,
    )


def charts_view(say: Words, charts: Charts, file: str) -> gr.HTML:
    """The four charts (element id ``charts-view``); they draw what the live view hands on.

    charts, file: of the run that the page opens with, and the name of its files. plotly.js comes with the package
    plotly, so that the page needs no network.
    """
    plotly_js = pathlib.Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    gr.set_static_paths([plotly_js])
    frames = [
        f'<figure class="sv-chart" aria-label="{html.escape(say(key))}"><div data-chart="{place}"></div></figure>'
        for place, key in enumerate(LABELS)
    ]
    return gr.HTML(
        value=json.dumps({"charts": charts, "file": file}),
        html_template=f'<div class="sv-charts">{"".join(frames)}</div>',
        js_on_load=f"const TEXTS = {json.dumps(say.texts('traces'))};\n" + _files("js", "dom", "charts"),
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


def page_names(say: Words) -> str:
    """A script that names the page's language and title: Gradio gives all pages those of the first one."""
    language, title = json.dumps(say.language), json.dumps(say("page.title"))
    return f"document.documentElement.lang = {language};\ndocument.title = {title};"


def verdicts(fields: Iterable[str], error: SpecvizError | None, say: Words) -> list[dict[str, Any]]:
    """For a validator: one verdict a field, in their order; Gradio shows the sentence at the field it is about."""
    sentence = say.error(error) if error else ""
    return [gr.validate(not error or error.field != name, sentence) for name in fields]


def as_text(text: str) -> str:
    """Names of folders and models are data: none of Markdown's or HTML's signs may work."""
    return "".join(f"&#{ord(sign)};" if sign in "\\`*_{}[]<>()#+-!|&$~" else sign for sign in text)


def _server_function(name: str, function: Callable[[dict], list[str]]) -> Callable[[dict], list[str]]:
    """A plain function of that name: Gradio marks it with an attribute, which a bound method would not take."""

    def call(wanted: dict) -> list[str]:
        return function(wanted)

    call.__name__ = name
    return call


def _component(
    name: str,
    say: Words,
    *,
    scripts: tuple[str, ...] = (),
    styles: tuple[str, ...] = (),
    areas: tuple[str, ...] = (),
    **options,
) -> gr.HTML:
    """The component of assets/web/NAME.js and NAME.css.

    scripts, styles: further files it is made of; they stand before its own script, which runs last, and after its own
    style. areas: further areas of texts; it says those of its own name and of the area ``common``.
    """
    style = _files("css", name, *styles)
    constants = {"STYLE": style, "TEXTS": say.texts("common", name, *areas), "LANGUAGE": say.language}
    given = "".join(f"const {constant} = {json.dumps(value)};\n" for constant, value in constants.items())
    return gr.HTML(
        html_template=f'<div class="specviz-{name}"></div>',
        js_on_load=given + _files("js", "dom", *scripts, name),
        elem_id=f"{name}-view",
        elem_classes=["specviz-component"],
        apply_default_css=False,
        container=False,
        padding=False,
        **options,
    )


def _files(kind: str, *names: str) -> str:
    return "\n".join((WEB / f"{name}.{kind}").read_text(encoding="utf-8") for name in names)
