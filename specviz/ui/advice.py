"""The advice of the Models tab: every available drafter, measured in turn with plain decoding."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specviz.bench.advice import offers_of
from specviz.bench.contest import Contest
from specviz.bench.contestants import Contestant, Event
from specviz.records.settings import PLAIN
from specviz.records.words import Words
from specviz.ui.components import as_text
from specviz.ui.contest import order_of
from specviz.ui.orders import Order
from specviz.ui.runner import Batches, Runner, closing
from specviz.views.run_messages import passes_words, title
from specviz.views.terminal import advice, as_markdown

if TYPE_CHECKING:
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair


def advise(runner: Runner, order: Order, halt: threading.Event, say: Words) -> Iterator[str]:
    """Progress, then the advice, as Markdown; Stop ends it and keeps the figures so far. Raises SpecvizError for orders
    that cannot be measured."""
    from specviz.bench.advising import contest_of

    yield as_text(say("common.preparing"))
    pair = runner.store.get(order.pair)
    chains, plain = chains_of(runner, pair, order), order_of(order, Contestant.of(PLAIN))
    contestants = [Contestant.of(PLAIN), *chains]
    contest = contest_of([plain.request(pair, runner.deployment)], [""], contestants)
    runs = [order.settings] * len(chains)
    batches: Batches[Event] = runner.batches(plain, advising, contestants, extra_runs=runs)
    for batch in closing(batches, halt):
        for event in batch:
            contest.hear(event)
        if contest.now is not None:
            now, who = contest.now, say.translated(title(contest.entries[contest.now.number]))
            values = {"percent": round(100 * now.fraction), "seconds": f"{now.seconds_left:.0f}"}
            yield as_text(f"{say('advice.seconds_left', **values)} · {who}")
    signed = say("models.found_wrong")
    faults = [f"{signed} {as_text(f'{name}: {say.reason(reason)}')}" for name, reason in contest.failed.items()]
    yield "\n\n".join((*_parts(contest, runner, plain, pair, halt, say), *faults))


def advising(request: Request, contestants: Sequence[Contestant]) -> Iterator[Event | None]:
    """The measuring itself, on the request's prompt."""
    from specviz.bench.advising import advise

    return advise([request], contestants)


def _parts(
    contest: Contest, runner: Runner, plain: Order, pair: ModelPair, halt: threading.Event, say: Words
) -> Iterator[str]:
    from specviz.bench.machine import name_of
    from specviz.drafters.registry import servers_of
    from specviz.passes.static_passes import kind_of

    draft, rows = pair.draft.name_or_path if plain.pair.draft and pair.draft else None, contest.by_domain()
    offers = offers_of(rows, draft, pair.translation is not None, servers_of(pair, {row.mode for row in rows}))
    if halt.is_set() or not offers:
        yield as_text(say("advice.stopped" if offers else "advice.nothing"))
    if offers:
        passes = passes_words(kind_of(plain.request(pair, runner.deployment).passes))
        temperature, machine = plain.settings.sampling.temperature, name_of(pair.device)
        yield as_markdown(advice(offers, machine, pair.info().name, passes, temperature), say, as_text)


def chains_of(runner: Runner, pair: ModelPair, order: Order) -> list[Contestant]:
    """The contestants to measure, with the drafter's further parameters that are ordered. Raises SpecvizError for an
    order that is not allowed."""
    from specviz.bench.advising import require_chains
    from specviz.bench.benchmark import advised_chains

    order_of(order, Contestant.of(PLAIN)).request(pair, runner.deployment)
    most, base = runner.deployment.max_draft_tokens, replace(order.settings, prompt="")
    chains = [chain for chain in advised_chains(pair, base) if chain.settings.deepest_draft <= most]
    require_chains([Contestant.of(PLAIN), *chains])
    return chains
