"""The `advise` command: every drafter that is at hand, measured in turn with plain decoding, and what to use."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Measured:
    """What each way to draft came to so far, on this pair and with other draft models that are at hand."""

    groups: list[tuple[list[WorkRow], str | None, bool]] = field(default_factory=list)  # see `offers_of`
    failed: list[dict[str, str]] = field(default_factory=list)  # "title" and "reason"

    @property
    def offers(self) -> list[Offer]:
        return [offer for group in self.groups for offer in offers_of(*group)]

    @property
    def rows(self) -> list[WorkRow]:
        """Of the pair itself, by domain."""
        return self.groups[0][0] if self.groups else []


def measure(
    options: argparse.Namespace, pair: ModelPair, load: Callable[[str], ModelPair], say: Say, measured: Measured
) -> None:
    """Fills `measured`.

    load: the pair with the draft model of this name. Raises SpecvizError where the pair has nothing to draft with.
    """
    from specviz.bench.advising import SECONDS, require_chains
    from specviz.bench.benchmark import advised_chains
    from specviz.bench.failures import reason_of

    contestants, others = advised_chains(pair), list(_other_drafts(options))
    require_chains([Contestant(PLAIN), *contestants, *map(Contestant, others)])
    seconds = SECONDS * options.minutes / (1 + len(others))
    named = pair.draft.name_or_path if options.draft and pair.draft else None
    if contestants:
        _measure(options, pair, contestants, seconds, say, measured, named)
    for name in others:
        say(f"loading {name}")
        try:
            other = load(name)
            with_model = [one for one in advised_chains(other) if one.mode == "draft_model"]
            _measure(options, other, with_model, seconds, say, measured, name)
            other.free()
        except Exception as error:
            # Whatever is wrong with this one: the advice is about all that are at hand.
            measured.failed.append({"title": name, "reason": str(reason_of(error))})
            say(f"✗ {name}: {reason_of(error)}")


def _other_drafts(options: argparse.Namespace) -> Iterator[str]:
    """Draft models of the catalogue that fit this target and this machine, and are here."""
    from specviz.models.catalog import drafts_at_hand, needed_bytes
    from specviz.models.placement import within_reach

    for entry in drafts_at_hand(options.target or ""):
        if entry.draft not in options.draft and needed_bytes(entry) <= within_reach(options.device):
            yield entry.draft


def _measure(
    options: argparse.Namespace,
    pair: ModelPair,
    contestants: Sequence[Contestant],
    seconds: float,
    say: Say,
    measured: Measured,
    draft: str | None,
) -> None:
    from specviz.bench.advising import advise

    requests, domains = work_command.requests_of(options, pair, options.temperature)
    rows: list[WorkRow] = []
    measured.groups.append((rows, draft, pair.translation is not None))
    courses = advise(requests, domains, [Contestant(PLAIN), *contestants], seconds)
    work_command.follow(courses, say, rows, measured.failed)
