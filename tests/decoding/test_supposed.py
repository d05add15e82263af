"""What if? A round that is judged once more is the round of the run in which it had been so."""

import dataclasses

import pytest
from tiny import tiny_pair

import specviz
from specviz.decoding.request import prepare
from specviz.decoding.supposed import Supposed, suppose
from specviz.records.runs import Round, Run
from specviz.records.settings import RunSettings, SamplingParams

PROMPT = [3, 5, 7, 11, 3, 5]
PAIR = dataclasses.replace(tiny_pair("llama", noise=0.15, vocab=16), eos_ids=frozenset())


#: Seven of the sixteen tokens may begin; after each of these, four more may follow.
GRAMMAR = "/([!-'][(-+]?)*/"


def run_of(rule: str = "auto", coins: str = "", branches: int = 1, grammar: str = "") -> tuple[RunSettings, Run]:
    values = {"drafter": "draft_model", "rule": rule, "num_draft_tokens": 4, "max_new_tokens": 24, "seed": 5}
    values |= {"coins": coins, "grammar": grammar}
    settings = RunSettings.of(values | {"prompt": PROMPT, "temperature": 0.8, "branches": branches})
    return settings, specviz.run(PAIR, PROMPT, **values, sampling=settings.sampling, drafting=settings.drafting)


def supposed(settings: RunSettings, run: Run, index: int, **what) -> Round | None:
    tokens = [id for one in run.rounds[:index] for id in one.emitted] + [
        token.id for token in run.rounds[index].drafted
    ]
    found = list(suppose(prepare(PAIR, settings), Supposed(index, tokens, **what)))
    assert found[:index] == [None] * index
    return found[index] if len(found) > index else None


def assert_same(one: Round, other: Round) -> None:
    """But for its times, and rounding."""
    assert [token.outcome for token in one.drafted] == [token.outcome for token in other.drafted]
    assert (one.next.id, one.next.kind) == (other.next.id, other.next.kind)
    for attribute in ("p", "q", "u", "accept_prob"):
        values = [getattr(token, attribute) for token in other.drafted]
        assert [getattr(token, attribute) for token in one.drafted] == pytest.approx(values, abs=1e-5)
    assert [row.allowed for row in one.top] == [row.allowed for row in other.top]
    assert [row.allowed_mass for row in one.top] == pytest.approx([row.allowed_mass for row in other.top], abs=1e-5)


@pytest.mark.parametrize(
    "rule, branches, grammar", [("token", 1, ""), ("block", 1, ""), ("auto", 3, ""), ("token", 1, GRAMMAR)]
)
def test_a_moved_coin_gives_the_round_of_the_run_with_that_coin(rule, branches, grammar):
    settings, run = run_of(rule, branches=branches, grammar=grammar)
    for index in range(len(run.rounds) - 1):
        assert_same(supposed(settings, run, index), run.rounds[index])
    for coin, u in (("0", 0.999), ("0", 0.0), ("next", 0.9)):
        place = "next" if coin == "next" else "1"
        other = run_of(rule, f"3.{place}={u}", branches, grammar)[1].rounds[2]
        assert_same(supposed(settings, run, 2, coins={coin: u}), other)


@pytest.mark.parametrize("grammar", ["", GRAMMAR])
def test_a_temperature_changes_all_shares_and_a_shorter_draft_ends_with_the_targets_own_token(grammar):
    settings, run = run_of("token", grammar=grammar)
    colder = supposed(settings, run, 2, temperature=0.4)
    for row, own in zip(colder.top, run.rounds[2].top):
        assert row.allowed == own.allowed
        (likely, p), (second, less) = row.p[:2]
        shares = dict(own.p)
        assert p / less == pytest.approx((shares[likely] / shares[second]) ** 2, rel=1e-3)
    index = next(index for index, one in enumerate(run.rounds) if one.drafted[0].outcome == "accepted")
    shorter = supposed(settings, run, index, gamma=1)
    assert len(shorter.drafted) == 1 and shorter.next.kind == "bonus" and len(shorter.top) == 2
    assert shorter.next.prob == pytest.approx(dict(run.rounds[index].top[1].p).get(shorter.next.id, shorter.next.prob))


def test_nothing_is_supposed_of_another_run():
    settings, run = run_of("token")
    other = dataclasses.replace(settings, seed=6)
    assert supposed(other, run, 3) is None
    greedy = dataclasses.replace(settings, sampling=SamplingParams(temperature=0.0))
    tokens = [token.id for token in run.rounds[0].drafted]
    assert list(suppose(prepare(PAIR, greedy), Supposed(0, tokens))) == []
