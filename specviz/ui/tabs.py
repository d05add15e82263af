"""A tab is built at a desk, and hands the page the actions that its buttons start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.records.errors import SpecvizError
from specviz.records.words import Words
from specviz.ui.components import verdicts
from specviz.ui.controls import Controls, Fields
from specviz.ui.head import Head
from specviz.ui.orders import Order
from specviz.ui.pairs import PairName
from specviz.ui.runner import Runner
from specviz.ui.visitors import Visitors
from specviz.ui.visits import Visit

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair


@dataclass(frozen=True)
class Action:
    """The work that a button starts; it streams messages into one view."""

    button: gr.Button
    view: gr.HTML | gr.Markdown
    inputs: Sequence[gr.components.Component]  # `Controls.pair` among them
    check: Callable[..., list[dict[str, Any]]]  # the inputs' values -> Gradio's verdict on each
    stream: Callable[..., Iterator[str]]  # a visit, the pair's name, the inputs' values -> messages
    waiting: Callable[[str], str]  # the message that says why it waits
    failed: Callable[[str], str]  # the message that says why nothing comes
    offered: Sequence[gr.components.Component] = ()  # other components that change when it is over,
    offer: Callable[[Visit], list[Any]] = lambda visit: []  # and how
    left: Callable[[str], str] | None = None  # the message after Stop in the line; by default `failed`


@dataclass(frozen=True)
class Tab:
    """The parts of a tab that the page wires."""

    actions: Sequence[Action] = ()
    stop: gr.Button | None = None  # its own, in addition to that of the controls
    opened: Callable[[Visit], str] | None = None  # a message for the first action's view when the tab is opened


@dataclass(frozen=True)
class Desk:
    """Everything that a tab is built with: the parts of the page around it, and the runner."""

    page: gr.Blocks
    runner: Runner
    visitors: Visitors
    head: Head
    controls: Controls
    say: Words
    #: Components that depend on the pair in use, and how they change once it is loaded.
    arrivals: list[tuple[gr.components.Component, Callable[[ModelPair], Any]]] = field(default_factory=list)

    def kept(self, kind: str) -> tuple[gr.DownloadButton, Callable[[Visit], list[Any]]]:
        """A download button for the page of a result, hidden until there is one; and the `offer` of its action."""
        with gr.Row(elem_classes=["sv-traces"]):
            button = gr.DownloadButton(
                self.say("traces.page"), size="sm", visible=False, elem_id=f"download-{kind}-page"
            )

        def offer(visit: Visit) -> list[Any]:
            page = self.visitors.results.get((visit.session, kind))
            return [gr.DownloadButton(value=str(page.file), visible=True) if page else gr.skip()]

        return button, offer

    def ordered(
        self,
        button: gr.Button,
        view: gr.HTML,
        stream: Callable[..., Iterator[str]],
        waiting: Callable[[str], str],
        failed: Callable[[str], str],
        check: Callable[..., object] | None = None,
        own: Fields | None = None,
        **others: Any,
    ) -> Action:
        """An action that is ordered with the controls and the tab's `own` fields.

        stream(visit, order, **own): the messages; the order takes the passes that are ready when its turn comes.
        waiting(text), failed(text): see `Action`.
        check(pair, order, **own): raises SpecvizError, whose field is a control's or one of `own`, for what is wrong;
        by default with the order alone. What only a loaded pair can tell is checked once it is loaded.
        """
        controls, own, check = self.controls, own or {}, check or self._check
        # A tab's own field stands before a control of the same name.
        names = [*("" if name in own else name for name in controls.fields), "pair", *own]

        def asked(values: Sequence[Any], name: PairName, pair: ModelPair | None) -> tuple[Order, dict[str, Any]]:
            return controls.order(values, name, pair), dict(zip(own, values[len(controls.inputs) :]))

        def verdict(*values: Any) -> list[dict[str, Any]]:
            try:
                name = PairName(**values[len(controls.fields)])
                pair = self.runner.store.loaded(name)
                order, given = asked(values, name, pair)
                if pair is not None:
                    check(pair, order, **given)
            except SpecvizError as error:
                return verdicts(names, error if error.field in names else error.at(names[0]), self.say)
            return verdicts(names, None, self.say)

        def carry_out(visit: Visit, name: PairName, *values: Any) -> Iterator[str]:
            pair = self.runner.store.get(name)
            order, given = asked(values, name, pair)
            yield from stream(visit, order.settled(pair), **given)

        inputs = [*controls.inputs, *own.values()]
        return Action(button, view, inputs, verdict, carry_out, waiting, failed, **others)

    def _check(self, pair: ModelPair, order: Order, **own: Any) -> None:
        order.request(pair, self.runner.deployment)
