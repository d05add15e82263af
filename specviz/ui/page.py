"""The page in every language: a head, the controls, and the tabs next to them."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from specviz.passes.zero_gpu import is_zero_gpu
from specviz.records.errors import SpecvizError
from specviz.records.words import LANGUAGES, Words, words
from specviz.ui import components, device
from specviz.ui.api.calls import Page, add_endpoints, refuse_parameters
from specviz.ui.applying import wire_remote
from specviz.ui.controls import Controls
from specviz.ui.deployment import Deployment
from specviz.ui.desk import Desk, PageHead, Tab, wire_tabs
from specviz.ui.device import PairName, PairStore
from specviz.ui.downloads import KEPT
from specviz.ui.routes import preview, qr, web_files
from specviz.ui.routes.lessons import Lessons, lesson_routes
from specviz.ui.routes.notes import notes_routes
from specviz.ui.routes.streams import Unbuffered
from specviz.ui.routes.wall import Wall, wall_routes
from specviz.ui.runner import Runner
from specviz.ui.runs import Visitors
from specviz.ui.tabs.compare import create_compare_tab
from specviz.ui.tabs.generate import create_generate_tab, create_viewer
from specviz.ui.tabs.lossless import create_lossless_tab
from specviz.ui.tabs.models import create_models_tab
from specviz.ui.tabs.race import create_race_tab
from specviz.ui.tabs.server import ask_servers, create_server_tab
from specviz.ui.tabs.why import create_why_tab

#: What builds each tab, in their order. Its title is the text ``NAME.tab``; ``NAME.in_line`` names its work.
TABS: dict[str, Callable[[Desk], Tab]] = {
    "generate": create_generate_tab,
    "race": create_race_tab,
    "compare": create_compare_tab,
    "why": create_why_tab,
    "lossless": create_lossless_tab,
    "server": create_server_tab,
    "models": create_models_tab,
}

#: What the server answers beside Gradio.
ROUTES = [
    web_files.ROUTE,
    qr.ROUTE,
    *lesson_routes("/gradio_api/specviz/lessons", Lessons()),
    *wall_routes("/gradio_api/specviz/wall", Lessons(kind=Wall), web_files.VERSION),
    *notes_routes(web_files.VERSION),
    preview.ROUTE,
]

#: Seconds between two looks at whether the page is to end.
_END_WITHIN = 0.1

#: Seconds between two looks at the passes while something is being prepared.
LOOK_EVERY = 2

#: Threads that answer visitors who are not in line: Gradio's own default.
SERVING_THREADS = 40

#: Seconds for the first page to arrive before the pair is loaded.
HEAD_START = 3.0

#: Seconds between two looks of Gradio's queue for an event. Its default, a millisecond, takes a twelfth of a core
#: for a page that nobody uses and slows runs by 6 to 9 %, because each look interrupts them.
LOOK_FOR_EVENTS = 0.01

#: For how many visitors, the latest ones, Gradio keeps the state of their page: 1 MB each, 2 MB with a run. Its default
#: is 10,000.
REMEMBERED = 256


def build(runner: Runner) -> gr.Blocks:
    """The whole page, for the models of `runner`; all languages share models, line and visitors."""
    fill = _fill if runner.store.has_models else _fill_viewer
    visitors = Visitors()
    first, *further = LANGUAGES
    with Page(title=words(first)("page.title"), analytics_enabled=False, delete_cache=KEPT) as page:
        fill(page, runner, visitors, words(first))
        add_endpoints(runner)
    for language in further:
        with page.route(LANGUAGES[language], f"/{language}"):
            fill(page, runner, visitors, words(language))
    return page


def _fill(page: gr.Blocks, runner: Runner, visitors: Visitors, say: Words) -> None:
    """The page in one language."""
    head = _head(runner, say)
    with gr.Row(elem_classes=["sv-main"]):
        with gr.Column(elem_classes=["sv-controls"]):
            controls = Controls(runner, say)
            wire_remote(controls)
        desk, built = Desk(page, runner, visitors, head, controls, say), []
        with gr.Column(elem_classes=["sv-stage"]), gr.Tabs() as tabs:
            for name, create in TABS.items():
                with gr.Tab(say(f"{name}.tab"), id=name) as opened:
                    built.append((opened, create(desk)))
    components.tab_history(next(iter(TABS)))
    wire_tabs(desk, tabs, built)


def _fill_viewer(page: gr.Blocks, runner: Runner, visitors: Visitors, say: Words) -> None:
    """The page without models: recorded runs and traces."""
    with gr.Row(elem_classes=["sv-head"]):  # no tour, no passes
        components.brand(say)
        components.quiz_view(say)
        _languages_and_line(say("traces.no_model_line"), say)
    why = say("traces.no_model_asked" if runner.deployment.without_models else "traces.no_model_found")
    gr.Markdown(why, elem_classes=["sv-warning"])
    with gr.Tabs():
        for name, create in TABS.items():
            with gr.Tab(say(f"{name}.tab"), id=name):
                if create is create_generate_tab:
                    create_viewer(visitors.runs, None, say)
                elif create is create_server_tab:
                    ask_servers(runner, visitors, say)
                else:
                    gr.Markdown(say("traces.no_model_here"))


def _head(runner: Runner, say: Words) -> PageHead:
    """Lays out the head; the line about the pair comes once the page has asked for it."""
    with gr.Row(elem_classes=["sv-head"]):
        components.brand(say, lambda: runner.line.now(say))
        components.tour_view(say, runner.deployment.max_new_tokens, runner.deployment.max_draft_tokens)
        components.element_view("challenges", say)
        components.quiz_view(say)
        line = _languages_and_line("", say)
        chip = gr.Markdown("&nbsp;", elem_classes=["sv-passes"], elem_id="passes")
        return PageHead(line, chip, gr.Timer(LOOK_EVERY, active=False))


def _languages_and_line(line: str, say: Words) -> gr.Markdown:
    """Links to the page in its other languages, of which the first stands at the root, and to the lessons; and the line
    about the pair."""
    first, *_ = LANGUAGES
    links = [
        f'<a href="{"./" if language == first else language}" hreflang="{language}" lang="{language}">{name}</a>'
        for language, name in LANGUAGES.items()
        if language != say.language
    ]
    lessons = f"{'' if say.language == first else f'{say.language}/'}lesson/10"
    links.append(f'<a href="{lessons}" target="_blank">{say("page.lessons")}</a>')
    named = components.page_names(say) + components.hub_link()
    gr.HTML(f"<nav>{' '.join(links)}</nav>", js_on_load=named, elem_classes=["sv-languages"])
    return gr.Markdown(components.as_text(line), elem_classes=["sv-pair"])


def serve(mcp: bool = False) -> None:
    """Serves the page, then loads the starting pair; address and port come from Gradio's own environment variables.

    mcp: as an MCP server, whatever the environment says. Raises SpecvizError (field ``mcp``) without its package.
    """
    tools = _with_tools(mcp)
    # Both signals end it as Ctrl+C does, so that files for download are removed; and the first process of a container
    # ignores signals that it has no handler for.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    deployment = Deployment.from_environment()
    store = PairStore(deployment)
    store.preparer.start()
    with contextlib.closing(store.preparer), contextlib.suppress(KeyboardInterrupt):
        if is_zero_gpu():
            # A call's GPU has what was loaded before the launch.
            _load(store)
        # Every visitor in line holds one thread.
        threads = SERVING_THREADS + deployment.queue_size
        page = launch(build(Runner(store, deployment)), prevent_thread_lock=True, max_threads=threads, mcp_server=tools)
        # Someone who opens the page at once should not wait for torch, whose import blocks the interpreter.
        store.wanted.wait(HEAD_START)
        _load(store)
        _until_the_end(page)


def _with_tools(wanted: bool) -> bool | None:
    """Whether the page is an MCP server, too; None leaves it to GRADIO_MCP_SERVER.

    It is by default where the package is there: Gradio imports that anyway, and the server adds next to nothing.
    """
    is_there = find_spec("mcp") is not None
    if wanted and not is_there:
        raise SpecvizError('The package mcp is missing: pip install "mcp>=1.21,<2".', "mcp")
    return wanted or (is_there and "GRADIO_MCP_SERVER" not in os.environ) or None


def _end(*_: Any) -> None:
    device.ending.set()
    raise KeyboardInterrupt


def _until_the_end(page: gr.Blocks) -> None:
    """Waits, and closes the page. Gradio's own `block_thread` waits for the interrupt alone; one that is raised in an
    object's destructor never gets there."""
    try:
        while not device.ending.is_set():
            time.sleep(_END_WITHIN)
    finally:
        page.close(verbose=False)


def _load(store: PairStore) -> None:
    if store.has_models:
        store.get(PairName())


def launch(page: gr.Blocks, **options: Any) -> gr.Blocks:
    """Starts serving `page` in the look of this project."""
    served = {
        "routes": ROUTES,
        "middleware": [Middleware(preview.LinkPreview), Middleware(Unbuffered)],
        "exception_handlers": {TypeError: refuse_parameters},
    }
    look = {"css": web_files.page_css(), "head": web_files.HEAD + web_files.preloads(), "footer_links": ["api"]}
    page._queue.sleep_when_free = LOOK_FOR_EVENTS
    # A Space asks for pages that Node.js writes: previews of links to those speak of Gradio, and Node takes memory.
    options |= {"show_error": True, "state_session_capacity": REMEMBERED, "ssr_mode": False}
    page.launch(app_kwargs=served, theme=gr.themes.Base(), **look, **options)
    return page
