"""One's own work on the command line: the options that `bench` and `advise` share, and what becomes of them.

Torch is loaded when something is measured, so that --help answers at once.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from specviz.bench.contestants import PLAIN, Contestant, Say
from specviz.bench.work import WorkReport, WorkRow
from specviz.records.presets import CHAT_PRESETS, PRESETS
from specviz.records.prompts import on_each, read_prompts, text_of
from specviz.records.settings import RunSettings, SamplingParams

if TYPE_CHECKING:
    from specviz.bench.advising import Course
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair

#: New tokens of each run, unless others are asked for.
TOKENS = 128

#: Seconds between two lines that say how far it is.
TELL_EVERY = 5.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that name one's own work, which `bench` and `advise` share."""
    add = parser.add_argument
    kinds = "a text a line, or JSON lines with prompt or messages, and optionally a domain"
    add("--prompts", type=pathlib.Path, metavar="FILE", help=f"measure on these prompts: {kinds}")
    add(
        "--chat",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="fill prompts into the model's chat template (default: if it has one)",
    )
    add("--max-new-tokens", type=int, metavar="N", help=f"of each run (default: {TOKENS}; bench --quick: fewer)")


def check(options: argparse.Namespace) -> None:
    """Raises SpecvizError for what can be seen to be wrong before a model is loaded."""
    if options.temperature is not None:
        SamplingParams(options.temperature)
    if options.max_new_tokens is not None:
        RunSettings("", max_new_tokens=options.max_new_tokens)
    if options.prompts is not None:
        read_prompts(text_of(options.prompts))


def minutes(text: str) -> float:
    """The value of --minutes. Raises argparse.ArgumentTypeError, which names the option."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return value


def requests_of(options: argparse.Namespace, pair: ModelPair, temperature: float) -> tuple[list[Request], list[str]]:
    """Plain decoding of each prompt, and the domain of each; without a file, of the first preset that fits the pair.

    Raises SpecvizError, whose field is an option's, for a file that cannot be read or prompts that do not fit.
    """
    from specviz.decoding.request import prepare

    chat = pair.has_chat_template if options.chat is None else options.chat
    first, *_ = CHAT_PRESETS if chat else PRESETS
    settings = RunSettings(
        first.prompt,
        drafter=None,
        sampling=SamplingParams(temperature),
        max_new_tokens=TOKENS if options.max_new_tokens is None else options.max_new_tokens,
        chat=chat,
    )
    if options.prompts is None:
        return [prepare(pair, settings)], [first.domain]
    prompts = read_prompts(text_of(options.prompts))
    requests = on_each(prompts, settings, pair.conversation, lambda one: prepare(pair, one))
    return requests, [prompt.domain for prompt in prompts]


def measured(options: argparse.Namespace, pair: ModelPair) -> tuple[WorkReport, Iterator[Course | None]]:
    """The benchmark on prompts of one's own: its report, still empty, and what fills it (`follow`).

    Raises as `requests_of` does, and for a drafter that cannot run.
    """
    from specviz.bench.advising import require_chains, work_on
    from specviz.bench.benchmark import advised_chains
    from specviz.bench.machine import describe_machine

    temperature = 0.0 if options.temperature is None else options.temperature
    chains = [one for one in advised_chains(pair) if one.mode in (options.only or [one.mode])]
    contestants = [Contestant(PLAIN), *chains]
    require_chains(contestants)
    requests, domains = requests_of(options, pair, temperature)
    report = WorkReport(describe_machine(pair), asdict(pair.info()), temperature, len(requests))
    return report, work_on(requests, domains, contestants)


def follow(courses: Iterable[Course | None], say: Say, rows: list[WorkRow], failed: list[dict[str, str]]) -> None:
    """Says how long it will take, now and then how far it is, and who failed.

    rows, failed: always hold what was measured so far, and who failed: "title" and "reason".
    """
    told, known = None, 0
    for course in courses:
        if course is None:
            continue
        rows[:] = course.rows or rows
        for title, reason in course.failed[known:]:
            failed.append({"title": title, "reason": str(reason)})
            say(f"✗ {title}: {reason}")
        known = len(course.failed)
        if told is None or told - course.seconds_left >= TELL_EVERY:
            told = course.seconds_left
            what = f", {course.contestant.title}" if course.contestant else ""
            say(f"about {course.seconds_left:.0f} s left{what}")
