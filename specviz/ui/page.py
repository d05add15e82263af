"""The page: composes the tabs, the controls they share, and the API."""

from __future__ import annotations

import html
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.decoding import engine
from specviz.passes.torchrun import refuse_more_than_one
from specviz.records.errors import SpecvizError
from specviz.records.words import LANGUAGES, Words, words
from specviz.ui import web_files
from specviz.ui.compare_tab import (
    Choice,
    CompareTab,
    compare,
    comparison_mistake,
    create_compare_tab,
    replay,
    replay_mistake,
)
from specviz.ui.components import as_text, page_css, page_names, remote, tour_view
from specviz.ui.controls import QUIET, Controls, create_controls
from specviz.ui.deployment import Settings
from specviz.ui.generate_tab import (
    GenerateTab,
    LiveRuns,
    Stops,
    create_generate_tab,
    generate,
    offer_opened,
    offers,
    open_recording,
    open_trace,
    pair_line,
)
from specviz.ui.lossless_tab import LosslessTab, create_lossless_tab, trial_mistake, try_rule
from specviz.ui.models_tab import ModelsTab, create_models_tab
from specviz.ui.orders import Order, PairName, PairStore
from specviz.ui.passes_chip import PassesChip, create_passes_chip
from specviz.ui.race_tab import create_race_tab, race
from specviz.ui.runner import Runner
from specviz.ui.trials import Trial
from specviz.ui.why_tab import Lab, WhyTab, create_why_tab, measure
from specviz.views.why_messages import why_message

#: Everything that touches a model shares one place in line: a second run at once would falsify both.
DEVICE = {"concurrency_id": "device", "concurrency_limit": 1}
#: Events of the page itself are no part of its API.
INTERNAL = {"api_visibility": "private"}
#: Events past the line of runs, yet through Gradio's queue: a warning from outside it reaches nobody.
HEARD = {"show_progress": "hidden", "concurrency_limit": None, **INTERNAL}


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
    compare: CompareTab
    why: WhyTab
    lossless: LosslessTab
    models: ModelsTab
    passes: PassesChip
    remote: gr.HTML

    @property
    def inputs(self) -> list[gr.components.Component]:
        """What a run is ordered with: the controls, then the pair."""
        return [*self.controls.fields.values(), self.models.pair]

    def fields(self, values: Sequence[Any]) -> tuple[PairName, dict[str, Any]]:
        """The pair and the controls' values, by field, of `inputs`."""
        return PairName(**values[len(self.controls.fields)]), dict(zip(self.controls.fields, values))

    def order(self, values: Sequence[Any]) -> Order:
        return self.controls.order(*self.fields(values))

    def choice(self, values: Sequence[Any]) -> Choice:
        """What is to be compared, of `inputs` and the Compare tab's own fields after them."""
        return Choice(**dict(zip(self.compare.fields, values[len(self.inputs) :])))

    def trial(self, values: Sequence[Any]) -> Trial:
        """What is to be tested, of `inputs` and the Lossless tab's own fields after them."""
        return Trial(**dict(zip(self.lossless.fields, values[len(self.inputs) :])))


@dataclass(frozen=True)
class Visitors:
    """What is kept of the visitors: their last runs, what was measured for them, and who pressed Stop."""

    runs: LiveRuns
    stops: Stops
    lab: Lab


@dataclass(frozen=True)
class Job:
    """What a button starts: where it is seen, what it is ordered with, and the messages it streams into one view.

    check: one verdict an input. run(halt, session, values): the messages.
    """

    button: gr.Button
    tab: str
    inputs: list[gr.components.Component]
    check: Callable[..., list[dict[str, Any]]]
    run: Callable[[threading.Event, str | None, Sequence[Any]], Iterator[str]]
    view: gr.HTML


def build(settings: Settings, runner: Runner) -> gr.Blocks:
    """The whole page, for the models of `runner`."""
    runs = LiveRuns()
    visitors = Visitors(runs, Stops(), Lab(runs))
    first, *others = LANGUAGES
    with gr.Blocks(title=words(first)("page.title"), analytics_enabled=False) as blocks:
        _fill(blocks, settings, runner, visitors, words(first))
        gr.api(_endpoint(runner), api_name="generate", **DEVICE)
    for language in others:
        with blocks.route(LANGUAGES[language], f"/{language}"):
            _fill(blocks, settings, runner, visitors, words(language))
    blocks.queue(max_size=settings.queue_size)
    return blocks


def _fill(blocks: gr.Blocks, settings: Settings, runner: Runner, visitors: Visitors, say: Words) -> None:
    """The page in one language; all languages share models, line and visitors."""
    if runner.store.home is None:
        _fill_viewer(settings, visitors.runs, say)
    else:
        page = _lay_out(settings, runner, visitors.runs, say)
        _wire(page, runner, visitors, say)
        page.passes.wire(blocks, runner.store, page.models, say)


def _fill_viewer(settings: Settings, runs: LiveRuns, say: Words) -> None:
    """The page without models: recorded runs and traces."""
    with gr.Row(elem_classes=["sv-head"]):
        _create_head(say("traces.no_model_line"), say)
    why = say("traces.no_model_asked" if settings.without_models else "traces.no_model_found")
    gr.Markdown(why, elem_classes=["sv-warning"])
    with gr.Tabs():
        with gr.Tab(say("page.generate"), id="generate"):
            tab = create_generate_tab(runs, None, say)
        for title in ("page.race", "page.compare", "why.tab", "lossless.tab", "page.models"):
            with gr.Tab(say(title)):
                gr.Markdown(say("traces.no_model_here"))
    _wire_traces(tab, say)


def _create_head(line: str, say: Words, touring: Settings | None = None) -> gr.Markdown:
    """Name, languages, and the line about the pair, which is returned. touring: the limits that a tour keeps to."""
    subtitle = html.escape(say("page.subtitle"))
    gr.HTML(f"<h1>specviz</h1><p>{subtitle}</p>", elem_classes=["sv-brand"])
    if touring:
        tour_view(say, touring.max_new_tokens, touring.max_draft_tokens)
    gr.HTML(_language_links(say.language), js_on_load=page_names(say), elem_classes=["sv-languages"])
    return gr.Markdown(as_text(line), elem_classes=["sv-pair"])


def _lay_out(settings: Settings, runner: Runner, runs: LiveRuns, say: Words) -> Page:
    info = runner.store.home.info()
    with gr.Row(elem_classes=["sv-head"]):
        line = _create_head(pair_line(info, say), say, settings)
        passes = create_passes_chip(runner.store.home, say)
    with gr.Row(elem_classes=["sv-main"]):
        with gr.Column(elem_classes=["sv-controls"]):
            controls = create_controls(settings, runner.store.home, say)
            measured = gr.Checkbox(True, label=say("page.measured"), elem_id="measured")
            with gr.Column(elem_classes=["sv-go"]):
                go = gr.Button(say("page.go"), variant="primary", elem_id="go")
                start_race = gr.Button(say("page.start_race"), elem_id="start-race")
                stop = gr.Button(say("page.stop"), variant="stop", visible=False, elem_id="stop")
                # Gradio tells the place in the queue on top of this.
                place = gr.HTML("", elem_classes=["sv-place"], elem_id="place", min_height=28)
        with gr.Column(elem_classes=["sv-stage"]), gr.Tabs() as tabs:
            with gr.Tab(say("page.generate"), id="generate"):
                generate_tab = create_generate_tab(runs, info.name, say)
            with gr.Tab(say("page.race"), id="race"):
                lanes = create_race_tab(say)
            with gr.Tab(say("page.compare"), id="compare"):
                comparison = create_compare_tab(settings, runner.store.home, say)
            with gr.Tab(say("why.tab"), id="why") as opened:
                why = create_why_tab(opened, runner.store.home, say)
            with gr.Tab(say("lossless.tab"), id="lossless"):
                lossless = create_lossless_tab(say)
            with gr.Tab(say("page.models"), id="models"):
                models = create_models_tab(runner, line, say)
        asked = remote()
    return Page(
        controls,
        measured,
        go,
        start_race,
        stop,
        place,
        tabs,
        generate_tab,
        lanes,
        comparison,
        why,
        lossless,
        models,
        passes,
        asked,
    )


def _language_links(current: str) -> str:
    """Links to the page in its other languages; the first one stands at the root."""
    first, *_ = LANGUAGES
    links = [
        f'<a href="{"./" if language == first else language}" hreflang="{language}" lang="{language}">{name}</a>'
        for language, name in LANGUAGES.items()
        if language != current
    ]
    return f"<nav>{' '.join(links)}</nav>"


def _wire(page: Page, runner: Runner, visitors: Visitors, say: Words) -> None:
    """Connects buttons with what they do.

    A run streams into one component only: each further output of a streaming event costs the server as much as the
    update itself, and the server's interpreter is the engine's.
    """
    runs, stops = visitors.runs, visitors.stops
    jobs = _jobs(page, runner, visitors, say)
    starts, ends = [job.button for job in jobs], [page.stop, page.compare.stop, page.why.stop, page.lossless.stop]

    def on_why(request: gr.Request) -> str:
        return why_message(runs=visitors.lab.runs_of(request.session_hash))

    def on_stop(request: gr.Request) -> None:
        stops.press(request.session_hash)

    def wire(job: Job) -> None:
        def ask(request: gr.Request, *values: Any) -> list[Any]:
            stops.arm(request.session_hash)
            return [*_switched(starts, ends, running=True), gr.Tabs(selected=job.tab)]

        def start(request: gr.Request, *values: Any) -> Iterator[str]:
            yield from job.run(stops.flag(request.session_hash), request.session_hash, values)

        def on_end(request: gr.Request) -> list[Any]:
            # Other tabs' runs leave the live view as it is, and with it what it offers.
            trace = runs.trace_of(request.session_hash) if job.view is page.generate.view else None
            return [*_switched(starts, ends, running=False), *(offers(trace) if trace else [gr.skip()] * 2)]

        asked = job.button.click(
            ask,
            job.inputs,
            [*starts, *ends, page.tabs],
            validator=job.check,
            show_progress="hidden",
            concurrency_limit=None,
            **INTERNAL,
        )
        running = {"show_progress": "minimal", "show_progress_on": page.place, **INTERNAL, **DEVICE}
        # `then`, so that the buttons come back after an error too.
        asked.success(start, job.inputs, job.view, **running).then(
            on_end, None, [*starts, *ends, page.generate.download, page.generate.table], **QUIET
        )

    for job in jobs:
        wire(job)
    for stop in ends:
        stop.click(on_stop, None, None, **QUIET)
    page.why.opened.select(on_why, None, page.why.view, **QUIET)
    page.controls.wire(runner, page.models.pair, page.models.loads)
    changed = [*page.controls.outputs, page.measured, page.remote]
    page.remote.submit(_on_remote(page, runner, say), page.models.pair, changed, **HEARD)
    page.generate.share.submit(_on_link(page, runner, say), None, [*page.controls.outputs, page.remote], **HEARD)
    _wire_traces(page.generate, say)


def _wire_traces(tab: GenerateTab, say: Words) -> None:
    """Traces are opened and recorded runs are shown without a model, and past any run in line."""

    def on_upload(path: str) -> str:
        return open_trace(path, say)

    def on_opened(path: str) -> list[Any]:
        return offer_opened(path, say)

    def on_recording(wanted: gr.EventData) -> list[Any]:
        return open_recording(wanted.name, say)

    opened = tab.upload.upload(on_upload, tab.upload, tab.view, **HEARD)
    opened.success(on_opened, tab.upload, [tab.download, tab.table], **HEARD)
    tab.gallery.submit(on_recording, None, [tab.view, tab.download, tab.table], **HEARD)


def _on_link(page: Page, runner: Runner, say: Words) -> Callable[..., list[Any]]:
    """Sets the controls as the page's address asks, and has the run started."""

    def on_link(request: gr.Request) -> list[Any]:
        home = runner.store.home
        settings, errors = page.controls.linked(home, request.query_params)
        for error in errors:
            gr.Warning(html.escape(say.error(error)))
        if not settings:
            return [gr.skip()] * (len(page.controls.outputs) + 1)
        answer = json.dumps({"press": "generate", "answer": uuid.uuid4().hex})
        return [*page.controls.applied(home, settings), answer]

    return on_link


def _on_remote(page: Page, runner: Runner, say: Words) -> Callable[..., list[Any]]:
    """Sets the controls as a part of the page asks, and tells it which button to press then (assets/web/remote.js)."""

    def on_remote(pair: dict[str, Any], wanted: gr.EventData) -> list[Any]:
        loaded = runner.store.loaded(PairName(**pair)) or runner.store.home
        try:
            changes = page.controls.applied(loaded, wanted.settings)
        except SpecvizError as error:
            # A toast is HTML, and the sentence may quote a link.
            gr.Warning(html.escape(say.error(error)))
            return [gr.skip()] * (len(page.controls.outputs) + 2)
        measured = gr.skip() if wanted.measure is None else wanted.measure
        # Never the same answer twice: the component hears of changes only.
        return [*changes, measured, json.dumps({"press": wanted.press, "answer": uuid.uuid4().hex})]

    return on_remote


def _switched(starts: list[gr.Button], ends: list[gr.Button], running: bool) -> list[Any]:
    """While a run is on, a visitor can stop it, and start no other."""
    return [*(gr.Button(visible=not running) for _ in starts), *(gr.Button(visible=running) for _ in ends)]


def _jobs(page: Page, runner: Runner, visitors: Visitors, say: Words) -> list[Job]:
    controls = page.controls
    fine = gr.validate(True, "")

    def order(values: Sequence[Any]) -> Order:
        """What a job is ordered with when its turn has come."""
        asked = page.order(values)
        return asked.settled(runner.store.loaded(asked.pair))

    def check_run(*values: Any) -> list[dict[str, Any]]:
        """For the controls, the pair, and whatever else is an input."""
        verdicts = controls.validations(controls.mistake(runner, *page.fields(values)))
        return [*verdicts, *(fine for _ in values[len(verdicts) :])]

    def check_comparison(*values: Any) -> list[dict[str, Any]]:
        error = comparison_mistake(runner, page.order(values), page.choice(values))
        of_tab = error is not None and error.field in page.compare.fields
        return [*controls.validations(None if of_tab else error), fine, *page.compare.validations(error)]

    def check_replay(*values: Any) -> list[dict[str, Any]]:
        return [*controls.validations(replay_mistake(runner, page.order(values))), fine]

    def check_passes(pair: dict[str, Any]) -> list[dict[str, Any]]:
        return [fine]

    def check_trial(*values: Any) -> list[dict[str, Any]]:
        error = trial_mistake(runner, page.order(values), page.trial(values))
        of_tab = error is not None and error.field in page.lossless.fields
        return [*controls.validations(None if of_tab else error), fine, *page.lossless.validations(error)]

    def on_generate(halt: threading.Event, session: str | None, values: Sequence[Any]) -> Iterator[str]:
        return generate(runner, visitors.runs, order(values), values[-1], session, halt, say)

    def on_race(halt: threading.Event, session: str | None, values: Sequence[Any]) -> Iterator[str]:
        return race(runner, order(values), halt, say)

    def on_compare(halt: threading.Event, session: str | None, values: Sequence[Any]) -> Iterator[str]:
        return compare(runner, order(values), page.choice(values), halt, say)

    def on_replay(halt: threading.Event, session: str | None, values: Sequence[Any]) -> Iterator[str]:
        return replay(runner, order(values), halt, say)

    def on_passes(halt: threading.Event, session: str | None, values: Sequence[Any]) -> Iterator[str]:
        return measure(runner, visitors.lab, PairName(**values[0]), session, halt, say)

    def on_trial(halt: threading.Event, session: str | None, values: Sequence[Any]) -> Iterator[str]:
        return try_rule(runner, order(values), page.trial(values), say, halt)

    tab, lossless = page.compare, page.lossless
    with_choice = [*page.inputs, *tab.fields.values()]
    with_trial = [*page.inputs, *lossless.fields.values()]
    return [
        Job(page.go, "generate", [*page.inputs, page.measured], check_run, on_generate, page.generate.view),
        Job(page.start_race, "race", page.inputs, check_run, on_race, page.race),
        Job(tab.go, "compare", with_choice, check_comparison, on_compare, tab.view),
        Job(tab.replay, "compare", page.inputs, check_replay, on_replay, tab.view),
        Job(page.why.measure, "why", [page.models.pair], check_passes, on_passes, page.why.view),
        Job(lossless.go, "lossless", with_trial, check_trial, on_trial, lossless.view),
    ]


def serve() -> None:
    """Loads the starting pair and serves the page; address and port come from Gradio's own environment variables."""
    refuse_more_than_one()
    settings = Settings.from_environment()
    store, there = PairStore(settings), threading.Event()
    store.preparer.start(there)
    try:
        page = launch(build(settings, Runner(store, settings)), prevent_thread_lock=True)
        there.set()
        page.block_thread()
    finally:
        store.preparer.close()


def launch(page: gr.Blocks, **options: Any) -> gr.Blocks:
    """Starts serving `page` in the look of this project."""
    served = {"routes": [web_files.ROUTE]}
    page.launch(
        css=page_css(), theme=gr.themes.Base(), show_error=True, footer_links=["api"], app_kwargs=served, **options
    )
    return page


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
        branches: int | None = None,
        exit_layer: int | None = None,
        confidence: float = 0.0,
        rule: str = "auto",
    ) -> dict:
        """Continues a prompt on the page's own pair and returns the trace, schema specviz.run/1.

        drafter is plain or one of specviz.DRAFTERS; temperature 0 is greedy. branches: more than 1 makes trees; None
        is the drafter's own number. exit_layer: of early_exit. confidence: stop drafting below it. rule is auto,
        token, block, tree or typical, which is lossy.
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
            branches,
            exit_layer,
            confidence,
            rule,
        )
        try:
            pair = runner.store.get(order.pair)
            order = order.settled(pair)
            request = order.request(pair, runner.settings)
            done = [one for batch in runner.batches(order) for one in batch]
        except SpecvizError as error:
            raise gr.Error(error.message, print_exception=False) from error
        return engine.collect(request, done).to_dict()

    return generate_trace
