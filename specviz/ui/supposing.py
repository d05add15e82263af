"""What would have been: a round of the run on the screen, worked out with the models where they are at hand."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from specviz.records.errors import SpecvizError
from specviz.records.runs import Round
from specviz.ui.device import PairName
from specviz.ui.orders import Order, read_form
from specviz.ui.runner import Batches, Runner
from specviz.views.run_messages import rounds_message

if TYPE_CHECKING:
    from specviz.decoding.request import Request

#: Seconds that it may wait in line, and that it may take: somebody is moving a slider, and others wait behind.
PATIENCE, MOST_SECONDS = 20.0, 10.0

#: With the texts of its tokens.
Worded = tuple[Round, dict[int, str]]


def supposed_round(runner: Runner, wanted: Mapping[str, Any]) -> str | None:
    """A round as supposed, as a message; None where it cannot be had: then the page says what follows from the record.

    wanted: how the pair was loaded (`name`), the run's `settings` by their flat names, and `what` of `Supposed`. Loads
    no pair, waits its turn in line, and gives up on what takes long. Where a GPU is lent by the call, its minutes are
    not for this.
    """
    name = PairName(**wanted["name"])
    with contextlib.suppress(SpecvizError), runner.line.joined("suppose") as turn:
        # Loading waits in the same line: a pair that is there now stays.
        if not runner.line.reached(turn, PATIENCE) or (pair := runner.store.loaded(name)) is None or pair.lent:
            return None
        order = Order(name, read_form(wanted["settings"])).with_ready_passes(pair)
        batches: Batches[Worded] = runner.batches(order, worked_out, wanted["what"])
        with contextlib.closing(batches):
            end = time.monotonic() + MOST_SECONDS
            for batch in batches:
                if batch or time.monotonic() > end:
                    return rounds_message("", [batch[0][0]], batch[0][1]) if batch else None
    return None


def worked_out(request: Request, what: Mapping[str, Any]) -> Iterator[Worded | None]:
    """The round as supposed, or nothing; None after each that is repeated before it."""
    from specviz.decoding.record import vocabulary
    from specviz.decoding.supposed import Supposed, suppose

    for round_ in suppose(request, Supposed(**what)):
        yield None if round_ is None else (round_, vocabulary(request.pair, [round_]))
