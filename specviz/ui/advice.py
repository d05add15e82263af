"""The verdict of the Compare tab: every available drafter, measured in turn with plain decoding."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, MutableMapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from specviz.bench.advice import offers_of, winner
from specviz.bench.contest import Contest
from specviz.bench.contestants import Contestant, Event, Progress
from specviz.records.settings import PLAIN, RunSettings
from specviz.records.words import Said, Words, joined, said
from specviz.theory.roofline import BatchTimes
from specviz.ui.contest import on_prompts
from specviz.ui.line import Visit
from specviz.ui.orders import Order
from specviz.ui.runner import Batches, Runner, closing
from specviz.views.labels import passes_words, time_left, title
from specviz.views.run_messages import message
from specviz.views.tab_messages import to_use
from specviz.views.terminal import advice, pair_words, prompts_words

if TYPE_CHECKING:
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair


#: How many times as long is measured where the first time decided nothing.
LONGER = 3


def answer(
    runner: Runner, visit: Visit, order: Order, prompts: str, undecided: MutableMapping[str | None, Any], say: Words
) -> Iterator[str]:
    """The messages of `advise`: longer where the visitor's last verdict on the same question left something open.

    undecided: that question, by visitor.
    """
    question = order.pair, prompts or order.settings.prompt, order.settings.sampling
    again = undecided.get(visit.session) == question
    still_open = yield from advise(runner, order, prompts, visit.halt, say, again)
    undecided[visit.session] = question if still_open else None


def advise(
    runner: Runner, order: Order, prompts: str, halt: threading.Event, say: Words, longer: bool = False
) -> Generator[str, None, bool]:
    """Progress, then the verdict, as messages; Stop ends it and keeps the figures so far. Returns whether measuring
    longer may decide more.

    prompts: the visitor's, in place of the order's, see `read_prompts`. longer: `LONGER` times as long as usual. Raises
    SpecvizError for orders that cannot be measured.
    """
    from specviz.bench.advising import SECONDS, contest_of

    yield message("verdict", phase="running", text=said("common.preparing"), fraction=0.0)
    seconds = SECONDS * (LONGER if longer else 1)
    pair = runner.store.get(order.pair)
    orders, domains, chains = competing(runner, pair, order, prompts)
    plain, contestants = orders[0], [Contestant.of(PLAIN), *chains]
    contest = contest_of([one.request(pair, runner.deployment) for one in orders], domains, contestants)
    settings, times = [one.settings for one in orders], None
    runs = [order.settings] * len(chains)
    batches: Batches[Event | BatchTimes] = runner.batches(
        plain, advising, settings, contestants, seconds, extra_runs=runs
    )
    for batch in closing(batches, halt):
        for event in batch:
            if isinstance(event, BatchTimes):
                times = event
            else:
                contest.hear(event)
        if (now := contest.now) is not None:
            yield message("verdict", phase="running", text=_now(contest, now), fraction=now.fraction)
    told = _told(contest, times, runner, orders, pair, bool(prompts.strip()), longer)
    phase = "stopped" if halt.is_set() else "finished"
    text = said("advice.nothing") if not told else said("advice.stopped") if halt.is_set() else ""
    faults = [f"{name}: {say.reason(reason)}" for name, reason in contest.failed.items()]
    yield message("verdict", phase=phase, text=text, fraction=1.0, faults=faults, **told)
    return bool(told.get("undecided"))


def _now(contest: Contest, now: Progress) -> Said:
    if now.fraction >= 1:
        return said("advice.load_timing")
    left = [] if now.seconds_left is None else [time_left(now.seconds_left)]
    return joined([f"{100 * now.fraction:.0f} %", *left, title(contest.entries[now.number])])


def advising(
    request: Request, prompts: Sequence[RunSettings], contestants: Sequence[Contestant], seconds: float
) -> Iterator[Event | BatchTimes | None]:
    """The measuring itself, on each prompt, and then passes over many requests."""
    from specviz.bench.advising import advise, load_times

    yield from advise([request.but(prompt) for prompt in prompts], contestants, seconds)
    yield Progress(0, fraction=1.0)
    yield from load_times(request.pair)


def _told(
    contest: Contest,
    times: BatchTimes | None,
    runner: Runner,
    orders: Sequence[Order],
    pair: ModelPair,
    own: bool,
    longer: bool,
) -> dict[str, Any]:
    """The advice, and the settings that its winner was measured with, where it may pay. Nothing before anything was
    measured. own: on the visitor's prompts. longer: see `advise`."""
    from specviz.bench.advising import SECONDS
    from specviz.bench.machine import name_of
    from specviz.drafters.registry import servers_of
    from specviz.passes.fast_passes import kind_of

    plain, rows = orders[0], contest.by_domain()
    draft = pair.draft.name_or_path if plain.pair.draft and pair.draft else None
    servers = servers_of(pair, {row.mode for row in rows})
    offers = offers_of(contest, draft, pair.translation is not None, servers, pair.stored.get("target"))
    if not offers:
        return {}
    passes = passes_words(kind_of(plain.request(pair, runner.deployment).passes))
    temperature, machine = plain.settings.sampling.temperature, name_of(pair.device)
    best = winner(offers)
    prompts = prompts_words(best.row.prompts, len(orders)) if own else said("advice.on_form")
    minutes = round(LONGER * SECONDS / 60)
    again = said("advice.still") if longer or pair.lent else said("advice.again", minutes=minutes)
    told = advice(offers, machine, pair_words(pair), passes, temperature, prompts, rows, times, again)
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
