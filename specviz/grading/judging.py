"""One file's verdict: what is right, which mistake it is where something is wrong, and its smallest counterexample."""

from __future__ import annotations

import functools
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from specviz.grading.child import FUNCTIONS
from specviz.grading.laws import Setup, Speculated
from specviz.grading.mistakes import wrong_solutions
from specviz.grading.questions import PARTS, Answered, answers
from specviz.grading.solutions import RIGHT
from specviz.grading.student import Fault, Student

#: For each function that is right.
POINTS = 10

#: How much nearer than the right solution a wrong one must be that names the mistake.
MUCH_NEARER = 4

#: How far apart two numbers are that only rounding tells apart.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Verdict:
    """On one function. parts: which of its parts are right. sentence: the mistake, or what it did instead of answering;
    empty if it is right. counterexample: the smallest numbers that show it."""

    function: str
    parts: dict[str, bool]
    sentence: str = ""
    counterexample: str = ""

    @property
    def points(self) -> float:
        return POINTS * sum(self.parts.values()) / len(self.parts)

    @property
    def right(self) -> bool:
        return all(self.parts.values())


@dataclass(frozen=True)
class Grade:
    """Of one file. fault: why it could not be loaded, or is not homework. tried: what it is not allowed to do."""

    file: str
    verdicts: list[Verdict] = field(default_factory=list)
    fault: str = ""
    tried: list[str] = field(default_factory=list)
    walls: dict[str, bool] = field(default_factory=dict)

    @property
    def points(self) -> float:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def right(self) -> bool:
        return not self.fault and all(verdict.right for verdict in self.verdicts)

    @property
    def sentence(self) -> str:
        """What to say first."""
        return self.fault or next((verdict.sentence for verdict in self.verdicts if not verdict.right), "")


def grade(path: pathlib.Path) -> Grade:
    """Runs a file's functions in processes of their own; whatever the file does, there is a grade."""
    tried: list[str] = []
    try:
        with Student(path) as student:
            defined, walls, tried = student.defined, student.walls, student.refused
        verdicts = []
        for name in defined:
            with Student(path) as student:
                verdicts.append(_verdict(name, answers(student, name)))
                tried += [what for what in student.refused if what not in tried]
    except Fault as fault:
        return Grade(path.name, fault=fault.sentence, tried=tried)
    fault = "" if defined else f"It defines none of {', '.join(FUNCTIONS)}."
    return Grade(path.name, verdicts, fault, tried, walls)


def grade_all(paths: Sequence[pathlib.Path]) -> Iterator[Grade]:
    """Grades files side by side, in their order."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(grade, paths)


def _verdict(name: str, given: list[Answered]) -> Verdict:
    right = right_answers(name)
    wrong = [(mine, ours) for mine, ours in zip(given, right) if _apart(mine, ours) > ROUNDING]
    wrong += [(mine, mine) for mine in given[len(right) :] if isinstance(mine.answer, Fault)]
    parts = dict.fromkeys(PARTS[name], True) | {mine.part: False for mine, _ in wrong}
    if len(given) < len(right) + (name == "speculate"):
        parts |= dict.fromkeys({answered.part for answered in right[len(given) :]}, False)
    if all(parts.values()):
        return Verdict(name, parts)
    faults = [mine.answer.sentence for mine, _ in wrong if isinstance(mine.answer, Fault)]
    shown = [(mine, ours) for mine, ours in wrong if not isinstance(mine.answer, Fault)]
    sentence = (shown and _mistake(name, given)) or next(iter(faults), f"{name} is wrong, in a way that has no name here.")
    return Verdict(name, parts, sentence, " ".join(counterexample(name, *pair) for pair in _smallest(shown)))


def _smallest(shown: list[tuple[Answered, Answered]]) -> list[tuple[Answered, Answered]]:
    """The first question that was answered wrongly, and the first about a law if that is another one."""
    firsts = shown[:1] + [pair for pair in shown[1:] if pair[0].part == "law"][:1]
    return firsts[: 1 + (bool(firsts) and firsts[0][0].part == "coins")]


@functools.cache
def right_answers(name: str) -> list[Answered]:
    return answers(RIGHT, name, own=True)


@functools.cache
def _wrong_answers(name: str) -> list[tuple[str, list[Answered]]]:
    return [(sentence, answers(wrong, name, own=True)) for sentence, wrong in wrong_solutions(name)]


def _mistake(name: str, given: list[Answered]) -> str:
    """The sentence of the mistake whose answers are the student's, or much nearer to them than the right ones."""
    nearest, sentence = _far(given, right_answers(name), math.inf) / MUCH_NEARER, ""
    for mistake, others in _wrong_answers(name):
        if (far := _far(given, others, nearest)) < nearest:
            nearest, sentence = far, mistake
    return sentence


def _far(given: list[Answered], others: list[Answered], most: float) -> float:
    """How far those questions that were answered at all are from others, added up; as soon as it is `most`, that."""
    far = 0.0
    for mine, other in zip(given, others):
        far += 0.0 if isinstance(mine.answer, Fault) else _apart(mine, other)
        if far >= most:
            return most
    return far


def _apart(one: Answered, other: Answered) -> float:
    """How far two answers to a question are from each other: 0 if they agree, at most 1."""
    mine, ours = one.answer, other.answer
    if not isinstance(mine, Speculated) or not isinstance(ours, Speculated):
        return _distance(mine, ours)
    if one.part == "law":
        return mine.distance(ours)
    if one.part == "length":
        return float(mine.lengths != ours.lengths)
    # Who reads the prompt in a pass of its own asks once more.
    apart = min(abs(mine.passes - ours.passes), abs(mine.passes - ours.passes - 1))
    return 0.0 if apart < 0.1 and not mine.exact else min(1.0, apart)


def _distance(one: Any, other: Any) -> float:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        return max(map(_distance, one, other), default=0.0)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return float(math.isnan(one) != math.isnan(other)) if math.isnan(one + other) else min(1.0, abs(one - other))
    return float(one is not other)


def counterexample(name: str, mine: Answered, ours: Answered) -> str:
    """A wrong answer with all the numbers that it takes to find the right one by hand."""
    if "setup" in mine.given:
        return _of_texts(mine.part, mine.given["setup"], mine.answer, ours.answer)
    given = ", ".join(f"{what} = {written(value)}" for what, value in mine.given.items())
    if mine.part == "law" and name == "verify":
        return f"Over all drafts and coins with p = {written(mine.given['p'][0])}, the first token follows {written(mine.answer)}."
    if name == "accept" and "u" not in mine.given:
        return f"With {given}: it must pass {_coins(ours.answer)}, and passes {_coins(mine.answer)}."
    return f"With {given}: it must give {written(ours.answer)}, and gives {written(mine.answer)}."


def _coins(passing: float | list[bool]) -> str:
    if isinstance(passing, list):
        return "for coins that are not all below those that it refuses"
    return "for every u" if passing == 1 else f"for u below {written(passing)}" if passing else "for no u"


def _of_texts(part: str, setup: Setup, mine: Speculated, ours: Speculated) -> str:
    given = f"prompt = {list(setup.prompt)}, num_draft_tokens = {setup.gamma}, max_new_tokens = {setup.length}"
    if part == "length":
        return f"With {given}: it gives {' or '.join(map(str, sorted(mine.lengths)))} new ids."
    if part == "passes":
        times = f"{written(ours.passes)} times on average, and is asked {written(mine.passes)} times"
        return f"With {given}: the target must be asked {times}."
    text = max(mine.law.keys() | ours.law.keys(), key=lambda text: abs(mine.law.get(text, 0) - ours.law.get(text, 0)))
    rows = setup.target([*setup.prompt, *text])[len(setup.prompt) - 1 :]
    steps = ", then ".join(written(row) for row, _ in zip(rows, text))
    chance = " × ".join(written(row[id]) for row, id in zip(rows, text))
    return (
        f"With {given}: on the way to {list(text)} the target gives {steps}, so this text must come with probability "
        f"{chance} = {written(setup.probability(text))}; over all coins it comes with {written(mine.law.get(text, 0))}."
    )


def written(value: Any) -> str:
    """Numbers, short enough to compute with."""
    if isinstance(value, (list, tuple)):
        parts = ", ".join(map(written, value))
        return f"({parts})" if isinstance(value, tuple) else f"[{parts}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
