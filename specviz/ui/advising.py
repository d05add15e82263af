"""Which drafter for this machine: every one that is at hand, measured in turn beside plain decoding."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from specviz.bench.advice import FINAL_REPEATS, FINAL_TOKENS, FINALISTS, HEAT_TOKENS, Offer
from specviz.bench.contestants import Contestant
from specviz.records.errors import SpecvizError
from specviz.records.settings import PLAIN
from specviz.records.stopwatch import nothing_known
from specviz.records.words import Words
from specviz.ui import engine
from specviz.ui.components import as_text
from specviz.ui.contest import Contest, order_of, turns_of
from specviz.ui.orders import Order
from specviz.ui.runner import Runner
from specviz.views.advice_text import advice, as_markdown
from specviz.views.run_messages import passes_words

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair


def advise(runner: Runner, order: Order, halt: threading.Event, say: Words) -> Iterator[str]:
    """What is being measured, then the advice, as Markdown; Stop ends it and keeps what there is."""
    yield as_text(say("common.preparing"))
    offers: dict[Contestant, Offer] = {}
    try:
        pair = runner.store.get(order.pair)
        chains = chains_of(runner, pair, order)
        for number, (tokens, repeats) in enumerate(((HEAT_TOKENS, 1), (FINAL_TOKENS, FINAL_REPEATS))):
            contest = Contest(runner, _short(order, tokens), (Contestant(PLAIN), *chains), repeats, halt)
            for text, fraction in contest.progress(say):
                yield as_text(f"{(number + fraction) / 2:.0%} · {text}")
            offers |= offers_of(contest, pair)
            if halt.is_set() or not offers:
                break
            known = [one for one in chains if one in offers]
            chains = sorted(known, key=lambda one: -offers[one].standing.speedup_measured)[:FINALISTS]
    except SpecvizError as error:
        yield as_text(say.error(error))
        return
    parts = [as_text(say("advice.stopped" if offers else "advice.nothing"))] if halt.is_set() else []
    if not offers and not parts:
        parts = [as_text(say.error(nothing_known()))]
    if offers:
        request = order_of(order, Contestant(PLAIN)).request(pair, runner.deployment)
        passes = passes_words(engine.kind_of(request.passes), say)
        temperature, machine = order.settings.sampling.temperature, engine.name_of(pair.device)
        told = advice(list(offers.values()), machine, pair.info().name, passes, temperature, say)
        parts.append(as_markdown(told, say, as_text))
    yield "\n\n".join(parts)


def chains_of(runner: Runner, pair: ModelPair, order: Order) -> list[Contestant]:
    """What is to be measured. Raises SpecvizError for an order, or a number of runs, that is not allowed."""
    deployment = runner.deployment
    order_of(order, Contestant(PLAIN)).request(pair, deployment)
    chains = [one for one in engine.advised_chains(pair) if one.num_draft_tokens <= deployment.max_draft_tokens]
    runs = len(turns_of((Contestant(PLAIN), *chains))) + (1 + FINALISTS) * FINAL_REPEATS
    most = deployment.max_compare_runs
    if not chains:
        raise SpecvizError("This pair brings nothing that could draft.", "target")
    if runs > most:
        raise SpecvizError(
            "Advice takes {runs} runs, more than the {most} that this page allows: ask python -m specviz advise.",
            "prompt",
            runs=runs,
            most=most,
        )
    return chains


def offers_of(contest: Contest, pair: ModelPair) -> dict[Contestant, Offer]:
    """What was measured so far, beside plain decoding in the same repeat."""
    offers = {}
    for one in contest.contestants[1:]:
        standing, needs = contest.standing(one), one.mode == "draft_model"
        if standing is not None and standing.speedup_measured is not None:
            draft = pair.draft.name_or_path if needs and contest.order.pair.draft else None
            other, repeats = needs and pair.translation is not None, len(contest.tallies[one])
            offers[one] = Offer(one.mode, one.num_draft_tokens, standing, repeats, draft, other)
    return offers


def _short(order: Order, tokens: int) -> Order:
    return replace(order, settings=replace(order.settings, max_new_tokens=min(tokens, order.settings.max_new_tokens)))
