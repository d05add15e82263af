"""One's own work: several prompts, what each way to draft comes to on them, and on each of their domains.

Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from specviz.bench.contestants import PLAIN, Contestant, Standing, standing
from specviz.bench.laps import TimedRun
from specviz.records.metrics import tally
from specviz.theory.statistics import Ratio, alike, over_prompts

#: The name of all prompts together, where they belong to several domains.
ALL = "all"

#: With fewer prompts the turns' own interval is wider than what resampling so few would say.
FEWEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRow(Standing):
    """One contestant on the prompts of one domain; from several of these on, the speedup's interval is over prompts."""

    domain: str
    contestant: Contestant
    prompts: int
    tokens_a_pass: Ratio
    kept_at: tuple[Ratio, ...]  # by draft position: kept given that it was reached


@dataclass(slots=True)
class WorkReport:
    """The values of the JSON file of a benchmark on prompts of one's own, as far as it has come."""

    machine: dict[str, str | int | float | None]
    pair: dict[str, str | int | None]
    temperature: float
    prompts: int
    rows: list[WorkRow] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)  # who failed meanwhile: "title" and "reason"
    interrupted: bool = False  # it was ended before it was over
    schema: str = "specviz.work/1"


@dataclass
class Work:
    """What was measured, prompt by prompt."""

    contestants: Sequence[Contestant]  # plain decoding first
    domains: Sequence[str]  # of each prompt
    failed: Mapping[str, object] = field(default_factory=dict)  # who failed so far, by title, and why
    runs: dict[Contestant, list[TimedRun]] = field(default_factory=dict)

    def add(self, run: TimedRun) -> None:
        """A run on a prompt, by whose number its group begins (`on_each_prompt`)."""
        self.runs.setdefault(self.contestants[run.number], []).append(run)

    def rows(self) -> list[WorkRow]:
        """Every contestant but plain decoding and those that failed, as far as it was measured, on all prompts and on
        each domain."""
        names = list(dict.fromkeys(self.domains))
        asked = [(ALL, range(len(self.domains)))]
        if len(names) > 1:
            # One that calls itself by the name of all is told there.
            names = [name for name in names if name != ALL]
            asked += [(name, [i for i, domain in enumerate(self.domains) if domain == name]) for name in names]
        made = ((domain, one, prompts) for domain, prompts in asked for one in self._able())
        return [row for domain, one, prompts in made if (row := self._row(domain, one, set(prompts))) is not None]

    def _able(self) -> list[Contestant]:
        return [one for one in self.contestants[1:] if one.title not in self.failed]

    def _row(self, domain: str, contestant: Contestant, prompts: set[int]) -> WorkRow | None:
        own = [run for run in self.runs.get(contestant, ()) if _prompt(run) in prompts]
        beside = {(run.group, run.repeat) for run in own}
        plain = [run for run in self.runs.get(Contestant(PLAIN), ()) if (run.group, run.repeat) in beside]
        if not own or not plain:
            return None
        figures, met = standing(own, plain), {_prompt(run) for run in own}
        if len(met) >= FEWEST:
            ratio = _over_prompts(own, plain, met)
            figures = replace(figures, speedup_measured=ratio.value, speedup_interval=(ratio.low, ratio.high))
        length, *kept = _acceptance(own, met)
        return WorkRow(
            domain=domain,
            contestant=contestant,
            prompts=len(met),
            tokens_a_pass=length,
            kept_at=tuple(kept),
            **asdict(figures),
        )


def _prompt(run: TimedRun) -> int:
    return run.group[0]


def _over_prompts(own: Sequence[TimedRun], plain: Sequence[TimedRun], prompts: set[int]) -> Ratio:
    """The speedup with its interval over prompts."""

    def spent(runs: Sequence[TimedRun], prompt: int) -> tuple[float, float]:
        met = [run for run in runs if _prompt(run) == prompt]
        return sum(len(run.token_ids) for run in met), sum(run.seconds for run in met)

    sums = [(*spent(own, prompt), *spent(plain, prompt)) for prompt in sorted(prompts)]
    return over_prompts(sums, lambda s: s[:, 0] / s[:, 1] / (s[:, 2] / s[:, 3]))


def _acceptance(own: Sequence[TimedRun], prompts: set[int]) -> Iterator[Ratio]:
    """Tokens a pass; then, position by position, how many were kept of those that were reached."""
    counts = [tally(one for run in own if _prompt(run) == prompt for one in run.rounds) for prompt in sorted(prompts)]
    yield over_prompts([(one.accepted, one.rounds) for one in counts], lambda s: 1 + s[:, 0] / s[:, 1])
    for place in range(max((len(one.judged_at) for one in counts), default=0)):
        sums = [(_at(one.accepted_at, place), _at(one.judged_at, place)) for one in counts]
        if any(judged for _, judged in sums):
            yield over_prompts(sums, lambda s: s[:, 0] / s[:, 1])


def _at(counts: Sequence[int], place: int) -> int:
    return counts[place] if place < len(counts) else 0


def as_good(rows: Sequence[WorkRow], best: WorkRow) -> list[int]:
    """The γ of the best row's drafter and domain that cannot be told apart from it, in ascending order."""
    same = [row for row in rows if (row.domain, row.contestant.mode) == (best.domain, best.contestant.mode)]
    return sorted(row.contestant.num_draft_tokens for row in same if row.ratio and alike(row.ratio, best.ratio))
