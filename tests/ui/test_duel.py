"""A run and its plain rival, measured: which of several measurements counts, and when none does."""

import time
import types
from dataclasses import replace

import pytest
import torch
from handmade import a_round
from tiny import tiny_pair

from specviz.decoding.request import prepare
from specviz.records.errors import SpecvizError
from specviz.records.runs import Seconds
from specviz.records.settings import RunSettings, SamplingParams
from specviz.ui import duel as dueling
from specviz.ui import engine, unwatched
from specviz.ui.duel import Duel, duel, progress, runs_of

REQUEST = prepare(tiny_pair("llama"), RunSettings("Once upon", sampling=SamplingParams(0), max_new_tokens=100))


@pytest.fixture
def timed(monkeypatch):
    """Has runs take the seconds it is given, plain and speculative in turn; returns the settings of those made."""

    def take(*seconds: float) -> list[RunSettings]:
        left, made = list(seconds), []

        def unrecorded(request):
            made.append(request.settings)
            warming = request.settings.max_new_tokens == unwatched.WARM_UP_TOKENS
            took = 0.0 if warming else left.pop(0)
            drafted = "" if request.settings.drafter is None else "a"
            one = a_round(drafted, seconds=Seconds(0.0, took, 0.0, took, took), stop_reason="length")
            yield types.SimpleNamespace(emitted=one.emitted, bytes=0, record=lambda: one)

        monkeypatch.setattr(engine, "unrecorded", unrecorded)
        return made

    return take


@pytest.fixture
def shares(monkeypatch):
    """Has runs have a processor for these shares of their time, plain and speculative in turn, later ones always."""

    def take(*given: float) -> None:
        left, real = list(given), unwatched.measure

        def measure(request, run):
            for one in real(request, run):
                over = one is not None and one.rounds is not None
                yield replace(one, share=left.pop(0) if left else 1.0) if over else one

        monkeypatch.setattr(dueling, "measure", measure)

    return take


def fought(least_share: float = 0.0) -> tuple[float, float]:
    """The seconds of both sides, plain first."""
    [*_, done] = duel(REQUEST, least_share)
    assert isinstance(done, Duel) and done.undisturbed
    return tuple(sum(one.seconds.total for one in side) for side in (done.plain, done.fast))


def test_the_pair_of_the_median_speedup_counts_whatever_befell_another(timed):
    # 2x, then a moment in which something else had the processor, then 1.5x.
    made = timed(2.0, 1.0, 2.0, 40.0, 3.0, 2.0)
    assert fought() == (3.0, 2.0)
    assert [one.drafter for one in made] == [None, "draft_model"] * 4
    assert set(made) == set(runs_of(REQUEST.settings))


def test_long_runs_are_measured_once(timed, monkeypatch):
    monkeypatch.setattr(dueling, "MOST_SECONDS", 0.0)
    timed(2.0, 1.0)
    assert fought() == (2.0, 1.0)


def test_of_two_pairs_the_one_that_promises_less_counts(timed, monkeypatch):
    monkeypatch.setattr(dueling, "PAIRS", 2)
    timed(2.0, 1.0, 3.0, 2.0)
    assert fought() == (3.0, 2.0)


def test_a_pair_in_which_something_else_had_the_processor_does_not_count(timed, shares):
    # 4x, because plain decoding was held up, and 0.5x, because its rival was; then 2x, 3x and 1.5x in peace.
    timed(8.0, 2.0, 1.0, 2.0, 2.0, 1.0, 3.0, 1.0, 3.0, 2.0)
    shares(0.5, 1.0, 1.0, 0.7)
    assert fought(0.8) == (2.0, 1.0)


def test_where_every_pair_was_disturbed_the_speedup_is_not_known(timed, shares):
    made = timed(*[2.0, 1.0] * dueling.MOST_PAIRS)
    shares(*[0.9, 0.64] * dueling.MOST_PAIRS)
    [*_, done] = duel(REQUEST, 0.8)
    assert len(made) == 2 + 2 * dueling.MOST_PAIRS
    assert not done.undisturbed
    with pytest.raises(SpecvizError, match=r"Something else had the processor for 36 % of the time") as refused:
        done.speedup(REQUEST)
    assert refused.value.field == "measured"
    outcome = done.outcome(REQUEST)
    assert (outcome["speedup"], outcome["disturbed"]) == (None, 36)
    calm = replace(done, share=0.8)
    assert calm.undisturbed and calm.speedup(REQUEST).ratio == calm.outcome(REQUEST)["speedup"] == pytest.approx(
        4
    )  # two tokens a round, in half the time


def share_of(device, seconds_of_work, monkeypatch):
    """Of a run of one round that sleeps a while, then works so long."""

    def unrecorded(request):
        time.sleep(0.2)
        end = time.thread_time() + seconds_of_work
        while time.thread_time() < end:
            pass
        one = a_round("", stop_reason="length")
        yield types.SimpleNamespace(emitted=one.emitted, bytes=0, record=lambda: one)

    monkeypatch.setattr(engine, "unrecorded", unrecorded)
    pair = types.SimpleNamespace(device=torch.device(device))
    [*_, last] = unwatched.measure(types.SimpleNamespace(pair=pair), 0)
    return last.share


def test_a_run_that_waits_has_no_processor_meanwhile_and_a_gpus_run_may_wait(monkeypatch):
    assert share_of("cpu", 0.0, monkeypatch) < 0.25 < 0.4 < share_of("cpu", 2.0, monkeypatch) <= 1
    assert share_of("cuda", 0.0, monkeypatch) is None
    assert Duel([], [], "H100", share=None, least_share=0.8).undisturbed


def test_nothing_of_a_round_is_handed_over_while_it_is_measured(monkeypatch):
    monkeypatch.setattr(unwatched, "REPORT_EVERY", float("inf"))
    [*handed, done] = [one for one in duel(REQUEST, 0.0) if one is not None]
    sides = len(done.plain), len(done.fast)
    assert sides[0] == 100 and {one.tokens for one in handed} == {0}
    said = [progress(one, REQUEST.settings, "{}".format) for one in handed]
    assert said[:2] == [("common.warming_up", 0.0)] * 2
    assert {text for text, _ in said[2:]} == {"race.running_plain", "race.running_speculative"}
