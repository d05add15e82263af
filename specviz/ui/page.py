"""The page: composes the tabs, the controls they share, and the API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz import engine
from specviz.drafters import DRAFTERS, DraftModel
from specviz.errors import SpecvizError
from specviz.ui.components import page_css
from specviz.ui.controls import Controls, create_controls
from specviz.ui.generate import GenerateTab, LiveRuns, Stops, create_generate_tab, generate, open_trace, pair_line
from specviz.ui.models_tab import ModelsTab, as_text, create_models_tab
from specviz.ui.orders import Order, PairName, PairStore
from specviz.ui.race import create_race_tab, race
from specviz.ui.settings import Settings
from specviz.ui.stream import Runner

#: Everything that touches a model shares one place in line: a second run at once would falsify both.
DEVICE = {"concurrency_id": "device", "concurrency_limit": 1}
#: Events of the page itself are no part of its API.
INTERNAL = {"api_visibility": "private"}
QUIET = {"queue": False, "show_progress": "hidden", **INTERNAL}


@dataclass(frozen=True)
class Page:
    """The page's components, by what they do."""

    controls: Controls
    measured: gr.Checkbox
    go: gr.Button
    start_race: gr.Button
    stop: gr.Button
    place: gr.HTML
    tabs: gr.Tabs
    generate: GenerateTab
    race: gr.HTML
    models: ModelsTab

    @property
    def inputs(self) -> list[gr.components.Component]:
        """What a run is ordered with: the controls, the pair, and whether to measure the speedup."""
        return [*self.controls.fields.values(), self.models.pair, self.measured]

    def fields(self, values: Sequence[Any]) -> tuple[PairName, dict[str, Any]]:
        """The pair and the controls' values, by field, of `inputs`."""
        return PairName(**values[-2]), dict(zip(self.controls.fields, values))


def build(settings: Settings, runner: Runner) -> gr.Blocks:
    """The whole page, for the models of `runner`."""
    runs = LiveRuns()
    with gr.Blocks(title="specviz: speculative decoding, round by round", analytics_enabled=False) as blocks:
        page = _lay_out(settings, runner, runs)
        _wire(page, runner, runs)
        gr.api(_endpoint(runner), api_name="generate", **DEVICE)
    blocks.queue(max_size=settings.queue_size)
    return blocks


def _lay_out(settings: Settings, runner: Runner, runs: LiveRuns) -> Page:
    with gr.Row(elem_classes=["sv-head"]):
        gr.HTML("<h1>specviz</h1><p>Speculative decoding, round by round</p>", elem_classes=["sv-brand"])
        line = gr.Markdown(as_text(pair_line(runner.store.home.info())), elem_classes=["sv-pair"])
    with gr.Row(elem_classes=["sv-main"]):
        with gr.Column(elem_classes=["sv-controls"]):
            controls = create_controls(settings, drafters=_drafters(runner))
            measured = gr.Checkbox(True, label="Then measure the speedup against plain decoding")
            go = gr.Button("Generate", variant="primary", elem_id="go")
            start_race = gr.Button("Race against plain decoding", elem_id="start-race")
            stop = gr.Button("Stop", variant="stop", visible=False, elem_id="stop")
            # Gradio tells the place in the queue on top of this.
            place = gr.HTML("", elem_classes=["sv-place"], elem_id="place", min_height=28)
        with gr.Column(elem_classes=["sv-stage"]), gr.Tabs() as tabs:
            with gr.Tab("Generate", id="generate"):
                generate_tab = create_generate_tab(runs)
            with gr.Tab("Race", id="race"):
                lanes = create_race_tab()
            with gr.Tab("Models", id="models"):
                models = create_models_tab(runner, line)
    return Page(controls, measured, go, start_race, stop, place, tabs, generate_tab, lanes, models)


def _wire(page: Page, runner: Runner, runs: LiveRuns) -> None:
    """Connects buttons with what they do.

    A run streams into one component only: each further output of a streaming event costs the server as much as the
    update itself, and the server's interpreter is the engine's.
    """
    stops = Stops()

    def check(*values: Any) -> list[dict[str, Any]]:
        pair, fields = page.fields(values)
        return [*page.controls.validations(runner, pair, fields), gr.validate(True, ""), gr.validate(True, "")]

    def ask(tab: str, request: gr.Request) -> list[Any]:
        stops.arm(request.session_hash)
        return [gr.Button(visible=False), gr.Button(visible=False), gr.Button(visible=True), gr.Tabs(selected=tab)]

    def ask_generate(request: gr.Request, *values: Any) -> list[Any]:
        return ask("generate", request)

    def ask_race(request: gr.Request, *values: Any) -> list[Any]:
        return ask("race", request)

    def on_generate(request: gr.Request, *values: Any) -> Iterator[str]:
        order, session = page.controls.order(*page.fields(values)), request.session_hash
        yield from generate(runner, runs, order, values[-1], session, stops.flag(session))

    def on_race(request: gr.Request, *values: Any) -> Iterator[str]:
        order = page.controls.order(*page.fields(values))
        yield from race(runner, order, stops.flag(request.session_hash))

    def on_end(request: gr.Request) -> list[Any]:
        trace = runs.trace_of(request.session_hash)
        download = offer(trace) if trace else gr.skip()
        return [gr.Button(visible=True), gr.Button(visible=True), gr.Button(visible=False), download]

    def offer(trace: str) -> gr.DownloadButton:
        """What is on the screen is what can be downloaded."""
        return gr.DownloadButton(value=trace, interactive=True)

    def on_stop(request: gr.Request) -> None:
        stops.press(request.session_hash)

    buttons = [page.go, page.start_race, page.stop]
    asking = {"validator": check, "show_progress": "hidden", "concurrency_limit": None, **INTERNAL}
    running = {"show_progress": "minimal", "show_progress_on": page.place, **INTERNAL, **DEVICE}
    ending = {"fn": on_end, "outputs": [*buttons, page.generate.download], **QUIET}
    for button, ask_for, start, view in (
        (page.go, ask_generate, on_generate, page.generate.view),
        (page.start_race, ask_race, on_race, page.race),
    ):
        asked = button.click(ask_for, page.inputs, [*buttons, page.tabs], **asking)
        # `then`, so that the buttons come back after an error too.
        asked.success(start, page.inputs, view, **running).then(**ending)
    page.stop.click(on_stop, None, None, **QUIET)
    # Through the queue: without it only the first message of several would arrive.
    opened = page.generate.upload.upload(
        open_trace, page.generate.upload, page.generate.view, show_progress="hidden", **INTERNAL
    )
    opened.success(offer, page.generate.upload, page.generate.download, **QUIET)


def serve() -> None:
    """Loads the starting pair and serves the page; address and port come from Gradio's own environment variables."""
    settings = Settings.from_environment()
    launch(build(settings, Runner(PairStore(settings), settings)))


def launch(page: gr.Blocks, **options: Any) -> gr.Blocks:
    """Starts serving `page` in the look of this project."""
    page.launch(css=page_css(), theme=gr.themes.Base(), show_error=True, footer_links=["api"], **options)
    return page


def _drafters(runner: Runner) -> list[str]:
    """What can be chosen: drafters the pair has the parts for, and plain decoding."""
    missing = {DraftModel.name} if runner.store.home.draft is None else set()
    return [*(name for name in DRAFTERS if name not in missing), "plain"]


def _endpoint(runner: Runner) -> Any:
    """The API's main function, typed for gradio_client."""

    def generate_trace(
        prompt: str,
        drafter: str = "draft_model",
        num_draft_tokens: int = 4,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        max_new_tokens: int = 128,
        seed: int = 0,
        chat: bool = False,
    ) -> dict:
        """Continues a prompt on the page's own pair and returns the trace, schema specviz.run/1.

        drafter is draft_model, prompt_lookup or plain; temperature 0 is greedy.
        """
        order = Order(
            PairName(),
            prompt,
            None if drafter == "plain" else drafter,
            num_draft_tokens,
            temperature,
            top_k,
            top_p,
            min_p,
            max_new_tokens,
            seed,
            chat,
        )
        try:
            request = order.request(runner.store.home, runner.settings)
            done = [one for batch in runner.batches(order) for one in batch]
        except SpecvizError as error:
            raise gr.Error(error.message, print_exception=False) from error
        return engine.collect(request, done).to_dict()

    return generate_trace
