"""The benchmark of sizes: plain decoding of a random pair, and speculation whose drafts are right as often as asked.

What it answers is what the machinery costs at a size: how near a measured speedup comes to the formula's, and whether
an adaptive draft length is ever slower than plain decoding. It says nothing about any draft model.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import torch

from specviz.bench import oracle
from specviz.bench.benchmark import Say, describe_machine
from specviz.bench.contest import PLAIN, Standing, formula_speedup, standing
from specviz.bench.model_sizes import make_pair, size_named
from specviz.bench.pass_times import model_size, read_bandwidth
from specviz.decoding import engine
from specviz.models.pair import ModelPair
from specviz.models.pass_timer import PassTimer
from specviz.models.preparation import prepare_passes
from specviz.models.refusals import refusing_out_of_memory
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally, tally
from specviz.records.settings import SamplingParams
from specviz.theory.draft_length import AdaptiveLength

SCHEMA = "specviz.size_bench/1"

#: What every report says, whoever reads it.
LABEL = "oracle: told the target's answer; prices the machinery, says nothing about any draft model"

NO_GPU = "no GPU here: measured on the CPU"

#: The longest draft that the adaptive contestant may choose.
LONGEST = 8

#: A buffer that no processor's cache holds; reading a larger one is no slower.
BUFFER_BYTES = 2**31


@dataclass(frozen=True, slots=True)
class Plan:
    """prompt_tokens, new_tokens: of each run. repeats: of all contestants, in turn; more while `seconds` are not over.

    The runs of a small model are short, and it takes many of them to even out what else the machine is doing.
    """

    prompt_tokens: int
    new_tokens: int
    repeats: int
    seconds: float


FULL = Plan(prompt_tokens=64, new_tokens=128, repeats=5, seconds=60.0)
QUICK = Plan(prompt_tokens=16, new_tokens=32, repeats=2, seconds=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow(Standing):
    """One contestant over all repeats; None where a figure does not apply.

    mode: ``plain``, ``oracle`` or ``adaptive``, the oracle with lengths of its own choosing up to num_draft_tokens.
    tokens_per_second: all tokens over all seconds of decoding, the prompt's reading left out; a median over repeats,
    each of which has its own coins, would not go with an acceptance rate over all of them. spread: least and most of a
    repeat. speedup_measured: against plain, which took turns with it; speedup_spread: least and most within a repeat.
    alpha_asked: of the oracle's coins; acceptance_rate: what came of them. measured_over_formula: of the speedups.
    pass_ratio: seconds of a target pass of these rounds over those of a plain step's. The formula takes it for 1.
    speedup_by_rounds: the formula with whole rounds in the place of γc + 1: expected tokens at the measured α, times
    the seconds of a plain round over those of one of these. What the measured speedup still differs from it by is how
    the coins fell.
    known_share: of the rounds, those before which the text was still the one that the oracle had been told.
    rounds_by_length: how many rounds drafted so many tokens.
    """

    title: str
    mode: str
    num_draft_tokens: int | None
    alpha_asked: float | None
    rounds: int
    tokens: int
    measured_over_formula: float | None
    speedup_by_rounds: float | None
    pass_ratio: float
    known_share: float | None
    rounds_by_length: dict[int, int]


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Plain decoding beside the least it can take: a token reads the target's weights and the text's keys and values.

    bytes_per_token: at the middle of the run. bytes_per_second: measured, by reading a buffer. limit: tokens per
    second. share: what plain decoding reached of it, everything it does counted.
    """

    bytes_per_token: float
    bytes_per_second: float
    limit: float
    share: float


@dataclass(frozen=True, slots=True)
class SizeReport:
    """A whole measurement of one size."""

    size: str
    machine: dict[str, str | int | float]
    pair: dict[str, str | int | None]
    settings: dict[str, int | float | str]
    rows: list[SizeRow]
    bandwidth: Bandwidth
    notes: list[str]
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True)
class _Contestant:
    """gamma: of each round, or for ``adaptive`` the most; None for plain decoding."""

    mode: str
    gamma: int | None = None

    @property
    def title(self) -> str:
        if self.mode == PLAIN:
            return PLAIN
        return f"oracle γ={self.gamma}" if self.mode == "oracle" else f"oracle adaptive γ≤{self.gamma}"


def measure(
    size: str,
    alpha: float = 0.8,
    gamma: int = 4,
    *,
    device: str = "auto",
    dtype: str = "auto",
    temperature: float = 0.0,
    quick: bool = False,
    say: Say = lambda line: None,
) -> SizeReport:
    """Makes the pair of this size and measures it; `say` hears a line of progress a step.

    alpha: how likely each draft token is to be right. gamma: draft tokens a round. quick: fewer and shorter runs.
    Raises SpecvizError, with `field` set, for a size that does not exist or does not fit, for what an oracle cannot
    do, and for arguments out of range; before anything is made where it can be known by then.
    """
    oracle.check(alpha, SamplingParams(temperature=temperature))
    engine.check_gamma(gamma)
    found, plan = size_named(size), QUICK if quick else FULL
    if not torch.cuda.is_available():
        say(NO_GPU)
    say(f"making the models: {found.target.name} and {found.draft.name}, random weights")
    pair = make_pair(found, device, dtype)
    if pair.device.type == "cuda":
        # On a CPU programs would be compiled for weights that nobody has again.
        prepare_passes(pair)
    return measure_pair(pair, alpha, gamma, plan, say)


def measure_pair(pair: ModelPair, alpha: float, gamma: int, plan: Plan, say: Say = lambda line: None) -> SizeReport:
    """The same of a pair that there is; its draft model shares the target's vocabulary."""
    contest = _Contest(pair, alpha, plan)
    contestants = [_Contestant(PLAIN), _Contestant("oracle", gamma), _Contestant("adaptive", LONGEST)]
    say(f"warming up, and asking the target for its answer: {plan.new_tokens} tokens")
    contest.warm_up({*range(1, LONGEST + 1), gamma})
    done: dict[_Contestant, list[_Timed]] = {contestant: [] for contestant in contestants}
    for repeat in _repeats(plan):
        say(f"repeat {repeat + 1}: {', '.join(contestant.title for contestant in contestants)}")
        for contestant, runs in done.items():
            runs.append(contest.run(contestant, seed=repeat))
    rows = [contest.row(contestant, done[contestant], done[contestants[0]]) for contestant in contestants]
    settings = {"alpha": alpha, "num_draft_tokens": gamma, "longest": LONGEST, "temperature": 0.0}
    settings |= {"prompt_tokens": plan.prompt_tokens, "new_tokens": plan.new_tokens}
    return SizeReport(
        size=pair.name,
        machine=describe_machine(pair),
        pair=asdict(pair.info()),
        settings=settings | {"repeats": len(done[contestants[0]])},
        rows=rows,
        bandwidth=_bandwidth(pair, plan, rows[0].tokens_per_second),
        notes=[LABEL, *([] if torch.cuda.is_available() else [NO_GPU])],
    )


def _repeats(plan: Plan) -> Iterator[int]:
    began = time.perf_counter()
    for repeat in itertools.count():
        if repeat >= plan.repeats and time.perf_counter() - began > plan.seconds:
            return
        yield repeat


@dataclass(frozen=True, slots=True)
class _Timed:
    """One run: its counts without the prompt's reading, and in how many rounds the oracle knew the text."""

    counts: Tally
    rounds_known: int


class _Contest:
    """Runs of one prompt, and what the target answers to it."""

    def __init__(self, pair: ModelPair, alpha: float, plan: Plan):
        self.pair, self.alpha, self.plan = pair, alpha, plan
        self.prompt = random.Random(0).choices(range(pair.vocab_size), k=plan.prompt_tokens)
        plain = engine.rounds(self._request(None, plan.new_tokens))
        self.known = [token for one in plain for token in one.emitted]
        self.length = AdaptiveLength(LONGEST)

    def _request(self, gamma: int | None, new_tokens: int) -> engine.Request:
        return engine.prepare(
            self.pair,
            self.prompt,
            drafter=None if gamma is None else "draft_model",
            num_draft_tokens=gamma or 1,
            sampling=SamplingParams(temperature=0.0),
            max_new_tokens=new_tokens,
        )

    def warm_up(self, lengths: set[int]) -> None:
        """Every width of the target pass once, for the first pass of a width can cost more than all later ones."""
        for length in sorted(lengths):
            told = oracle.oracle(self.known, 1.0, seed=0)
            for _ in engine.rounds(self._request(length, min(length + 2, self.plan.new_tokens)), told):
                pass

    def run(self, contestant: _Contestant, seed: int) -> _Timed:
        """One run. The adaptive length knows nothing before the first one and keeps what it learns, as in a server."""
        length = self.length if contestant.mode == "adaptive" else None
        drafter = None if contestant.mode == PLAIN else oracle.oracle(self.known, self.alpha, seed, length)
        done = []
        for one in engine.rounds(self._request(contestant.gamma, self.plan.new_tokens), drafter):
            done.append(one)
            if length is not None:
                length.observe(one)
        return _Timed(replace(tally(done), prefill=0.0), oracle.rounds_known(done, self.known))

    def row(self, contestant: _Contestant, runs: list[_Timed], plain_runs: list[_Timed]) -> SizeRow:
        drafts = contestant.mode != PLAIN
        own, plain = ([run.counts for run in each] for each in (runs, plain_runs))
        figures = standing(own, plain if drafts else [])
        rounds = sum(counts.rounds for counts in own)
        speed, speedup = _speed(own), _speed(own) / _speed(plain) if drafts else None
        measured = {"tokens_per_second": speed, "speedup_measured": speedup}
        return SizeRow(
            title=contestant.title,
            mode=contestant.mode,
            num_draft_tokens=contestant.gamma,
            alpha_asked=self.alpha if drafts else None,
            rounds=rounds,
            tokens=sum(counts.tokens for counts in own),
            measured_over_formula=speedup / figures.speedup_formula if figures.speedup_formula else None,
            speedup_by_rounds=_speedup_by_rounds(own, plain, figures.acceptance_rate),
            pass_ratio=_mean(own, "verify_seconds") / _mean(plain, "verify_seconds"),
            known_share=sum(run.rounds_known for run in runs) / rounds if drafts else None,
            rounds_by_length=dict(sorted(_lengths(own).items())),
            **(asdict(figures) | measured),
        )


def _speed(tallies: list[Tally]) -> float:
    return sum(counts.tokens for counts in tallies) / sum(counts.seconds for counts in tallies)


def _speedup_by_rounds(own: list[Tally], plain: list[Tally], alpha: float | None) -> float | None:
    if alpha is None:
        return None
    return formula_speedup(alpha, 0.0, _lengths(own)) * _mean(plain, "seconds") / _mean(own, "seconds")


def _lengths(tallies: list[Tally]) -> Counter[int]:
    return sum((counts.rounds_by_depth for counts in tallies), Counter())


def _mean(tallies: list[Tally], name: str) -> float:
    """Of a sum over rounds: what it comes to a round."""
    return sum(getattr(counts, name) for counts in tallies) / sum(counts.rounds for counts in tallies)


def _bandwidth(pair: ModelPair, plan: Plan, speed: float) -> Bandwidth:
    def too_large() -> SpecvizError:
        return SpecvizError(
            "There is no memory left beside the models of size {name} to measure the bandwidth: choose a smaller one.",
            "size",
            name=pair.name,
        )

    with refusing_out_of_memory(too_large):
        size = model_size(PassTimer(pair.target, (1,), plan.prompt_tokens + plan.new_tokens // 2))
        rate = read_bandwidth(min(size.weight_bytes, BUFFER_BYTES), pair.device)
    needed = size.bytes_moved(1)
    return Bandwidth(needed, rate, rate / needed, speed * needed / rate)


#: Heading, width and text of each column of the table.
_COLUMNS: tuple[tuple[str, int, Callable[[SizeRow], str]], ...] = (
    ("tok/s", 9, lambda row: f"{row.tokens_per_second:.1f}"),
    ("spread", 16, lambda row: _span(row.spread, ".1f")),
    ("speedup", 9, lambda row: _cell(row.speedup_measured, ".2f")),
    ("spread", 12, lambda row: _span(row.speedup_spread, ".2f")),
    ("formula", 9, lambda row: _cell(row.speedup_formula, ".2f")),
    ("ratio", 7, lambda row: _cell(row.measured_over_formula, ".2f")),
    ("by rounds", 11, lambda row: _cell(row.speedup_by_rounds, ".2f")),
    ("α asked", 9, lambda row: _cell(row.alpha_asked, "g")),
    ("α", 7, lambda row: _cell(row.acceptance_rate, ".3f")),
    ("len", 6, lambda row: f"{row.acceptance_length:.2f}"),
    ("c", 7, lambda row: _cell(row.cost_coefficient, ".3f")),
    ("pass", 6, lambda row: f"{row.pass_ratio:.2f}"),
    ("outside", 9, lambda row: f"{row.overhead_share:.1%}"),
    ("known", 7, lambda row: _cell(row.known_share, ".0%")),
)


def save(report: SizeReport, path: pathlib.Path) -> None:
    path.write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False), encoding="utf-8")


def table(report: SizeReport) -> str:
    """The report for people."""
    settings, pair = report.settings, report.pair
    lines = [f"{key}: {value}" for key, value in report.machine.items()]
    for role in ("target", "draft"):
        lines.append(f"{role}: {pair[role]}, {pair[f'{role}_parameters']:,} parameters")
    lines.append("{prompt_tokens} + {new_tokens} tokens, {repeats} repeats, greedy".format(**settings))
    lines += [*report.notes, "", _line("contestant", [heading for heading, _, _ in _COLUMNS])]
    lines.append("-" * len(lines[-1]))
    lines += [_line(row.title, [text(row) for _, _, text in _COLUMNS]) for row in report.rows]
    lines += ["", *(_lengths_line(row) for row in report.rows if row.mode == "adaptive")]
    lines += [_why(row) for row in report.rows if row.measured_over_formula]
    return "\n".join([*lines, _bandwidth_line(report.bandwidth)])


def _line(title: str, cells: list[str]) -> str:
    return f"{title:<22}" + "".join(f"{cell:>{width}}" for cell, (_, width, _) in zip(cells, _COLUMNS))


def _lengths_line(row: SizeRow) -> str:
    lengths = ", ".join(f"γ={length} {count / row.rounds:.0%}" for length, count in row.rounds_by_length.items())
    return f"{row.title} drafted: {lengths} of its rounds."


def _why(row: SizeRow) -> str:
    return (
        f"{row.title}: measured / formula {row.measured_over_formula:.2f}. The formula knows α and c alone, not that "
        f"target passes took {row.pass_ratio:.2f} times as long here as in plain steps, nor that "
        f"{row.overhead_share:.1%} of a round is outside the models; with whole rounds as measured it says "
        f"{row.speedup_by_rounds:.2f}."
    )


def _bandwidth_line(found: Bandwidth) -> str:
    return (
        f"plain decoding reads {found.bytes_per_token / 1e9:.3f} GB a token; at the {found.bytes_per_second / 1e9:.1f} "
        f"GB/s measured here that is {found.limit:.1f} tokens/s at best, of which it reached {found.share:.0%}."
    )


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _span(ends: tuple[float, float] | None, form: str) -> str:
    return "–" if ends is None else f"{ends[0]:{form}}–{ends[1]:{form}}"
