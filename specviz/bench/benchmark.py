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

from specviz.bench.contest import Contest, Row
from specviz.bench.contestants import DEFAULTS, PLAIN, Contestant, Report
from specviz.bench.contesting import (
    Failures,
    able,
    drafting,
    entry_of,
    measure_contest,
    new_tokens,
    plain_request,
)
from specviz.bench.equal_texts import Agreement, agreement, plain_run, served_agreement
from specviz.bench.machine import Facts, describe_machine, load_average, peak_mb
from specviz.bench.report import BenchReport
from specviz.bench.served import Served, looked_at
from specviz.bench.turns import Amount
from specviz.bench.vary import OF_CONTESTANTS, OF_TASKS, Values, each_of
from specviz.decoding.request import Request
from specviz.drafters import DRAFTERS
from specviz.drafters.base import Drafter
from specviz.drafters.copying import PromptLookup
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.registry import drafter_class
from specviz.models.memory_share import memory_values
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError, quoted
from specviz.records.prompts import CHAT_PRESETS, PRESETS, Preset
from specviz.records.settings import AUTO, BITS, DRAFTING, RunSettings


@dataclass(frozen=True, slots=True)
class BenchSize:
    """Which settings are measured, and how much of each."""

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


#: What is varied of a text that all decode, by flat names; a temperature among them.
Task = dict[str, Any]

#: The fields of `SamplingParams` but the temperature.
SAMPLING = ("top_k", "top_p", "min_p")

FULL = BenchSize()
#: Of the advice on which drafter to use, and of the user's prompts: only the lengths count.
ADVICE = BenchSize(gammas=(2, 3, 4, 5, 6), copied_gammas=(4, 8))
QUICK = BenchSize(
    gammas=(4,), copied_gammas=(4,), tree_branches=(3,), yardstick_gammas=(4,), max_new_tokens=40, budget=10.0
)


def size_of(
    quick: bool, only: Sequence[str], names: Sequence[str], chat: bool = False, max_new_tokens: int | None = None
) -> BenchSize:
    """The size for these names; none named means all. chat: on prompts for models that answer.

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
    size = QUICK if quick else FULL
    choices = CHAT_PRESETS if chat else PRESETS
    presets = [preset_named(name, choices) for name in names] or (choices[:1] if quick else choices)
    size = replace(size, presets=presets)
    return size if max_new_tokens is None else replace(size, max_new_tokens=max_new_tokens)


def preset_named(name: str, presets: Sequence[Preset]) -> Preset:
    """Raises SpecvizError (field ``preset``) if there is none of this name."""
    for preset in presets:
        if preset.name == name:
            return preset
    names = ", ".join(preset.name for preset in presets)
    raise SpecvizError("There is no preset {name}; choose from {names}.", "preset", name=quoted(name), names=names)


def entrants(pair: ModelPair, size: BenchSize, names: Sequence[str]) -> Iterator[Contestant]:
    """Plain decoding and every drafter named, able to run or not; then transformers."""
    yield Contestant.of(PLAIN)
    for name in names:
        drafter = drafter_class(pair, name)
        contestant = functools.partial(drafting, pair, name)
        chain = _chain(drafter)
        yield from chains(pair, size, [name])
        yield contestant(num_draft_tokens=AUTO, branches=chain)
        if "block" in drafter.measured_as:
            for gamma in size.gammas:
                yield contestant(num_draft_tokens=gamma, branches=chain, rule="block")
        if "bits" in drafter.measured_as:
            for gamma in size.gammas:
                yield contestant(num_draft_tokens=gamma, bits=BITS[-1])
        if "tree" in drafter.measured_as:
            for branches in size.tree_branches:
                yield contestant(num_draft_tokens=size.tree_gamma, branches=branches)
            yield contestant(num_draft_tokens=AUTO, branches=size.tree_branches[-1])
    assisted = DraftModel.name in names and pair.draft is not None and pair.translation is None
    yardsticks = [DraftModel.name] * assisted + [PromptLookup.name] * (PromptLookup.name in names)
    if yardsticks:
        yield Contestant.of(PLAIN, engine="transformers")
    for name, gamma in itertools.product(yardsticks, size.yardstick_gammas):
        yield Contestant.of(name, gamma, engine="transformers")


def chains(
    pair: ModelPair, size: BenchSize, names: Sequence[str] = DRAFTERS, base: RunSettings = DEFAULTS
) -> Iterator[Contestant]:
    """What servers offer too: chains of fixed lengths by each drafter, able to run or not. base: the drafters' further
    parameters."""
    for name in names:
        drafter = drafter_class(pair, name)
        # Some draft no deeper than they were trained to, and some only from a depth on.
        lengths = [gamma for gamma in size.gammas if drafter.least_depth <= gamma <= drafter.most_depths(pair)]
        for gamma in size.copied_gammas if drafter.copies else lengths:
            yield drafting(pair, name, base, num_draft_tokens=gamma, branches=_chain(drafter), rule="auto")


def _chain(drafter: type[Drafter]) -> int | None:
    """The branches with which it makes chains: a drafter that makes trees by default does so only with one branch."""
    return 1 if "tree" in drafter.measured_as and drafter.default_branches > 1 else None


def varied(pair: ModelPair, only: Sequence[str], vary: Values) -> Iterator[Contestant]:
    """Plain decoding, and the drafters that read these settings, by their defaults with all combinations of the values.

    only: their names; empty means all. Raises SpecvizError (field ``vary``) for one that does not read them.
    """
    yield Contestant.of(PLAIN)
    for name in only or DRAFTERS:
        parameters = drafter_class(pair, name).parameters
        unread = [setting for setting in vary if setting in DRAFTING and setting not in parameters]
        if unread and only:
            raise SpecvizError("{drafter} does not read {names}.", "vary", drafter=name, names=", ".join(unread))
        for values in each_of(vary, OF_CONTESTANTS) if not unread else ():
            yield drafting(pair, name, **values)


def takes_part(contestant: Contestant, temperature: float) -> bool:
    """Greedy drafts are compared with the target's choice, whatever the rule."""
    return temperature > 0 or contestant.settings.rule == "auto"


def _with_drafts(tasks: list[Task], contestants: Sequence[Contestant]) -> list[Task]:
    """The tasks in which something drafts. Raises SpecvizError (field ``vary``) if there are none."""
    drafting = [contestant for contestant in contestants if contestant.mode != PLAIN]
    chosen = [task for task in tasks if any(takes_part(one, task["temperature"]) for one in drafting)]
    if drafting and not chosen:
        raise SpecvizError("At temperature 0 all rules are the same: vary the rule at a higher temperature.", "vary")
    return chosen or tasks


@dataclass
class Benchmark:
    """What is measured, and the measurements so far, of which `report` makes a report at any time."""

    pair: ModelPair
    size: BenchSize
    contestants: Sequence[Contestant]
    tasks: Sequence[Task]  # temperatures, and whatever else of a text is varied, by flat names
    options: dict[str, Any]  # how it was ordered, for the record
    left_out: list[dict[str, str]]
    machine: Facts
    failures: Failures
    equality: list[Agreement] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    grammar: str = ""  # that all texts follow

    @classmethod
    def of(
        cls,
        pair: ModelPair,
        quick: bool = False,
        say: Report = lambda line: None,
        only: Sequence[str] = (),
        temperatures: Sequence[float] = (0.0, 1.0),
        presets: Sequence[str] = (),
        chat: bool | None = None,
        max_new_tokens: int | None = None,
        vary: Values | None = None,
        servers: Sequence[Served] = (),
        grammar: str = "",
    ) -> Benchmark:
        """say: receives a line of progress a setting.

        only: names of the drafters to measure; presets: names of the prompts; empty means all. chat: on prompts for
        models that answer, by default if the pair has a chat template. max_new_tokens: of each run, by default the
        size's. vary: the values of some settings, see `read_vary`; then each drafter is measured by its defaults with
        these alone. servers: further contestants. grammar: that all texts follow; servers cannot, and fail. A drafter
        that this pair cannot run is left out, and the report says why. Raises SpecvizError for one that was named
        (field ``only`` if there is no such drafter), for a preset that does not exist (field ``preset``), and for a
        temperature out of range, and for rules at temperature 0 alone or lengths that do not fit (field ``vary``).
        """
        size = size_of(quick, only, presets, pair.has_chat_template if chat is None else chat, max_new_tokens)
        vary = vary or {}
        wanted = varied(pair, only, vary) if vary else entrants(pair, size, only or DRAFTERS)
        contestants, refused = able(pair, wanted, (PLAIN, *only))
        for mode, error in refused:
            say(f"left out, {mode}: {error}")
        left_out = [{"mode": mode, "reason": error.message} for mode, error in refused]
        contestants += [Contestant.by(looked_at(served, pair.texts.decode)) for served in servers]
        options = {"quick": quick, "only": list(only), "vary": {name: list(values) for name, values in vary.items()}}
        tasks = _with_drafts(list(each_of({"temperature": temperatures, **vary}, OF_TASKS)), contestants)
        about = options, left_out, describe_machine(pair), Failures(say)
        bench = cls(pair, size, contestants, tasks, *about, grammar=grammar)
        for task, preset in itertools.product(tasks, size.presets):
            bench._plain(task, preset)  # refuses lengths for which there is no room
        return bench

    def run(self) -> None:
        """Measures all of it. A contestant that fails, or whose text is wrong, is not measured any further, and the
        report says why; plain decoding has to be right."""
        for task in self.tasks:
            self._compare_texts(task)
            for preset in self.size.presets:
                self._measure(task, preset)
        self.machine["load_average_end"] = load_average()

    def report(self, interrupted: bool = False) -> BenchReport:
        """The measurements so far. interrupted: there will be no more."""
        repeats_made = min((row.repeats for row in self.rows), default=0)
        tokens = None if "max_new_tokens" in self.options["vary"] else self.size.max_new_tokens
        sizes = {"max_new_tokens": tokens, "repeats": self.size.repeats, "repeats_made": repeats_made}
        return BenchReport(
            machine=self.machine,
            pair=asdict(self.pair.info()),
            memory=memory_values(self.pair),
            settings=sizes | self.options,
            rows=self.rows,
            left_out=self.left_out,
            failed=[{"title": title, "reason": str(reason)} for title, reason in self.failures.reasons.items()],
            interrupted=interrupted,
            equality=self.equality,
        )

    def _present(self, task: Task) -> list[Contestant]:
        """The contestants that are measured at this temperature, named after whatever else is varied."""
        label = " ".join(f"{name}={value}" for name, value in task.items() if name != "temperature")
        named = (replace(contestant, label=label) for contestant in self.contestants)
        present = (contestant for contestant in named if takes_part(contestant, task["temperature"]))
        return [contestant for contestant in present if contestant.title not in self.failures.reasons]

    def _plain(self, task: Task, preset: Preset) -> Request:
        """Plain decoding of a preset."""
        tokens = task.get("max_new_tokens", self.size.max_new_tokens)
        plain = plain_request(self.pair, preset, task["temperature"], tokens, task.get("seed", 0))
        if (room := plain.settings.max_new_tokens) < task.get("max_new_tokens", room):
            raise SpecvizError(
                "{preset} leaves room for {room} new tokens, not {tokens}: choose smaller numbers.",
                "vary",
                preset=preset.name,
                room=room,
                tokens=tokens,
            )
        sampling = replace(plain.settings.sampling, **{name: task[name] for name in task if name in SAMPLING})
        return plain.but(replace(plain.settings, sampling=sampling, grammar=self.grammar))

    def _compare_texts(self, task: Task) -> None:
        """At temperature 0 compares all texts of each preset; above it, only warms up the other engines."""
        greedy, present = task["temperature"] == 0, self._present(task)
        self.failures.say(
            f"temperature {task['temperature']:g}: {len(present)} contestants once" + ", equal texts" * greedy
        )
        for preset in self.size.presets if greedy else self.size.presets[:1]:
            plain = self._plain(task, preset)
            due = plain_run(plain) if greedy else None
            for contestant in self._present(task):
                with self.failures.of(contestant):
                    if due is not None:
                        tokens = new_tokens(contestant, plain)
                        compared = agreement if contestant.served is None else served_agreement
                        verdict = compared(contestant, tokens, due, plain, preset.name)
                        if verdict is not None:
                            self.equality.append(verdict)
                    elif contestant.engine == "transformers":
                        new_tokens(contestant, plain)

    def _measure(self, task: Task, preset: Preset) -> None:
        """Adds a row for each contestant, plain decoding among them; if it is interrupted, rows of the runs so far."""
        plain, present = self._plain(task, preset), self._present(task)
        repeats, budget = self.size.repeats, math.inf if self.size.budget is None else self.size.budget
        where = f"{preset.name}, temperature {task['temperature']:g}"
        self.failures.say(f"{where}: {len(present)} contestants, {repeats} times")
        ours = [contestant for contestant in present if contestant.engine == "specviz"]
        others = [contestant for contestant in present if contestant.engine == "transformers"]
        served = [contestant for contestant in present if contestant.served is not None]
        # The others' runs cannot stand still, so they take turns among themselves, whole runs at a time: the library's
        # with its plain decoding, servers with ours.
        for members in (ours, others, [*ours[:1], *served] if served else []):
            rivals, rows = [], []
            for contestant in members:
                with self.failures.of(contestant):
                    rows.append(entry_of(contestant, plain, preset.name))
                    rivals.append(contestant)
            if not rivals or rivals[0].mode != PLAIN:
                continue
            contest = Contest(rows, failed=self.failures.reasons)
            try:
                amount = Amount(plain.settings.max_new_tokens, repeats, budget)
                for event in measure_contest([plain], rivals, amount, self.failures):
                    contest.hear(event)
            finally:
                peak = peak_mb(self.pair.device)
                rows = contest.rows(over=True)[0 if members[-1].served is None else 1 :]
                self.rows += [replace(row, peak_mb=None if row.host else peak) for row in rows if row.repeats]


def advised_chains(pair: ModelPair, base: RunSettings = DEFAULTS, only: Sequence[str] = ()) -> list[Contestant]:
    """The contestants of advice that this pair can run. base: the drafters' further parameters. only: see `able`."""
    return able(pair, chains(pair, ADVICE, only or DRAFTERS, base), only)[0]
