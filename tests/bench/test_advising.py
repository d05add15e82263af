"""Advice keeps to its time: a slow pair tries fewer lengths on fewer prompts, and there is a final if time is left."""

import types
from dataclasses import replace

import pytest
from tiny import tiny_pair

from specviz.bench import advising
from specviz.bench.advice import ALL
from specviz.bench.advising import FINALISTS, LEAST_TOKENS, MOST_TOKENS, REPEATS, Course, advise, work_on
from specviz.bench.contestants import PLAIN, Contestant, Progress, TimedRun, Turn
from specviz.decoding.request import prepare
from specviz.records.errors import SpecvizError
from specviz.records.settings import RunSettings

CHAINS = [Contestant(mode, gamma) for mode in ("draft_model", "suffix", "lookahead") for gamma in (2, 4, 6)]


@pytest.fixture(scope="module")
def requests():
    pair = tiny_pair("llama")
    return [prepare(pair, RunSettings(text, None, max_new_tokens=200)) for text in ("Once upon", "A tale of two")]


@pytest.mark.parametrize("reading", [0.0, 100.0])
def test_a_heat_fits_into_the_tokens_that_there_is_time_for(reading):
    for worth in (10_000, 20_000, 50_000, 200_000):
        heat = advising._fitting(CHAINS, 200, 10, worth, reading)
        assert heat.cost() <= worth
        assert LEAST_TOKENS <= heat.tokens <= MOST_TOKENS and len(heat.prompts) == len(set(heat.prompts)) <= 10
    plenty = advising._fitting(CHAINS, 200, 10, 200_000, reading)
    assert (plenty.others, plenty.tokens, list(plenty.prompts)) == (CHAINS, MOST_TOKENS, list(range(10)))


def test_a_slow_pair_tries_one_length_a_drafter_on_few_prompts_and_short_texts():
    middle, slow = (advising._fitting(CHAINS, 200, 10, worth, 0.0) for worth in (3000, 100))
    assert middle.others == CHAINS and 1 < len(middle.prompts) < 10 and 0 in middle.prompts
    assert [one.num_draft_tokens for one in slow.others] == [4, 4, 4]
    assert (slow.tokens, list(slow.prompts)) == (LEAST_TOKENS, [0])
    assert advising._fitting(CHAINS, 8, 10, 1e6, 0.0).tokens == 8, "no more than was asked for"


class Machine:
    """Decoding that takes a scripted time: everybody's runs are over as soon as they are asked for."""

    def __init__(self, monkeypatch, seconds_of_a_token, speed):
        self.now, self.each, self.speed, self.plans = 0.0, seconds_of_a_token, speed, []
        monkeypatch.setattr(advising, "time", types.SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(advising, "pending_rounds", self.decode)
        monkeypatch.setattr(advising, "lane_of", lambda request: request.settings)
        monkeypatch.setattr(advising.Failures, "caught", lambda failures, contestant, make: make())
        monkeypatch.setattr("specviz.bench.turns.take_turns", self.take_turns)

    def decode(self, request):
        for _ in range(request.settings.max_new_tokens):
            self.now += self.each
            yield None

    def take_turns(self, lanes, plan):
        self.plans.append((plan, lanes))
        yield Progress(0, warming=True)
        for repeat in range(plan.repeats):
            for number, settings in enumerate(lanes):
                seconds = plan.tokens * self.each / self.speed(settings)
                self.now += seconds
                yield TimedRun(number, 0, repeat, (Turn(0, plan.tokens, seconds),), (1,) * plan.tokens, (), True)


def gains(settings) -> float:
    """Suffix decoding is the fastest, at γ = 6."""
    return {None: 1.0, "suffix": 1.0 + settings.num_draft_tokens / 4}.get(settings.drafter, 1.2)


@pytest.fixture
def others(monkeypatch):
    """Rounds are not recorded here, so nothing is known of acceptance."""
    monkeypatch.setattr("specviz.bench.advice._acceptance", lambda own, prompts: iter([None]))


@pytest.mark.parametrize("seconds, each", [(60, 0.001), (60, 0.02), (60, 0.2), (600, 0.2)])
def test_it_promises_the_time_that_it_has_and_keeps_to_it(requests, monkeypatch, others, seconds, each):
    machine = Machine(monkeypatch, each, gains)
    courses = [one for one in advise(requests, ["", ""], [Contestant(PLAIN), *CHAINS], seconds) if one]
    first, *_ = courses
    # The least that is measured of a slow pair takes a little more than the heat's half of the time.
    assert first.contestant is None and first.seconds_left <= 1.05 * seconds
    assert machine.now <= seconds
    fractions, left = [one.fraction for one in courses], [one.seconds_left for one in courses]
    assert fractions[0] == 0 and all(0 <= one <= 1 for one in fractions) and left[-1] == pytest.approx(0, abs=1e-6)


def test_the_fastest_meet_again_and_what_comes_of_that_takes_the_place_of_the_heat(requests, monkeypatch, others):
    machine = Machine(monkeypatch, 0.01, gains)
    *_, last = (one for one in advise(requests, ["a", "b"], [Contestant(PLAIN), *CHAINS], 120) if one)
    (_, everybody), *_, (plan, finalists) = machine.plans
    assert len(everybody) == 1 + len(CHAINS) and len(finalists) == 1 + FINALISTS
    assert 1 < plan.repeats <= REPEATS
    assert [(one.drafter, one.num_draft_tokens) for one in finalists[1:]] == [
        ("suffix", 6),
        ("suffix", 4),
        ("suffix", 2),
    ]
    told = [(row.domain, row.contestant) for row in last.rows]
    assert sorted(told, key=str) == sorted(((domain, one) for domain in (ALL, "a", "b") for one in CHAINS), key=str)


def test_where_the_heat_took_all_of_the_time_there_is_no_final_and_with_nobody_no_heat(requests, monkeypatch, others):
    machine = Machine(monkeypatch, 0.01, lambda settings: 0.2 if settings.drafter else 1.0)
    *_, last = (one for one in advise(requests, ["", ""], [Contestant(PLAIN), *CHAINS], 60) if one)
    assert {len(lanes) for _, lanes in machine.plans} == {1 + len(CHAINS)}
    assert {row.contestant for row in last.rows} == set(CHAINS)
    with pytest.raises(SpecvizError, match="nothing that could draft"):
        advising.require_chains([Contestant(PLAIN)])


def test_on_prompts_of_ones_own_everybody_decodes_all_of_them_once(requests, monkeypatch, others):
    machine = Machine(monkeypatch, 0.01, gains)
    courses = [one for one in work_on(requests, ["a", "b"], [Contestant(PLAIN), *CHAINS]) if one]
    assert [(plan.tokens, plan.repeats) for plan, _ in machine.plans] == [(200, 1)] * 2
    assert {row.prompts for row in courses[-1].rows if row.domain == ALL} == {2}


def test_a_real_pair_is_advised_on(requests):
    short = [replace(one, settings=replace(one.settings, max_new_tokens=12)) for one in requests]
    contestants = [Contestant(PLAIN), Contestant("draft_model", 4), Contestant("suffix", 4)]
    shown = list(advise(short, ["", ""], contestants, 2.0))
    assert None in shown, "it can be ended between rounds"
    *_, last = (one for one in shown if isinstance(one, Course))
    assert {row.contestant for row in last.rows} == set(contestants[1:])
    assert all(row.ratio.value > 0 and row.tokens_a_pass.value >= 1 for row in last.rows)
