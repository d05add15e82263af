"""The verdict of the Compare tab: every available drafter, measured in turn with plain decoding."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from specviz.bench.advice import offers_of, winner
from specviz.bench.contest import Contest
from specviz.bench.contestants import Contestant, Event
from specviz.records.settings import PLAIN, RunSettings
from specviz.records.words import Words, joined, said
from specviz.theory.roofline import BatchTimes
from specviz.ui.contest import on_prompts
from specviz.ui.orders import Order
from specviz.ui.runner import Batches, Runner, closing
from specviz.views.run_messages import message, passes_words, title
from specviz.views.tab_messages import to_use
from specviz.views.terminal import advice

if TYPE_CHECKING:
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair


def advise(runner: Runner, order: Order, prompts: str, halt: threading.Event, say: Words) -> Iterator[str]:
    """Progress, then the verdict, as messages; Stop ends it and keeps the figures so far.

    prompts: the visitor's, in place of the order's, see `read_prompts`. Raises SpecvizError for orders that cannot be
    measured.
    """
    from specviz.bench.advising import contest_of

    yield message("verdict", phase="running", text=said("common.preparing"), fraction=0.0)
    pair = runner.store.get(order.pair)
    orders, domains, chains = competing(runner, pair, order, prompts)
    plain, contestants = orders[0], [Contestant.of(PLAIN), *chains]
    contest = contest_of([one.request(pair, runner.deployment) for one in orders], domains, contestants)
    settings, times = [one.settings for one in orders], None
    runs = [order.settings] * len(chains)
    batches: Batches[Event | BatchTimes] = runner.batches(plain, advising, settings, contestants, extra_runs=runs)
    for batch in closing(batches, halt):
        for event in batch:
            if isinstance(event, BatchTimes):
                times = event
            else:
                contest.hear(event)
        if (now := contest.now) is not None:
            what = {"percent": round(100 * now.fraction), "seconds": f"{now.seconds_left:.0f}"}
            text = joined([said("advice.seconds_left", **what), title(contest.entries[now.number])], " · ")
            yield message("verdict", phase="running", text=text, fraction=now.fraction)
    told, phase = _told(contest, times, runner, plain, pair), "stopped" if halt.is_set() else "finished"
    text = said("advice.nothing") if not told else said("advice.stopped") if halt.is_set() else ""
    faults = [f"{name}: {say.reason(reason)}" for name, reason in contest.failed.items()]
    yield message("verdict", phase=phase, text=text, fraction=1.0, faults=faults, **told)


def advising(
    request: Request, prompts: Sequence[RunSettings], contestants: Sequence[Contestant]
) -> Iterator[Event | BatchTimes | None]:
    """The measuring itself, on each prompt, and then passes over many requests."""
    from specviz.bench.advising import advise, load_times

    yield from advise([request.but(prompt) for prompt in prompts], contestants)
    yield from load_times(request.pair)


def _told(contest: Contest, times: BatchTimes | None, runner: Runner, plain: Order, pair: ModelPair) -> dict[str, Any]:
    """The advice, and the settings that its winner was measured with, where it may pay. Nothing before anything was
    measured."""
    from specviz.bench.machine import name_of
    from specviz.drafters.registry import servers_of
    from specviz.passes.static_passes import kind_of

    draft, rows = pair.draft.name_or_path if plain.pair.draft and pair.draft else None, contest.by_domain()
    offers = offers_of(rows, draft, pair.translation is not None, servers_of(pair, {row.mode for row in rows}))
    if not offers:
        return {}
    passes = passes_words(kind_of(plain.request(pair, runner.deployment).passes))
    temperature, machine = plain.settings.sampling.temperature, name_of(pair.device)
    told = advice(offers, machine, pair.info().name, passes, temperature, rows, times)
    best = winner(offers)
    return asdict(told) | {"use": None if best.outcome == "plain" else to_use(best.row)}


def competing(
    runner: Runner, pair: ModelPair, order: Order, prompts: str = ""
) -> tuple[tuple[Order, ...], Sequence[str], list[Contestant]]:
    """Plain decoding of each prompt, the domains, and the contestants to measure. Raises SpecvizError for an order that
    is not allowed."""
    orders, domains = on_prompts(runner, pair, order, prompts)
    return orders, domains or [""], chains_of(runner, pair, order)


def chains_of(runner: Runner, pair: ModelPair, order: Order) -> list[Contestant]:
    """The contestants, with the drafter's further parameters that are ordered. Raises SpecvizError where there are
    none."""
    from specviz.bench.advising import require_chains
    from specviz.bench.benchmark import advised_chains

    most, base = runner.deployment.max_draft_tokens, replace(order.settings, prompt="")
    chains = [chain for chain in advised_chains(pair, base) if chain.settings.deepest_draft <= most]
    require_chains([Contestant.of(PLAIN), *chains])
    return chains
