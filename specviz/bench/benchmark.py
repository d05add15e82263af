"""The benchmark: every way to decode in turn, warm, in one process, on the same prompts.

Greedy texts are compared before anything is timed. Contestants take turns with plain decoding (`specviz.bench.turns`),
so a machine that slows down slows all of them, and each speedup comes with the interval in which it lies.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from specviz.bench.bench_plan import HEAT, BenchPlan, chains, entrants, planned, takes_part
from specviz.bench.bench_rows import BenchRow, TraceCost
from specviz.bench.contestants import PLAIN, Contestant, Say, standing
from specviz.bench.equal_texts import Agreement, require_equal_texts
from specviz.bench.laps import TimedRun, busy, speedup_of
from specviz.bench.machine import describe_machine, load_average, peak_mb
from specviz.bench.machine_limits import BandwidthLimit, measure_limits
from specviz.bench.report import BenchReport
from specviz.bench.rule_replay import RulesRow, replay_rules
from specviz.bench.timed_runs import Workload, lane, request_of, written
from specviz.bench.turns import Plan, runs_by_number
from specviz.drafters import DRAFTERS, DraftModel
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError
from specviz.records.metrics import tally
from specviz.records.presets import PRESETS


def measure(
    pair: ModelPair,
    quick: bool = False,
    say: Say = lambda line: None,
    only: Sequence[str] = (),
    temperatures: Sequence[float] = (0.0, 1.0),
    presets: Sequence[str] = (),
    chat: bool | None = None,
    max_new_tokens: int | None = None,
) -> BenchReport:
    """Runs the whole plan; `say` hears a line of progress a setting.

    only: names of the drafters to measure; presets: names of the prompts; empty means all of the plan's. chat: on
    prompts for models that answer, by default if the pair has a chat template. max_new_tokens: of each run, by default
    the plan's. A drafter that
    this pair cannot run is left out, and the report says why. Raises SpecvizError for one that was named (field
    ``only`` if there is no such drafter), for a preset that does not exist (field ``preset``), and for a temperature
    out of range.
    """
    plan = planned(quick, only, presets, pair.has_chat_template if chat is None else chat, max_new_tokens)
    contestants, refused = able(pair, entrants(pair, plan, only or DRAFTERS))
    for mode, error in refused:
        if mode in (PLAIN, *only) and not any(contestant.mode == mode for contestant in contestants):
            raise error
        say(f"left out, {mode}: {error}")
    machine, equality, rows, tracing, rules = describe_machine(pair), [], [], [], []
    for temperature in temperatures:
        present = [contestant for contestant in contestants if takes_part(contestant, temperature)]
        say(f"temperature {temperature:g}: {len(present)} contestants once" + ", equal texts" * (temperature == 0))
        equality += _equal_texts(pair, present, temperature, plan)
        for preset in plan.presets:
            say(f"{preset.name}, temperature {temperature:g}: {len(present)} contestants, {plan.repeats} times")
            workload = Workload.of(pair, preset, temperature, plan.max_new_tokens)
            new_rows, new_costs = measure_setting(workload, present, plan)
            rows, tracing = rows + new_rows, tracing + new_costs
        rules += _compare_rules(pair, present, plan, temperature, say)
    limit = _limits(pair, rows, plan)
    machine["load_average_end"] = load_average()
    return BenchReport(
        machine=machine,
        pair=asdict(pair.info()),
        settings={
            "max_new_tokens": plan.max_new_tokens,
            "repeats": plan.repeats,
            "repeats_made": min(row.repeats for row in rows),
            "quick": quick,
            "only": list(only),
        },
        rows=rows,
        tracing=tracing,
        rules=rules,
        left_out=[{"mode": mode, "reason": error.message} for mode, error in refused],
        equality=equality,
        limit=limit,
    )


def advised_chains(pair: ModelPair) -> list[Contestant]:
    """What advice chooses from, as far as this pair can run it."""
    return able(pair, iter(chains(pair, HEAT)))[0]


def able(pair: ModelPair, contestants: Iterator[Contestant]) -> tuple[list[Contestant], list[tuple[str, SpecvizError]]]:
    """The contestants this pair can run, and of the others the drafter and why not, each reason once."""
    able, refused = [], {}
    for contestant in contestants:
        try:
            if contestant.engine == "specviz":
                request_of(contestant, Workload.of(pair, PRESETS[0], 1.0, 1))
        except SpecvizError as error:
            refused.setdefault((contestant.mode, error.message), (contestant.mode, error))
        else:
            able.append(contestant)
    return able, list(refused.values())


def _equal_texts(
    pair: ModelPair, contestants: Sequence[Contestant], temperature: float, plan: BenchPlan
) -> Iterator[Agreement]:
    """At temperature 0 compares everybody's text of each preset; above it, only runs what has to be warm."""
    for preset in plan.presets:
        workload = Workload.of(pair, preset, temperature, plan.max_new_tokens)
        if temperature == 0:
            yield from require_equal_texts(contestants, workload)
        elif preset is plan.presets[0]:
            for contestant in contestants:
                if contestant.engine != "specviz":
                    written(contestant, workload)


def measure_setting(
    workload: Workload, contestants: Sequence[Contestant], plan: BenchPlan
) -> tuple[list[BenchRow], list[TraceCost]]:
    """One row a contestant, plain decoding among them, and what records cost where the bare loop takes part."""
    rows, costs = [], []
    for engine in ("specviz", "transformers"):
        # The library's runs cannot stand still, so they take turns among themselves, whole runs at a time.
        own = [one for one in contestants if one.engine == engine]
        if own:
            runs = _runs(own, workload, plan)
            rows += [_row(one, made, runs[0], workload) for one, made in zip(own, runs)]
    for bare in contestants:
        if bare.engine == "bare":
            traced = replace(bare, engine="specviz")
            base, own = _runs([bare, traced], workload, plan)
            costs.append(TraceCost(traced.title, workload.preset, workload.temperature, speedup_of(own, base)))
    return rows, costs


def _runs(contestants: Sequence[Contestant], workload: Workload, plan: BenchPlan) -> list[list[TimedRun]]:
    """Everybody's runs, in turn with those of the first."""
    turns = Plan(workload.max_new_tokens, plan.repeats, math.inf if plan.budget is None else plan.budget)
    return runs_by_number([lane(contestant, workload) for contestant in contestants], turns)


def _row(contestant: Contestant, own: Sequence[TimedRun], plain: Sequence[TimedRun], workload: Workload) -> BenchRow:
    figures = standing(own, () if contestant.mode == PLAIN else plain)
    row = BenchRow(
        title=contestant.title,
        engine=contestant.engine,
        mode=contestant.mode,
        num_draft_tokens=contestant.num_draft_tokens,
        temperature=workload.temperature,
        preset=workload.preset,
        tokens=sum(len(run.token_ids) for run in own),
        peak_mb=peak_mb(workload.pair.device),
        repeats=len(own),
        busy=busy(own),
        **asdict(figures),
    )
    return _with_rounds(row, contestant, own, workload) if contestant.engine == "specviz" else row


def _with_rounds(row: BenchRow, contestant: Contestant, own: Sequence[TimedRun], workload: Workload) -> BenchRow:
    """What a row has where rounds are recorded; with drafts, their settings too, defaults filled in."""
    counts = [tally(run.rounds) for run in own]
    rounds = sum(one.rounds for one in counts)
    taken = 1e6 * sum(one.seconds for one in counts) / rounds
    row = replace(row, rounds=rounds, round_microseconds=taken, outside_microseconds=row.overhead_share * taken)
    if contestant.mode == PLAIN:
        return row
    request = request_of(contestant, workload)
    settings = request.drafter.settings(workload.pair, request.settings.drafting)
    own_settings = {name: settings.get(name) for name in ("exit_layer", "bits")}
    return replace(row, rule=request.rule.name, branches=request.branches, **own_settings)


def _compare_rules(
    pair: ModelPair, contestants: Sequence[Contestant], plan: BenchPlan, temperature: float, say: Say
) -> Iterator[RulesRow]:
    """One row a γ, of the draft model; nothing at temperature 0, where both rules come to the same."""
    if temperature > 0 and any((one.mode, one.rule) == (DraftModel.name, "block") for one in contestants):
        for gamma in plan.rule_gammas:
            say(f"two rules on the same draws, γ={gamma}, temperature {temperature:g}: {plan.rule_rounds} rounds")
            yield replay_rules(pair, plan.presets, gamma, temperature, plan.max_new_tokens, plan.rule_rounds)


def _limits(pair: ModelPair, rows: Sequence[BenchRow], plan: BenchPlan) -> list[BandwidthLimit]:
    """After as much text as the plain rows had on average; their speeds are those of the first temperature."""
    plain = [row for row in rows if row.title == PLAIN and row.temperature == rows[0].temperature]
    prompts = statistics.mean(len(pair.encode(preset.prompt).ids) for preset in plan.presets)
    limits = measure_limits(pair, context=round(prompts + plan.max_new_tokens / 2))
    speed = statistics.harmonic_mean([row.tokens_per_second for row in plain])
    return [replace(one, plain_tokens_per_second=speed) if one.role == "target" else one for one in limits]
