"""A run and its plain rival, measured: which of several measurements counts."""

import threading

from handmade import a_round

from specviz.records.runs import Seconds
from specviz.records.settings import RunSettings, SamplingParams
from specviz.records.words import words
from specviz.ui import duel as dueling
from specviz.ui.duel import Duel
from specviz.ui.orders import Order
from specviz.ui.pairs import PairName

ORDER = Order(PairName(), RunSettings("Once upon", sampling=SamplingParams(0), max_new_tokens=100))


class Timed:
    """A runner whose runs take the seconds it was given, plain and speculative in turn."""

    def __init__(self, *seconds: float):
        self.left = list(seconds)
        self.orders = []

    def batches(self, order):
        self.orders.append(order)
        warming = order.settings.max_new_tokens == dueling.WARM_UP_TOKENS
        took = 0.0 if warming else self.left.pop(0)
        drafted = "" if order.settings.drafter is None else "a"
        yield [a_round(drafted, seconds=Seconds(0.0, took, 0.0, took, took), stop_reason="length")]


def fought(runner, halt=None) -> Duel:
    made = Duel(runner, ORDER, halt or threading.Event())
    for _ in made.progress(words()):
        pass
    return made


def seconds(rounds) -> float:
    return sum(one.seconds.total for one in rounds)


def test_the_pair_of_the_median_speedup_counts_whatever_befell_another():
    # 2x, then a moment in which something else had the processor, then 1.5x.
    runner = Timed(2.0, 1.0, 2.0, 40.0, 3.0, 2.0)
    made = fought(runner)
    assert (seconds(made.plain_rounds), seconds(made.fast_rounds)) == (3.0, 2.0)
    assert [one.settings.drafter for one in runner.orders] == [None, "draft_model"] * 4


def test_long_runs_are_measured_once(monkeypatch):
    monkeypatch.setattr(dueling, "MOST_SECONDS", 0.0)
    made = fought(Timed(2.0, 1.0))
    assert (seconds(made.plain_rounds), seconds(made.fast_rounds)) == (2.0, 1.0)


def test_of_two_pairs_the_one_that_promises_less_counts(monkeypatch):
    monkeypatch.setattr(dueling, "PAIRS", 2)
    made = fought(Timed(2.0, 1.0, 3.0, 2.0))
    assert (seconds(made.plain_rounds), seconds(made.fast_rounds)) == (3.0, 2.0)


def test_what_is_halted_has_no_runs():
    halt = threading.Event()
    halt.set()
    made = fought(Timed(), halt)
    assert made.runs(request=None) is None
