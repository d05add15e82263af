"""The benchmark: every way to decode in turn, warm, in one process, on the same prompts.

Greedy texts are compared before anything is timed. All contestants run once per repeat before any runs again, so a
machine that slows down slows all of them; speedups are ratios within a repeat. Nothing is estimated: a row is the
median over repeats of what was measured.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from specviz.bench.contest import PLAIN, Contestant, Standing, pace, standing
from specviz.bench.equal_texts import require_equal_texts
from specviz.bench.machine import describe_machine, load_average, peak_mb
from specviz.bench.pass_times import measure_limits
from specviz.bench.report import Report, RulesRow
from specviz.bench.rows import Row
from specviz.bench.sections import Agreement, Limit
from specviz.bench.timed_runs import Job, Timing, request_of, timed
from specviz.decoding import engine
from specviz.drafters import DRAFTERS, DraftModel, Eagle, Medusa, PromptLookup, Suffix, drafter_class
from specviz.models.pair import ModelPair
from specviz.passes.torchrun import process_count
from specviz.records.errors import SpecvizError
from specviz.records.presets import PRESETS, Preset

Say = Callable[[str], None]

#: Drafters that copy: a longer draft costs them nothing.
COPYING = (PromptLookup.name, Suffix.name)
#: Drafters measured as trees too.
BRANCHING = (DraftModel.name, Medusa.name, Eagle.name)

#: New tokens of the run that warms a contestant up before anything is timed.
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    gammas: of chains; copied_gammas: of those that copy. tree_gamma, tree_branches: of trees. yardstick_gammas: of
    transformers' assisted generation and prompt lookup. rule_gammas, rule_rounds: of the comparison of two rules on
    the same draws, with at least so many rounds for each γ. budget: seconds of one setting after which no further
    repeat is begun; None is no bound.
    """

    presets: Sequence[Preset]
    gammas: Sequence[int]
    copied_gammas: Sequence[int]
    tree_gamma: int
    tree_branches: Sequence[int]
    yardstick_gammas: Sequence[int]
    rule_gammas: Sequence[int]
    rule_rounds: int
    max_new_tokens: int
    repeats: int
    budget: float | None = None


FULL = Plan(
    presets=PRESETS,
    gammas=(2, 4, 6),
    copied_gammas=(2, 4, 8),
    tree_gamma=4,
    tree_branches=(2, 3, 4),
    yardstick_gammas=(4, 6),
    rule_gammas=(4, 8),
    rule_rounds=1200,
    max_new_tokens=128,
    repeats=3,
)
QUICK = Plan(
    presets=PRESETS[:1],
    gammas=(4,),
    copied_gammas=(4,),
    tree_gamma=4,
    tree_branches=(3,),
    yardstick_gammas=(4,),
    rule_gammas=(4,),
    rule_rounds=100,
    max_new_tokens=40,
    repeats=3,
    budget=10.0,
)


def measure(
    pair: ModelPair,
    quick: bool = False,
    say: Say = lambda line: None,
    only: Sequence[str] = (),
    temperatures: Sequence[float] = (0.0, 1.0),
    presets: Sequence[str] = (),
) -> Report:
    """Runs the whole plan; `say` hears a line of progress a setting.

    only: names of the drafters to measure; presets: of the prompts; empty is all of the plan's. A drafter that this
    pair cannot run is left out, and the report says why. Raises SpecvizError for one that was named (field ``only`` if
    there is no such drafter), for a preset that does not exist (field ``preset``), and for a temperature out of range.
    """
    plan = planned(quick, only, presets)
    contestants, refused = _able(pair, _contestants(pair, plan, only or DRAFTERS))
    for mode, error in refused:
        if mode in (PLAIN, *only) and not any(contestant.mode == mode for contestant in contestants):
            raise error
        say(f"left out, {mode}: {error}")
    machine, equality, rows, rules = describe_machine(pair), [], [], []
    for temperature in temperatures:
        present = [contestant for contestant in contestants if _takes_part(contestant, temperature)]
        say(f"temperature {temperature:g}: {len(present)} contestants once" + ", equal texts" * (temperature == 0))
        equality += _warm_up(pair, present, temperature, plan)
        for preset in plan.presets:
            say(f"{preset.name}, temperature {temperature:g}: {len(present)} contestants, {plan.repeats} times")
            rows += _measure_setting(pair, present, preset, temperature, plan)
        rules += _compare_rules(pair, present, plan, temperature, say)
    limit = _limits(pair, rows, plan)
    machine["load_average_end"] = load_average()
    return Report(
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


def planned(quick: bool, only: Sequence[str], presets: Sequence[str]) -> Plan:
    """What will be measured. Raises SpecvizError as `measure` does for a name that does not exist."""
    for name in only:
        if name not in DRAFTERS:
            raise SpecvizError(
                "There is no drafter {name} to measure; choose from {names}.",
                "only",
                name=repr(name),
                names=", ".join(DRAFTERS),
            )
    plan = QUICK if quick else FULL
    if process_count() > 1:
        # Processes that share a model must make the same passes, and each has a clock of its own.
        plan = replace(plan, budget=None)
    return replace(plan, presets=[_preset_named(name) for name in presets]) if presets else plan


def _warm_up(pair: ModelPair, contestants: Sequence[Contestant], temperature: float, plan: Plan) -> Iterator[Agreement]:
    """Every contestant once; greedy ones on every preset, and their texts are compared."""
    if temperature > 0:
        for contestant in contestants:
            timed(contestant, Job.of(pair, plan.presets[0], temperature, WARM_UP_TOKENS))
        return
    for preset in plan.presets:
        yield from require_equal_texts(contestants, Job.of(pair, preset, temperature, plan.max_new_tokens))


def _takes_part(contestant: Contestant, temperature: float) -> bool:
    """Greedy drafts are matched with the target's choice, whatever the rule; and the bare loop is greedy."""
    return contestant.engine != "bare" if temperature > 0 else contestant.rule == "auto"


def _preset_named(name: str) -> Preset:
    for preset in PRESETS:
        if preset.name == name:
            return preset
    names = ", ".join(preset.name for preset in PRESETS)
    raise SpecvizError("There is no preset {name}; choose from {names}.", "preset", name=repr(name), names=names)


def _contestants(pair: ModelPair, plan: Plan, names: Sequence[str]) -> Iterator[Contestant]:
    """Plain decoding, then every drafter named, able or not; then the same without records; then transformers."""
    yield Contestant(PLAIN)
    for name in names:
        # A drafter that makes trees unless told otherwise is told.
        chain = 1 if name in BRANCHING and drafter_class(pair, name).default_branches > 1 else None
        for gamma in _gammas(pair, plan, name):
            yield Contestant(name, gamma, branches=chain)
        if name == DraftModel.name:
            for gamma in plan.gammas:
                yield Contestant(name, gamma, rule="block")
        if name in BRANCHING:
            for branches in plan.tree_branches:
                yield Contestant(name, plan.tree_gamma, branches=branches)
    assisted = DraftModel.name in names and pair.draft is not None and pair.translation is None
    for loop in ("untraced", "bare"):
        yield Contestant(PLAIN, engine=loop)
        if assisted:
            yield Contestant(DraftModel.name, plan.yardstick_gammas[0], engine=loop)
    yardsticks = [DraftModel.name] * assisted + [PromptLookup.name] * (PromptLookup.name in names)
    if yardsticks:
        yield Contestant(PLAIN, engine="transformers")
    for name, gamma in itertools.product(yardsticks, plan.yardstick_gammas):
        yield Contestant(name, gamma, engine="transformers")


def _gammas(pair: ModelPair, plan: Plan, name: str) -> Sequence[int]:
    """Draft lengths for chains of this drafter. Medusa heads do not look further ahead than there are heads."""
    if name in COPYING:
        return plan.copied_gammas
    if name == Medusa.name and name in pair.parts:
        return [gamma for gamma in plan.gammas if gamma <= pair.parts[name].config.num_heads]
    return plan.gammas


def _able(
    pair: ModelPair, contestants: Iterator[Contestant]
) -> tuple[list[Contestant], list[tuple[str, SpecvizError]]]:
    """The contestants that this pair can run; of the others the drafter and why not, each reason once."""
    able, refused = [], {}
    for contestant in contestants:
        try:
            if contestant.engine == "specviz":
                _settings(request_of(contestant, Job.of(pair, PRESETS[0], 1.0, 1)))
        except SpecvizError as error:
            refused.setdefault((contestant.mode, error.message), (contestant.mode, error))
        else:
            able.append(contestant)
    return able, list(refused.values())


def _measure_setting(
    pair: ModelPair, contestants: Sequence[Contestant], preset: Preset, temperature: float, plan: Plan
) -> list[Row]:
    timings: dict[Contestant, list[Timing]] = {contestant: [] for contestant in contestants}
    # The same decoding by several engines, one right after the other: what they are compared for is small.
    kinds = list(dict.fromkeys(replace(contestant, engine="specviz") for contestant in contestants))
    order = sorted(contestants, key=lambda contestant: kinds.index(replace(contestant, engine="specviz")))
    began = time.perf_counter()
    for repeat in range(plan.repeats):
        if repeat and plan.budget is not None and time.perf_counter() - began > plan.budget:
            break
        job = Job.of(pair, preset, temperature, plan.max_new_tokens, seed=repeat)
        # Every other repeat backwards: a machine that slows down steadily is not always unkind to the same.
        for contestant in order if repeat % 2 == 0 else reversed(order):
            timings[contestant].append(timed(contestant, job))
    return [_row(contestant, timings, pair, preset, temperature) for contestant in contestants]


def _settings(request: engine.Request) -> dict[str, int | float | str | bool]:
    """The drafter's settings, defaults filled in: those of a run that has made no round yet."""
    return engine.collect(request, ()).settings


def _row(
    contestant: Contestant,
    timings: dict[Contestant, list[Timing]],
    pair: ModelPair,
    preset: Preset,
    temperature: float,
) -> Row:
    own = timings[contestant]
    plain = [] if contestant.mode == PLAIN else timings[Contestant(PLAIN, engine=contestant.engine)]
    if contestant.engine == "specviz":
        figures = standing([timing.counts for timing in own], [timing.counts for timing in plain])
    else:
        figures = pace([timing.speed for timing in own], [timing.speed for timing in plain])
    return Row(
        title=contestant.title,
        engine=contestant.engine,
        mode=contestant.mode,
        num_draft_tokens=contestant.num_draft_tokens,
        temperature=temperature,
        preset=preset.name,
        tokens=sum(timing.tokens for timing in own),
        peak_mb=peak_mb(pair.device),
        wall_speeds=tuple(timing.speed for timing in own),
        **asdict(figures),
        **(_of_rounds(own, figures) if contestant.engine == "specviz" else {}),
        **(_as_run(contestant, Job.of(pair, preset, temperature, 1)) if _drafts_here(contestant) else {}),
    )


def _drafts_here(contestant: Contestant) -> bool:
    return contestant.engine == "specviz" and contestant.mode != PLAIN


def _of_rounds(own: Sequence[Timing], figures: Standing) -> dict[str, float]:
    """What a row has where rounds are recorded."""
    rounds = sum(timing.counts.rounds for timing in own)
    taken = 1e6 * sum(timing.counts.seconds for timing in own) / rounds
    return {
        "rounds": rounds,
        "round_microseconds": taken,
        "outside_microseconds": figures.overhead_share * taken,
    }


def _as_run(contestant: Contestant, job: Job) -> dict[str, str | int | None]:
    """A contestant's settings, defaults filled in."""
    request = request_of(contestant, job)
    return {
        "rule": request.rule,
        "branches": drafter_class(job.pair, contestant.mode).branches(job.pair, request.drafting),
        "exit_layer": _settings(request).get("exit_layer"),
    }


def _compare_rules(
    pair: ModelPair, contestants: Sequence[Contestant], plan: Plan, temperature: float, say: Say
) -> Iterator[RulesRow]:
    """What token by token and block verification keep of the same drafts, one row a γ; nothing where both are one."""
    if temperature > 0 and any(contestant.rule == "block" for contestant in contestants):
        for gamma in plan.rule_gammas:
            say(f"two rules on the same draws, γ={gamma}, temperature {temperature:g}: {plan.rule_rounds} rounds")
            yield _rules_row(pair, plan, gamma, temperature)


def _rules_row(pair: ModelPair, plan: Plan, gamma: int, temperature: float) -> RulesRow:
    """Drafts of the draft model, judged by both rules with the same coins."""
    contestant, kept = Contestant(DraftModel.name, gamma), []
    for seed in itertools.count():
        for preset in plan.presets:
            request = request_of(contestant, Job.of(pair, preset, temperature, plan.max_new_tokens, seed))
            kept += [(one.accepted, other.accepted) for one, other in engine.replay(request, "block")]
            if len(kept) >= plan.rule_rounds:
                return RulesRow.of(DraftModel.name, gamma, temperature, kept)


def _limits(pair: ModelPair, rows: Sequence[Row], plan: Plan) -> list[Limit]:
    """After as much text as the plain rows had on average; they are taken at the first temperature measured."""
    plain = [row for row in rows if row.title == PLAIN and row.temperature == rows[0].temperature]
    prompts = statistics.mean(len(pair.encode(preset.prompt).ids) for preset in plan.presets)
    limits = measure_limits(pair, context=round(prompts + plan.max_new_tokens / 2))
    speed = statistics.harmonic_mean([row.tokens_per_second for row in plain])
    return [replace(one, plain_tokens_per_second=speed) if one.role == "target" else one for one in limits]
