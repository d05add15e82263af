"""A run and its plain rival, measured: which of several measurements counts."""

import types

import pytest
from handmade import a_round
from tiny import tiny_pair

from specviz.decoding.request import prepare
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


def fought() -> tuple[float, float]:
    """The seconds of both sides, plain first."""
    [*_, done] = duel(REQUEST)
    assert isinstance(done, Duel)
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


def test_nothing_of_a_round_is_handed_over_while_it_is_measured(monkeypatch):
    monkeypatch.setattr(unwatched, "REPORT_EVERY", float("inf"))
    [*handed, done] = [one for one in duel(REQUEST) if one is not None]
    sides = len(done.plain), len(done.fast)
    assert sides[0] == 100 and {one.tokens for one in handed} == {0}
    said = [progress(one, REQUEST.settings, "{}".format) for one in handed]
    assert said[:2] == [("common.warming_up", 0.0)] * 2
    assert {text for text, _ in said[2:]} == {"race.running_plain", "race.running_speculative"}
