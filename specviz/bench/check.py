"""Does everything run here as it should? A pair's texts, distributions, passes, memory and speed.

A pass is timed first, and the rest is scaled to the time available: a minute, unless more is allowed.
"""

import functools
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from specviz.bench.contest import Contest, Row
from specviz.bench.contestants import PLAIN, Contestant
from specviz.bench.contesting import entry_of, measure_contest, plain_request, reason_of
from specviz.bench.equal_texts import GAMMA, Finding, finding_of, left_out, lengths, texts
from specviz.bench.machine import peak_mb
from specviz.bench.pass_times import measure_passes
from specviz.bench.turns import Amount
from specviz.bench.wiring import wiring
from specviz.decoding.exact_distribution import RUN_TOKENS, exact_distribution
from specviz.decoding.lossless import LAB_RULES, Sampler, check_lossless
from specviz.decoding.request import Request, prepare
from specviz.drafters import DRAFTERS
from specviz.drafters.registry import usual
from specviz.models.memory_share import measured_memory, share_of
from specviz.models.pair import ModelPair
from specviz.models.pass_checks import check
from specviz.models.placement import free_memory
from specviz.passes.reading_checks import why_no_trees
from specviz.passes.roles import TARGET
from specviz.records.errors import SpecvizError
from specviz.records.prompts import PRESETS
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.records.words import Bytes, Sentence
from specviz.rules import RULES, rule_named
from specviz.theory.statistics import SIGNIFICANT, Evidence

#: Seconds that a check takes unless more is allowed; and the shares of them for texts, longer texts, trained parts,
#: samples and the race.
SECONDS = 60.0
OF_TEXTS, OF_LENGTHS, OF_PARTS, OF_SAMPLES, OF_RACE = 0.25, 0.1, 0.15, 0.25, 0.1

#: The widths of passes that are timed, and those that are shown.
WIDTHS, SHOWN = (1, 2, 3, 4, 5, 6, 8, 9, 12, 17), (2, 3, 5, 9, 17)

#: Samples of the first two tokens: the most, and the fewest if there is no time for more.
SAMPLES, LEAST_SAMPLES = 2000, 40
SAMPLING = SamplingParams(0.8, top_k=8)

#: The race: the most runs of each, and the new tokens of a run.
RACE_REPEATS, RACE_TOKENS = 4, 96

#: With less than this share of memory free, the next text may not fit.
LITTLE_MEMORY = 0.05

#: The announcement, and the check itself.
Check = tuple[Sentence, Callable[[ModelPair], Iterator[Finding]]]


def check_pair(pair: ModelPair, seconds: float = SECONDS) -> Iterator[Sentence | Finding]:
    """An announcement of each check, and its findings. Prepared passes are checked as they are; none are made."""
    yield Sentence("timing a pass; everything takes about {seconds} s", seconds=round(seconds))
    for what, work in short_checks(seconds):
        yield what
        try:
            yield from work(pair)
        except Exception as error:
            # A failing check ends alone, however it fails: the others may tell why.
            yield Finding("wrong", what, reason_of(error))


def summary(findings: Sequence[Finding], interrupted: bool = False) -> Sentence:
    """What came of it, in a sentence. interrupted: more would have been checked."""
    states = Counter(finding.state for finding in findings)
    made = len(findings) - states["skipped"]
    if wrong := states["wrong"]:
        return Sentence("Something is wrong (see ✗): {wrong} of {made} checks failed.", wrong=wrong, made=made)
    if interrupted:
        return Sentence("Checks made before the interruption: {made}. None found anything wrong.", made=made)
    if states["slow"]:
        return Sentence(
            "Everything checked out, but it is slow here (see !): {made} of {n} checks were made.",
            made=made,
            n=len(findings),
        )
    return Sentence("Everything checked out: {made} of {n} checks were made.", made=made, n=len(findings))


def short_checks(seconds: float) -> tuple[Check, ...]:
    """The checks that fit into this time, on a pair whose passes take no longer than a fifth of a second.

    The time that texts leave goes to the samples.
    """
    until = time.perf_counter() + (OF_TEXTS + OF_LENGTHS + OF_PARTS + OF_SAMPLES) * seconds
    return (
        (Sentence("comparing greedy texts"), functools.partial(texts, seconds=OF_TEXTS * seconds)),
        (Sentence("comparing longer texts"), functools.partial(lengths, seconds=OF_LENGTHS * seconds)),
        (Sentence("testing other ways to read trained parts"), functools.partial(wiring, seconds=OF_PARTS * seconds)),
        (Sentence("testing trees"), trees),
        (Sentence("sampling two tokens many times"), lambda pair: distributions(pair, until - time.perf_counter())),
        (Sentence("comparing prepared passes"), prepared),
        (Sentence("checking memory"), memory),
        (Sentence("timing passes"), pass_times),
        (Sentence("racing plain decoding"), functools.partial(race, seconds=OF_RACE * seconds)),
    )


def distributions(pair: ModelPair, seconds: float) -> Iterator[Finding]:
    """The distribution of the first two tokens: chains of every drafter, a tree where the pair has any, and every other
    lossless rule once."""
    shapes = itertools.product(DRAFTERS, (1, 3))
    candidates = [testable(pair, drafter, branches, "auto") for drafter, branches in shapes]
    # Some make chains whatever they are asked for.
    tested = {(request.settings.drafter, request.branches): request for request in candidates if request}.values()
    chains, trees = ([request for request in tested if request.branches == branches] for branches in (1, 3))
    requests = [*chains, *trees[:1]]
    for rule in map(rule_named, RULES):
        if rule.lossless and rule not in [request.rule for request in requests]:
            further = (testable(pair, drafter, 3 if rule.trees else 1, rule.name) for drafter in DRAFTERS)
            requests += itertools.islice(filter(None, further), 1)
    began = time.perf_counter()
    for request in requests:
        late = time.perf_counter() - began > seconds
        test = functools.partial(distribution, request, seconds / len(requests))
        yield left_out(named(request)) if late else finding_of(named(request), test)


def testable(pair: ModelPair, drafter: str, branches: int, rule: str) -> Request | None:
    """The request whose distribution can be tested; None where the pair, its drafter or the rule cannot do that."""
    drafting = DraftParams(branches)
    settings = RunSettings(PRESETS[0].prompt, drafter, 2, SAMPLING, RUN_TOKENS, drafting=drafting, rule=rule)
    try:
        request = prepare(pair, settings)
        check_lossless(request, LAB_RULES["auto"])
    except SpecvizError:
        return None
    return request


def distribution(request: Request, seconds: float = math.inf) -> Finding:
    """Many runs of two tokens against the exact distribution; `LEAST_SAMPLES` of them even if time runs out."""
    what = named(request)
    exact, sampler, began = exact_distribution(request), Sampler(request, LAB_RULES["auto"]), time.perf_counter()
    evidence = Evidence(exact.outcomes, exact.probs, exact.low, exact.high, SAMPLES)
    while evidence.n < LEAST_SAMPLES or (evidence.n < SAMPLES and time.perf_counter() - began < seconds):
        evidence.add(sampler.sample().tokens)
    p_value = evidence.test().p_value
    if p_value is None:
        return Finding("skipped", what, Sentence("too few different outcomes to test"))
    seen = Sentence(
        "{runs} runs, total variation {distance}, p = {p}",
        runs=evidence.n,
        distance=float(f"{evidence.distance:.3f}"),
        p=float(f"{p_value:.2g}"),
    )
    if p_value >= SIGNIFICANT:
        return Finding("right", what, seen)
    return Finding("wrong", what, seen, Sentence("Test the same on the page's Lossless? tab with more runs."))


def named(request: Request) -> Sentence:
    values = {"drafter": request.settings.drafter, "rule": request.rule.name}
    if request.branches == 1:
        return Sentence("distribution, {drafter}, rule {rule}, chain", **values)
    return Sentence("distribution, {drafter}, rule {rule}, {n} branches", **values, n=request.branches)


def trees(pair: ModelPair) -> Iterator[Finding]:
    """Whether the models read a small tree as they read its branches alone."""
    parts = ("target", pair.target, pair.target_name), ("draft", pair.draft, pair.draft_name or "")
    for role, model, name in parts:
        if model is None:
            continue
        what = Sentence("trees, {role}", role=role)
        reason = why_no_trees(model, name)
        if reason is None:
            yield Finding("right", what, Sentence("read in the same way as the branches alone"))
        else:
            yield Finding("skipped", what, reason)


def prepared(pair: ModelPair) -> Iterator[Finding]:
    """Prepared passes against the model's own."""
    for role, reason in pair.passes.prepared.reasons.items():
        yield Finding("skipped", Sentence("prepared passes, {role}", role=str(role)), reason)
    target = pair.passes.fast.get(TARGET)
    for role, passes in pair.passes.fast.items():
        check(passes, target)
        seen = Sentence("{kind}, equal to the model's own up to rounding", kind=passes.kind)
        yield Finding("right", Sentence("prepared passes, {role}", role=str(role)), seen)
    if target is not None and target.rounds_refusal is not None:
        yield Finding("skipped", Sentence("rounds made on the device"), target.rounds_refusal)


def memory(pair: ModelPair) -> Iterator[Finding]:
    """The memory left for longer texts."""
    peak, free = peak_mb(pair.device) * 2**20, free_memory(pair.device)
    seen = Sentence("{taken} at most so far, {free} free", taken=Bytes(peak), free=Bytes(free))
    if free > LITTLE_MEMORY * (peak + free):
        yield Finding("right", Sentence("memory"), seen)
    else:
        yield Finding("wrong", Sentence("memory"), seen, Sentence("Choose smaller models, or free some memory."))


def pass_times(pair: ModelPair) -> Iterator[Finding]:
    """T(K) / T(1) of the target, and how near T(1) comes to what memory allows."""
    *_, times = measure_passes(pair, WIDTHS, repeats=9)
    curve = times.curve("target")
    assert curve is not None and curve.one_token is not None, "all is measured"
    ratios = ", ".join(f"T({width}) = {curve.ratio(width):.2f}" for width in SHOWN if curve.ratio(width) is not None)
    seen = Sentence(
        "{ms} ms for one token after {context} tokens of text, timed now; {ratios} times that",
        ms=float(f"{1000 * curve.one_token:.2f}"),
        context=times.context,
        ratios=ratios or "T(1) = 1",
    )
    if curve.ratio(GAMMA + 1) is None or (curve.about_one or 0) > GAMMA:
        yield Finding("right", Sentence("a target pass"), seen)
    else:
        advice = Sentence("Verifying several tokens is expensive here: prepare the passes, and draft few tokens.")
        yield Finding("slow", Sentence("a target pass"), seen, advice)
    what = Sentence("share of the memory's bandwidth")
    share = share_of(pair, curve.one_token, measured_memory(pair.device, pair.passes.most_threads))
    if isinstance(share, SpecvizError):
        yield Finding("skipped", what, share)
    else:
        yield Finding("right", what, share.sentence)


def race(pair: ModelPair, seconds: float) -> Iterator[Finding]:
    """The drafter to start with in turn with plain decoding, greedily."""
    plain = plain_request(pair, PRESETS[0], 0.0, RACE_TOKENS)
    both = [Contestant.of(PLAIN), Contestant.of(usual(pair, preparing=False), GAMMA)]
    contest = Contest([entry_of(contestant, plain) for contestant in both])
    amount = Amount(plain.settings.max_new_tokens, RACE_REPEATS, seconds, whole=False)
    for event in measure_contest([plain], both, amount):
        contest.hear(event)
    row = contest.row(1)
    what = Sentence("a short race, {drafter}, {n} draft tokens", drafter=row.mode, n=GAMMA)
    reason = contest.failed.get(row.title)
    yield _race_verdict(what, row, contest.busy) if reason is None else Finding("wrong", what, reason)


def _race_verdict(what: Sentence, row: Row, disturbed: bool) -> Finding:
    """The verdict on a race: it pays only if all of its interval does."""
    values = {
        "speedup": float(f"{row.speedup_measured:.2f}"),
        "speed": f"{row.tokens_per_second:.0f}",
        "length": float(f"{row.acceptance_length:.2f}"),
    }
    if row.speedup_interval is None:
        seen = Sentence(
            "{speedup}× plain decoding, in too few turns for an interval: {speed} tokens a second, {length} a pass",
            **values,
        )
        return Finding("slow", what, seen)
    low, high = row.speedup_interval
    seen = Sentence(
        "{speedup}× plain decoding ({low} to {high}, 90 %): {speed} tokens a second, {length} tokens a pass",
        low=float(f"{low:.2f}"),
        high=float(f"{high:.2f}"),
        **values,
    )
    if low > 1:
        return Finding("right", what, seen)
    if disturbed:
        return Finding("slow", what, seen, Sentence("Another program may be busy: try again when the machine is idle."))
    return Finding("slow", what, seen, Sentence("The page's Why it works tab says what limits it."))
