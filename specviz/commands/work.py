"""The user's own prompts in `bench` and `advise`: the options, the requests and the progress."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from specviz.bench.contest import Contest
from specviz.bench.contestants import Event, Failed, Progress
from specviz.commands.grammars import add_grammar_option, grammar_of
from specviz.commands.output import progress
from specviz.records.prompts import CHAT_PRESETS, PRESETS, on_each, read_prompts, text_of
from specviz.records.settings import RunSettings, SamplingParams

if TYPE_CHECKING:
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair

#: New tokens of each run, unless --max-new-tokens says otherwise.
TOKENS = 128

#: Seconds between two lines of progress.
REPORT_EVERY = 5.0


def add_work_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    kinds = "one per line, or JSON with prompt or messages, and optionally domain"
    add("--prompts", type=pathlib.Path, metavar="FILE", help=f"measure on these prompts: {kinds}")
    add(
        "--chat",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="fill prompts into the model's chat template (default: if the model has one)",
    )
    add("--max-new-tokens", type=int, metavar="N", help=f"length of each run (default: {TOKENS}; bench --quick: less)")
    add_grammar_option(parser)


def minutes(text: str) -> float:
    """The value of --minutes. Raises argparse.ArgumentTypeError, which names the option."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return value


def check_work(options: argparse.Namespace) -> None:
    """Reads the grammar. Raises SpecvizError for errors that can be found before a model is loaded."""
    options.grammar = grammar_of(options)
    if options.temperature is not None:
        SamplingParams(options.temperature)
    if options.max_new_tokens is not None:
        RunSettings("", max_new_tokens=options.max_new_tokens)
    if options.prompts is not None:
        read_prompts(text_of(options.prompts))


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
        grammar=options.grammar or "",
    )
    if options.prompts is None:
        return [prepare(pair, settings)], [first.domain]
    prompts = read_prompts(text_of(options.prompts))
    requests = on_each(prompts, settings, pair.conversation, lambda filled: prepare(pair, filled))
    return requests, [prompt.domain for prompt in prompts]


def follow(events: Iterable[Event | None], contest: Contest) -> None:
    """Has the contest hear of everything. Prints how long it will take, now and then how far it is, and who failed."""
    last: float | None = None
    for event in events:
        contest.hear(event)
        if isinstance(event, Failed):
            progress(f"✗ {event.title}: {event.reason}")
        left = event.seconds_left if isinstance(event, Progress) else None
        if isinstance(event, Progress) and left is not None and (last is None or last - left >= REPORT_EVERY):
            last = left
            progress(f"about {left:.0f} s left, {contest.entries[event.number].title}")


def faults_of(contest: Contest) -> list[dict[str, str]]:
    """The contestants that failed: "title" and "reason"."""
    return [{"title": title, "reason": str(reason)} for title, reason in contest.failed.items()]
