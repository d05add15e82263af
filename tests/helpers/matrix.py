"""Which cases of a promise are tried: small pairs of every architecture, drafters, rules and passes, met pairwise."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
from fast_passes import MAKERS, with_passes
from tiny import ARCHITECTURES, generated, tiny_pair, with_heads

from specviz.drafters import DRAFTERS
from specviz.drafters.registry import drafter_class
from specviz.models.pair import ModelPair
from specviz.passes.cached_model import has_sliding_windows
from specviz.records.rules import RULES
from specviz.records.runs import DraftedToken, Round
from specviz.records.settings import AUTO, DraftParams, SamplingParams

GREEDY = SamplingParams(temperature=0)
#: Hot, so that target and draft have something to disagree on.
HOT = SamplingParams(temperature=3.0)

PROMPT = [3, 5, 7, 11, 3, 5]

SLIDING = ["mistral", "gemma2", "gemma3"]
FULL = [name for name in ARCHITECTURES if name not in SLIDING]

#: Drafters that run a model or a trained part.
MODELS = ["draft_model", "early_exit", "quantised_self", "medusa", "eagle", "parallel"]


def pairwise(**dimensions: Sequence[Any]) -> list[Any]:
    """Parameters for tests: each value of a dimension meets each value of every other one in at least one case."""
    names = sorted(dimensions, key=lambda name: -len(dimensions[name]))
    others = list(itertools.product(*(dimensions[name] for name in names[2:])))
    met: set[Any] = set()
    cases = []
    for two in itertools.product(*(dimensions[name] for name in names[:2])):
        chosen = (*two, *max(others, key=lambda rest: len(_pairs((*two, *rest)) - met)))
        met |= _pairs(chosen)
        case = dict(zip(names, chosen))
        values = [case[name] for name in dimensions]
        cases.append(pytest.param(*values, id=" ".join(str(getattr(one, "name", one)) for one in values)))
    return cases


def _pairs(values: tuple[Any, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(values), 2))


@lru_cache
def pair_of(architecture: str = "llama", noise: float = 0.15) -> ModelPair:
    """A pair of 16 tokens, so that random heads are right now and then; no token ends its texts."""
    pair = with_heads(tiny_pair(architecture, noise=noise, vocab=16), seed=4)
    return dataclasses.replace(pair, eos_ids=frozenset())


@lru_cache
def prepared_pair(architecture: str, passes: str) -> ModelPair:
    """The same pair with passes of one of the kinds in `MAKERS`."""
    pair = pair_of(architecture)
    return with_passes(pair, MAKERS[passes](pair))


@lru_cache
def greedy_text(architecture: str, prompt: tuple[int, ...] = tuple(PROMPT), tokens: int = 20) -> list[int]:
    """transformers' own continuation."""
    return generated(pair_of(architecture), list(prompt), tokens)


def makes_trees(drafter: str, branches: int | None, pair: ModelPair) -> bool:
    return drafter_class(pair, drafter).branches(pair, DraftParams(branches=branches)) > 1


def refused_field(drafter: str | None, branches: int | None, pair: ModelPair, gamma: int | str = AUTO) -> str | None:
    """The parameter to put right where this drafter cannot work in this way; None where it can."""
    if drafter is None:
        return None
    sliding = has_sliding_windows(pair.target)
    if drafter == "lookahead":
        return "branches" if branches == 1 else "drafter" if sliding else "num_draft_tokens" if gamma == 1 else None
    return "branches" if sliding and makes_trees(drafter, branches, pair) else None


#: The lossless rules, each with the branches it is tried with.
LOSSLESS = [(name, 3 if facts.trees else 1) for name, facts in RULES.items() if facts.lossless]


def rules_of(drafter: str) -> list[tuple[str, int]]:
    """The lossless rules that fit the drafter, each with the branches it is tried with."""

    def fits(rule: str, branches: int) -> bool:
        if branches == 1:
            return refused_field(drafter, 1, pair_of()) is None
        paths = RULES[rule].paths
        return drafter_class(pair_of(), drafter).draws_paths if paths else makes_trees(drafter, branches, pair_of())

    return [(rule, branches) for rule, branches in LOSSLESS if fits(rule, branches)]


#: Every lossless rule with every drafter that it can judge: (drafter, rule, branches).
EXACT = [(drafter, rule, branches) for drafter in DRAFTERS for rule, branches in rules_of(drafter)]


def drafting_with(drafter: str, rule: str, branches: int, **params: Any) -> dict[str, Any]:
    """The arguments of a run that drafts three tokens deep."""
    drafting = DraftParams(branches=branches, **params)
    return {"drafter": drafter, "rule": rule, "num_draft_tokens": 3, "drafting": drafting}


def branch(one: Round, index: int) -> list[DraftedToken]:
    """The draft tokens from the root to this one; none for −1."""
    return [] if index < 0 else [*branch(one, one.drafted[index].parent), one.drafted[index]]


def path_of(one: Round) -> list[DraftedToken]:
    """The accepted tokens, which have to be one branch from the root on."""
    kept = [index for index, token in enumerate(one.drafted) if token.outcome == "accepted"]
    assert [one.drafted[index].parent for index in kept] == [-1, *kept][: len(kept)]
    return [one.drafted[index] for index in kept]
