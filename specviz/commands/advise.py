"""`advise`: measures every drafter that the pair has, and says which to use."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specviz.bench.advice import Offer, offers_of, winner
from specviz.bench.contest import Contest, Row
from specviz.bench.contestants import PLAIN, Contestant
from specviz.commands import pairs
from specviz.commands.output import keeping, progress, with_faults
from specviz.commands.work import add_work_options, check_work, faults_of, follow, minutes, requests_of
from specviz.records.words import said, words
from specviz.views.labels import passes_words
from specviz.views.terminal import advice, as_table, pair_words, prompts_words

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair
    from specviz.theory.roofline import BatchTimes

ABOUT = "does it pay? measure every drafter that the pair has, and say which to use: a minute"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--minutes", type=minutes, default=1.0, help="time limit (default: %(default)s)")
    add_work_options(parser)
    pairs.add_pair_options(parser)


def main(options: argparse.Namespace) -> int:
    """Exit status 1 if a way to draft failed."""
    check_work(options)
    from specviz.bench.machine import name_of
    from specviz.models.loading import load_pair

    def load(draft: str) -> ModelPair:
        return load_pair(
            options.target,
            draft,
            draft_vocabulary=options.draft_vocabulary,
            device=options.device,
            dtype=options.dtype,
        )

    pair = pairs.load(options)
    measured = Measured()

    def text(interrupted: bool) -> str:
        offers = measured.offers
        measured_on = name_of(pair.device), pair_words(pair), passes_words(pair.info().passes), options.temperature
        table = ""
        if offers:
            # Passes with another draft model were not timed.
            best, of = winner(offers), len(measured.contests[0][0].domains)
            times = measured.times if best.draft in (None, measured.draft) else None
            prompts = prompts_words(best.row.prompts, of) if options.prompts else said("advice.on_preset")
            longer = said("advice.more_minutes")
            table = as_table(advice(offers, *measured_on, prompts, measured.rows, times, longer), words())
        return with_faults(table, measured.failed, interrupted)

    with keeping(text):
        measure(options, pair, load, measured)
    return int(bool(measured.failed))


@dataclass
class Measured:
    """What was measured so far, on this pair and with other draft models that are available."""

    contests: list[tuple[Contest, tuple[Any, ...]]] = field(default_factory=list)  # and all else of `offers_of`
    draft: str | None = None  # the pair's draft model, where it was named
    times: BatchTimes | None = None  # of the pair itself, with many requests
    faults: list[dict[str, str]] = field(default_factory=list)  # draft models that cannot be loaded

    @property
    def failed(self) -> list[dict[str, str]]:
        """ "title" and "reason"."""
        return [fault for contest, _ in self.contests for fault in faults_of(contest)] + self.faults

    @property
    def offers(self) -> list[Offer]:
        return [offer for contest, about in self.contests for offer in offers_of(contest, *about)]

    @property
    def rows(self) -> list[Row]:
        """Of the pair itself, by domain."""
        return self.contests[0][0].by_domain() if self.contests else []


def measure(options: argparse.Namespace, pair: ModelPair, load: Callable[[str], ModelPair], measured: Measured) -> None:
    """Fills `measured`.

    load: the pair with the draft model of this name. Raises SpecvizError where the pair has nothing to draft with.
    """
    from specviz.bench.advising import SECONDS, advise, contest_of, load_times, require_chains
    from specviz.bench.benchmark import advised_chains
    from specviz.bench.contesting import reason_of
    from specviz.drafters.registry import servers_of

    def measure_pair(pair: ModelPair, contestants: Sequence[Contestant], draft: str | None) -> None:
        requests, domains = requests_of(options, pair, options.temperature)
        servers = servers_of(pair, (contestant.mode for contestant in contestants))
        everybody = [Contestant.of(PLAIN), *contestants]
        contest = contest_of(requests, domains, everybody)
        about = draft, pair.translation is not None, servers, pair.stored.get("target")
        measured.contests.append((contest, about))
        follow(advise(requests, everybody, seconds), contest)

    contestants, other_drafts = advised_chains(pair), list(_other_drafts(options))
    require_chains([Contestant.of(PLAIN), *contestants, *map(Contestant.of, other_drafts)])
    seconds = SECONDS * options.minutes / (1 + len(other_drafts))
    measured.draft = pair.draft.name_or_path if options.draft and pair.draft else None
    if contestants:
        measure_pair(pair, contestants, measured.draft)
        for times in load_times(pair):
            measured.times = times
    for name in other_drafts:
        progress(f"loading {name}")
        try:
            other_pair = load(name)
            drafting = [chain for chain in advised_chains(other_pair) if chain.mode == "draft_model"]
            try:
                measure_pair(other_pair, drafting, name)
            finally:
                other_pair.free()
        except Exception as error:
            # However it fails, the advice is about all others.
            measured.faults.append({"title": name, "reason": str(reason_of(error))})
            progress(f"✗ {name}: {reason_of(error)}")


def _other_drafts(options: argparse.Namespace) -> Iterator[str]:
    """Draft models of the catalogue that fit this target and this machine, and were downloaded."""
    from specviz.models.catalog import drafts_at_hand, needed_bytes
    from specviz.models.placement import within_reach

    for entry in drafts_at_hand(options.target or ""):
        if entry.draft not in options.draft and needed_bytes(entry) <= within_reach(options.device):
            yield entry.draft
