"""What a check of a pair is made of: findings, and looking in such a way that one which fails is one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from specviz.bench.contestants import Contestant
from specviz.bench.failures import reason_of
from specviz.bench.timed_runs import Workload, request_of
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence

#: Draft tokens a round, of every text that is compared.
GAMMA = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """What was checked, and what came of it."""

    #: ``slow`` is right, but does not pay; ``skipped`` cannot be checked here.
    state: Literal["right", "wrong", "slow", "skipped"]
    what: Sentence
    seen: Sentence | SpecvizError
    advice: Sentence | None = None


def tried(what: Sentence, look: Callable[[], Finding]) -> Finding:
    """What is found; or that looking failed, however it did."""
    try:
        return look()
    except Exception as error:
        advice = Sentence("Report this with the JSON file; meanwhile choose another drafter or float32.")
        return Finding("wrong", what, reason_of(error), advice)


def refusal_of(contestant: Contestant, workload: Workload) -> Exception | None:
    """Why the pair cannot be decoded for in this way; None if it can."""
    try:
        request_of(contestant, workload)
    except Exception as error:
        return error
    return None
