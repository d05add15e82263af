"""The benchmark: every way to decode in turn, warm, in one process, on the same prompts.

Greedy texts are compared before anything is timed. Contestants take turns with plain decoding (`specviz.bench.turns`),
so a machine that slows down slows all of them, and each speedup comes with the interval in which it lies.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specviz.bench.bench_plan import HEAT, BenchPlan, chains, entrants, planned, takes_part
from specviz.bench.bench_rows import BenchRow, TraceCost
from specviz.bench.contestants import PLAIN, Contestant, Say, standing
from specviz.bench.equal_texts import Agreement, agreement, plain_run
from specviz.bench.failures import Failures
from specviz.bench.laps import TimedRun, busy, speedup_of
from specviz.bench.looking import refusal_of
from specviz.bench.machine import Facts, describe_machine, load_average, peak_mb
from specviz.bench.machine_limits import BandwidthLimit, measure_limits
from specviz.bench.report import BenchReport
from specviz.bench.rule_replay import RulesRow, replay_rules
from specviz.bench.timed_runs import Workload, lane, request_of, written
from specviz.bench.turns import Plan, runs_by_number
from specviz.drafters import DRAFTERS
from specviz.drafters.draft_model import DraftModel
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError
from specviz.records.metrics import tally


@dataclass
class Benchmark:
    """A plan, and what was measured of it so far, which `report` tells at any time."""

    pair: ModelPair
    plan: BenchPlan
    contestants: Sequence[Contestant]
    temperatures: Sequence[float]
    asked: dict[str, Any]  # how it was ordered, for the record
    left_out: list[dict[str, str]]
    machine: Facts
    failures: Failures
    equality: list[Agreement] = field(default_factory=list)
    rows: list[BenchRow] = field(default_factory=list)
    tracing: list[TraceCost] = field(default_factory=list)
    rules: list[RulesRow] = field(default_factory=list)
    limit: list[BandwidthLimit] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        pair: ModelPair,
        quick: bool = False,
        say: Say = lambda line: None,
        only: Sequence[str] = (),
        temperatures: Sequence[float] = (0.0, 1.0),
        presets: Sequence[str] = (),
        chat: bool | None = None,
        max_new_tokens: int | None = None,
    ) -> Benchmark:
        """`say` hears a line of progress a setting.

        only: names of the drafters to measure; presets: names of the prompts; empty means all of the plan's. chat: on
        prompts for models that answer, by default if the pair has a chat template. max_new_tokens: of each run, by
        default the plan's. A drafter that this pair cannot run is left out, and the report says why. Raises
        SpecvizError for one that was named (field ``only`` if there is no such drafter), for a preset that does not
        exist (field ``preset``), and for a temperature out of range.
        """
        plan = planned(quick, only, presets, pair.has_chat_template if chat is None else chat, max_new_tokens)
        contestants, refused = able(pair, entrants(pair, plan, only or DRAFTERS))
        for mode, error in refused:
            if mode in (PLAIN, *only) and not any(contestant.mode == mode for contestant in contestants):
                raise error
            say(f"left out, {mode}: {error}")
        left_out = [{"mode": mode, "reason": error.message} for mode, error in refused]
        asked = {"quick": quick, "only": list(only)}
        return cls(pair, plan, contestants, temperatures, asked, left_out, describe_machine(pair), Failures(say))

    def run(self) -> None:
        """Measures all of it. A contestant that fails, or whose text is wrong, is not measured any further, and the
        report says why; plain decoding has to be right."""
        say, plan = self.failures.say, self.plan
        for temperature in self.temperatures:
            count = len(self._present(temperature))
            say(f"temperature {temperature:g}: {count} contestants once" + ", equal texts" * (temperature == 0))
            self._compare_texts(temperature)
            for preset in plan.presets:
                count = len(self._present(temperature))
                say(f"{preset.name}, temperature {temperature:g}: {count} contestants, {plan.repeats} times")
                self.measure_setting(Workload.of(self.pair, preset, temperature, plan.max_new_tokens))
            self._compare_rules(temperature)
        with self.failures.of("the bandwidth limit"):
            self.limit = _limits(self.pair, self.rows, plan)
        self.machine["load_average_end"] = load_average()

    def report(self, interrupted: bool = False) -> BenchReport:
        """What was measured so far. interrupted: there will be no more."""
        made = min((row.repeats for row in self.rows), default=0)
        sizes = {"max_new_tokens": self.plan.max_new_tokens, "repeats": self.plan.repeats, "repeats_made": made}
        return BenchReport(
            machine=self.machine,
            pair=asdict(self.pair.info()),
            settings=sizes | self.asked,
            rows=self.rows,
            tracing=self.tracing,
            rules=self.rules,
            left_out=self.left_out,
            failed=[{"title": title, "reason": str(reason)} for title, reason in self.failures.reasons.items()],
            interrupted=interrupted,
            equality=self.equality,
            limit=self.limit,
        )

    def _present(self, temperature: float) -> list[Contestant]:
        """Who is measured at this temperature."""
        failed = self.failures.reasons
        return [one for one in self.contestants if takes_part(one, temperature) and one.title not in failed]

    def _compare_texts(self, temperature: float) -> None:
        """At temperature 0 compares everybody's text of each preset; above it, only runs what has to be warm."""
        for preset in self.plan.presets if temperature == 0 else self.plan.presets[:1]:
            workload = Workload.of(self.pair, preset, temperature, self.plan.max_new_tokens)
            plain = plain_run(workload) if temperature == 0 else None
            for contestant in self._present(temperature):
                with self.failures.of(contestant.title):
                    if plain is not None:
                        self.equality.append(agreement(contestant, written(contestant, workload), plain, workload))
                    elif contestant.engine != "specviz":
                        written(contestant, workload)

    def measure_setting(self, workload: Workload) -> None:
        """Adds one row a contestant, plain decoding among them, and what records cost where the bare loop takes part;
        where it is ended meanwhile, rows of what there is."""
        present, failed = self._present(workload.temperature), self.failures.reasons
        for engine in ("specviz", "transformers"):
            # The library's runs cannot stand still, so they take turns among themselves, whole runs at a time.
            own = [one for one in present if one.engine == engine]
            if not own or own[0].mode != PLAIN:
                continue
            made: list[list[TimedRun]] = [[] for _ in own]
            try:
                self._take_turns(own, workload, made)
            finally:
                for one, runs in zip(own, made):
                    if runs and made[0] and one.title not in failed:
                        with self.failures.of(one.title):
                            self.rows.append(_row(one, runs, made[0], workload))
        for bare in present:
            if bare.engine == "bare":
                traced, base, own = replace(bare, engine="specviz"), [], []
                self._take_turns([bare, traced], workload, [base, own])
                if not {bare.title, traced.title} & failed.keys():
                    ratio = speedup_of(own, base)
                    self.tracing.append(TraceCost(traced.title, workload.preset, workload.temperature, ratio))

    def _take_turns(
        self, contestants: Sequence[Contestant], workload: Workload, made: Sequence[list[TimedRun]]
    ) -> None:
        budget = math.inf if self.plan.budget is None else self.plan.budget
        lanes = [self.failures.caught(one, functools.partial(lane, one, workload)) for one in contestants]
        runs_by_number(lanes, Plan(workload.max_new_tokens, self.plan.repeats, budget), made)

    def _compare_rules(self, temperature: float) -> None:
        """One row a γ, of the draft model; nothing at temperature 0, where both rules come to the same."""
        plan, present = self.plan, self._present(temperature)
        if temperature > 0 and any((one.mode, one.rule) == (DraftModel.name, "block") for one in present):
            for gamma in plan.rule_gammas:
                rounds = f"{plan.rule_rounds} rounds"
                self.failures.say(f"two rules on the same draws, γ={gamma}, temperature {temperature:g}: {rounds}")
                given = (gamma, temperature, plan.max_new_tokens, plan.rule_rounds)
                with self.failures.of(f"two rules, γ={gamma}"):
                    self.rules.append(replay_rules(self.pair, plan.presets, *given))


def advised_chains(pair: ModelPair) -> list[Contestant]:
    """What advice chooses from, as far as this pair can run it."""
    return able(pair, iter(chains(pair, HEAT)))[0]


def able(pair: ModelPair, contestants: Iterator[Contestant]) -> tuple[list[Contestant], list[tuple[str, SpecvizError]]]:
    """The contestants this pair can run, and of the others the drafter and why not, each reason once."""
    able, refused, shortest = [], {}, Workload(pair, (0,), 1.0, 1)
    for contestant in contestants:
        error = refusal_of(contestant, shortest) if contestant.engine == "specviz" else None
        if isinstance(error, SpecvizError):
            refused.setdefault((contestant.mode, error.message), (contestant.mode, error))
        else:
            able.append(contestant)  # what fails otherwise fails once more where it is measured, and that is told
    return able, list(refused.values())


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


def _limits(pair: ModelPair, rows: Sequence[BenchRow], plan: BenchPlan) -> list[BandwidthLimit]:
    """After as much text as the plain rows had on average; their speeds are those of the first temperature."""
    plain = [row for row in rows if row.title == PLAIN and row.temperature == rows[0].temperature]
    prompts = statistics.mean(len(pair.encode(preset.prompt).ids) for preset in plan.presets)
    limits = measure_limits(pair, context=round(prompts + plan.max_new_tokens / 2))
    speed = statistics.harmonic_mean([row.tokens_per_second for row in plain])
    return [replace(one, plain_tokens_per_second=speed) if one.role == "target" else one for one in limits]
