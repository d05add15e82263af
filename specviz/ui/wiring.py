"""Connects the buttons of all tabs with what they start, and the buttons that stop it.

A run streams into one component only: each further output of a streaming event costs the server as much as the update
itself, and the server's interpreter is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from specviz.records.errors import SpecvizError
from specviz.ui.components import QUEUED, UNQUEUED
from specviz.ui.pairs import PairName
from specviz.ui.tabs import Action, Desk, Tab
from specviz.ui.visits import Stops, Visit


def wire_tabs(desk: Desk, tabs: gr.Tabs, made: Sequence[tuple[gr.Tab, Tab]]) -> None:
    """made: each tab of `tabs`, and what it hands over."""
    stops, controls = desk.visitors.stops, desk.controls
    starts = [action.button for _, tab in made for action in tab.actions]
    ends = [controls.stop, controls.stop_race, *(tab.stop for _, tab in made if tab.stop)]

    def idle() -> list[gr.Button]:
        return [*(gr.Button(visible=True, interactive=True) for _ in starts), *(gr.Button(visible=False) for _ in ends)]

    def busy(action: Action, tab: Tab) -> list[gr.Button]:
        """While a run is on, a visitor can stop it where it was started, and start no other. Nothing else moves."""
        racing = action.button is controls.race
        gone = {action.button, controls.race if racing else controls.go}
        come = {controls.stop_race if racing else controls.stop, tab.stop}
        return [
            *(gr.Button(visible=button not in gone, interactive=False) for button in starts),
            *(gr.Button(visible=button in come) for button in ends),
        ]

    def wire(action: Action, opened: gr.Tab, tab: Tab) -> None:
        def ask(request: gr.Request, *values: Any) -> list[Any]:
            stops.arm(request.session_hash)
            return [*busy(action, tab), gr.Tabs(selected=opened.id)]

        def start(request: gr.Request, *values: Any) -> Iterator[str]:
            yield from _in_turn(desk, opened.id, action, _visit(stops, request), values)

        def on_end(request: gr.Request) -> list[Any]:
            return [*idle(), *action.offer(_visit(stops, request))]

        asked = action.button.click(ask, action.inputs, [*starts, *ends, tabs], validator=action.check, **QUEUED)
        # `then`, so that the buttons come back after an error too.
        asked.success(start, action.inputs, action.view, **QUEUED).then(
            on_end, None, [*starts, *ends, *action.offered], **UNQUEUED
        )

    def on_stop(request: gr.Request) -> None:
        stops.press(request.session_hash)

    for opened, tab in made:
        for action in tab.actions:
            wire(action, opened, tab)
        if tab.opened:
            _wire_opened(opened, tab, stops)
    for button in ends:
        button.click(on_stop, None, None, **UNQUEUED)


def _in_turn(desk: Desk, kind: str, action: Action, visit: Visit, values: Sequence[Any]) -> Iterator[str]:
    """The action's messages once its turn has come and its pair is there; until then, what it waits for. Stop leaves
    the line."""
    line, store = desk.runner.line, desk.runner.store
    try:
        with line.joined(kind) as turn:
            yield from map(action.waiting, line.waiting(turn, visit.halt, desk.say))
            # What the visitor loaded last counts, not what the page had heard of when the button was pressed.
            heard = values[action.inputs.index(desk.controls.pair)]
            name = desk.visitors.pairs.get(visit.session) or PairName(**heard)
            if not visit.halt.is_set() and store.loaded(name) is None:
                yield action.waiting(desk.say("common.starting"))
                store.get(name)
            if visit.halt.is_set():
                yield (action.left or action.failed)(desk.say("line.left"))
            else:
                yield from action.stream(visit, name, *values)
    except SpecvizError as refusal:
        yield action.failed(desk.say.error(refusal))


def _wire_opened(opened: gr.Tab, tab: Tab, stops: Stops) -> None:
    def on_opened(request: gr.Request) -> str:
        return tab.opened(_visit(stops, request))

    opened.select(on_opened, None, tab.actions[0].view, **UNQUEUED)


def _visit(stops: Stops, request: gr.Request) -> Visit:
    return Visit(request.session_hash, stops.flag(request.session_hash))
