"""What the Lossless tab asks to be tested, as plain values, and the request for one of its runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from specviz.decoding import engine
from specviz.decoding.lossless import LAB_RULES, RUN_TOKENS, check
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError
from specviz.ui.deployment import Settings
from specviz.ui.orders import Order

MOST_RUNS = 20_000
MOST_SUPPORT = 16

#: At temperature 0 two texts of at most this many tokens are compared.
MOST_GREEDY = 128


@dataclass(frozen=True, slots=True)
class Trial:
    """What is to be tested. rule: a name from `LAB_RULES`. support: the test's own top-k, 2 to `MOST_SUPPORT`."""

    rule: str
    runs: float
    support: float


def trial_order(order: Order, trial: Trial) -> Order:
    """The order of one run of the test: two tokens are looked at, and few enough can come that all pairs are counted.

    Raises SpecvizError for a trial that the page does not offer.
    """
    if trial.rule not in LAB_RULES:
        raise SpecvizError("There is no rule {name} to test.", "rule", name=repr(trial.rule))
    for name, most in (("runs", MOST_RUNS), ("support", MOST_SUPPORT)):
        value = getattr(trial, name)
        if value is None or value != value or not 1 <= value <= most or value != int(value):
            raise SpecvizError("Give a whole number from 1 to {most}.", name, most=most)
    if order.temperature == 0:
        tokens = min(order.max_new_tokens, MOST_GREEDY)
        return replace(order, rule=LAB_RULES[trial.rule].engine_rule, max_new_tokens=tokens)
    return replace(
        order,
        rule=LAB_RULES[trial.rule].engine_rule,
        top_k=min(order.top_k or math.inf, trial.support),
        max_new_tokens=RUN_TOKENS,
    )


def trial_request(pair: ModelPair, order: Order, trial: Trial, settings: Settings) -> engine.Request:
    """The checked request of `trial_order`. Raises SpecvizError whose field is a shared control's or a `Trial`'s."""
    # As it stands first: what is wrong with the controls is said of the controls.
    replace(order, rule="auto").request(pair, settings)
    request = trial_order(order, trial).request(pair, settings)
    check(request, LAB_RULES[trial.rule])
    return request
