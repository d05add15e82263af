"""The `advise` command: every drafter that is at hand, measured beside plain decoding, and what to use."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from specviz.bench.advice import FINALISTS, Offer
from specviz.bench.contestants import PLAIN, Contestant, Say
from specviz.records.errors import SpecvizError
from specviz.records.presets import PRESETS, Preset
from specviz.records.settings import SamplingParams
from specviz.records.stopwatch import nothing_known

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options but those that name a pair."""
    parser.add_argument("--prompt", help="measure on this text (default: the beginning of a story)")
    parser.add_argument("--chat", action="store_true", help="wrap the prompt in the model's chat template")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")


def measure(options: argparse.Namespace, pair: ModelPair, load: Callable[[str], ModelPair], say: Say) -> list[Offer]:
    """What each way to draft came to, on this pair and with other draft models that are at hand.

    load: the pair with the draft model of this name. Raises SpecvizError where the pair has nothing to draft with, or
    where something else had the processor in all of its runs.
    """
    SamplingParams(options.temperature)
    named = pair.draft.name_or_path if options.draft and pair.draft else None
    offers = list(_measured(options, pair, named, say))
    for name in _other_drafts(options):
        say(f"loading {name}")
        other = load(name)
        offers += _measured(options, other, name, say, only="draft_model")
        other.free()
    if not offers:
        raise SpecvizError("This pair brings nothing that could draft.", "target")
    return offers


def _other_drafts(options: argparse.Namespace) -> Iterator[str]:
    """Draft models of the catalogue that fit this target and this machine, and are here."""
    from specviz.models.catalog import drafts_at_hand, needed_bytes
    from specviz.models.placement import within_reach

    for entry in drafts_at_hand(options.target or ""):
        if entry.draft not in options.draft and needed_bytes(entry) <= within_reach(options.device):
            yield entry.draft


def _measured(
    options: argparse.Namespace, pair: ModelPair, draft: str | None, say: Say, only: str | None = None
) -> Iterator[Offer]:
    """One offer a chain of each drafter, or of the `only` one."""
    from specviz.bench.bench_plan import FINAL, HEAT, chains
    from specviz.bench.benchmark import able, measure_setting, warm_up
    from specviz.bench.timed_runs import Workload

    contestants, refused = able(pair, iter(chains(pair, HEAT)))
    for mode, error in dict(refused).items():
        say(f"left out, {mode}: {error}")
    contestants = [one for one in contestants if only in (None, one.mode)]
    if not contestants:
        return
    plain, found = Contestant(PLAIN), {}
    preset = PRESETS[0] if options.prompt is None else Preset("", options.prompt)
    for plan in (HEAT, FINAL):
        workload = Workload.of(pair, preset, options.temperature, plan.max_new_tokens, chat=options.chat)
        if plan is HEAT:
            warm_up(workload, [plain, *contestants])
        say(f"{len(contestants)} ways to draft beside plain decoding, {plan.repeats} × {plan.max_new_tokens} tokens")
        rows = measure_setting(workload, [plain, *contestants], plan)
        found |= {one: row for one, row in zip(contestants, rows[1:]) if row.counted}
        if not found:
            raise nothing_known()
        contestants = sorted(found, key=lambda one: -found[one].speedup_measured)[:FINALISTS]
    for one, row in found.items():
        needs = one.mode == "draft_model"
        other = needs and pair.translation is not None
        yield Offer(one.mode, one.num_draft_tokens, row, row.counted, draft if needs else None, other)
