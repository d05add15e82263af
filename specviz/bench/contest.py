"""A contest: contestants on one or more prompts in turn, and what was measured so far, at any time. Loads no torch.

Compare, `bench`, `advise`, `check` and the race all hold one, hear the events of
`specviz.bench.contesting.measure_contest`, which may run in another process, and ask the contest for rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specviz.bench.contestants import Event, Failed, Figures, Progress, TimedRun, busy, counts_of, figures_of
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally, total
from specviz.records.settings import PLAIN
from specviz.records.words import Said, Sentence
from specviz.theory.along_texts import flatters, looped
from specviz.theory.statistics import Ratio, over_prompts

#: The name of all prompts together, where they belong to several domains.
ALL = "all"

#: A line of a report that was made before everything was measured.
INTERRUPTED = "Interrupted: only the measurements so far."

#: With fewer prompts the turns' own interval is wider than a bootstrap's over so small a sample.
FEWEST = 4

#: The most others that take turns with one run of plain decoding.
AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Figures):
    """A contestant on some prompts, as it stands in tables and in files; None where something does not apply.

    The measured speedup is against plain decoding by the same engine; a server's against the plain server of the same
    engine, version and model, if there is one. From `FEWEST` prompts on, its interval is over
    prompts once it is over.
    """

    title: str
    engine: str  # these three as in `Contestant`
    mode: str
    num_draft_tokens: int | str | None = None
    temperature: float = 0.0
    preset: str = ""  # the prompt's name, where it has one
    domain: str = ALL
    prompts: int = 0  # on how many it was measured
    repeats: int = 0  # finished, of all prompts
    tokens: int = 0  # of all repeats
    rule: str | None = None  # these four as they were in the run, defaults filled in
    branches: int | None = None
    exit_layer: int | None = None
    bits: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # all but the prompt by their flat names, in the same way
    lossless: bool | None = True  # whether its rule follows the target's distribution; None: nobody knows of a server
    usual_branches: bool = False  # whether their number is the drafter's default
    rounds: int | None = None  # of all repeats
    peak_mb: float | None = None  # peak memory so far, of the process or the CUDA device
    busy: bool = False  # something else wanted the processor meanwhile, so the interval is wider
    round_microseconds: float | None = None  # of a round, mean
    outside_microseconds: float | None = None  # of its part outside the models' forward passes
    tokens_a_pass: Ratio | None = None  # with its interval over prompts; this and the next two once it is over
    kept_at: tuple[Ratio, ...] = ()  # by draft position: accepted given that it was reached
    looped: int = 0  # of its tokens, those that only go round in a loop; 0 of a server that names no tokens
    reason: Said = ""  # why it was not measured, where it was not
    version: str | None = None  # these three of a server
    model: str | None = None
    host: str | None = None

    @property
    def loops(self) -> float | None:
        """The share of its tokens in loops, where that flatters it."""
        return self.looped / self.tokens if flatters(self.looped, self.tokens) else None

    def figures(self) -> dict[str, Any] | None:
        """The figures alone; None before the first repeat is finished."""
        values = asdict(self)
        return {name: values[name] for name in Figures.__dataclass_fields__} if self.repeats else None


def groups_of(count: int, served: int = 0) -> list[tuple[int, ...]]:
    """The contestants that take turns with each other, by number: plain decoding is in each group, so that all are
    close to it in time, and the caches of few texts are in memory.

    served: how many of them, the last ones, are servers, whose turns are whole texts; the others' need not be.
    """
    drafting, servers = range(1, count - served), range(count - served, count)
    groups = [(0, *drafting[first : first + AT_ONCE]) for first in range(0, len(drafting), AT_ONCE)]
    return [*groups, *([(0, *servers)] if served else [])] or [(0,)]


def runs_in_turn(count: int, served: int = 0) -> int:
    """The runs in a repeat of `count` contestants: plain decoding, one of them, makes one in each group."""
    return sum(map(len, groups_of(count, served)))


@dataclass
class Contest:
    """The measurements of a contest so far. It may end anywhere, and keeps what it has heard until then."""

    entries: Sequence[Row]  # plain decoding first, without figures: see `contesting.entry_of`
    domains: Sequence[str] = ("",)  # of each prompt
    repeats: int = 1
    keeps_rounds: bool = False  # of everyone's first repeat, so that its run can be shown; many take much memory
    failed: dict[str, SpecvizError | Sentence] = field(default_factory=dict)  # by title, and why
    runs: list[TimedRun] = field(default_factory=list)
    now: Progress | None = None

    def hear(self, event: Event | None) -> None:
        if isinstance(event, TimedRun):
            if event.repeat or not self.keeps_rounds:
                event = replace(event, rounds=())
            # A final's runs take the place of the contestant's earlier ones; plain decoding's serve all of its rivals.
            if event.number:
                self.runs = [run for run in self.runs if run.number != event.number or run.stage == event.stage]
            self.runs.append(event)
        elif isinstance(event, Failed):
            self.failed[event.title] = event.reason
        elif event is not None:
            self.now = event

    @property
    def count(self) -> int:
        """The number of runs in all."""
        served = sum(row.host is not None for row in self.entries)
        return len(self.domains) * self.repeats * runs_in_turn(len(self.entries), served)

    @property
    def fraction(self) -> float:
        """The share of the runs that is done."""
        return len(self.runs) / self.count

    @property
    def seconds_left(self) -> float | None:
        """About how long the other runs will take; None before one was timed."""
        seconds = [run.seconds for run in self.runs]
        return (self.count - len(seconds)) * sum(seconds) / len(seconds) if seconds else None

    @property
    def busy(self) -> bool:
        """True if something else wanted the processor."""
        return busy(self.runs)

    def run_of(self, number: int, prompt: int = 0) -> TimedRun | None:
        """A contestant's run on a prompt in the first repeat, once that is over."""
        runs = (run for run in self.runs if (run.number, run.prompt, run.repeat) == (number, prompt, 0))
        return next(runs, None)

    def rows(self, over: bool = False) -> list[Row]:
        """A row for each contestant on all prompts, without figures where it was not measured yet.

        over: all is measured, so that intervals are over prompts.
        """
        return [self.row(number, over=over) for number in range(len(self.entries))]

    def by_domain(self) -> list[Row]:
        """Of all but plain decoding that were measured and did not fail: on all prompts and on each domain."""
        names = list(dict.fromkeys(self.domains))
        # One domain is all of them, and one named like the rows of all prompts is part of those.
        names = [name for name in names if name != ALL] if len(names) > 1 else []
        able = [number for number, row in enumerate(self.entries) if number and row.title not in self.failed]
        rows = [self.row(number, name, over=True) for name in (ALL, *names) for number in able]
        return [row for row in rows if row.repeats]

    def _base_of(self, row: Row) -> int | None:
        """The contestant that is plain decoding by the same engine."""
        if row.host is None:
            return 0
        alike = [
            (other.host is not None, other.mode, other.engine, other.version, other.model) for other in self.entries
        ]
        plain = (True, PLAIN, row.engine, row.version, row.model)
        return alike.index(plain) if row.mode != PLAIN and plain in alike else None

    def plain_beside(self, row: Row) -> float:
        """Tokens a second of plain decoding, the median over its runs that took turns with this measured contestant."""
        meetings = {run.meeting for run in self.runs if self.entries[run.number].title == row.title}
        return statistics.median(run.speed for run in self.runs if run.number == 0 and run.meeting in meetings)

    def row(self, number: int, domain: str = ALL, over: bool = False) -> Row:
        """The row of a contestant on the prompts of a domain."""
        row, prompts = self.entries[number], [i for i, name in enumerate(self.domains) if domain in (ALL, name)]
        runs = [run for run in self.runs if run.number == number and run.prompt in prompts]
        meetings = {run.meeting for run in runs}
        base = self._base_of(row)
        if base is not None and self.entries[base].title in self.failed:
            base = None
        plain = [run for run in self.runs if run.number == base and run.meeting in meetings]
        if row.title in self.failed or not runs or not (plain or row.host):
            return replace(row, domain=domain)
        figures, counts = figures_of(runs, plain if row.mode != PLAIN else ()), counts_of(runs)
        prompts_met = sorted({run.prompt for run in runs})
        if over and number and plain and len(prompts_met) >= FEWEST:
            ratio = _over_prompts(runs, plain, prompts_met)
            figures = replace(figures, speedup_measured=ratio.value, speedup_interval=ratio.interval)
        return replace(
            row,
            domain=domain,
            prompts=len(prompts_met),
            repeats=len({(run.prompt, run.repeat) for run in runs}),
            tokens=sum(len(run.token_ids) for run in runs),
            busy=busy(runs),
            **(_passes(runs) if counts is None else _rounds(counts, figures)),
            looped=sum(looped(run.token_ids) for run in runs if over and -1 not in run.token_ids),
            **({} if counts is None or not over else _acceptance(runs, prompts_met)),
            **asdict(figures),
        )


def _passes(runs: Sequence[TimedRun]) -> dict[str, Any]:
    """As many as a server counted."""
    counts = [run.counted for run in runs if run.counted is not None]
    return {"rounds": sum(count.passes for count in counts)} if len(counts) == len(runs) else {}


def _rounds(counts: Tally, figures: Figures) -> dict[str, Any]:
    microseconds = 1e6 * counts.seconds / counts.rounds
    outside = None if figures.overhead_share is None else figures.overhead_share * microseconds
    return {"rounds": counts.rounds, "round_microseconds": microseconds, "outside_microseconds": outside}


def _over_prompts(drafting: Sequence[TimedRun], plain: Sequence[TimedRun], prompts: Sequence[int]) -> Ratio:
    """The speedup with its interval over prompts."""

    def spent(runs: Sequence[TimedRun], prompt: int) -> tuple[float, float]:
        prompt_runs = [run for run in runs if run.prompt == prompt]
        return sum(len(run.token_ids) for run in prompt_runs), sum(run.seconds for run in prompt_runs)

    sums = [(*spent(drafting, prompt), *spent(plain, prompt)) for prompt in prompts]
    return over_prompts(sums, lambda s: s[:, 0] / s[:, 1] / (s[:, 2] / s[:, 3]))


def _acceptance(runs: Sequence[TimedRun], prompts: Collection[int]) -> dict[str, Any]:
    """Tokens a pass; then, position by position, how many were accepted of those that were reached."""
    counts = [total(run.counts for run in runs if run.counts and run.prompt == prompt) for prompt in prompts]

    def accepted() -> Iterator[Ratio]:
        for place in range(max(len(count.judged_at) for count in counts)):
            sums = [(_at(count.accepted_at, place), _at(count.judged_at, place)) for count in counts]
            if any(judged for _, judged in sums):
                yield over_prompts(sums, lambda s: s[:, 0] / s[:, 1])

    length = over_prompts([(count.accepted, count.rounds) for count in counts], lambda s: 1 + s[:, 0] / s[:, 1])
    return {"tokens_a_pass": length, "kept_at": tuple(accepted())}


def _at(counts: Sequence[int], place: int) -> int:
    return counts[place] if place < len(counts) else 0
