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
from specviz.views.lossless_messages import TrialCounts, TrialInfo, greedy_outcome, outcome
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
    tokens = accumulate(len(round_.emitted) for round_ in run.rounds)
    figures = "tokens", "tokens_per_second", "acceptance_rate", "acceptance_length"
    values = {name: getattr(run, name) for name in ("text", "stop_reason", "seconds")}
    return (
        values
        | {name: getattr(counts, name) for name in figures}
        | {
            "drafter": run.drafter or PLAIN,
            "target_passes": counts.rounds,
            "clock": [list(point) for point in zip(emission_times(run.rounds), tokens)],
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
        "rows": [_comparison_row(row, row is best) for row in rows],
        "texts": words().translated(texts),
        "finished": finished,
    }


def _comparison_row(row: Row, best: bool) -> dict[str, Any]:
    names = ("num_draft_tokens", "branches", "rule", "lossless", "repeats", "settings")
    values = {"drafter": row.mode} | {name: getattr(row, name) for name in names}
    return values | {"fastest": best, "figures": row.figures(), "reason": words().translated(row.reason) or None}


def trial_answer(trial: TrialInfo, counts: TrialCounts, finished: bool) -> dict[str, Any]:
    """The counts and the exact distribution, the test's statistic and, once it is over, the verdict."""
    evidence, test = counts.evidence, counts.test()
    exact = zip(counts.exact.outcomes, counts.exact.texts, counts.exact.probs, evidence.counts)
    return _tested(trial, evidence.n, finished) | {
        "outcomes": [dict(zip(("tokens", "texts", "p", "count"), row)) for row in exact],
        "outside": evidence.outside,
        "distance": evidence.distance if evidence.n else None,
        "noise": counts.now and asdict(counts.now),
        "test": test and asdict(test),
        "verdict": _verdict(outcome(trial, counts, test)) if finished else None,
    }


def greedy_answer(trial: TrialInfo, tokens: Sequence[GreedyToken]) -> dict[str, Any]:
    """At temperature 0: both texts, token by token, and whether they agree."""
    plain, speculative = ([token for token in tokens if token.plain is is_plain] for is_plain in (True, False))
    place, verdict = greedy_outcome(trial, plain, speculative)
    return _tested(trial, len(speculative), True) | {
        "plain": [token.text for token in plain],
        "text": [token.text for token in speculative],
        "parting": place,
        "verdict": _verdict(verdict),
    }


def _tested(trial: TrialInfo, runs: int, finished: bool) -> dict[str, Any]:
    return {
        "schema": "specviz.lossless/1",
        "rule": trial.rule,
        "claims_lossless": trial.lossless,
        "settings": words().translated(joined([trial.drafter, trial.settings])),
        "dtype": trial.dtype,
        "runs": runs,
        "asked": trial.runs,
        "finished": finished,
    }


def _verdict(verdict: dict[str, Said]) -> dict[str, str]:
    texts = words().translated(verdict)
    return {"state": texts["state"], "sentence": " ".join(filter(None, (texts["sentence"], texts["why"])))}


def passes_answer(passes: PassTimes, machine: str | None) -> dict[str, Any]:
    """T(K) of each model as measured so far, in seconds and as a multiple of T(1)."""
    values = pass_values(passes)
    for curve, measured in zip(values["curves"], passes.curves):
        for point in curve["points"]:
            point["ratio"] = measured.ratio(point["width"])
    return {"schema": "specviz.passes/1", "machine": machine, "finished": values.pop("fraction") == 1.0} | values
