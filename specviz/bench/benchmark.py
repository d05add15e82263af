"""The benchmark: every way to decode in turn, warm, in one process, on the same prompts.

Greedy texts are compared before anything is timed. Every contestant runs once a repeat before any runs again, so a
machine that slows down slows all of them; speedups are ratios within a repeat. Nothing is estimated: a row is the
median over repeats of what was measured, without those that something else held up.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from specviz.bench.bench_plan import HEAT, BenchPlan, chains, entrants, planned, takes_part
from specviz.bench.bench_rows import BenchRow
from specviz.bench.contestants import PLAIN, Contestant, Say, pace, standing
from specviz.bench.equal_texts import Agreement, require_equal_texts
from specviz.bench.machine import describe_machine, load_average, peak_mb
from specviz.bench.machine_limits import BandwidthLimit, measure_limits
from specviz.bench.report import BenchReport
from specviz.bench.rule_replay import RulesRow, replay_rules
from specviz.bench.timed_runs import Timing, Workload, request_of, timed
from specviz.drafters import DRAFTERS, DraftModel
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError
from specviz.records.presets import PRESETS
from specviz.records.stopwatch import undisturbed

#: New tokens of the run that warms a contestant up before anything is timed.
WARM_UP_TOKENS = 16


def measure(
    pair: ModelPair,
    quick: bool = False,
    say: Say = lambda line: None,
    only: Sequence[str] = (),
    temperatures: Sequence[float] = (0.0, 1.0),
    presets: Sequence[str] = (),
) -> BenchReport:
    """Runs the whole plan; `say` hears a line of progress a setting.

    only: names of the drafters to measure; presets: names of the prompts; empty means all of the plan's. A drafter that
    this pair cannot run is left out, and the report says why. Raises SpecvizError for one that was named (field
    ``only`` if there is no such drafter), for a preset that does not exist (field ``preset``), and for a temperature
    out of range.
    """
    plan = planned(quick, only, presets)
    contestants, refused = able(pair, entrants(pair, plan, only or DRAFTERS))
    for mode, error in refused:
        if mode in (PLAIN, *only) and not any(contestant.mode == mode for contestant in contestants):
            raise error
        say(f"left out, {mode}: {error}")
    machine, equality, rows, rules = describe_machine(pair), [], [], []
    for temperature in temperatures:
        present = [contestant for contestant in contestants if takes_part(contestant, temperature)]
        say(f"temperature {temperature:g}: {len(present)} contestants once" + ", equal texts" * (temperature == 0))
        equality += _warm_up(pair, present, temperature, plan)
        for preset in plan.presets:
            say(f"{preset.name}, temperature {temperature:g}: {len(present)} contestants, {plan.repeats} times")
            rows += measure_setting(Workload.of(pair, preset, temperature, plan.max_new_tokens), present, plan)
        rules += _compare_rules(pair, present, plan, temperature, say)
    limit = _limits(pair, rows, plan)
    machine["load_average_end"] = load_average()
    return BenchReport(
        machine=machine,
        pair=asdict(pair.info()),
        settings={
            "max_new_tokens": plan.max_new_tokens,
            "repeats": plan.repeats,
            "repeats_made": min(len(row.wall_speeds) for row in rows),
            "quick": quick,
            "only": list(only),
        },
        rows=rows,
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


def _warm_up(
    pair: ModelPair, contestants: Sequence[Contestant], temperature: float, plan: BenchPlan
) -> Iterator[Agreement]:
    """Runs every contestant once; at temperature 0 on every preset, and compares the texts."""
    if temperature > 0:
        warm_up(Workload.of(pair, plan.presets[0], temperature, WARM_UP_TOKENS), contestants)
        return
    for preset in plan.presets:
        yield from require_equal_texts(contestants, Workload.of(pair, preset, temperature, plan.max_new_tokens))


def warm_up(workload: Workload, contestants: Sequence[Contestant]) -> None:
    """The first few tokens of each."""
    few = replace(workload, max_new_tokens=min(WARM_UP_TOKENS, workload.max_new_tokens))
    for contestant in contestants:
        timed(contestant, few)


def measure_setting(workload: Workload, contestants: Sequence[Contestant], plan: BenchPlan) -> list[BenchRow]:
    """One row a contestant, plain decoding among them; all were run before."""
    timings: dict[Contestant, list[Timing]] = {contestant: [] for contestant in contestants}
    # The same decoding by several engines runs back to back: the differences between them are small. Plain decoding in
    # the middle: nobody is far from what all are compared with.
    kinds = list(dict.fromkeys(replace(contestant, engine="specviz") for contestant in contestants))
    kinds.remove(Contestant(PLAIN))
    kinds.insert(len(kinds) // 2, Contestant(PLAIN))
    order = sorted(contestants, key=lambda contestant: kinds.index(replace(contestant, engine="specviz")))
    began = time.perf_counter()
    for repeat in range(plan.repeats):
        if repeat and plan.budget is not None and time.perf_counter() - began > plan.budget:
            break
        # Every other repeat backwards, so that a machine that keeps slowing down is not always unkind to the same ones.
        # Of three repeats the median still leans towards the first and the last.
        for contestant in order if repeat % 2 == 0 else reversed(order):
            timings[contestant].append(timed(contestant, replace(workload, seed=repeat)))
    return [_row(contestant, timings, workload, plan.least_share) for contestant in contestants]


def _row(
    contestant: Contestant, timings: dict[Contestant, list[Timing]], workload: Workload, least_share: float
) -> BenchRow:
    made, beside = timings[contestant], timings[Contestant(PLAIN, engine=contestant.engine)]
    pairs = [pair for pair in zip(made, beside) if undisturbed([one.share for one in pair], least_share)]
    own = [one for one, _ in pairs] or made
    plain = [] if contestant.mode == PLAIN else [other for _, other in pairs]
    if contestant.engine == "specviz":
        figures = standing([timing.counts for timing in own], [timing.counts for timing in plain])
    else:
        figures = pace([timing.speed for timing in own], [timing.speed for timing in plain])
    row = BenchRow(
        title=contestant.title,
        engine=contestant.engine,
        mode=contestant.mode,
        num_draft_tokens=contestant.num_draft_tokens,
        temperature=workload.temperature,
        preset=workload.preset,
        tokens=sum(timing.tokens for timing in own),
        peak_mb=peak_mb(workload.pair.device),
        counted=len(pairs),
        wall_speeds=tuple(timing.speed for timing in made),
        **asdict(figures),
    )
    return _with_rounds(row, contestant, own, workload) if contestant.engine == "specviz" else row


def _with_rounds(row: BenchRow, contestant: Contestant, own: Sequence[Timing], workload: Workload) -> BenchRow:
    """What a row has where rounds are recorded; with drafts, their settings too, defaults filled in."""
    rounds = sum(timing.counts.rounds for timing in own)
    taken = 1e6 * sum(timing.counts.seconds for timing in own) / rounds
    row = replace(row, rounds=rounds, round_microseconds=taken, outside_microseconds=row.overhead_share * taken)
    if contestant.mode == PLAIN:
        return row
    request = request_of(contestant, workload)
    settings = request.drafter.settings(workload.pair, request.settings.drafting)
    own = {name: settings.get(name) for name in ("exit_layer", "bits")}
    return replace(row, rule=request.rule.name, branches=request.branches, **own)


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
