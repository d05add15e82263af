"""What the benchmark's rows say, in sentences: answers to the questions people ask, and what disturbed the machine."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from specviz.bench.bench_rows import STORY_GROUP, BenchRow, FormulaCheck, Summary


def findings(groups: Sequence[Summary], checks: Sequence[FormulaCheck]) -> list[str]:
    """The best drafter, EAGLE beside the draft model, trees beside chains, theory beside measurement."""
    stories = [entry for entry in groups if entry.group == STORY_GROUP and entry.engine == "specviz"]
    return [*_best(groups), *_eagle_beside_draft_model(stories), *_trees_beside_chains(stories), *_formula(checks)]


def _best(groups: Sequence[Summary]) -> Iterator[str]:
    contests: dict[tuple[float, str], list[Summary]] = {}
    for entry in groups:
        if entry.engine == "specviz" and entry.speedup_measured is not None:
            contests.setdefault((entry.temperature, entry.group), []).append(entry)
    for (temperature, group), entries in contests.items():
        best = max(entries, key=lambda entry: entry.speedup_measured)
        yield (
            f"Best at temperature {temperature:g} on {group}: {best.title}, {best.speedup_measured:.2f} × plain, "
            f"{best.acceptance_length:.2f} tokens a pass."
        )


def _eagle_beside_draft_model(stories: Sequence[Summary]) -> Iterator[str]:
    setting = operator.attrgetter("temperature", "num_draft_tokens", "branches", "rule")
    drafts = {setting(entry): entry for entry in stories if entry.mode == "draft_model"}
    for eagle in stories:
        other = drafts.get(setting(eagle)) if eagle.mode == "eagle" else None
        if other:
            yield (
                f"Tokens a pass at temperature {eagle.temperature:g} on {STORY_GROUP}: {eagle.title} "
                f"{eagle.acceptance_length:.2f}, {other.title} {other.acceptance_length:.2f}."
            )


def _trees_beside_chains(stories: Sequence[Summary]) -> Iterator[str]:
    setting = operator.attrgetter("temperature", "mode", "num_draft_tokens")
    chains = {setting(entry): entry for entry in stories if entry.branches == 1 and entry.rule == "token"}
    for tree in stories:
        chain = chains.get(setting(tree)) if (tree.branches or 1) > 1 else None
        if chain and None not in (tree.speedup_measured, chain.speedup_measured):
            yield (
                f"Tree beside chain at temperature {tree.temperature:g} on {STORY_GROUP}: {tree.title} "
                f"{tree.acceptance_length:.2f} tokens a pass and {tree.speedup_measured:.2f} × plain, {chain.title} "
                f"{chain.acceptance_length:.2f} and {chain.speedup_measured:.2f}."
            )


def _formula(checks: Sequence[FormulaCheck]) -> Iterator[str]:
    """Thm 3.8 leaves out reading the prompt, the engine's work between passes, and what a wide target pass costs more
    than one token's."""
    by_mode: dict[tuple[float, str], list[FormulaCheck]] = {}
    for check in checks:
        by_mode.setdefault((check.temperature, check.mode), []).append(check)
    for (temperature, mode), found in by_mode.items():
        least = min(found, key=lambda check: check.ratio)
        median = statistics.median(check.ratio for check in found)
        yield (
            f"Measured / formula at temperature {temperature:g}, chains of {mode}: median {median:.2f}, "
            f"least {least.ratio:.2f} ({least.title} on {least.preset})."
        )


def busy(machine: dict[str, str | int | float | None]) -> str | None:
    """A sentence where others were using the machine when the benchmark began."""
    load, cores = machine.get("load_average_start"), machine.get("cores")
    if load is None or cores is None or load <= cores:
        return None
    return (
        f"The machine was busy when this began: a load of {load:g} on {cores} cores. Trust ratios and their "
        "intervals, not tokens per second."
    )


#: Of a report that was asked for before everything was measured.
INTERRUPTED = "Interrupted: this is what was measured until then."


def unsteady(rows: Sequence[BenchRow], settings: dict[str, Any], interrupted: bool = False) -> str | None:
    """What disturbed the benchmark: others wanted the processor, time ran short, or it was ended."""
    disturbed, said = sum(row.busy for row in rows), []
    if disturbed:
        said.append(
            f"Something else wanted the processor in {disturbed} of {len(rows)} rows: their intervals allow for it."
        )
    planned, made = settings.get("repeats"), settings.get("repeats_made")
    if interrupted:
        said.append(INTERRUPTED)
    elif made != planned:
        said.append(f"{made} of {planned} repeats fitted into the time of a quick run.")
    return " ".join(said) or None
