"""Which drafter for this machine: every available one, measured in turn with plain decoding."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specviz.bench.advice import WorkRow, offers_of
from specviz.bench.contestants import PLAIN, Contestant
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence, Words
from specviz.ui.components import as_text
from specviz.ui.contest import order_of
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.views.run_messages import passes_words, title
from specviz.views.terminal import advice, as_markdown

if TYPE_CHECKING:
    from specviz.bench.advising import Course
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair


def advise(runner: Runner, order: Order, halt: threading.Event, say: Words) -> Iterator[str]:
    """Progress, then the advice, as Markdown; Stop ends it and keeps the figures so far. Raises SpecvizError for orders
    that cannot be measured."""
    yield as_text(say("common.preparing"))
    rows: Sequence[WorkRow] = ()
    failed: Sequence[tuple[str, SpecvizError | Sentence]] = ()
    pair = runner.store.get(order.pair)
    chains = chains_of(runner, pair, order)
    plain = order_of(order, Contestant(PLAIN))
    for batch in closing(runner.batches(plain, advising, chains, others=[order.settings] * len(chains)), halt):
        for course in batch:
            rows, failed = course.rows or rows, course.failed
        yield as_text(_said(batch[-1], say))
    signed = say("models.found_wrong")
    faults = [f"{signed} {as_text(f'{name}: {say.reason(reason)}')}" for name, reason in failed]
    yield "\n\n".join((*_parts(rows, runner, order, pair, halt, say), *faults))


def advising(request: Request, chains: Sequence[Contestant]) -> Iterator[Course | None]:
    """The measuring itself, on the request's prompt."""
    from specviz.bench.advising import advise

    return advise([request], [""], [Contestant(PLAIN), *chains])


def _said(course: Course, say: Words) -> str:
    left = say("advice.seconds_left", percent=round(100 * course.fraction), seconds=f"{course.seconds_left:.0f}")
    return left if course.contestant is None else f"{left} · {say.spoken(title(course.contestant))}"


def _parts(
    rows: Sequence[WorkRow], runner: Runner, order: Order, pair: ModelPair, halt: threading.Event, say: Words
) -> Iterator[str]:
    from specviz.bench.machine import name_of
    from specviz.passes.static_passes import kind_of

    draft = pair.draft.name_or_path if order.pair.draft and pair.draft else None
    offers = offers_of(rows, draft, pair.translation is not None)
    if halt.is_set() or not offers:
        yield as_text(say("advice.stopped" if offers else "advice.nothing"))
    if offers:
        request = order_of(order, Contestant(PLAIN)).request(pair, runner.deployment)
        passes = passes_words(kind_of(request.passes))
        temperature, machine = order.settings.sampling.temperature, name_of(pair.device)
        yield as_markdown(advice(offers, machine, pair.info().name, passes, temperature), say, as_text)


def chains_of(runner: Runner, pair: ModelPair, order: Order) -> list[Contestant]:
    """The contestants to measure. Raises SpecvizError for an order that is not allowed."""
    from specviz.bench.advising import require_chains
    from specviz.bench.benchmark import advised_chains

    deployment = runner.deployment
    order_of(order, Contestant(PLAIN)).request(pair, deployment)
    chains = [one for one in advised_chains(pair) if one.num_draft_tokens <= deployment.max_draft_tokens]
    require_chains([Contestant(PLAIN), *chains])
    return chains
