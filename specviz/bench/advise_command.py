"""The `advise` command: every drafter that is at hand, measured in turn with plain decoding, and what to use."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from specviz.bench import work_command
from specviz.bench.advice import Offer, offers_of
from specviz.bench.contestants import PLAIN, Contestant, Say
from specviz.bench.work import WorkRow

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options but those that name a pair or one's own work."""
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=work_command.minutes, default=1.0, help="how long it may take (default: %(default)s)"
    )


def measure(
    options: argparse.Namespace, pair: ModelPair, load: Callable[[str], ModelPair], say: Say
) -> tuple[list[Offer], list[WorkRow]]:
    """What each way to draft came to, on this pair and with other draft models that are at hand; and by domain.

    load: the pair with the draft model of this name. Raises SpecvizError where the pair has nothing to draft with.
    """
    from specviz.bench.advising import SECONDS, require_chains
    from specviz.bench.benchmark import advised_chains

    contestants, others = advised_chains(pair), list(_other_drafts(options))
    require_chains([Contestant(PLAIN), *contestants, *map(Contestant, others)])
    seconds = SECONDS * options.minutes / (1 + len(others))
    rows = _measured(options, pair, contestants, seconds, say) if contestants else []
    named = pair.draft.name_or_path if options.draft and pair.draft else None
    offers = offers_of(rows, named, pair.translation is not None)
    for name in others:
        say(f"loading {name}")
        other = load(name)
        with_model = [one for one in advised_chains(other) if one.mode == "draft_model"]
        found = _measured(options, other, with_model, seconds, say)
        offers += offers_of(found, name, other.translation is not None)
        other.free()
    return offers, rows


def _other_drafts(options: argparse.Namespace) -> Iterator[str]:
    """Draft models of the catalogue that fit this target and this machine, and are here."""
    from specviz.models.catalog import drafts_at_hand, needed_bytes
    from specviz.models.placement import within_reach

    for entry in drafts_at_hand(options.target or ""):
        if entry.draft not in options.draft and needed_bytes(entry) <= within_reach(options.device):
            yield entry.draft


def _measured(
    options: argparse.Namespace, pair: ModelPair, contestants: Sequence[Contestant], seconds: float, say: Say
) -> list[WorkRow]:
    from specviz.bench.advising import advise

    requests, domains = work_command.requests_of(options, pair, options.temperature)
    return work_command.followed(advise(requests, domains, [Contestant(PLAIN), *contestants], seconds), say)
