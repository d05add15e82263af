"""The Race tab: plain and speculative decoding of one prompt, run in turn and replayed on one clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import gradio as gr

from specviz import engine
from specviz.compare import compare
from specviz.errors import SpecvizError
from specviz.records import Round
from specviz.ui.components import race_view
from specviz.ui.controls import DRAFTER_LABELS
from specviz.ui.generate import closing
from specviz.ui.orders import Order
from specviz.ui.stream import Runner
from specviz.views import messages

#: New tokens of the run that warms both paths up before anything is timed.
WARM_UP_TOKENS = 16


def create_race_tab() -> gr.HTML:
    """Lays out the race."""
    return race_view()


def race(runner: Runner, order: Order, halt: threading.Event) -> Iterator[str]:
    """Messages for the race view: what is being measured, then both lanes.

    The runs follow each other on the idle device: at once, each would slow the other down.
    """
    if order.drafter is None:
        yield messages.race_error_message("A race needs a drafter: choose one, and plain decoding is its rival.")
        return
    plain_order = replace(order, drafter=None)
    try:
        yield messages.race_phase_message("Making the models ready …", 0)
        pair = runner.store.get(order.pair)
        request, plain_request = (one.request(pair, runner.settings) for one in (order, plain_order))
        yield messages.race_phase_message("Warming up …", 0)
        for one in (plain_order, order):
            short = replace(one, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
            list(closing(runner.batches(short), halt))
        plain, fast = [], []
        yield from _measure(runner, plain_order, request.max_new_tokens, "plain decoding", halt, plain)
        yield from _measure(runner, order, request.max_new_tokens, "speculative decoding", halt, fast)
    except SpecvizError as error:
        yield messages.race_error_message(error.message)
        return
    if halt.is_set():
        yield messages.race_error_message("Stopped: a race needs both runs to their end.")
        return
    plain_run, fast_run = engine.collect(plain_request, plain), engine.collect(request, fast)
    yield messages.race_message(
        plain_run, fast_run, compare(plain_run, fast_run), drafter=DRAFTER_LABELS[order.drafter]
    )


def _measure(
    runner: Runner, order: Order, wanted: int, what: str, halt: threading.Event, rounds: list[Round]
) -> Iterator[str]:
    """Runs an order into `rounds`; yields how far it is."""
    done = 0
    for batch in closing(runner.batches(order), halt):
        rounds += batch
        done += sum(len(one.emitted) for one in batch)
        yield messages.race_phase_message(f"Running {what} …", done / wanted)
