"""One file's verdict: what is right, which mistake it is where something is wrong, and its smallest counterexample."""

from __future__ import annotations

import functools
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

from specviz.grading.child import FUNCTIONS
from specviz.grading.laws import Setup, Speculated
from specviz.grading.mistakes import wrong_solutions
from specviz.grading.questions import PARTS, QUESTIONS, Answered, answers, counted_runs
from specviz.grading.solutions import RIGHT
from specviz.grading.student import Fault, Student, loaded

#: For each function that is right.
POINTS = 10

#: Files that are graded at a time. One interpreter answers for the models that they ask, and nobody's limited time
#: should pass in waiting for it.
MOST_AT_ONCE = 4

#: How much nearer than the right solution a wrong one must be that names the mistake.
MUCH_NEARER = 4

#: How far apart numbers may be that only rounding tells apart.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Verdict:
    """On one function. parts: which of its parts are right. sentence: the mistake, or what it did instead of answering;
    empty if it is right. counterexample: the smallest numbers that show it, in sentences. runs: of `counted_runs`, as
    "0.2 1.3"; empty where they were not made, or the function did not always answer."""

    function: str
    parts: dict[str, bool]
    sentence: str = ""
    counterexample: list[str] = field(default_factory=list)
    runs: str = ""

    @property
    def points(self) -> float:
        return POINTS * sum(self.parts.values()) / len(self.parts)


@dataclass(frozen=True)
class Grade:
    """Of one file. fault: why nothing could be graded. tried: what it is not allowed to do. walls: as of `Student`."""

    file: str
    verdicts: list[Verdict] = field(default_factory=list)
    fault: str = ""
    tried: list[str] = field(default_factory=list)
    walls: dict[str, bool] = field(default_factory=dict)

    @property
    def points(self) -> float:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def sentence(self) -> str:
        """What is wrong, in the first sentence; empty if nothing is."""
        return next(filter(None, [self.fault, *(verdict.sentence for verdict in self.verdicts)]), "")


def grade_all(paths: Sequence[pathlib.Path], folder: pathlib.Path, counted: bool = False) -> Iterator[Grade]:
    """Grades files side by side, in their order. folder: which holds them all, or the one file. counted: whether the
    functions are also run for the page to count."""
    names = [path.name if path == folder else path.relative_to(folder).as_posix() for path in paths]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_AT_ONCE)) as pool:
        yield from pool.map(grade, paths, names, repeat(counted))


def grade(path: pathlib.Path, name: str, counted: bool = False) -> Grade:
    """Runs a file's functions, each in a process of its own; whatever the file does, there is a grade of this name."""
    try:
        with loaded(path) as student:
            defined, walls, tried = student.defined, student.walls, student.tried
        verdicts = []
        for function in defined:
            with loaded(path) as student:
                verdict = verdict_on(function, answers(student, function))
                verdicts.append(replace(verdict, runs=_runs(student, function)) if counted else verdict)
                tried = [*tried, *(what for what in student.tried if what not in tried)]
    except Fault as fault:
        return Grade(name, fault=fault.sentence)
    return Grade(name, verdicts, "" if defined else f"It defines none of {', '.join(FUNCTIONS)}.", tried, walls)


def _runs(student: Student, name: str) -> str:
    try:
        return " ".join(".".join(map(str, ids)) for ids in counted_runs(student, name))
    except (Fault, LookupError):
        return ""


def verdict_on(name: str, given: list[Answered]) -> Verdict:
    """The verdict on a function by its answers."""
    right = right_answers(name)
    wrong = [(mine, ours) for mine, ours in zip(given, right) if _apart(mine, ours) > ROUNDING]
    lost = {ours.part for ours in right[len(given) :]} | (set(PARTS[name]) - {mine.part for mine in given})
    faults = [mine for mine in given if isinstance(mine.answer, Fault)]
    lost |= {mine.part for mine in [*faults, *(mine for mine, _ in wrong)]}
    parts = {part: part not in lost for part in PARTS[name]}
    if not lost:
        return Verdict(name, parts)
    shown = [pair for pair in wrong if not isinstance(pair[0].answer, Fault)]
    sentence = _mistake(name, given) if shown else ""
    if not sentence and faults and not (shown and faults[0].part == "longer texts"):
        sentence = faults[0].answer.sentence
    sentence = sentence or f"{name} is wrong in a way that has no name here."
    return Verdict(name, parts, sentence, [counterexample(name, *pair) for pair in shown[:1]])


@functools.cache
def right_answers(name: str) -> list[Answered]:
    return answers(RIGHT, name)


def _mistake(name: str, given: list[Answered]) -> str:
    """The sentence of the mistake whose answers are the student's, or much nearer to them than the right ones."""
    nearest, sentence = _far(given, right_answers(name), math.inf) / MUCH_NEARER, ""
    for mistake, wrong in wrong_solutions(name):
        if (far := _far(given, QUESTIONS[name](wrong), nearest)) < nearest:
            nearest, sentence = far, mistake
    return sentence


def _far(given: list[Answered], others: Iterable[Answered], most: float) -> float:
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
    if not isinstance(ours, Speculated) or isinstance(mine, Fault):
        return _distance(mine, ours)
    if mine is None:
        # There were too many ways for the coins to fall: longer texts decide.
        return 0.0
    if one.part == "law":
        return float(mine.distance(ours))
    if one.part == "length":
        return float(mine.lengths != ours.lengths)
    # Who reads the prompt in a pass of its own asks once more.
    return min(1.0, abs(mine.passes - ours.passes), abs(mine.passes - ours.passes - 1))


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
    if name == "accept" and "u" not in mine.given:
        return f"With {given}: it must pass {_coins(ours.answer)}, and passes {_coins(mine.answer)}."
    return f"With {given}: it must give {written(ours.answer)}, and gives {written(mine.answer)}."


def _coins(passing: float | list[bool]) -> str:
    if isinstance(passing, list):
        return "for coins that are not all below those that it refuses"
    return "for every u" if passing == 1 else f"for u below {written(passing)}" if passing else "for no u"


def _of_texts(part: str, setup: Setup, mine: Speculated, ours: Speculated) -> str:
    given = f"With prompt = {list(setup.prompt)}, num_draft_tokens = {setup.gamma}, max_new_tokens = {setup.length}: "
    if part == "length":
        return given + f"it gives {' or '.join(map(str, sorted(mine.lengths)))} new ids."
    if part == "passes":
        times = f"{written(ours.passes)} times on average, and is asked {written(mine.passes)} times"
        return given + f"the target must be asked {times}."
    text = max(mine.law.keys() | ours.law.keys(), key=lambda text: abs(mine.law.get(text, 0) - ours.law.get(text, 0)))
    rows = [setup.pairs[place][0] for place, _ in setup.steps(text)]
    chance = " × ".join(written(row[id]) for row, id in zip(rows, text))
    must, does = (written(found.law.get(text, 0.0)) for found in (ours, mine))
    steps = f"on the way to {list(text)} the target gives {', then '.join(map(written, rows))}"
    return f"{given}{steps}, so this text must come with probability {chance} = {must}; it comes with {does}."


def written(value: Any) -> str:
    """Numbers, short enough to compute with."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(written, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
