"""The benchmark: every way to decode in turn, warm, in one process, on the same prompts.

Greedy texts are compared before anything is timed. Contestants take turns with plain decoding (`specviz.bench.turns`),
so a machine that slows down slows all of them, and each speedup comes with its interval.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specviz.bench.bench_plan import HEAT, BenchPlan, chains, entrants, planned, takes_part
from specviz.bench.contestants import PLAIN, Contestant, Say, TimedRun, busy, figures_of, speedup_of
from specviz.bench.equal_texts import Agreement, agreement, plain_run
from specviz.bench.lanes import Failures, lane, plain_request, refusal_of, request_of, written
from specviz.bench.machine import BandwidthLimit, Facts, describe_machine, load_average, measure_limits, peak_mb
from specviz.bench.report import BenchReport, BenchRow, RulesRow, TraceCost
from specviz.bench.turns import Plan, runs_by_number
from specviz.decoding.engine import replay
from specviz.decoding.request import Request, prepare
from specviz.drafters import DRAFTERS
from specviz.drafters.draft_model import DraftModel
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError
from specviz.records.metrics import tally
from specviz.records.prompts import Preset
from specviz.records.settings import RunSettings


@dataclass
class Benchmark:
    """A plan and its measurements so far, of which `report` makes a report at any time."""

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
        """say: receives a line of progress a setting.

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
                self._measure_setting(plain_request(self.pair, preset, temperature, plan.max_new_tokens), preset.name)
            self._compare_rules(temperature)
        with self.failures.of("the bandwidth limit"):
            self.limit = _limits(self.pair, self.rows, plan)
        self.machine["load_average_end"] = load_average()

    def report(self, interrupted: bool = False) -> BenchReport:
        """The measurements so far. interrupted: there will be no more."""
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
        """The contestants that are measured at this temperature."""
        failed = self.failures.reasons
        return [one for one in self.contestants if takes_part(one, temperature) and one.title not in failed]

    def _compare_texts(self, temperature: float) -> None:
        """At temperature 0 compares all texts of each preset; above it, only warms up the other engines."""
        for preset in self.plan.presets if temperature == 0 else self.plan.presets[:1]:
            plain = plain_request(self.pair, preset, temperature, self.plan.max_new_tokens)
            due = plain_run(plain) if temperature == 0 else None
            for one in self._present(temperature):
                with self.failures.of(one.title):
                    if due is not None:
                        self.equality.append(agreement(one, written(one, plain), due, plain, preset.name))
                    elif one.engine != "specviz":
                        written(one, plain)

    def _measure_setting(self, plain: Request, preset: str) -> None:
        """Adds one row a contestant, plain decoding among them, and the cost of records where the bare loop takes part;
        if it is interrupted, rows of the runs so far."""
        temperature = plain.settings.sampling.temperature
        present, failed = self._present(temperature), self.failures.reasons
        for engine in ("specviz", "transformers"):
            # The library's runs cannot stand still, so they take turns among themselves, whole runs at a time.
            own = [one for one in present if one.engine == engine]
            if not own or own[0].mode != PLAIN:
                continue
            made: list[list[TimedRun]] = [[] for _ in own]
            try:
                self._take_turns(own, plain, made)
            finally:
                for one, runs in zip(own, made):
                    if runs and made[0] and one.title not in failed:
                        with self.failures.of(one.title):
                            self.rows.append(_row(one, runs, made[0], plain, preset))
        for bare in present:
            if bare.engine == "bare":
                traced, base, own = replace(bare, engine="specviz"), [], []
                self._take_turns([bare, traced], plain, [base, own])
                if not {bare.title, traced.title} & failed.keys():
                    self.tracing.append(TraceCost(traced.title, preset, temperature, speedup_of(own, base)))

    def _take_turns(self, contestants: Sequence[Contestant], plain: Request, made: Sequence[list[TimedRun]]) -> None:
        budget = math.inf if self.plan.budget is None else self.plan.budget
        lanes = [self.failures.caught(one, functools.partial(lane, one, plain)) for one in contestants]
        runs_by_number(lanes, Plan(plain.settings.max_new_tokens, self.plan.repeats, budget), made)

    def _compare_rules(self, temperature: float) -> None:
        """One row a γ, of the draft model; nothing at temperature 0, where both rules come to the same."""
        plan, present = self.plan, self._present(temperature)
        if temperature > 0 and any((one.mode, one.rule) == (DraftModel.name, "block") for one in present):
            for gamma in plan.rule_gammas:
                rounds = f"{plan.rule_rounds} rounds"
                self.failures.say(f"two rules on the same draws, γ={gamma}, temperature {temperature:g}: {rounds}")
                given = (gamma, temperature, plan.max_new_tokens, plan.rule_rounds)
                with self.failures.of(f"two rules, γ={gamma}"):
                    self.rules.append(_replay_rules(self.pair, plan.presets, *given))


def _replay_rules(
    pair: ModelPair, presets: Sequence[Preset], gamma: int, temperature: float, max_new_tokens: int, rounds: int
) -> RulesRow:
    """Drafts of the draft model on the presets in turn, seed after seed, until there are enough rounds."""
    contestant, kept = Contestant(DraftModel.name, gamma), []
    for seed in itertools.count():
        for preset in presets:
            request = request_of(contestant, plain_request(pair, preset, temperature, max_new_tokens, seed))
            kept += [(token.accepted, block.accepted) for token, block in replay(request, "block")]
            if len(kept) >= rounds:
                return RulesRow.of(DraftModel.name, gamma, temperature, kept)


def advised_chains(pair: ModelPair) -> list[Contestant]:
    """The contestants of advice that this pair can run."""
    return able(pair, iter(chains(pair, HEAT)))[0]


def able(pair: ModelPair, contestants: Iterator[Contestant]) -> tuple[list[Contestant], list[tuple[str, SpecvizError]]]:
    """The contestants this pair can run, and of the others the drafter and why not, each reason once."""
    able, refused, shortest = [], {}, prepare(pair, RunSettings((0,), None, max_new_tokens=1))
    for contestant in contestants:
        error = refusal_of(contestant, shortest) if contestant.engine == "specviz" else None
        if isinstance(error, SpecvizError):
            refused.setdefault((contestant.mode, error.message), (contestant.mode, error))
        else:
            able.append(contestant)  # any other error occurs again when it is measured, and is reported there
    return able, list(refused.values())


def _row(
    contestant: Contestant, own: Sequence[TimedRun], base: Sequence[TimedRun], plain: Request, preset: str
) -> BenchRow:
    figures = figures_of(own, () if contestant.mode == PLAIN else base)
    row = BenchRow(
        title=contestant.title,
        engine=contestant.engine,
        mode=contestant.mode,
        num_draft_tokens=contestant.num_draft_tokens,
        temperature=plain.settings.sampling.temperature,
        preset=preset,
        tokens=sum(len(run.token_ids) for run in own),
        peak_mb=peak_mb(plain.pair.device),
        repeats=len(own),
        busy=busy(own),
        **asdict(figures),
    )
    if contestant.engine != "specviz":
        return row
    counts = tally(one for run in own for one in run.rounds)
    taken = 1e6 * counts.seconds / counts.rounds
    row = replace(row, rounds=counts.rounds, round_microseconds=taken, outside_microseconds=row.overhead_share * taken)
    if contestant.mode == PLAIN:
        return row
    request = request_of(contestant, plain)
    settings = request.drafter.settings(plain.pair, request.settings.drafting)
    own_settings = {name: settings.get(name) for name in ("exit_layer", "bits")}
    return replace(row, rule=request.rule.name, branches=request.branches, **own_settings)


def _limits(pair: ModelPair, rows: Sequence[BenchRow], plan: BenchPlan) -> list[BandwidthLimit]:
    """After as much text as the plain rows had on average; their speeds are those of the first temperature."""
    plain = [row for row in rows if row.title == PLAIN and row.temperature == rows[0].temperature]
    prompts = statistics.mean(len(pair.encode(preset.prompt).ids) for preset in plan.presets)
    limits = measure_limits(pair, context=round(prompts + plan.max_new_tokens / 2))
    speed = statistics.harmonic_mean([row.tokens_per_second for row in plain])
    return [replace(one, plain_tokens_per_second=speed) if one.role == "target" else one for one in limits]
