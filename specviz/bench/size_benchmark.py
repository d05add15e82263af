"""The benchmark of a size: plain decoding of a random pair, and speculation that is right as often as asked.

It shows what the machinery costs at that size: how near the measured speedup comes to the formula's, and whether an
adaptive draft length is ever slower than plain decoding. It says nothing about any draft model.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from specviz.bench import oracle
from specviz.bench.contestants import PLAIN, Contestant, Say, Standing, formula_speedup, standing
from specviz.bench.machine import Facts, describe_machine
from specviz.bench.machine_limits import model_size, read_bandwidth
from specviz.bench.model_sizes import make_pair, size_named
from specviz.bench.timed_runs import Workload, rounds_of
from specviz.drafters import DraftModel
from specviz.models.pair import ModelPair
from specviz.models.pass_timer import PassTimer
from specviz.models.preparation import prepare_passes
from specviz.models.refusals import refusing_out_of_memory
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally, tally
from specviz.records.settings import AUTO, LONGEST_AUTO, SamplingParams, check_gamma

SCHEMA = "specviz.size_bench/1"

#: What every report says, whoever reads it.
LABEL = "oracle: told the target's answer; prices the machinery, says nothing about any draft model"

NO_GPU = "no GPU here: measured on the CPU"


@dataclass(frozen=True, slots=True)
class SizePlan:
    """How much is measured. A small model's runs are short: it takes many to even out what else the machine does."""

    prompt_tokens: int = 64  # of each run
    new_tokens: int = 128
    repeats: int = 5  # of all contestants, in turn
    seconds: float = 60.0  # until these are over, more repeats follow


FULL = SizePlan()
QUICK = SizePlan(prompt_tokens=16, new_tokens=32, repeats=2, seconds=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow(Standing):
    """One contestant over all repeats; None where a figure does not apply.

    Speed and speedup are all tokens over all seconds of decoding, reading the prompt left out: each repeat has coins of
    its own, so a median over repeats would not match an acceptance rate over all of them. Both spreads are as in
    `Standing`.
    """

    title: str
    mode: str  # "plain" or "oracle"
    num_draft_tokens: int | str | None  # a round, or `AUTO`
    alpha_asked: float | None  # of the oracle's coins; acceptance_rate is what came of them
    rounds: int
    tokens: int
    measured_over_formula: float | None  # of the speedups
    #: The formula with whole rounds in the place of γc + 1: expected tokens at the measured α, times seconds of a plain
    #: round / seconds of one of these. The measured speedup differs from it only by how the coins fell.
    speedup_by_rounds: float | None
    pass_ratio: float  # seconds of a target pass here / in a plain step; the formula takes it for 1
    known_share: float | None  # of the rounds: those that began while the text was what the oracle had been told
    rounds_by_length: dict[int, int]  # draft length -> rounds


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Plain decoding beside its limit: a token reads the target's weights and the text's keys and values.

    Where plain decoding was faster than that, limit and share are None: not known.
    """

    bytes_per_token: float  # at the middle of the run
    bytes_per_second: float  # measured by reading a buffer
    limit: float | None  # tokens per second
    share: float | None  # of the limit that plain decoding reached, everything it does counted


@dataclass(frozen=True, slots=True)
class SizeReport:
    """The values of the JSON file of one size."""

    size: str
    machine: Facts
    pair: dict[str, str | int | None]
    settings: dict[str, int | float | str]
    rows: list[SizeRow]
    bandwidth: Bandwidth
    notes: list[str]
    schema: str = SCHEMA


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

    alpha: probability that a draft token is right. gamma: draft tokens a round. quick: fewer and shorter runs. Raises
    SpecvizError, with `field` set, for a size that does not exist or does not fit, for what an oracle cannot do, and
    for arguments out of range; before any model is made, where that can be known by then.
    """
    oracle.check(alpha, SamplingParams(temperature=temperature))
    check_gamma(gamma)
    found, plan = size_named(size), QUICK if quick else FULL
    if not torch.cuda.is_available():
        say(NO_GPU)
    say(f"making the models: {found.target.name} and {found.draft.name}, random weights")
    pair = make_pair(found, device, dtype)
    if pair.device.type == "cuda":
        # On a CPU this would compile programs for weights that nobody has again.
        prepare_passes(pair)
    return measure_pair(pair, alpha, gamma, plan, say)


def measure_pair(pair: ModelPair, alpha: float, gamma: int, plan: SizePlan, say: Say = lambda line: None) -> SizeReport:
    """The same for a pair that is loaded; its draft model must share the target's vocabulary."""
    contest = _Contest(pair, alpha, plan)
    contestants = [Contestant(PLAIN), Contestant("oracle", gamma), Contestant("oracle", AUTO)]
    say(f"warming up, and asking the target for its answer: {plan.new_tokens} tokens")
    contest.warm_up({*range(1, LONGEST_AUTO + 1), gamma})
    done: dict[Contestant, list[_Timed]] = {contestant: [] for contestant in contestants}
    for repeat in _repeats(plan):
        say(f"repeat {repeat + 1}: {', '.join(one.title for one in contestants)}")
        for contestant, runs in done.items():
            runs.append(contest.run(contestant, seed=repeat))
    rows = [contest.row(contestant, done[contestant], done[contestants[0]]) for contestant in contestants]
    settings = {"alpha": alpha, "num_draft_tokens": gamma, "longest": LONGEST_AUTO, "temperature": 0.0}
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


def _repeats(plan: SizePlan) -> Iterator[int]:
    began = time.perf_counter()
    for repeat in itertools.count():
        if repeat >= plan.repeats and time.perf_counter() - began > plan.seconds:
            return
        yield repeat


@dataclass(frozen=True, slots=True)
class _Timed:
    """One run."""

    counts: Tally  # without reading the prompt
    rounds_known: int  # see `oracle.rounds_known`


class _Contest:
    """Runs of one prompt, and what the target answers to it."""

    def __init__(self, pair: ModelPair, alpha: float, plan: SizePlan):
        self.alpha = alpha
        prompt = random.Random(0).choices(range(pair.vocab_size), k=plan.prompt_tokens)
        self.workload = Workload(pair, tuple(prompt), temperature=0.0, max_new_tokens=plan.new_tokens)
        self.known = [token for one in rounds_of(Contestant(PLAIN), self.workload) for token in one.emitted]

    def warm_up(self, lengths: set[int]) -> None:
        """Every width of the target pass a few times: the first can cost more than all later ones, and a graph is
        recorded after the second."""
        for length in sorted(lengths):
            short = replace(self.workload, max_new_tokens=min(3 * (length + 1), self.workload.max_new_tokens))
            for _ in rounds_of(Contestant(DraftModel.name, length), short, oracle.oracle(self.known, 1.0, seed=0)):
                pass

    def run(self, contestant: Contestant, seed: int) -> _Timed:
        passes, build = contestant, None
        if contestant.mode != PLAIN:
            # The draft model makes all its passes, and the oracle speaks in its place.
            passes = replace(contestant, mode=DraftModel.name)
            build = oracle.oracle(self.known, self.alpha, seed)
        done = list(rounds_of(passes, self.workload, build))
        return _Timed(replace(tally(done), prefill=0.0), oracle.rounds_known(done, self.known))

    def row(self, contestant: Contestant, runs: Sequence[_Timed], plain_runs: Sequence[_Timed]) -> SizeRow:
        drafts = contestant.mode != PLAIN
        own, plain = ([run.counts for run in each] for each in (runs, plain_runs))
        figures = standing(own, plain if drafts else [])
        rounds = sum(counts.rounds for counts in own)
        speed, speedup = _speed(own), _speed(own) / _speed(plain) if drafts else None
        measured = {"tokens_per_second": speed, "speedup_measured": speedup}
        return SizeRow(
            title=contestant.title,
            mode=contestant.mode,
            num_draft_tokens=contestant.num_draft_tokens,
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


def _speed(tallies: Sequence[Tally]) -> float:
    return sum(counts.tokens for counts in tallies) / sum(counts.seconds for counts in tallies)


def _speedup_by_rounds(own: Sequence[Tally], plain: Sequence[Tally], alpha: float | None) -> float | None:
    if alpha is None:
        return None
    return formula_speedup(alpha, 0.0, _lengths(own)) * _mean(plain, "seconds") / _mean(own, "seconds")


def _lengths(tallies: Sequence[Tally]) -> Counter[int]:
    return sum((counts.rounds_by_depth for counts in tallies), Counter())


def _mean(tallies: Sequence[Tally], name: str) -> float:
    """A sum over rounds, per round."""
    return sum(getattr(counts, name) for counts in tallies) / sum(counts.rounds for counts in tallies)


def _bandwidth(pair: ModelPair, plan: SizePlan, speed: float) -> Bandwidth:
    def too_large() -> SpecvizError:
        return SpecvizError(
            "There is no memory left beside the models of size {name} to measure the bandwidth: choose a smaller one.",
            "size",
            name=pair.name,
        )

    with refusing_out_of_memory(too_large):
        context, passes = plan.prompt_tokens + plan.new_tokens // 2, pair.passes.fast.get("target")
        size = model_size(PassTimer(pair.target, (1,), context, passes))
        rate = read_bandwidth(size.weight_bytes, pair.device)
    needed = size.bytes_moved(1)
    limit = rate / needed if speed <= rate / needed else None
    return Bandwidth(needed, rate, limit, None if limit is None else speed / limit)
