"""The API's answers other than traces, as plain values: names instead of words, and every count behind a picture.

Verdicts are the page's own sentences, in English.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from specviz.bench.contest import Row
from specviz.records.metrics import emission_times, tally
from specviz.records.runs import Run
from specviz.records.settings import PLAIN
from specviz.records.words import Said, joined, words
from specviz.views.lossless_messages import Asked, Counted, greedy_outcome, outcome
from specviz.views.tab_messages import fastest, pass_values

if TYPE_CHECKING:
    from specviz.decoding.lossless import GreedyToken
    from specviz.theory.roofline import PassTimes


def race_answer(plain: Run, speculative: Run, outcome: dict[str, Any], machine: str) -> dict[str, Any]:
    """Both runs on one clock that starts before the prompt is read, and how they compare. outcome: see `Duel`."""
    head = {"schema": "specviz.race/1", "machine": machine, "pair": asdict(speculative.pair)}
    return head | outcome | {"plain": _side(plain), "speculative": _side(speculative)}


def _side(run: Run) -> dict[str, Any]:
    counts = tally(run.rounds)
    tokens = accumulate(len(one.emitted) for one in run.rounds)
    figures = "tokens", "tokens_per_second", "acceptance_rate", "acceptance_length"
    own = {name: getattr(run, name) for name in ("text", "stop_reason", "seconds")}
    return (
        own
        | {name: getattr(counts, name) for name in figures}
        | {
            "drafter": run.drafter or PLAIN,
            "target_passes": counts.rounds,
            "clock": [list(one) for one in zip(emission_times(run.rounds), tokens)],
        }
    )


def comparison_answer(
    rows: Sequence[Row], repeats: int, machine: str | None, texts: dict[str, Any] | None, finished: bool
) -> dict[str, Any]:
    """The table's rows. texts: see `tab_messages.contest_message`."""
    best = fastest(rows)
    return {
        "schema": "specviz.comparison/1",
        "machine": machine,
        "repeats": repeats,
        "rows": [_row(row, row is best) for row in rows],
        "texts": words().spoken(texts),
        "finished": finished,
    }


def _row(row: Row, best: bool) -> dict[str, Any]:
    names = ("num_draft_tokens", "branches", "rule", "lossless", "repeats", "settings")
    own = {"drafter": row.mode} | {name: getattr(row, name) for name in names}
    return own | {"fastest": best, "figures": row.figures(), "reason": words().spoken(row.reason) or None}


def trial_answer(asked: Asked, counted: Counted, finished: bool) -> dict[str, Any]:
    """The counts and the exact distribution, the test's statistic and, once it is over, the verdict."""
    evidence, test = counted.evidence, counted.test()
    exact = zip(counted.exact.outcomes, counted.exact.texts, counted.exact.probs, evidence.counts)
    return _tested(asked, evidence.n, finished) | {
        "outcomes": [dict(zip(("tokens", "texts", "p", "count"), one)) for one in exact],
        "outside": evidence.outside,
        "distance": evidence.distance if evidence.n else None,
        "noise": counted.now and asdict(counted.now),
        "test": test and asdict(test),
        "verdict": _verdict(outcome(asked, counted, test)) if finished else None,
    }


def greedy_answer(asked: Asked, tokens: Sequence[GreedyToken]) -> dict[str, Any]:
    """At temperature 0: both texts, token by token, and whether they agree."""
    plain, other = ([one for one in tokens if one.plain is is_plain] for is_plain in (True, False))
    place, verdict = greedy_outcome(asked, plain, other)
    return _tested(asked, len(other), True) | {
        "plain": [one.text for one in plain],
        "text": [one.text for one in other],
        "parting": place,
        "verdict": _verdict(verdict),
    }


def _tested(asked: Asked, made: int, finished: bool) -> dict[str, Any]:
    return {
        "schema": "specviz.lossless/1",
        "rule": asked.rule,
        "claims_lossless": asked.lossless,
        "settings": words().spoken(joined([asked.drafter, asked.settings])),
        "dtype": asked.dtype,
        "runs": made,
        "asked": asked.runs,
        "finished": finished,
    }


def _verdict(verdict: dict[str, Said]) -> dict[str, str]:
    spoken = words().spoken(verdict)
    return {"state": spoken["state"], "sentence": " ".join(filter(None, (spoken["sentence"], spoken["why"])))}


def passes_answer(passes: PassTimes, machine: str | None) -> dict[str, Any]:
    """T(K) of each model as measured so far, in seconds and as a multiple of T(1)."""
    values = pass_values(passes)
    for curve, measured in zip(values["curves"], passes.curves):
        for point in curve["points"]:
            point["ratio"] = measured.ratio(point["width"])
    return {"schema": "specviz.passes/1", "machine": machine, "finished": values.pop("fraction") == 1.0} | values
