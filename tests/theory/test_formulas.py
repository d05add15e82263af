"""The closed forms give what the paper's tables print."""

import json
import pathlib

import pytest

from specviz.theory import formulas as theory

TABLES = json.loads((pathlib.Path(__file__).parents[1] / "data" / "leviathan.json").read_text())


@pytest.mark.parametrize("alpha, gamma, _operations, speed", TABLES["table_1"]["rows"])
def test_table_1_speed(alpha, gamma, _operations, speed):
    assert theory.expected_speedup(alpha, gamma, cost=0) == pytest.approx(speed, abs=0.005001)


@pytest.mark.parametrize("row", TABLES["table_4"]["rows"])
def test_table_4_expected_speedup(row):
    _task, _draft, _temperature, gamma, alpha, cost, expected, _measured = row
    assert theory.expected_speedup(alpha, gamma, cost) == pytest.approx(expected, abs=0.07)


def test_a_perfect_draft_gives_gamma_plus_one_and_a_useless_one_gives_one():
    assert theory.expected_tokens(1, 5) == 6
    assert theory.expected_tokens(0, 5) == 1


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("cost", [0.05, 0.2, 0.4, 0.6, 0.8])
def test_some_speedup_exists_exactly_where_acceptance_exceeds_cost(alpha, cost):
    best = max(theory.expected_speedup(alpha, gamma, cost) for gamma in range(1, 40))
    assert (best > 1) == (alpha > cost) == (theory.optimal_gamma(alpha, cost) > 0)


@pytest.mark.parametrize("alpha, gamma, cost", [(1.1, 2, 0), (-0.1, 2, 0), (0.5, -1, 0), (0.5, 2, -0.1)])
def test_impossible_arguments_are_refused(alpha, gamma, cost):
    with pytest.raises(ValueError):
        theory.expected_speedup(alpha, gamma, cost)
