"""Contestants take turns over the same parts of a text, and nothing but decoding is on the clock."""

import itertools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from tiny import passes_called_compiled, tiny_pair

from specviz.bench import turns
from specviz.bench.contest import AT_ONCE, runs_in_turn
from specviz.bench.contestants import Progress, TimedRun, Turn, busy, speedup_of
from specviz.bench.turns import LEAST_CUT, Amount, Stepper, engine_stepper, take_turns
from specviz.decoding.engine import rounds
from specviz.decoding.request import prepare
from specviz.records.settings import DraftParams, RunSettings, SamplingParams


@dataclass
class Clock:
    """Time passes only where a scripted stepper says so, and `slow` times as fast as it says."""

    now: float = 0.0
    slow: Callable[[float], float] = lambda now: 1.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds * self.slow(self.now)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turns, "time", types.SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(turns, "others_seconds", lambda: 0.0)
    return clock


def scripted(
    clock: Clock, seconds: float, tokens: int = 1, total=48, reading=0.0, after=0.0, log=None, **how
) -> Stepper:
    """Steps that bring so many tokens in so many seconds, the first one also after `reading`.

    after: what it takes to find out that there are no more. log: hears of every step.
    """

    def start(repeat: int):
        for made in range(0, total, tokens):
            clock.spend(seconds + (0 if made else reading))
            if log:
                log()
            yield types.SimpleNamespace(emitted=range(made, min(made + tokens, total)), apart=0.0)
        clock.spend(after)

    return Stepper(start, **how)


def runs_of(steppers: Sequence[Stepper], amount: Amount) -> list[TimedRun]:
    return [one for one in take_turns(steppers, amount) if isinstance(one, TimedRun)]


def ratio(runs: Sequence[TimedRun], number: int = 1):
    return speedup_of([one for one in runs if one.number == number], [one for one in runs if one.number == 0])


def test_all_decode_the_same_parts_with_plain_decoding_in_the_middle_and_every_other_time_backwards(clock):
    steps = []
    steppers = [scripted(clock, 0.05, log=lambda who=who: steps.append(who), total=24, warm=True) for who in (1, 2)]
    plain = scripted(clock, 0.05, log=lambda: steps.append(0), total=24)
    runs = runs_of([plain, *steppers], Amount(24, repeats=2))
    assert steps[:16] == [0] * 16, "warming up"
    # 0.25 s of plain decoding are 5 tokens, and a part has at least 6.
    parts = [steps[start : start + 6] for start in range(16, len(steps), 6)]
    assert all(len(set(part)) == 1 for part in parts)
    there, back = [2, 0, 1], [1, 0, 2]
    assert [part[0] for part in parts] == 2 * (there + back) + 2 * (back + there)
    assert {tuple(turn.tokens for turn in one.turns) for one in runs} == {(6, 6, 6, 6)}


def test_a_budget_cuts_a_text_only_where_it_need_not_be_whole_and_no_repeat_begins_after_it(clock):
    for whole, tokens in ((True, 48), (False, 6 * LEAST_CUT)):
        steppers = [scripted(clock, 0.1), scripted(clock, 0.05)]
        runs = runs_of(steppers, Amount(48, repeats=5, budget=1.0, whole=whole))
        assert [(one.repeat, len(one.token_ids)) for one in runs] == [(0, tokens), (0, tokens)]
        assert [len(one.turns) for one in runs] == [tokens // 6] * 2
        assert whole or not any(one.finished for one in runs)
        assert ratio(runs).value == pytest.approx(2.0)


def test_it_goes_on_within_the_budget_and_until_everyone_has_turns_enough(clock):
    def repeats(**amount) -> int:
        steppers = [scripted(clock, 0.1, total=6), scripted(clock, 0.1, total=6)]
        return 1 + max(one.repeat for one in runs_of(steppers, Amount(6, repeats=10, **amount)))

    assert repeats() == 10 and repeats(budget=5.0) == 4 and repeats(budget=0.0) == 1
    assert repeats(budget=0.0, least=3) == 3


def test_it_stops_once_all_intervals_are_as_precise_as_asked(clock):
    shaken = itertools.cycle([0.5, 1.0, 2.0, 1.5, 0.7])
    for slow, repeats in ((lambda now: 1.0, 1), (lambda now: next(shaken), 5)):
        clock.slow = slow
        steppers = [scripted(clock, 0.1), scripted(clock, 0.05), scripted(clock, 0.05, 2)]
        runs = runs_of(steppers, Amount(48, repeats=5, precise=0.01))
        assert len(runs) == 3 * repeats


def test_few_take_turns_with_one_run_of_plain_decoding(clock):
    steppers = [scripted(clock, 0.1, total=6) for _ in range(AT_ONCE + 3)]
    runs = runs_of(steppers, Amount(6, repeats=1))
    assert [(one.group, one.number) for one in runs] == [
        *((0, number) for number in range(AT_ONCE + 1)),
        *((1, number) for number in (0, AT_ONCE + 1, AT_ONCE + 2)),
    ]
    assert len(runs) == runs_in_turn(len(steppers)) and runs_in_turn(1) == 1


def test_a_while_in_which_everything_is_slow_leaves_the_ratio_where_it_is(clock):
    clock.slow = lambda now: 3.0 if 5 < now < 25 else 1.0
    runs = runs_of([scripted(clock, 0.1, total=96), scripted(clock, 0.2, 3, total=96)], Amount(96, repeats=2))
    found = ratio(runs)
    assert found.value == pytest.approx(1.5, rel=0.05) and found.low <= 1.5 <= found.high
    plain = [one.seconds for one in runs if one.number == 0]
    assert plain[0] > 1.5 * plain[1], "its own times are far apart"


def test_rounds_that_bring_more_than_a_part_and_the_prompt_count_as_in_whole_runs(clock):
    steppers = [scripted(clock, 0.1, reading=3.0), scripted(clock, 0.4, 8, reading=3.0)]
    runs = runs_of(steppers, Amount(48, repeats=2))
    assert len(runs[1].turns) < len(runs[0].turns)
    assert ratio(runs).value == pytest.approx((3 + 48 * 0.1) / (3 + 6 * 0.4))


def test_neither_what_happens_between_steps_nor_a_last_look_is_on_the_clock(clock):
    runs = []
    for one in take_turns([scripted(clock, 0.1, after=5.0), scripted(clock, 0.1, total=47, after=5.0)], Amount(48, 1)):
        clock.spend(1.0)
        runs += [one] if isinstance(one, TimedRun) else []
    assert [one.seconds for one in runs] == pytest.approx([4.8, 4.7])


def test_steps_that_were_made_ahead_take_their_time_in_their_own_turns(clock):
    def start(repeat: int):
        for made in range(48):
            before = clock.now
            if made % 8 == 0:
                clock.spend(8 * 0.1)
            yield types.SimpleNamespace(emitted=[made], apart=clock.now - before - 0.1)

    runs = runs_of([Stepper(start), scripted(clock, 0.1)], Amount(48, repeats=1))
    for ahead, alone in zip(*(one.turns for one in runs), strict=True):
        assert (ahead.tokens, ahead.seconds) == (alone.tokens, pytest.approx(alone.seconds))


def test_it_tells_now_and_then_how_far_it_is_and_can_be_ended_at_every_step(clock):
    shown = list(take_turns([scripted(clock, 0.1), scripted(clock, 0.1)], Amount(48, 1)))
    told = [one for one in shown if isinstance(one, Progress)]
    assert [one.number for one in told if one.warming] == [0, 1]
    assert 6 <= sum(not one.warming for one in told) <= 30 and max(one.tokens for one in told) <= 48
    shares = [one.fraction for one in told]
    assert shares == sorted(shares) and shares[0] == 0.0 and 0.8 < shares[-1] <= 1.0
    assert shown.count(None) > 60


def test_a_text_that_ends_sooner_is_compared_as_far_as_it_goes_and_a_busy_machine_is_called_so():
    plain = TimedRun(0, 0, 0, (Turn(0, 6, 4.0), Turn(1, 6, 1.0), Turn(2, 6, 1.0)), tuple(range(18)), None, True)
    short = TimedRun(1, 0, 0, (Turn(0, 6, 2.0), Turn(1, 6, 0.5)), tuple(range(50, 62)), None, True)
    assert speedup_of([short], [plain]).value == pytest.approx(2.0)
    elsewhere = TimedRun(1, 1, 0, short.turns, short.token_ids, None, True)
    assert speedup_of([elsewhere], [plain]) is None, "nothing stood beside it"
    # Busy: others use more than a quarter of a processor.
    quiet, loud = (TimedRun(0, 0, 0, (Turn(0, 6, 2.0, others),), (1,), None, True) for others in (0.5, 0.6))
    assert not busy([quiet]) and busy([loud]) and not busy([quiet, quiet])


# On a model


@pytest.mark.parametrize("temperature, prepared", [(0.0, False), (0.8, True)])
def test_who_stood_still_meanwhile_writes_the_text_of_a_run_alone_and_has_its_rounds(temperature, prepared):
    pair = tiny_pair("llama")
    if prepared:
        pair.passes.fast = passes_called_compiled(pair)
    ways = [(None, None), ("draft_model", 1), ("draft_model", 3), ("suffix", None)]
    settings = [
        RunSettings("Once upon", drafter, 3, SamplingParams(temperature), 30, seed=5, drafting=DraftParams(branches))
        for drafter, branches in ways
    ]
    runs = runs_of([engine_stepper(prepare(pair, one)) for one in settings], Amount(30, repeats=2))
    assert len(runs) == 2 * len(ways) and max(len(one.turns) for one in runs) > 2
    for one in runs:
        alone = list(rounds(prepare(pair, replace(settings[one.number], seed=5 + one.repeat))))
        assert one.token_ids == tuple(token for made in alone for token in made.emitted) and one.finished
        assert [made.drafted for made in one.rounds] == [made.drafted for made in alone]


def test_what_cannot_stand_still_takes_whole_runs_for_turns_and_so_do_those_beside_it(clock):
    steppers = [scripted(clock, 0.1), scripted(clock, 0.05, divisible=False)]
    runs = runs_of(steppers, Amount(48, repeats=3))
    assert len(runs) == 6 and all([turn.tokens for turn in one.turns] == [48] for one in runs)
    assert ratio(runs).value == pytest.approx(2.0) and ratio(runs).known
