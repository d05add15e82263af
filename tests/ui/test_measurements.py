"""A run and its plain rival, measured: which of several measurements counts."""

import threading

from handmade import a_round

from specviz.records.runs import Seconds
from specviz.records.words import words
from specviz.ui import measurements as measure
from specviz.ui.measurements import Duel
from specviz.ui.orders import Order, PairName

ORDER = Order(PairName(), "Once upon", "draft_model", 3, 0.0, 0, 1.0, 0.0, 100, 5)


class Timed:
    """A runner whose runs take the seconds it was given, plain and speculative in turn."""

    def __init__(self, *seconds: float):
        self.left = list(seconds)
        self.orders = []

    def batches(self, order):
        self.orders.append(order)
        warming = order.max_new_tokens == measure.WARM_UP_TOKENS
        took = 0.0 if warming else self.left.pop(0)
        drafted = "" if order.drafter is None else "a"
        yield [a_round(drafted, seconds=Seconds(0.0, took, 0.0, took, took), stop_reason="length")]


def duel(runner, halt=None) -> Duel:
    made = Duel(runner, ORDER, halt or threading.Event())
    for _ in made.progress(words()):
        pass
    return made


def seconds(rounds) -> float:
    return sum(one.seconds.total for one in rounds)


def test_the_pair_of_the_median_speedup_counts_whatever_befell_another():
    # 2x, then a moment in which something else had the processor, then 1.5x.
    runner = Timed(2.0, 1.0, 2.0, 40.0, 3.0, 2.0)
    made = duel(runner)
    assert (seconds(made.plain_rounds), seconds(made.fast_rounds)) == (3.0, 2.0)
    assert [one.drafter for one in runner.orders] == [None, "draft_model"] * 4


def test_long_runs_are_measured_once(monkeypatch):
    monkeypatch.setattr(measure, "MOST_SECONDS", 0.0)
    made = duel(Timed(2.0, 1.0))
    assert (seconds(made.plain_rounds), seconds(made.fast_rounds)) == (2.0, 1.0)


def test_of_two_pairs_the_one_that_promises_less_counts(monkeypatch):
    monkeypatch.setattr(measure, "PAIRS", 2)
    made = duel(Timed(2.0, 1.0, 3.0, 2.0))
    assert (seconds(made.plain_rounds), seconds(made.fast_rounds)) == (3.0, 2.0)


def test_what_is_halted_has_no_runs():
    halt = threading.Event()
    halt.set()
    made = duel(Timed(), halt)
    assert made.runs(request=None) is None
