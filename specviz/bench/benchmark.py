"""The benchmark: every way to decode in turn, warm, in one process, on the same prompts.

Greedy texts are compared before anything is timed. Contestants take turns with plain decoding (`specviz.bench.turns`),
so a machine that slows down slows all of them, and each speedup comes with its interval.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specviz.bench.contestants import PLAIN, Contestant, Say, TimedRun, busy, figures_of
from specviz.bench.equal_texts import Agreement, agreement, plain_run
from specviz.bench.lanes import Failures, lane, plain_request, refusal_of, request_of, written
from specviz.bench.machine import Facts, describe_machine, load_average, peak_mb
from specviz.bench.report import MEMORY_FIELDS, BenchReport, BenchRow, Values
from specviz.bench.turns import Plan, runs_by_number
from specviz.decoding.request import Request, prepare
from specviz.drafters import DRAFTERS
from specviz.drafters.base import Drafter
from specviz.drafters.copying import PromptLookup
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.registry import drafter_class
from specviz.models.memory_share import memory_share
from specviz.models.pair import ModelPair
from specviz.passes.processes import process_count
from specviz.records.errors import SpecvizError, quoted
from specviz.records.metrics import tally
from specviz.records.prompts import CHAT_PRESETS, PRESETS, Preset
from specviz.records.settings import AUTO, BITS, RunSettings


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How much is measured."""

    presets: Sequence[Preset] = PRESETS
    #: Draft lengths of chains. 5 fills the rows that our kernels read at once without AVX-512, see `few_rows.cpp`.
    gammas: Sequence[int] = (2, 3, 4, 5, 6)
    copied_gammas: Sequence[int] = (2, 4, 8)  # draft lengths of drafters that copy
    tree_gamma: int = 4  # depth of trees
    tree_branches: Sequence[int] = (2, 3, 4)
    yardstick_gammas: Sequence[int] = (4, 6)  # draft lengths of transformers' assisted generation and prompt lookup
    max_new_tokens: int = 128
    repeats: int = 3
    budget: float | None = None  # seconds of one setting's turns after which no further repeat begins


FULL = BenchPlan()
#: Of the advice on which drafter to use, and of one's own prompts: only the lengths count.
HEAT = BenchPlan(gammas=(2, 3, 4, 5, 6), copied_gammas=(4, 8))
QUICK = BenchPlan(
    gammas=(4,),
    copied_gammas=(4,),
    tree_branches=(3,),
    yardstick_gammas=(4,),
    max_new_tokens=40,
    budget=10.0,
)


def planned(
    quick: bool, only: Sequence[str], names: Sequence[str], chat: bool = False, max_new_tokens: int | None = None
) -> BenchPlan:
    """The plan for these names; none named means all. chat: on prompts for models that answer.

    Raises SpecvizError (field ``only`` or ``preset``) for a drafter or a preset that does not exist.
    """
    for name in only:
        if name not in DRAFTERS:
            raise SpecvizError(
                "There is no drafter {name} to measure; choose from {names}.",
                "only",
                name=quoted(name),
                names=", ".join(DRAFTERS),
            )
    plan = QUICK if quick else FULL
    if process_count() > 1:
        # Processes that share a model must make the same passes, and each has a clock of its own.
        plan = replace(plan, budget=None)
    known = CHAT_PRESETS if chat else PRESETS
    presets = [preset_named(name, known) for name in names] or (known[:1] if quick else known)
    plan = replace(plan, presets=presets)
    return plan if max_new_tokens is None else replace(plan, max_new_tokens=max_new_tokens)


def preset_named(name: str, known: Sequence[Preset]) -> Preset:
    """Raises SpecvizError (field ``preset``) if there is none of this name."""
    for preset in known:
        if preset.name == name:
            return preset
    names = ", ".join(preset.name for preset in known)
    raise SpecvizError("There is no preset {name}; choose from {names}.", "preset", name=quoted(name), names=names)


def entrants(pair: ModelPair, plan: BenchPlan, names: Sequence[str]) -> Iterator[Contestant]:
    """Plain decoding and every drafter named, able to run or not; then transformers."""
    yield Contestant(PLAIN)
    for name in names:
        drafter = drafter_class(pair, name)
        # A drafter that makes trees by default makes chains only with one branch.
        chain = 1 if "tree" in drafter.measured_as and drafter.default_branches > 1 else None
        for gamma in _gammas(pair, plan, drafter):
            yield Contestant(name, gamma, branches=chain)
        yield Contestant(name, AUTO, branches=chain)
        if "block" in drafter.measured_as:
            for gamma in plan.gammas:
                yield Contestant(name, gamma, branches=chain, rule="block")
        if "bits" in drafter.measured_as:
            for gamma in plan.gammas:
                yield Contestant(name, gamma, bits=BITS[-1])
        if "tree" in drafter.measured_as:
            for branches in plan.tree_branches:
                yield Contestant(name, plan.tree_gamma, branches=branches)
            yield Contestant(name, AUTO, branches=plan.tree_branches[-1])
    assisted = DraftModel.name in names and pair.draft is not None and pair.translation is None
    yardsticks = [DraftModel.name] * assisted + [PromptLookup.name] * (PromptLookup.name in names)
    if yardsticks:
        yield Contestant(PLAIN, engine="transformers")
    for name, gamma in itertools.product(yardsticks, plan.yardstick_gammas):
        yield Contestant(name, gamma, engine="transformers")


def chains(pair: ModelPair, plan: BenchPlan) -> list[Contestant]:
    """Those of them that servers offer too, able to run or not: chains of a fixed length by each drafter's defaults."""
    return [
        one
        for one in entrants(pair, plan, DRAFTERS)
        if one == Contestant(one.mode, one.num_draft_tokens, one.branches)
        and isinstance(one.num_draft_tokens, int)
        and one.branches in (None, 1)
    ]


def takes_part(contestant: Contestant, temperature: float) -> bool:
    """Greedy drafts are compared with the target's choice, whatever the rule."""
    return temperature > 0 or contestant.rule == "auto"


def _gammas(pair: ModelPair, plan: BenchPlan, drafter: type[Drafter]) -> Sequence[int]:
    """Draft lengths of this drafter's chains. Some draft no deeper than they were trained to."""
    if drafter.copies:
        return plan.copied_gammas
    return [gamma for gamma in plan.gammas if gamma <= drafter.most_depths(pair)]


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
        self.machine["load_average_end"] = load_average()

    def report(self, interrupted: bool = False) -> BenchReport:
        """The measurements so far. interrupted: there will be no more."""
        made = min((row.repeats for row in self.rows), default=0)
        sizes = {"max_new_tokens": self.plan.max_new_tokens, "repeats": self.plan.repeats, "repeats_made": made}
        return BenchReport(
            machine=self.machine,
            pair=asdict(self.pair.info()),
            memory=_memory(self.pair),
            settings=sizes | self.asked,
            rows=self.rows,
            left_out=self.left_out,
            failed=[{"title": title, "reason": str(reason)} for title, reason in self.failures.reasons.items()],
            interrupted=interrupted,
            equality=self.equality,
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
        """Adds one row a contestant, plain decoding among them; if it is interrupted, rows of the runs so far."""
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

    def _take_turns(self, contestants: Sequence[Contestant], plain: Request, made: Sequence[list[TimedRun]]) -> None:
        budget = math.inf if self.plan.budget is None else self.plan.budget
        lanes = [self.failures.caught(one, functools.partial(lane, one, plain)) for one in contestants]
        runs_by_number(lanes, Plan(plain.settings.max_new_tokens, self.plan.repeats, budget), made)


def _memory(pair: ModelPair) -> Values | None:
    """How near the target's passes come to the memory's bandwidth; figures that are not known are None."""
    share = memory_share(pair)
    if share is None:
        return None
    if isinstance(share, SpecvizError):
        return dict.fromkeys(MEMORY_FIELDS) | {"sentence": share.message}
    figures = share.weight_bytes, share.seconds, share.memory.bandwidth, share.share
    return dict(zip(MEMORY_FIELDS, figures, strict=True)) | {"sentence": str(share.sentence)}


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
