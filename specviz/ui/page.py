"""The page: composes the tabs, the controls they share, and the API."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import gradio as gr

from specviz import engine
from specviz.drafters import DRAFTERS, DraftModel
from specviz.errors import SpecvizError
from specviz.ui.components import page_css
from specviz.ui.controls import Controls, create_controls
from specviz.ui.generate import LiveRuns, Stops, create_generate_tab, generate, open_trace, pair_line
from specviz.ui.models_tab import create_models_tab
from specviz.ui.orders import Order, PairName, PairStore
from specviz.ui.race import create_race_tab, race
from specviz.ui.settings import Settings
from specviz.ui.stream import Runner

#: Everything that touches a model shares one place in line: a second run at once would falsify both.
DEVICE = {"concurrency_id": "device", "concurrency_limit": 1}


def build(settings: Settings | None = None) -> gr.Blocks:
    """The whole page, with the starting pair loaded."""
    settings = settings or Settings.from_environment()
    runner = Runner(PairStore(settings), settings)
    runs, stops = LiveRuns(), Stops()
    with gr.Blocks(title="specviz: speculative decoding, round by round", analytics_enabled=False) as page:
        with gr.Row(elem_classes=["sv-head"]):
            gr.HTML("<h1>specviz</h1><p>Speculative decoding, round by round</p>", elem_classes=["sv-brand"])
            line = gr.Markdown(pair_line(runner.store.home.info()), elem_classes=["sv-pair"])
        with gr.Row(elem_classes=["sv-main"]):
            with gr.Column(scale=1, min_width=280, elem_classes=["sv-controls"]):
                controls = create_controls(settings, drafters=_drafters(runner))
                measured = gr.Checkbox(True, label="Then measure the speedup against plain decoding")
                go = gr.Button("Generate", variant="primary", elem_id="go")
                start_race = gr.Button("Race against plain decoding", elem_id="start-race")
                stop = gr.Button("Stop", variant="stop", visible=False, elem_id="stop")
                place = gr.HTML("", elem_classes=["sv-place"], elem_id="place", min_height=28)
            with gr.Column(scale=4, min_width=320, elem_classes=["sv-stage"]), gr.Tabs() as tabs:
                with gr.Tab("Generate", id="generate"):
                    generate_tab = create_generate_tab(runs)
                with gr.Tab("Race", id="race"):
                    race_lanes = create_race_tab()
                with gr.Tab("Models", id="models"):
                    models = create_models_tab(runner, line)
        buttons = [go, start_race, stop]
        inputs = [*controls.fields.values(), models.pair, measured]

        def check(*values: Any) -> list[dict[str, Any]]:
            fields = dict(zip(controls.fields, values))
            return [
                *controls.validations(runner, PairName(**values[-2]), fields),
                gr.validate(True, ""),
                gr.validate(True, ""),
            ]

        def on_generate(request: gr.Request, *values: Any) -> Iterator[list[Any]]:
            order, flag = _order(controls, values), stops.arm(request.session_hash)
            try:
                yield [*_running(True), gr.Tabs(selected="generate"), "", *generate_tab.update(None)]
                for update in generate(generate_tab, runner, runs, order, values[-1], flag):
                    yield [*_unchanged(5), *update]
            except SpecvizError as error:
                raise gr.Error(error.message, print_exception=False) from error
            finally:
                stops.disarm(request.session_hash, flag)

        def on_race(request: gr.Request, *values: Any) -> Iterator[list[Any]]:
            order, flag = _order(controls, values), stops.arm(request.session_hash)
            try:
                yield [*_running(True), gr.Tabs(selected="race"), "", gr.skip()]
                for message in race(runner, order, flag):
                    yield [*_unchanged(5), message]
            finally:
                stops.disarm(request.session_hash, flag)

        told = [*buttons, tabs, place]
        shown = {"show_progress": "minimal", "show_progress_on": place, "api_visibility": "private"}
        generating = go.click(on_generate, inputs, told + generate_tab.outputs, validator=check, **shown, **DEVICE)
        racing = start_race.click(on_race, inputs, [*told, race_lanes], validator=check, **shown, **DEVICE)
        for event in (generating, racing):
            # Also after an error, so that the buttons never stay as they were mid-run.
            event.then(
                lambda: _running(False), None, buttons, queue=False, show_progress="hidden", api_visibility="private"
            )

        def on_stop(request: gr.Request) -> None:
            stops.press(request.session_hash)

        def on_upload(path: str) -> Iterator[list[Any]]:
            yield from open_trace(generate_tab, path)

        stop.click(on_stop, None, None, queue=False, show_progress="hidden", api_visibility="private")
        generate_tab.upload.upload(
            on_upload,
            generate_tab.upload,
            generate_tab.outputs,
            show_progress="hidden",
            api_visibility="private",
        )
        gr.api(_endpoint(runner), api_name="generate", **DEVICE)
    page.queue(max_size=settings.queue_size)
    return page


def serve() -> None:
    """Builds the page and serves it; address and port come from Gradio's own environment variables."""
    build().launch(
        server_name=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        css=page_css(),
        theme=gr.themes.Base(),
        show_error=True,
        footer_links=["api"],
    )


def _drafters(runner: Runner) -> list[str]:
    """What can be chosen: drafters the pair has the parts for, and plain decoding."""
    missing = {DraftModel.name} if runner.store.home.draft is None else set()
    return [*(name for name in DRAFTERS if name not in missing), "plain"]


def _order(controls: Controls, values: tuple[Any, ...]) -> Order:
    return controls.order(PairName(**values[-2]), dict(zip(controls.fields, values)))


def _running(running: bool) -> list[Any]:
    """The buttons of the page: two to start, or one to stop."""
    return [gr.Button(visible=not running), gr.Button(visible=not running), gr.Button(visible=running)]


def _unchanged(count: int) -> list[Any]:
    return [gr.skip()] * count


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
