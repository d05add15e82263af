"""A hybrid copies where the text repeats itself and lets a model draft where it does not, each as it would alone."""

import dataclasses

import pytest
from fake_target import copying
from refusal import refused
from tiny import tiny_pair, with_heads

import specviz
from specviz.drafters.copying import Suffix
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.heads import Eagle, Mtp
from specviz.drafters.hybrid import Hybrid, model_of
from specviz.models.pair import ModelPair
from specviz.records.settings import SamplingParams

GREEDY, HOT = SamplingParams(temperature=0), SamplingParams(temperature=1.5)
PROMPT = [3, 5, 7, 11, 3, 5, 7, 2, 9, 3, 5]
DEPTH = 3


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    """Of 16 tokens, so that texts repeat themselves; none of them ends a text."""
    return dataclasses.replace(with_heads(tiny_pair("llama", noise=0.15, vocab=16)), eos_ids=frozenset())


def of_parts(pair: ModelPair, *names: str) -> ModelPair:
    return dataclasses.replace(pair, parts={name: pair.parts[name] for name in names})


def rounds_of(
    pair: ModelPair, sampling: SamplingParams, text: list[int] = PROMPT, drafter: str = "hybrid", new: int = 60
):
    """(text before the round, the round)"""
    text = list(text)
    order = {"drafter": drafter, "num_draft_tokens": DEPTH, "sampling": sampling, "seed": 1}
    for one in specviz.speculate(pair, text, max_new_tokens=new, **order):
        yield list(text), one
        text += one.emitted


def drafted(one) -> list[int]:
    return [token.id for token in one.drafted]


def copies(one) -> bool:
    return (one.drafted[0].source or "").startswith("match")


@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "sampled"])
def test_it_copies_where_a_copy_promises_most_of_a_draft_and_nowhere_else(pair, sampling):
    seen = set()
    for text, one in list(rounds_of(pair, sampling))[:-DEPTH]:
        found = copying(Suffix).best_continuation(text, DEPTH)
        promising = found.match >= Hybrid.LEAST_MATCH and found.score >= Hybrid.LEAST_SHARE * DEPTH
        assert copies(one) == promising
        if promising:
            assert drafted(one) == found.tokens
            assert all(token.q == 1 for token in one.drafted)
        seen.add(promising)
    assert seen == {True, False}


@pytest.mark.parametrize("parts", [("eagle",), ("mtp",), ()], ids=["eagle", "mtp", "draft model"])
def test_after_copies_the_model_drafts_what_it_drafts_of_the_same_text_alone(pair, parts):
    pair, after_copies, copied = of_parts(pair, *parts), 0, False
    for text, one in list(rounds_of(pair, GREEDY, new=80))[:-DEPTH]:
        if not copies(one):
            _, alone = next(rounds_of(pair, GREEDY, text, model_of(pair).name, new=DEPTH + 1))
            assert drafted(one) == drafted(alone)
            after_copies += copied
        copied = copies(one)
    assert after_copies


def test_the_best_guesser_that_the_pair_has_drafts_and_the_trace_names_it(pair):
    for parts, kind in ((("medusa", "mtp", "eagle"), Eagle), (("mtp",), Mtp), (("medusa",), DraftModel)):
        run = specviz.run(of_parts(pair, *parts), PROMPT, drafter="hybrid", max_new_tokens=4)
        assert run.settings["model"] == kind.name
    with refused("drafter", "no model to draft"):
        specviz.run(dataclasses.replace(pair, parts={}, draft=None), PROMPT, drafter="hybrid")
