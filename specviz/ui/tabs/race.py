"""The Race tab: plain and speculative decoding of one prompt, measured in turn and replayed on one clock."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from specviz.bench.contestants import Progress
from specviz.bench.duel import Duel, duel, runs_of
from specviz.records.errors import SpecvizError
from specviz.records.words import Said, said
from specviz.ui.components import element_view
from specviz.ui.desk import Desk, Tab
from specviz.ui.downloads import result_page
from specviz.ui.line import Visit
from specviz.ui.orders import Order
from specviz.ui.runner import Batches, Runner, closing
from specviz.views.pages import race_page
from specviz.views.run_messages import message, race_message, text_messages

if TYPE_CHECKING:
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair


def create_race_tab(desk: Desk) -> Tab:
    """Lays out the race; its button stands below the controls."""

    def stream(visit: Visit, order: Order) -> Iterator[str]:
        if page := (yield from race(desk.runner, order, visit.halt, desk.say.language)):
            desk.visitors.results[visit.session, "race"] = result_page("race", page)

    shown, view = (text_messages("phase"), text_messages("error")), element_view("race", desk.say)
    button, offer = desk.result_button("race")
    return Tab([desk.action(desk.controls.race, view, stream, *shown, offered=[button], offer=offer)])


def race(runner: Runner, order: Order, halt: threading.Event, language: str) -> Generator[str, None, str | None]:
    """Messages for the race view: progress, then both lanes. Returns the race as a page in a file.

    Raises SpecvizError for a race that cannot be run, or not to its end.
    """
    yield message("phase", text=said("common.preparing"), fraction=0.0)
    request, finished = race_request(runner.store.get(order.pair), order, runner), None
    for event in duel_events(runner, order, halt):
        if isinstance(event, Duel):
            finished = event
        else:
            text, fraction = progress(event)
            yield message("phase", text=text, fraction=fraction)
    if finished is None:
        yield message("error", text=said("race.stopped"))
        return None
    runs, outcome = finished.runs(request), finished.outcome(request)
    yield race_message(*runs, outcome)
    return race_page(*runs, outcome, finished.machine, language)


def race_request(pair: ModelPair, order: Order, runner: Runner) -> Request:
    """The checked request of the speculative side. Raises SpecvizError with the control's name in `field`."""
    if order.settings.drafter is None:
        raise SpecvizError("A race needs a drafter: choose one to run against plain decoding.", "drafter")
    return order.request(pair, runner.deployment)


def duel_events(runner: Runner, order: Order, halt: threading.Event) -> Iterator[Progress | Duel]:
    """Progress and, unless `halt` is set before, the finished duel."""
    batches: Batches[Progress | Duel] = runner.batches(order, duel, True, extra_runs=runs_of(order.settings, True))
    for batch in closing(batches, halt):
        yield from batch


def progress(event: Progress) -> tuple[Said, float]:
    """A line of progress and the share that is done."""
    if event.warming:
        return said("common.warming_up"), 0.0
    return said("common.in_turn", number=event.repeat + 1), event.fraction
