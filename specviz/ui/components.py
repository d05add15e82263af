"""The page's components, around the elements of assets/web."""

import html
import json
import pathlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gradio as gr
import plotly

from specviz.records.errors import SpecvizError
from specviz.records.prompts import PRESETS
from specviz.records.recordings import RECORDINGS
from specviz.records.words import LANGUAGES, Words
from specviz.ui.deployment import hub_page
from specviz.ui.routes.web_files import ADDRESS, text_of
from specviz.views.quiz import quiz_message
from specviz.views.run_messages import Charts
from specviz.views.served_messages import served_answer

#: Names this process among all that serve the page at its address, one after the other.
STARTED = secrets.token_hex(8)

#: The cookie that names a browser.
BROWSER = "specviz"

#: Events of the page itself are not part of its API.
INTERNAL = {"api_visibility": "private"}

#: Gradio's progress is shown nowhere: the page has its own. Hiding it is not enough, because each output would still
#: count seconds in every frame, even after it has left the page.
UNSEEN = {"show_progress": "hidden", "show_progress_on": []}

#: Through Gradio's queue, without a limit there: work on a model waits in a line of our own (`line.Line`).
QUEUED = {"concurrency_limit": None, **UNSEEN, **INTERNAL}

#: Small changes, past that queue: a warning from there would not be shown.
UNQUEUED = {"queue": False, **UNSEEN, **INTERNAL}

#: Of the runs of the tour: long enough to show something, short enough to wait for.
TOUR_TOKENS = 48
SHORT_DRAFT, LONG_DRAFT = 4, 16


def element_view(
    name: str, say: Words, *, join: str = "gradio/view.js", submits: str | None = None, **options: Any
) -> gr.HTML:
    """A component (element id ``NAME-view``) around <specviz-NAME>, which assets/web/NAME/element.js defines.

    join: the module that joins the two. submits: the element's event on which the component submits.
    """
    constants = {"name": name, "language": say.language, "submits": submits}
    template = f"<specviz-{name}></specviz-{name}>"
    return _component(join, constants, template=template, elem_id=f"{name}-view", **options)


def run_view(
    say: Words,
    missing_rounds: Callable[[dict[str, Any]], list[str]],
    supposed_round: Callable[[dict[str, Any]], str | None] | None = None,
    **options: Any,
) -> gr.HTML:
    """The live view of a run. When the page is loaded again it submits the ``run`` that it showed, and whether the
    browser has ``held`` it (assets/web/gradio/run.js).

    missing_rounds: asked when a message was lost, with ``{"run": key, "first": i, "count": n}``: the element lacks
        rounds i to n - 1. Returns messages to apply: the run's `opening` and one `rounds_message`.
    supposed_round: asked what a round would have been, see `supposing.supposed_round`; None without models.
    """
    functions = {"missing_rounds": missing_rounds, "supposed_round": supposed_round}
    asked = [_server_function(name, function) for name, function in functions.items() if function]
    return element_view("run", say, join="gradio/run.js", server_functions=asked, **options)


def server_view(
    say: Words, offer: Mapping[str, Any], functions: Mapping[str, Callable[[dict[str, Any]], Any]]
) -> gr.HTML:
    """An inference server that runs elsewhere, and its own numbers, pasted. Submits what is asked of the server.

    offer: what the form begins with. functions: that the element calls, by name; reading pasted numbers is one of them.
    """

    def read_served(wanted: dict[str, Any]) -> str:
        return served_answer(str(wanted["text"]), bool(wanted["chains"]), say, str(wanted["speedups"]))

    called = [read_served, *(_server_function(name, function) for name, function in functions.items())]
    value = json.dumps({"kind": "offer", "plotly": _plotly(), **offer})
    return element_view("server", say, submits="specviz-ask-server", value=value, server_functions=called)


def tour_view(say: Words, most_new_tokens: int, most_draft_tokens: int) -> gr.HTML:
    """The guided tour, and the button that starts it (element id ``tour-view``).

    most_new_tokens, most_draft_tokens: what this page allows; the tour asks for no more.
    """
    plan = {
        "kind": "plan",
        "prompts": {preset.name: preset.prompt for preset in PRESETS},
        "new_tokens": min(TOUR_TOKENS, most_new_tokens),
        "short_draft": min(SHORT_DRAFT, most_draft_tokens),
        "long_draft": min(LONG_DRAFT, most_draft_tokens),
    }
    return element_view("tour", say, join="gradio/tour.js", value=json.dumps(plan))


def quiz_view(say: Words) -> gr.HTML:
    """The five questions, and the button that opens them (element id ``quiz-view``)."""
    return element_view("quiz", say, value=json.dumps(quiz_message()))


def share_view(say: Words, share: Mapping[str, Any], links: bool) -> gr.HTML:
    """The link to the run on the screen (element id ``share-view``).

    share: of `links.share`, of the run that the page opens with. links: whether there are models, and so anything to
    link to. Submits when the page was opened by a link.
    """
    value = json.dumps({"kind": "share", "share": share})
    return element_view("share", say, submits="specviz-opened", value=value, visible=True if links else "hidden")


def gallery_view(say: Words, shown: str | None) -> gr.HTML:
    """The recorded runs (element id ``gallery-view``); submits the name of the chosen one. shown: the first one's."""
    cards = [
        {"name": name, "title": say(f"traces.{name}_title"), "about": say(f"traces.{name}_about")}
        for name in (recording.name for recording in RECORDINGS)
    ]
    value = json.dumps({"kind": "gallery", "cards": cards, "shown": shown})
    return element_view("gallery", say, submits="specviz-choose", value=value)


def charts_view(say: Words, charts: Charts, file: str) -> gr.HTML:
    """The four charts (element id ``charts-view``); they draw the values that the live view passes on.

    charts, file: of the run that the page opens with, and the name of its files. plotly.js comes with the package
    plotly, so that the page needs no network.
    """
    message = {"kind": "charts", "charts": charts, "file": file, "plotly": _plotly()}
    return element_view("charts", say, value=json.dumps(message))


def _plotly() -> str:
    """The address of plotly.js."""
    plotly_js = pathlib.Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    gr.set_static_paths([plotly_js])
    return f"gradio_api/file={plotly_js.as_posix()}"


def brand(say: Words, in_line: Callable[[], tuple[list[str], float | None]] | None = None) -> gr.HTML:
    """The page's name, with its subtitle or, while its models are at work, their task (assets/web/gradio/brand.js).

    in_line: `Line.now` in the page's language; without it there are no models. A page that was opened before its server
    was started again asks to be loaded anew: what it holds belongs to a server that is gone.
    """
    template = f'<div class="sv-brand"><h1>specviz</h1><p>{html.escape(say("page.subtitle"))}</p></div>'
    if in_line is None:
        return gr.HTML(template)
    ask = _server_function("in_line", lambda _: [STARTED, *in_line()])
    given = {"words": say.texts("line"), "started": STARTED, "cookie": BROWSER}
    return _component("gradio/brand.js", given, template=template, server_functions=[ask])


def remote() -> gr.HTML:
    """Invisible: sets controls and presses buttons for the elements that ask for it (assets/web/gradio)."""
    return _component("gradio/remote.js", {}, elem_id="remote", visible="hidden")


def lacking_view(say: Words) -> gr.HTML:
    """The drafters that the pair in use lacks, each with its reason in brief (assets/web/gradio).

    Its values, as JSON: ``{"pair": name, "name": PairName, "off": [{"label", "why"}]}``.
    Other parts of the page hear of the pair from it.
    """
    summary = html.escape(say("controls.lacking"))
    template = f'<details class="sv-lacking" hidden><summary>{summary} <b></b></summary><ul></ul></details>'
    return _component("gradio/pair.js", {}, template=template, elem_id="lacking")


def recommended_view(say: Words, set_at_first: Iterable[float]) -> gr.HTML:
    """The sampling that the model in use recommends, and a button that sets it (assets/web/gradio/recommended.js).

    Its values, as JSON: ``{"text": sentence, "settings": {name: number} | None}``. The button is there as long as the
    controls say something else, of which `sampling_heard` tells; set_at_first: by them, in `SamplingParams`' order.
    """
    button = f'<button type="button">{html.escape(say("controls.recommended_use"))}</button>'
    template = f'<p class="sv-recommended" hidden><span></span> {button}</p>'
    return _component("gradio/recommended.js", {"set": list(set_at_first)}, template=template, elem_id="recommended")


def sampling_heard() -> str:
    """A script for the values of the sampling's controls, in the order of `SamplingParams`: the page hears of them."""
    return "(...values) => { document.dispatchEvent(new CustomEvent('specviz-sampling', { detail: values })); }"


def reading_view(say: Words, read: Callable[[dict[str, Any]], list[Any]]) -> gr.HTML:
    """The prompt as the model reads it, unfolded on demand; hidden at first (assets/web/gradio/reading.js).

    read: asked with ``{"name": PairName, "prompt": text, "chat": bool}``; returns the text and the number of its
        tokens, or what is wrong and None.
    """
    summary = html.escape(say("controls.reading"))
    template = f'<details class="sv-reading"><summary>{summary} <b></b></summary><pre tabindex="0"></pre></details>'
    texts = {"common.tokens": say.texts("common")["common.tokens"]}
    options = {"server_functions": [_server_function("read", read)], "elem_id": "reading", "visible": "hidden"}
    return _component("gradio/reading.js", {"words": texts}, template=template, **options)


def tab_history(first: str) -> gr.HTML:
    """Invisible: tabs make history (assets/web/gradio/history.js). first: the tab that a page opens with."""
    return _component("gradio/history.js", {"first": first}, elem_id="history", visible="hidden")


def refused() -> gr.HTML:
    """Invisible: leads to the control whose value was refused (assets/web/gradio/refused.js)."""
    return _component("gradio/refused.js", {}, visible="hidden")


def corrected(say: Words) -> gr.HTML:
    """Invisible: a slider's number field says how a value out of its range was corrected (gradio/corrected.js)."""
    texts = {f"controls.{name}": say(f"controls.{name}") for name in ("most", "least", "no_number")}
    return _component("gradio/corrected.js", {"words": texts}, visible="hidden")


def fold_switch(label: str, controls: str, by_run: bool = False, **options: Any) -> gr.HTML:
    """A button that shows and hides the blocks with the element ids in `controls`, which are hidden at first.

    by_run: a run that begins hides them again: they would stand above its results. Gradio's own accordion makes what it
    holds when it is first opened, and loses what is typed while it does.
    """
    button = f'<button type="button" class="sv-fold" aria-expanded="false" aria-controls="{controls}">'
    template = f"{button}{html.escape(label)}</button>"
    return _component("gradio/fold.js", {"byRun": by_run}, template=template, **options)


def leads_to_server() -> str:
    """A script that opens the Server tab, see gradio/history.js."""
    return """() => {
  location.hash = "server";
}"""


def dropped(onto: str, upload: str) -> gr.HTML:
    """Invisible: a file dropped on the block with the element id `onto` goes to the button with the id `upload`."""
    return _component("gradio/dropped.js", {"onto": onto, "upload": upload}, visible="hidden")


def page_names(say: Words) -> str:
    """A script that names the page's language and title: Gradio gives all pages those of the first one.

    And whether it is embedded, with ``?embed=1``: then, and on paper, it shows the tab alone (page.css).
    """
    language, title = json.dumps(say.language), json.dumps(say("page.title"))
    return f"""document.documentElement.lang = {language};
document.title = {title};
const embedded = new URLSearchParams(location.search).get("embed") === "1";
const alone = (yes) => document.documentElement.classList.toggle("sv-embedded", yes);
alone(embedded);
addEventListener("beforeprint", () => alone(true));
addEventListener("afterprint", () => alone(embedded));"""


def hub_link() -> str:
    """On a Space, a script that names its page on the hub, through which links lead (assets/web/shared/spot.js), and
    that goes on to the language which such a link asks for. It comes with a component, so that it runs however Gradio
    renders the page.
    """
    hub, (_, *further) = hub_page(), LANGUAGES
    if hub is None:
        return ""
    return f"""
document.documentElement.dataset.hub = {json.dumps(hub)};
const asked = new URLSearchParams(location.search).get("lang");
if ({json.dumps(further)}.includes(asked) && !location.pathname.split("/").includes(asked)) {{
  location.replace(asked + location.search + location.hash);
}}"""


def verdicts(fields: Iterable[str], error: SpecvizError | None, say: Words) -> list[dict[str, Any]]:
    """For a validator: one verdict a field, in their order; Gradio shows the sentence at the field it is about."""
    sentence = say.error(error) if error else ""
    return [gr.validate(not error or error.field != name, sentence) for name in fields]


def as_text(text: str) -> str:
    """A name of a folder or model as data: Markdown and HTML in it have no effect."""
    return "".join(f"&#{ord(sign)};" if sign in "\\`*_{}[]<>()#+-!|&$~" else sign for sign in text)


def _server_function(name: str, function: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """A plain function of that name: Gradio marks it with an attribute, which a bound method does not accept."""

    def call(wanted: dict[str, Any]) -> Any:
        return function(wanted)

    call.__name__ = name
    return call


def _component(module: str, constants: Mapping[str, Any], *, template: str = "", **options: Any) -> gr.HTML:
    """A component that a module of assets/web/gradio brings to life (assets/web/gradio/load.js)."""
    script = f"const MODULE = {json.dumps(f'{ADDRESS}/{module}')}, GIVEN = {json.dumps(constants)};\n"
    return gr.HTML(
        html_template=template,
        js_on_load=script + text_of("gradio/load.js"),
        elem_classes=["specviz-component"],
        apply_default_css=False,
        container=False,
        padding=False,
        **options,
    )
