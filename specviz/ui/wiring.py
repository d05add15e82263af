"""Connects the buttons of all tabs with what they start, and the buttons that stop it.

A run streams into one component only: each further output of a streaming event costs the server as much as the update
itself, and the server's interpreter is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from specviz.ui.events import DEVICE, INTERNAL, QUIET
from specviz.ui.tabs import Action, Desk, Tab
from specviz.ui.visitors import Stops, Visit


def wire_tabs(desk: Desk, tabs: gr.Tabs, made: Sequence[tuple[gr.Tab, Tab]]) -> None:
    """made: each tab of `tabs`, and what it hands over."""
    stops, place = desk.visitors.stops, desk.controls.place
    starts = [action.button for _, tab in made for action in tab.actions]
    ends = [desk.controls.stop, *(button for _, tab in made for button in tab.stops)]

    def shown(running: bool) -> list[gr.Button]:
        """While a run is on, a visitor can stop it, and start no other."""
        return [*(gr.Button(visible=not running) for _ in starts), *(gr.Button(visible=running) for _ in ends)]

    def wire(action: Action, tab: gr.Tab) -> None:
        def ask(request: gr.Request, *values: Any) -> list[Any]:
            stops.arm(request.session_hash)
            return [*shown(running=True), gr.Tabs(selected=tab.id)]

        def start(request: gr.Request, *values: Any) -> Iterator[str]:
            yield from action.stream(_visit(stops, request), *values)

        def on_end(request: gr.Request) -> list[Any]:
            return [*shown(running=False), *action.offer(_visit(stops, request))]

        asked = action.button.click(
            ask,
            action.inputs,
            [*starts, *ends, tabs],
            validator=action.check,
            show_progress="hidden",
            concurrency_limit=None,
            **INTERNAL,
        )
        running = {"show_progress": "minimal", "show_progress_on": place, **INTERNAL, **DEVICE}
        # `then`, so that the buttons come back after an error too.
        asked.success(start, action.inputs, action.view, **running).then(
            on_end, None, [*starts, *ends, *action.offered], **QUIET
        )

    def on_stop(request: gr.Request) -> None:
        stops.press(request.session_hash)

    for opened, tab in made:
        for action in tab.actions:
            wire(action, opened)
        if tab.opened:
            _wire_opened(opened, tab, stops)
    for button in ends:
        button.click(on_stop, None, None, **QUIET)


def _wire_opened(opened: gr.Tab, tab: Tab, stops: Stops) -> None:
    def on_opened(request: gr.Request) -> str:
        return tab.opened(_visit(stops, request))

    opened.select(on_opened, None, tab.actions[0].view, **QUIET)


def _visit(stops: Stops, request: gr.Request) -> Visit:
    return Visit(request.session_hash, stops.flag(request.session_hash))
