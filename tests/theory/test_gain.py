"""What a class learned: simulated classes give back the gain that was put in, as often as the interval says."""

import math
import pathlib
import re
from collections.abc import Callable

import numpy
import pytest

from specviz.__main__ import main
from specviz.theory.gain import LEVEL, POWER, Gain, difference, normalised_gain, people_needed
from specviz.theory.statistics import student_t
from specviz.views.quiz import CHOICES, QUESTIONS

Classes = tuple[numpy.ndarray, numpy.ndarray]


def simulated(gain: float, people: int, slip: float = 0.0, classes: int = 1500, seed: int = 0) -> Classes:
    """Shares of right answers before and after, [classes, people] each.

    People know what they know by abilities of their own, learn `gain` of the rest, some more and some less, guess where
    they know nothing, and miss what they know with probability `slip`.
    """
    chance = numpy.random.default_rng(seed)
    ability, learning = (chance.beta(*shape, (classes, people, 1)) for shape in ((2, 3), (gain, 1 - gain)))
    known = chance.random((classes, people, len(QUESTIONS))) < ability
    later = known | (chance.random(known.shape) < learning)
    before, after = (
        numpy.where(knows, chance.random(known.shape) >= slip, chance.random(known.shape) < 1 / CHOICES).mean(-1)
        for knows in (known, later)
    )
    return before, after


def covered(gain: float, classes: Classes, estimate: Callable[..., Gain | None] = normalised_gain) -> float:
    """How often the interval holds the gain."""
    gains = [one for one in map(estimate, *classes) if one and one.low is not None]
    return numpy.mean([one.low <= gain <= one.high for one in gains])


@pytest.mark.parametrize("gain", [0.15, 0.4, 0.65])
def test_simulated_classes_give_back_the_gain_that_was_put_in(gain):
    large = simulated(gain, people=400, classes=200)
    assert numpy.mean([normalised_gain(*one).value for one in zip(*large)]) == pytest.approx(gain, abs=0.01)
    for people in (12, 25, 60):
        assert abs(covered(gain, simulated(gain, people)) - LEVEL) < 0.03, people


def test_slips_take_away_from_the_gain_what_they_take_away_from_knowledge():
    gain, slip, known, guess = 0.5, 0.1, 0.4, 1 / CHOICES
    expected = gain * (1 - known) * (1 - slip - guess) / (1 - guess - known * (1 - slip - guess))
    classes = simulated(gain, people=25, slip=slip)
    assert expected < gain - 0.05 and abs(covered(expected, classes) - LEVEL) < 0.025


def mean_of_gains(before: numpy.ndarray, after: numpy.ndarray) -> Gain:
    """Each person's own gain, averaged, without those who had everything right before."""
    some = before < 1
    return around((after[some] - before[some]) / (1 - before[some]))


def shares_learned(before: numpy.ndarray, after: numpy.ndarray) -> Gain:
    """What was learned of everything, known before or not."""
    return around(after - before)


def around(values: numpy.ndarray) -> Gain:
    reach = student_t(len(values) - 1, LEVEL) * values.std(ddof=1) / math.sqrt(len(values))
    return Gain(values.mean(), None, values.mean() - reach, values.mean() + reach)


def answers_for_people(before: numpy.ndarray, after: numpy.ndarray) -> Gain:
    """As if each answer came from another person, and as if all were known that was known before."""
    left, share = 1 - before.mean(), after.mean()
    value, reach = (
        (share - before.mean()) / left,
        1.96 * math.sqrt(share * (1 - share) / after.size / len(QUESTIONS)) / left,
    )
    return Gain(value, None, value - reach, value + reach)


@pytest.mark.parametrize("wrong", [mean_of_gains, shares_learned, answers_for_people])
def test_a_wrong_formula_does_not(wrong):
    assert covered(0.5, simulated(0.5, people=400), wrong) < LEVEL - 0.05


def test_a_difference_between_two_groups_is_covered_and_is_seen_with_the_people_that_it_needs():
    one, other = (simulated(gain, people=25, seed=seed) for gain, seed in ((0.6, 1), (0.3, 2)))
    pairs = [difference(normalised_gain(*a), normalised_gain(*b)) for a, b in zip(zip(*one), zip(*other))]
    known = [pair for pair in pairs if pair.low is not None]
    assert abs(numpy.mean([pair.low <= 0.3 <= pair.high for pair in known]) - LEVEL) < 0.025

    people = people_needed(0.3, float(numpy.mean([pair.spread for pair in known])))
    one, other = (simulated(gain, people, classes=1000, seed=seed) for gain, seed in ((0.6, 3), (0.3, 4)))
    pairs = [difference(normalised_gain(*a), normalised_gain(*b)) for a, b in zip(zip(*one), zip(*other))]
    assert abs(numpy.mean([pair.low > 0 for pair in pairs]) - POWER) < 0.05


def test_people_needed_are_those_of_cohens_table():
    # Statistical Power Analysis for the Behavioral Sciences, 1988, table 2.4.1: α = 0.05 (two-sided), power 0.80.
    assert [people_needed(size, 1) for size in (0.5, 0.8)] == [64, 26]
    assert people_needed(0.2, 1) == 394, "393.4, of which Cohen's table has 393"


def test_people_needed_are_those_that_teachers_are_told():
    told = (pathlib.Path(__file__).parents[2] / "docs" / "teaching.md").read_text(encoding="utf-8")
    sizes, people = (
        re.search(rf"^\| {row} \| (.*) \|$", told, re.M) for row in ("difference of the gains", "people in each group")
    )
    due = [str(people_needed(float(size), 0.6)) for size in sizes[1].split(" | ")]
    assert len(due) == 4 and people[1].split(" | ") == due


def test_a_class_worked_by_hand():
    # Means 0.3 and 0.7: 0.4 of 0.7 was learned. Fieller: (0.4 − 0.7 g)² = t² / 4 (v_d − 2 g v_dm + g² v_m).
    gain = normalised_gain([0.0, 0.2, 0.4, 0.6], [0.6, 0.4, 0.8, 1.0])
    assert gain.value == pytest.approx(4 / 7)
    for end in (gain.low, gain.high):
        rest = numpy.array([0.6, 0.2, 0.4, 0.4]) - end * numpy.array([1.0, 0.8, 0.6, 0.4])
        assert abs(rest.mean()) / (rest.std(ddof=1) / 2) == pytest.approx(student_t(3, LEVEL))


@pytest.mark.parametrize(
    "before, after",
    [([0.2, 0.4], [0.6, 0.6]), ([0.2, 0.4, 0.4], [1.0, 1.0, 1.0]), ([1.0, 1.0, 0.8], [1.0, 1.0, 0.8])],
)
def test_where_people_cannot_tell_there_is_no_interval(before, after):
    gain = normalised_gain(before, after)
    assert gain.low is None and gain.high is None


def test_where_everything_was_right_before_nothing_could_be_learned():
    assert normalised_gain([1.0] * 5, [0.8] * 5) is None


# The command


def table(people: dict[str, list[tuple[str, str]]], separator: str = ",") -> str:
    rows = [["form", "item", "before", "after", "seconds", "person"]]
    for person, marks in people.items():
        rows += [["A", item, *pair, "1.0", person] for item, pair in zip(QUESTIONS, marks)]
    return "".join(separator.join(row) + "\r\n" for row in rows)


LEARNED, LATER, ALONE = [("0", "1")] * 5, [("1", "1"), *[("0", "0")] * 4], [("0", "")] * 5


def test_the_tables_of_two_groups_are_compared_however_they_were_put_together(tmp_path, capsys):
    groups = [{f"a-{i}": LEARNED if i % 3 else LATER for i in range(12)}, {f"b-{i}": LATER for i in range(9)}]
    groups[1]["b-9"] = LEARNED
    one, other = tmp_path / "page", tmp_path / "text"
    one.mkdir(), other.mkdir()
    (one / "all.csv").write_text(table(groups[0]) + table({"a-12": ALONE}), encoding="utf-8")
    (other / "1.csv").write_text(table(groups[1], ";"), encoding="utf-16")
    (other / "2.csv").write_text(table({"b-9": LEARNED}), encoding="utf-8")  # once more
    assert main(["gain", str(one), "--against", str(other)]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["12", "of", "13", "people", "answered"] in [line[1:6] for line in printed]
    assert ["10", "of", "10", "people", "answered"] in [line[1:6] for line in printed]
    # 4 of 12 knew one of five things before and 8 nothing; 9 of 10, and one.
    rows = [line[2:5] for line in printed if line[:2] == ["all", "five"]]
    assert rows == [["0.07", "0.73", "0.71"], ["0.18", "0.28", "0.12"], ["0.59", *rows[2][1:]]]


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("", "Nobody in these files"),
        (table({"a": ALONE}), "Nobody in these files"),
        ("a,b\n1,2\n", "not a table"),
        ('{"schema": "specviz.run/1"}', "not a table"),
        (table({"a": [("2", "1")] * 5}), "not a table"),
        (table({"": LEARNED}), "not a table"),
    ],
)
def test_what_is_no_such_table_gets_a_sentence(tmp_path, capsys, text, sentence):
    file = tmp_path / "answers.csv"
    file.write_text(text, encoding="utf-8")
    assert main(["gain", str(file)]) == 2
    assert sentence in capsys.readouterr().err
