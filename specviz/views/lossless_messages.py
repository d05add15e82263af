"""The JSON messages of the Lossless tab: each holds all that the tab shows, so losing one does no harm."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specviz.records.metrics import tolerance
from specviz.records.rules import RULES
from specviz.records.words import Said, joined, said, words
from specviz.theory.statistics import SIGNIFICANT, noticed
from specviz.views.labels import time_left
from specviz.views.run_messages import message

if TYPE_CHECKING:
    from specviz.decoding.exact_distribution import ExactDistribution
    from specviz.decoding.lossless import GreedyToken, Sample
    from specviz.theory.statistics import ChiSquare, Evidence, Noise

#: The rule of a trial that counts what a student's function wrote.
GRADED = "graded"

#: How many of the likeliest outcomes are drawn.
SHOWN = 10

#: Standard deviations that cover 99.8 % of a normal distribution: how far noise moves a single bar.
NOISE_WIDTH = 3.09


@dataclass(frozen=True, slots=True)
class TrialInfo:
    """What the test is about, in the page's words."""

    key: str  # unique
    rule: str  # a name from `LAB_RULES`, or `GRADED`
    drafter: Said
    settings: Said  # in one line
    lossless: bool  # whether the rule claims to follow the target's distribution
    half_precision: bool
    dtype: str  # of the pair
    runs: int
    deepest_draft: int  # the most levels that a round drafts
    told: Said = ""  # of a wrong graded rule, what its grade says


@dataclass(slots=True)
class TrialCounts:
    """The counts so far."""

    exact: ExactDistribution
    evidence: Evidence
    noise: Sequence[Noise]  # at several numbers of runs, up to all
    now: Noise | None = None  # at the number of runs made, once the test is over
    seconds_left: float | None = None  # about, at the pace so far
    #: Of the first and the second token, how many came from where.
    origins: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))

    def add(self, sample: Sample) -> None:
        self.evidence.add(sample.tokens)
        for origin_counts, origin in zip(self.origins, sample.origins):
            origin_counts[origin] += 1

    def test(self) -> ChiSquare | None:
        """The test of the counts so far; None before the first run."""
        return self.evidence.test() if self.evidence.n else None


def trial_message(trial: TrialInfo, counts: TrialCounts, test: ChiSquare | None, phase: str) -> str:
    """The exact distribution, the counts and, once it is over (phase ``finished`` or ``stopped``), the verdict.

    test: None before the first run.
    """
    evidence, n = counts.evidence, counts.evidence.n
    so_far = said("lossless.so_far", tv=evidence.distance, p=_p_value(test.p_value)) if test else ""
    return _trial(
        trial,
        phase,
        text=_progress(trial, counts) if phase == "running" else said(f"lossless.{phase}", n=n, runs=trial.runs),
        fraction=n / trial.runs,
        n=n,
        distance=evidence.distance if n else None,
        p_value=test.p_value if test else None,
        verdict=_verdict("pending", so_far) if phase == "running" else outcome(trial, counts, test),
        curve=evidence.curve,
        noise=[[level.runs, level.mean, level.low, level.high] for level in counts.noise],
        bars=_bars(counts),
        facts=_facts(trial, counts, test),
    )


def _progress(trial: TrialInfo, counts: TrialCounts) -> Said:
    runs = said("lossless.running", n=counts.evidence.n, runs=trial.runs)
    return runs if counts.seconds_left is None else joined([runs, time_left(counts.seconds_left)])


def greedy_message(trial: TrialInfo, tokens: Sequence[GreedyToken], phase: str) -> str:
    """Both texts at temperature 0 and, once it is over, whether they agree."""
    plain = [token for token in tokens if token.plain]
    speculative = [token for token in tokens if not token.plain]
    place, verdict = greedy_outcome(trial, plain, speculative)
    return _trial(
        trial,
        phase,
        text=said(f"lossless.greedy_{phase}", n=len(speculative)),
        fraction=len(tokens) / (2 * trial.runs),
        n=len(speculative),
        verdict=_verdict("pending") if phase == "running" else verdict,
        greedy={
            "plain": [token.text for token in plain],
            "rule": [token.text for token in speculative],
            "parting": place,
        },
        facts=[],
    )


def _trial(trial: TrialInfo, phase: str, **fields: Any) -> str:
    return message(
        "trial",
        trial=trial.key,
        phase=phase,
        rule=trial.rule,
        rule_name=said(f"ways.rule_{trial.rule}" if trial.rule in RULES else f"lossless.name_{trial.rule}"),
        lossless=trial.lossless,
        drafter=trial.drafter,
        settings=trial.settings,
        about=said(f"ways.rule_{trial.rule}_about" if trial.rule in RULES else f"lossless.about_{trial.rule}"),
        runs=trial.runs,
        **fields,
    )


def _verdict(state: str, sentence: Said = "", why: Said = "") -> dict[str, Said]:
    headline = said("lossless.counting" if state == "pending" else f"lossless.headline_{state}")
    return {"state": state, "headline": headline, "sentence": sentence, "why": why}


def outcome(trial: TrialInfo, counts: TrialCounts, test: ChiSquare | None) -> dict[str, Said]:
    """The verdict: ``different`` below `SIGNIFICANT`, which means an error only if the rule claims to be lossless."""
    evidence, now = counts.evidence, counts.now
    if test is None or test.p_value is None or now is None:
        return _verdict("undecided", said("lossless.too_few"))
    values = {"n": evidence.n, "tv": evidence.distance, "mean": now.mean, "p": _p_value(test.p_value)}
    if test.p_value < SIGNIFICANT:
        times = said("lossless.times", times=evidence.distance / now.mean) if now.mean else "∞"
        why = said("lossless.false_alarm") if trial.lossless else trial.told or _why_wrong(trial.rule)
        return _verdict("different", said("lossless.is_different", times=times, **values), why)
    share = 100 * counts.origins[0]["accepted"] / evidence.n
    least = said("lossless.noticed", tv=noticed(test.cells, evidence.n) + counts.exact.rounding)
    why = least if trial.lossless else joined([trial.told or said("lossless.missed", share=share), least], " ")
    return _verdict("same", said("lossless.is_same", low=now.low, high=now.high, **values), why)


def _why_wrong(rule: str) -> Said:
    return said(f"lossless.why_{rule}" if f"lossless.why_{rule}" in words() else "lossless.why_lossy")


def greedy_outcome(
    trial: TrialInfo, plain: Sequence[GreedyToken], speculative: Sequence[GreedyToken]
) -> tuple[int | None, dict[str, Said]]:
    """The position at which the texts diverge, None if they are equal, and the verdict."""
    place = next((i for i, (expected, token) in enumerate(zip(plain, speculative)) if expected.id != token.id), None)
    if not speculative:
        return place, _verdict("undecided", said("lossless.greedy_too_few"))
    if place is None:
        why = "" if trial.lossless else said("lossless.greedy_missed")
        return place, _verdict("same", said("lossless.greedy_same", n=len(speculative)), why)
    got, due = _quoted(speculative[place].text), _quoted(plain[place].text)
    sentence = said("lossless.greedy_different", n=place + 1, got=got, due=due)
    margin = plain[place].margin
    gap = speculative[place].gap
    if trial.lossless and trial.half_precision and gap is not None and gap <= tolerance(trial.dtype):
        state, why = "near", said("lossless.greedy_near", dtype=trial.dtype)
    else:
        state, why = "different", said("lossless.greedy_alarm") if trial.lossless else _why_wrong(trial.rule)
    apart = [] if margin is None else [said("lossless.greedy_margin", margin=margin)]
    return place, _verdict(state, sentence, joined([*apart, why], " "))


def _bars(counts: TrialCounts) -> list[dict[str, Any]]:
    """The likeliest outcomes, all others together, and those that the target never writes: exact and observed shares.

    noise: how far the observed share may lie from p, 998 times in 1,000.
    """
    exact, evidence, n = counts.exact, counts.evidence, counts.evidence.n

    def bar(kind: str, texts: Sequence[str], p: float, count: int) -> dict[str, Any]:
        share, spread = (count / n, NOISE_WIDTH * math.sqrt(p * (1 - p) / n)) if n else (0.0, 0.0)
        return {"kind": kind, "texts": texts, "p": p, "share": share, "noise": spread}

    rows = [
        bar("outcome", texts, p, count) for texts, p, count in zip(exact.texts[:SHOWN], exact.probs, evidence.counts)
    ]
    rest = max(0.0, 1 - sum(exact.probs[:SHOWN])) if len(exact.probs) > SHOWN else 0.0
    rows.append(bar("others", [str(max(0, len(exact.probs) - SHOWN))], rest, sum(evidence.counts[SHOWN:])))
    rows.append(bar("outside", [], 0.0, evidence.outside))
    return rows


def _facts(trial: TrialInfo, counts: TrialCounts, test: ChiSquare | None) -> list[list[Said]]:
    exact, n = counts.exact, counts.evidence.n
    possible = sum(p > 0 for p in exact.probs)
    graded = trial.rule == GRADED
    facts = {
        "distribution": said("lossless.distribution_words", n=possible, total=sum(exact.probs)),
        "runs": said("lossless.runs_graded" if graded else "lossless.runs_words", n=trial.deepest_draft),
    }
    if not graded:
        rounding = "lossless.rounding_half" if trial.half_precision else "lossless.rounding_full"
        facts["rounding"] = said(rounding, dtype=trial.dtype, tv=exact.rounding)
    if test is not None and test.p_value is not None:
        facts["test"] = said("lossless.test_words", x=test.statistic, cells=test.cells, pooled=test.pooled)
    if n and not graded:
        facts |= {name: _origins(origin_counts) for name, origin_counts in zip(("first", "second"), counts.origins)}
    return [[said(f"lossless.fact_{name}"), text] for name, text in facts.items()]


def _origins(counts: Counter[str]) -> Said:
    return joined(
        said(f"lossless.from_{origin}", share=100 * counts[origin] / counts.total())
        for origin in ("accepted", "recovered", "bonus", "plain")
        if counts[origin]
    )


def _p_value(p: float | None) -> Said:
    """With its relation: ``= 0.41``, ``= 3e-12``, or ``< 1e-300`` below that."""
    if p is None:
        return said("lossless.no_p")
    return "< 1e-300" if p < 1e-300 else said("lossless.p_large" if p >= 0.1 else "lossless.p_small", p=p)


def _quoted(text: str) -> str:
    return f"‹\u2068{text}\u2069›"
