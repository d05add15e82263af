"""A tab is built at a desk, and hands the page the actions that its buttons start; these are connected here.

A run streams into one component only: each further output of a streaming event costs the server as much as the update
itself, and the server's interpreter is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.records.errors import SpecvizError
from specviz.records.words import Words
from specviz.ui.components import BROWSER, QUEUED, UNQUEUED, verdicts
from specviz.ui.controls import Controls, Fields
from specviz.ui.device import PairName
from specviz.ui.line import Stops, Visit
from specviz.ui.orders import Order
from specviz.ui.runner import Runner
from specviz.ui.runs import Visitors

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair


@dataclass(frozen=True)
class Action:
    """The work that a button starts; it streams messages into one view."""

    button: gr.Button
    view: gr.HTML | gr.Markdown
    inputs: Sequence[gr.components.Component]  # `Controls.pair` among them
    stream: Callable[..., Iterator[str]]  # a visit, the pair's name, the inputs' values -> messages
    waiting: Callable[[str], str]  # the message that says why it waits
    failed: Callable[[str], str]  # the message that says why nothing comes
    #: The inputs' values -> Gradio's verdict on each.
    check: Callable[..., list[dict[str, Any]]] = lambda *values: [gr.validate(True, "")] * len(values)
    offered: Sequence[gr.components.Component] = ()  # other components that change when it is over,
    offer: Callable[[Visit], list[Any]] = lambda visit: []  # and how
    left: Callable[[str], str] | None = None  # the message after Stop in the line; by default `failed`


@dataclass(frozen=True)
class Tab:
    """The parts of a tab that the page wires."""

    actions: Sequence[Action] = ()
    stop: gr.Button | None = None  # its own, in addition to that of the controls
    opened: Callable[[Visit], str] | None = None  # a message for the first action's view when the tab is opened
    #: What is asked then, too: a function of the controls as they stand, the controls, and what shows the answer.
    asked: tuple[Callable[..., str], Sequence[gr.components.Component], gr.Markdown] | None = None


@dataclass(frozen=True)
class PageHead:
    """The parts of the page's head that tabs change."""

    line: gr.Markdown  # the pair in use; empty until there is one
    chip: gr.Markdown  # its passes
    timer: gr.Timer  # has the chip look again


@dataclass(frozen=True)
class Desk:
    """Everything that a tab is built with: the parts of the page around it, and the runner."""

    page: gr.Blocks
    runner: Runner
    visitors: Visitors
    head: PageHead
    controls: Controls
    say: Words
    #: Components that depend on the pair in use, and how they change once it is loaded.
    pair_updates: list[tuple[gr.components.Component, Callable[[ModelPair], Any]]] = field(default_factory=list)

    def result_button(self, kind: str) -> tuple[gr.DownloadButton, Callable[[Visit], list[Any]]]:
        """A download button for the page of a result, hidden until there is one, and again once another pair is in use;
        and the `offer` of its action."""
        with gr.Row(elem_classes=["sv-traces"]):
            button = gr.DownloadButton(
                self.say("traces.page"), size="sm", visible=False, elem_id=f"download-{kind}-page"
            )
        self.pair_updates.append((button, lambda pair: gr.update(visible=False)))

        def offer(visit: Visit) -> list[Any]:
            page = self.visitors.results.get((visit.session, kind))
            return page.offers() if page else [gr.DownloadButton(interactive=True)]

        return button, offer

    def action(
        self,
        button: gr.Button,
        view: gr.HTML,
        stream: Callable[..., Iterator[str]],
        waiting: Callable[[str], str],
        failed: Callable[[str], str],
        check: Callable[..., object] | None = None,
        fields: Fields | None = None,
        **options: Any,
    ) -> Action:
        """An action that is ordered with the controls and the tab's own `fields`.

        stream(visit, order, **values): the messages, of the values of these fields; the order takes the passes that are
        ready when its turn comes. waiting(text), failed(text): see `Action`. check(pair, order, **values): raises
        SpecvizError, whose field is a control's or one of these, for what is wrong; by default with the order alone.
        What only a loaded pair can tell is checked once it is loaded.
        """
        controls, fields = self.controls, fields or {}
        check = check or (lambda pair, order, **values: order.request(pair, self.runner.deployment))
        # A tab's own field stands before a control of the same name.
        names = [*("" if name in fields else name for name in controls.fields), "pair", *fields]

        def read(values: Sequence[Any], name: PairName, pair: ModelPair | None) -> tuple[Order, dict[str, Any]]:
            return controls.order(values, name, pair), dict(zip(fields, values[len(controls.inputs) :]))

        def verdict(*values: Any) -> list[dict[str, Any]]:
            try:
                name = PairName(**values[len(controls.fields)])
                pair = self.runner.store.loaded(name)
                order, tab_values = read(values, name, pair)
                if pair is not None:
                    check(pair, order, **tab_values)
            except SpecvizError as error:
                return verdicts(names, error if error.field in names else error.at(names[0]), self.say)
            return verdicts(names, None, self.say)

        def carry_out(visit: Visit, name: PairName, *values: Any) -> Iterator[str]:
            pair, preparer = self.runner.store.get(name), self.runner.store.preparer
            if preparer.begins(pair):
                # Plain passes would be all that there is to measure.
                yield waiting(self.say("common.trying"))
                preparer.await_first(pair, visit.halt)
            order, tab_values = read(values, name, pair)
            yield from stream(visit, order.with_ready_passes(pair), **tab_values)

        inputs = [*controls.inputs, *fields.values()]
        return Action(button, view, inputs, carry_out, waiting, failed, verdict, **options)


# The buttons


def wire_tabs(desk: Desk, tabs: gr.Tabs, built: Sequence[tuple[gr.Tab, Tab]]) -> None:
    """built: each tab of `tabs`, and what it hands over."""
    stops, controls = desk.visitors.stops, desk.controls
    starts = [action.button for _, tab in built for action in tab.actions]
    ends = [controls.stop, controls.stop_race, *(tab.stop for _, tab in built if tab.stop)]

    def idle() -> list[gr.Button]:
        return [*(gr.Button(visible=True, interactive=True) for _ in starts), *(gr.Button(visible=False) for _ in ends)]

    def busy(action: Action, tab: Tab) -> list[gr.Button]:
        """While a run is on, a visitor can stop it where it was started, and start no other. Nothing else moves: in a
        tab, Stop covers the first button (page.css)."""
        racing = action.button is controls.race
        gone = controls.race if racing else controls.go
        come = {controls.stop_race if racing else controls.stop, tab.stop}
        return [
            *(gr.Button(visible=button is not gone, interactive=False) for button in starts),
            *(gr.Button(visible=button in come) for button in ends),
        ]

    def wire(action: Action, opened: gr.Tab, tab: Tab) -> None:
        def ask(request: gr.Request, *values: Any) -> list[Any]:
            stops.arm(request.session_hash)
            # Until there are new files, nobody shall take the last ones for theirs.
            last = [gr.DownloadButton(interactive=False)] * len(action.offered)
            return [*busy(action, tab), gr.Tabs(selected=opened.id), *last]

        def start(request: gr.Request, *values: Any) -> Iterator[str]:
            yield from _in_turn(desk, opened.id, action, _visit(stops, request), values)

        def on_end(request: gr.Request) -> list[Any]:
            return [*idle(), *action.offer(_visit(stops, request))]

        changed = [*starts, *ends, tabs, *action.offered]
        click = action.button.click(ask, action.inputs, changed, validator=action.check, **QUEUED)
        # `then`, so that the buttons come back after an error too.
        click.success(start, action.inputs, action.view, **QUEUED).then(
            on_end, None, [*starts, *ends, *action.offered], **UNQUEUED
        )

    def wire_opened(opened: gr.Tab, message: Callable[[Visit], str], view: gr.HTML | gr.Markdown) -> None:
        def on_opened(request: gr.Request) -> str:
            return message(_visit(stops, request))

        opened.select(on_opened, None, view, **UNQUEUED)

    def on_stop(request: gr.Request) -> None:
        stops.press(request.session_hash)

    for opened, tab in built:
        for action in tab.actions:
            wire(action, opened, tab)
        if tab.opened:
            wire_opened(opened, tab.opened, tab.actions[0].view)
        if tab.asked:
            opened.select(*tab.asked, preprocess=False, **UNQUEUED)
    for button in ends:
        button.click(on_stop, None, None, **UNQUEUED)


def _in_turn(desk: Desk, kind: str, action: Action, visit: Visit, values: Sequence[Any]) -> Iterator[str]:
    """The action's messages once its turn has come and its pair is there; until then, what it waits for. Stop leaves
    the line."""
    line, store = desk.runner.line, desk.runner.store
    try:
        with line.joined(kind, visit.browser) as turn:
            yield from map(action.waiting, line.waiting(turn, visit.halt, desk.say))
            # What the visitor loaded last counts, not what the page had heard of when the button was pressed.
            page_pair = values[action.inputs.index(desk.controls.pair)]
            name = desk.visitors.pairs.get(visit.session) or PairName(**page_pair)
            if not visit.halt.is_set() and store.loaded(name) is None:
                yield action.waiting(desk.say("common.starting"))
                store.get(name)
            if visit.halt.is_set():
                yield (action.left or action.failed)(desk.say("line.left"))
            else:
                yield from action.stream(visit, name, *values)
    except SpecvizError as refusal:
        yield action.failed(desk.say.error(refusal))


def _visit(stops: Stops, request: gr.Request) -> Visit:
    return Visit(request.session_hash, stops.flag(request.session_hash), request.cookies.get(BROWSER))
