"""Advice keeps to its time: a slow pair tries fewer lengths on fewer prompts, and there is a final if time is left."""

import types
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from tiny import tiny_pair

from specviz.bench import advising, contesting
from specviz.bench.advising import (
    FINALISTS,
    LEAST_TOKENS,
    MOST_TOKENS,
    REPEATS,
    advise,
    contest_of,
    measure_all,
    require_chains,
)
from specviz.bench.contest import ALL, Contest
from specviz.bench.contestants import PLAIN, Contestant, Event, Progress, TimedRun, Turn
from specviz.decoding.request import prepare
from specviz.records.errors import SpecvizError
from specviz.records.settings import RunSettings

CHAINS = [Contestant.of(mode, gamma) for mode in ("draft_model", "suffix", "lookahead") for gamma in (2, 4, 6)]
EVERYBODY = [Contestant.of(PLAIN), *CHAINS]
NUMBERED = dict(enumerate(CHAINS, start=1))


@pytest.fixture(scope="module")
def requests():
    pair = tiny_pair("llama")
    return [prepare(pair, RunSettings(text, None, max_new_tokens=200)) for text in ("Once upon", "A tale of two")]


def heard(requests, domains: Sequence[str], contestants: Sequence[Contestant], events: Iterable[Event | None]):
    """The contest that has heard these events, and their progress."""
    contest, told = contest_of(requests, domains, contestants), []
    for event in events:
        contest.hear(event)
        told += [event] if isinstance(event, Progress) else []
    return contest, told


@pytest.mark.parametrize("reading", [0.0, 100.0])
def test_a_stage_fits_into_the_tokens_that_there_is_time_for(reading):
    for worth in (10_000, 20_000, 50_000, 200_000):
        stage = advising._fitting(NUMBERED, 200, 10, worth, reading)
        assert stage.cost() <= worth
        assert LEAST_TOKENS <= stage.tokens <= MOST_TOKENS and len(stage.prompts) == len(set(stage.prompts)) <= 10
    plenty = advising._fitting(NUMBERED, 200, 10, 200_000, reading)
    assert (plenty.drafting, plenty.tokens, list(plenty.prompts)) == (NUMBERED, MOST_TOKENS, list(range(10)))


def test_a_slow_pair_tries_one_length_a_drafter_on_few_prompts_and_short_texts():
    middle, slow = (advising._fitting(NUMBERED, 200, 10, worth, 0.0) for worth in (3000, 100))
    assert middle.drafting == NUMBERED and 1 < len(middle.prompts) < 10 and 0 in middle.prompts
    assert [each.num_draft_tokens for each in slow.drafting.values()] == [4, 4, 4] and list(slow.drafting) == [2, 5, 8]
    assert (slow.tokens, list(slow.prompts)) == (LEAST_TOKENS, [0])
    assert advising._fitting(NUMBERED, 8, 10, 1e6, 0.0).tokens == 8, "no more than was asked for"


class Machine:
    """Decoding that takes a scripted time: everybody's runs are over as soon as they are asked for."""

    def __init__(self, monkeypatch, seconds_of_a_token, speed):
        self.now, self.each, self.speed, self.amounts = 0.0, seconds_of_a_token, speed, []
        monkeypatch.setattr(advising, "time", types.SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(advising, "pending_rounds", self.decode)
        monkeypatch.setattr(contesting.Failures, "caught", lambda failures, contestant, make: contestant.settings)
        monkeypatch.setattr(contesting, "take_turns", self.take_turns)

    def decode(self, request):
        for _ in range(request.settings.max_new_tokens):
            self.now += self.each
            yield types.SimpleNamespace(apart=0.0)

    def take_turns(self, settings, amount):
        self.amounts.append((amount, settings))
        yield Progress(0, warming=True)
        for repeat in range(amount.repeats):
            for number, each in enumerate(settings):
                seconds = amount.tokens * self.each / self.speed(each)
                self.now += seconds
                turns = (Turn(0, amount.tokens, seconds),)
                yield TimedRun(number, 0, repeat, turns, (1,) * amount.tokens, None, True)


def gains(settings) -> float:
    """Suffix decoding is the fastest, at γ = 6."""
    return {None: 1.0, "suffix": 1.0 + settings.num_draft_tokens / 4}.get(settings.drafter, 1.2)


@pytest.mark.parametrize("seconds, each", [(60, 0.001), (60, 0.02), (60, 0.2), (600, 0.2)])
def test_it_promises_the_time_that_it_has_and_keeps_to_it(requests, monkeypatch, seconds, each):
    machine = Machine(monkeypatch, each, gains)
    _, told = heard(requests, ["", ""], EVERYBODY, advise(requests, EVERYBODY, seconds))
    # The least that is measured of a slow pair takes a little more than the first stage's half of the time.
    assert told[0].fraction == 0 and told[0].seconds_left <= 1.05 * seconds
    assert machine.now <= seconds
    assert all(0 <= event.fraction <= 1 for event in told) and told[-1].seconds_left == pytest.approx(0, abs=1e-6)


def test_the_fastest_meet_again_and_what_comes_of_that_takes_the_place_of_the_first_stage(requests, monkeypatch):
    machine = Machine(monkeypatch, 0.01, gains)
    contest, _ = heard(requests, ["a", "b"], EVERYBODY, advise(requests, EVERYBODY, 120))
    (_, everybody), *_, (amount, finalists) = machine.amounts
    assert len(everybody) == 1 + len(CHAINS) and len(finalists) == 1 + FINALISTS
    assert 1 < amount.repeats <= REPEATS
    fastest = [(each.drafter, each.num_draft_tokens) for each in finalists[1:]]
    assert fastest == [("suffix", 6), ("suffix", 4), ("suffix", 2)]
    rows = contest.by_domain()
    assert sorted((row.domain, row.title) for row in rows) == sorted(
        (domain, chain.title) for domain in (ALL, "a", "b") for chain in CHAINS
    )
    repeats = {row.title: row.repeats for row in rows if row.domain == ALL}
    assert repeats["suffix γ=6"] == 2 * amount.repeats and repeats["draft_model γ=4"] == 2


def test_where_the_first_stage_took_all_of_the_time_there_is_no_final_and_with_nobody_none_at_all(
    requests, monkeypatch
):
    machine = Machine(monkeypatch, 0.01, lambda settings: 0.2 if settings.drafter else 1.0)
    contest, _ = heard(requests, ["", ""], EVERYBODY, advise(requests, EVERYBODY, 60))
    assert {len(settings) for _, settings in machine.amounts} == {1 + len(CHAINS)}
    assert {row.title for row in contest.by_domain()} == {chain.title for chain in CHAINS}
    with pytest.raises(SpecvizError, match="nothing that could draft"):
        require_chains([Contestant.of(PLAIN)])


def test_on_prompts_of_ones_own_everybody_decodes_all_of_them_once(requests, monkeypatch):
    machine = Machine(monkeypatch, 0.01, gains)
    contest, _ = heard(requests, ["a", "b"], EVERYBODY, measure_all(requests, EVERYBODY))
    assert [(amount.tokens, amount.repeats) for amount, _ in machine.amounts] == [(200, 1)] * 2
    assert {row.prompts for row in contest.by_domain() if row.domain == ALL} == {2}


def test_a_real_pair_is_advised_on(requests):
    short = [replace(each, settings=replace(each.settings, max_new_tokens=12)) for each in requests]
    contestants = [Contestant.of(PLAIN), Contestant.of("draft_model", 4), Contestant.of("suffix", 4)]
    events = list(advise(short, contestants, 2.0))
    assert None in events, "it can be ended between rounds"
    contest, _ = heard(short, ["", ""], contestants, events)
    assert isinstance(contest, Contest) and [row.mode for row in contest.by_domain()] == ["draft_model", "suffix"]
    assert all(row.ratio.value > 0 and row.tokens_a_pass.value >= 1 for row in contest.by_domain())
