"""The JSON messages of the Lossless tab: each holds all that the tab shows, so losing one does no harm."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specviz.records.comparison import NEAR_TIE
from specviz.records.words import Words
from specviz.theory.statistics import SIGNIFICANT
from specviz.views.run_messages import as_json

if TYPE_CHECKING:
    from specviz.decoding.exact_distribution import ExactDistribution
    from specviz.decoding.lossless import GreedyToken
    from specviz.theory.statistics import ChiSquare, Evidence, Noise

#: How many of the likeliest outcomes are drawn.
SHOWN = 10

#: Standard deviations that cover 99.8 % of a normal distribution: how far noise moves a single bar.
NOISE_WIDTH = 3.09


@dataclass(frozen=True, slots=True)
class Asked:
    """What is tested, as the tab names it."""

    trial: str  # its unique key
    rule: str  # a name from `LAB_RULES`
    drafter: str  # display name
    settings: str  # in one line
    lossless: bool  # whether the rule claims to follow the target's distribution
    half_precision: bool
    dtype: str  # of the pair
    runs: int
    drafted: int  # the deepest that a round drafts


@dataclass(slots=True)
class Counted:
    """The counts so far."""

    exact: ExactDistribution
    evidence: Evidence
    noise: Sequence[Noise]  # at several numbers of runs, up to all
    now: Noise | None = None  # at the number made, once it is over
    #: Of the first and the second token, how many came from where.
    origins: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))

    def test(self) -> ChiSquare | None:
        """Of the counts so far; None before the first run."""
        return self.evidence.test() if self.evidence.n else None


def phase_message(text: str, fraction: float = 0.0) -> str:
    """What is happening before there is anything to show."""
    return as_json({"kind": "phase", "text": text, "fraction": fraction})


def error_message(text: str) -> str:
    """The test could not run, or not to the end. What is on the screen stays."""
    return as_json({"kind": "error", "text": text})


def trial_message(asked: Asked, counted: Counted, test: ChiSquare | None, phase: str, say: Words) -> str:
    """The exact distribution, the counts and, once it is over (phase ``finished`` or ``stopped``), the verdict.

    test: None before the first run.
    """
    evidence, n = counted.evidence, counted.evidence.n
    over = phase != "running"
    return as_json(
        _head(asked, phase, say)
        | {
            "text": say(f"lossless.{phase}", n=_grouped(n), runs=_grouped(asked.runs)),
            "fraction": n / asked.runs,
            "n": n,
            "runs": asked.runs,
            "distance": evidence.distance if n else None,
            "p_value": test.p_value if test else None,
            "verdict": outcome(asked, counted, test, say) if over else _so_far(evidence, test, say),
            "curve": evidence.curve,
            "noise": [[one.runs, one.mean, one.low, one.high] for one in counted.noise],
            "bars": _bars(counted),
            "facts": _facts(asked, counted, test, say),
        }
    )


def greedy_message(asked: Asked, tokens: Sequence[GreedyToken], phase: str, say: Words) -> str:
    """Both texts at temperature 0 and, once it is over, whether they agree."""
    plain = [token for token in tokens if token.plain]
    other = [token for token in tokens if not token.plain]
    place, verdict = greedy_outcome(asked, plain, other, say)
    if phase == "running":
        verdict = {"state": "pending", "headline": say("lossless.counting"), "sentence": "", "why": ""}
    return as_json(
        _head(asked, phase, say)
        | {
            "text": say(f"lossless.greedy_{phase}", n=len(other)),
            "fraction": (len(plain) + len(other)) / (2 * asked.runs),
            "n": len(other),
            "runs": asked.runs,
            "verdict": verdict,
            "greedy": {
                "plain": [token.text for token in plain],
                "rule": [token.text for token in other],
                "parting": place,
            },
            "facts": [],
        }
    )


def _head(asked: Asked, phase: str, say: Words) -> dict[str, Any]:
    return {
        "kind": "trial",
        "trial": asked.trial,
        "phase": phase,
        "rule": asked.rule,
        "rule_name": say(f"lossless.name_{asked.rule}"),
        "lossless": asked.lossless,
        "drafter": asked.drafter,
        "settings": asked.settings,
        "about": say(f"lossless.about_{asked.rule}"),
    }


def _so_far(evidence: Evidence, test: ChiSquare | None, say: Words) -> dict[str, str]:
    sentence = ""
    if evidence.n:
        p = say("lossless.no_p") if test.p_value is None else p_words(test.p_value, say)
        sentence = say("lossless.so_far", tv=say.number(evidence.distance, ".3f"), p=p)
    return {"state": "pending", "headline": say("lossless.counting"), "sentence": sentence, "why": ""}


def outcome(asked: Asked, counted: Counted, test: ChiSquare | None, say: Words) -> dict[str, str]:
    """The verdict in words: ``different`` below `SIGNIFICANT`; what that means depends on the rule's claim."""
    if test is None or test.p_value is None:
        return _spoken("undecided", say("lossless.too_few"), "", say)
    evidence, now = counted.evidence, counted.now
    different = test.p_value < SIGNIFICANT
    values = {
        "n": _grouped(evidence.n),
        "tv": say.number(evidence.distance, ".3f"),
        "mean": say.number(now.mean, ".3f"),
        "low": say.number(now.low, ".3f"),
        "high": say.number(now.high, ".3f"),
        "times": say.number(evidence.distance / now.mean, ".1f") if now.mean else "∞",
        "p": p_words(test.p_value, say),
    }
    if different:
        why = say("lossless.false_alarm" if asked.lossless else f"lossless.why_{asked.rule}")
        return _spoken("different", say("lossless.is_different", **values), why, say)
    why = "" if asked.lossless else say("lossless.missed", share=_percent(counted.origins[0]["accepted"] / evidence.n))
    return _spoken("same", say("lossless.is_same", **values), why, say)


def greedy_outcome(
    asked: Asked, plain: Sequence[GreedyToken], other: Sequence[GreedyToken], say: Words
) -> tuple[int | None, dict[str, str]]:
    """Where the texts part, None where they do not, and the verdict in words."""
    place = next((i for i, (one, two) in enumerate(zip(plain, other)) if one.id != two.id), None)
    return place, _greedy_verdict(asked, plain, other, place, say)


def _greedy_verdict(
    asked: Asked, plain: Sequence[GreedyToken], other: Sequence[GreedyToken], place: int | None, say: Words
) -> dict[str, str]:
    if not other:
        return _spoken("undecided", say("lossless.greedy_too_few"), "", say)
    if place is None:
        why = "" if asked.lossless else say("lossless.greedy_missed")
        return _spoken("same", say("lossless.greedy_same", n=len(other)), why, say)
    margin = plain[place].margin
    near = asked.lossless and asked.half_precision and margin <= NEAR_TIE
    sentence = say(
        "lossless.greedy_different", n=place + 1, got=_quoted(other[place].text), due=_quoted(plain[place].text)
    )
    apart = say("lossless.greedy_margin", margin=say.number(margin, ".2g"))
    if near:
        return _spoken("near", sentence, f"{apart} {say('lossless.greedy_near', dtype=asked.dtype)}", say)
    why = say("lossless.greedy_alarm" if asked.lossless else f"lossless.why_{asked.rule}")
    return _spoken("different", sentence, f"{apart} {why}", say)


def _spoken(state: str, sentence: str, why: str, say: Words) -> dict[str, str]:
    return {"state": state, "headline": say(f"lossless.headline_{state}"), "sentence": sentence, "why": why}


def _bars(counted: Counted) -> list[dict[str, Any]]:
    """The likeliest outcomes, all others together, and what the target never writes: exact and observed shares.

    noise: how far the observed share may lie from p, 998 times in 1,000.
    """
    exact, evidence, n = counted.exact, counted.evidence, counted.evidence.n

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


def _facts(asked: Asked, counted: Counted, test: ChiSquare | None, say: Words) -> list[list[str]]:
    exact, n = counted.exact, counted.evidence.n
    possible = sum(p > 0 for p in exact.probs)
    facts = [
        (
            say("lossless.fact_distribution"),
            say("lossless.distribution_words", n=possible, total=say.number(sum(exact.probs), ".6f")),
        ),
        (say("lossless.fact_runs"), say("lossless.runs_words", n=asked.drafted)),
        (say("lossless.fact_rounding"), _rounding(asked, exact, say)),
    ]
    if test is not None and test.p_value is not None:
        words = say("lossless.test_words", x=say.number(test.statistic, ".1f"), cells=test.cells, pooled=test.pooled)
        facts.append((say("lossless.fact_test"), words))
    if n:
        names = say("lossless.fact_first"), say("lossless.fact_second")
        facts += [(name, _origins(counts, say)) for name, counts in zip(names, counted.origins)]
    return [list(fact) for fact in facts]


def _origins(counts: Counter[str], say: Words) -> str:
    total = sum(counts.values())
    return " · ".join(
        say(f"lossless.from_{origin}", share=_percent(counts[origin] / total))
        for origin in ("accepted", "recovered", "bonus", "plain")
        if counts[origin]
    )


def _rounding(asked: Asked, exact: ExactDistribution, say: Words) -> str:
    key = "lossless.rounding_half" if asked.half_precision else "lossless.rounding_full"
    return say(key, dtype=asked.dtype, tv=say.number(exact.rounding, ".2g"))


def p_words(p_value: float, say: Words) -> str:
    """A p-value with its relation: ``= 0.41``, ``= 3e-12``, or ``< 1e-300`` below that."""
    if p_value < 1e-300:
        return "< 1e-300"
    return f"= {say.number(p_value, '.2f' if p_value >= 0.1 else '.1g')}"


def _grouped(count: int) -> str:
    """Groups thousands with a narrow space, which no language reads as a decimal sign."""
    return f"{count:,}".replace(",", "\u202f")


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\u202f%"


def _quoted(text: str) -> str:
    return f"‹\u2068{text}\u2069›"
