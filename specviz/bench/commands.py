"""The commands that measure, `bench`, `advise` and `check`: their options and their output.

Torch is loaded when something is measured, so that --help answers at once.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from specviz.bench.advice import Offer, WorkReport, WorkRow, offers_of
from specviz.bench.contestants import PLAIN, Contestant, Say
from specviz.drafters import DRAFTERS
from specviz.records.errors import SpecvizError
from specviz.records.prompts import CHAT_PRESETS, PRESETS, on_each, read_prompts, text_of
from specviz.records.settings import RunSettings, SamplingParams

if TYPE_CHECKING:
    from specviz.bench.advising import Course
    from specviz.bench.equal_texts import Finding
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair

#: New tokens of each run on prompts of one's own, unless others are asked for.
TOKENS = 128

#: Seconds between two lines of progress.
REPORT_EVERY = 5.0

CHECK_SCHEMA = "specviz.check/1"

SIGNS = {"right": "✓", "wrong": "✗", "slow": "!", "skipped": "–"}


# Options


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """All options but those that name a pair."""
    add = parser.add_argument
    add("--json", type=pathlib.Path, metavar="FILE", help="write all rows there")
    add("--quick", action="store_true", help="one story, fewer settings: under a minute on two cores")
    add_work_options(parser)
    names = {"type": _names, "default": [], "metavar": "NAME[,NAME]"}
    add("--only", **names, help=f"these drafters alone, of {', '.join(DRAFTERS)}")
    add("--preset", **names, help="these prompts alone, such as story,repeats")
    add("--temperature", type=float, metavar="T", help="this temperature alone, instead of 0 and 1")
    add(
        "--passes",
        choices=("auto", "plain"),
        default="auto",
        help="auto compiles them first, once a machine; plain leaves them to transformers (default: %(default)s)",
    )


def add_advise_options(parser: argparse.ArgumentParser) -> None:
    """All options except those that name a pair."""
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--minutes", type=minutes, default=1.0, help="how long it may take (default: %(default)s)")
    add_work_options(parser)


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """All options except those that name a pair."""
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all findings there")
    parser.add_argument("--minutes", type=minutes, default=1.0, help="how long it may take (default: %(default)s)")
    parser.add_argument(
        "--full",
        action="store_true",
        help="also every rule and every precision: some minutes",
    )


def add_work_options(parser: argparse.ArgumentParser) -> None:
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


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def minutes(text: str) -> float:
    """The value of --minutes. Raises argparse.ArgumentTypeError, which names the option."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return value


# bench


def check_bench(options: argparse.Namespace) -> None:
    """Raises SpecvizError for errors that can be found before a model is loaded."""
    check_work(options)
    for name in ("quick", "preset"):
        if options.prompts is not None and getattr(options, name):
            raise SpecvizError("--{name} cannot be combined with your own prompts: leave it out.", name, name=name)
    from specviz.bench.benchmark import planned, preset_named

    planned(options.quick, options.only, ())
    for name in options.preset:
        preset_named(name, (*PRESETS, *CHAT_PRESETS))


def check_work(options: argparse.Namespace) -> None:
    """Raises SpecvizError for errors that can be found before a model is loaded."""
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
    )
    if options.prompts is None:
        return [prepare(pair, settings)], [first.domain]
    prompts = read_prompts(text_of(options.prompts))
    requests = on_each(prompts, settings, pair.conversation, lambda one: prepare(pair, one))
    return requests, [prompt.domain for prompt in prompts]


def work_of(options: argparse.Namespace, pair: ModelPair) -> tuple[WorkReport, Iterator[Course | None]]:
    """The benchmark on prompts of one's own: its report, still empty, and the courses that fill it (`follow`).

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
    """Says how long it will take, now and then how far it is, and which contestants failed.

    rows, failed: hold the measurements and the failures so far ("title" and "reason") at any time.
    """
    last, known = None, 0
    for course in courses:
        if course is None:
            continue
        rows[:] = course.rows or rows
        for title, reason in course.failed[known:]:
            failed.append({"title": title, "reason": str(reason)})
            say(f"✗ {title}: {reason}")
        known = len(course.failed)
        if last is None or last - course.seconds_left >= REPORT_EVERY:
            last = course.seconds_left
            what = f", {course.contestant.title}" if course.contestant else ""
            say(f"about {course.seconds_left:.0f} s left{what}")


# advise


@dataclass
class Measured:
    """The figures of each way to draft so far, on this pair and with other draft models that are available."""

    groups: list[tuple[Any, ...]] = field(default_factory=list)  # see `offers_of`
    failed: list[dict[str, str]] = field(default_factory=list)  # "title" and "reason"

    @property
    def offers(self) -> list[Offer]:
        return [offer for group in self.groups for offer in offers_of(*group)]

    @property
    def rows(self) -> list[WorkRow]:
        """Of the pair itself, by domain."""
        return self.groups[0][0] if self.groups else []


def measure_advice(
    options: argparse.Namespace, pair: ModelPair, load: Callable[[str], ModelPair], say: Say, measured: Measured
) -> None:
    """Fills `measured`.

    load: the pair with the draft model of this name. Raises SpecvizError where the pair has nothing to draft with.
    """
    from specviz.bench.advising import SECONDS, advise, require_chains
    from specviz.bench.benchmark import advised_chains
    from specviz.bench.lanes import reason_of
    from specviz.drafters.registry import servers_of

    def measure(pair: ModelPair, contestants: Sequence[Contestant], draft: str | None) -> None:
        requests, domains = requests_of(options, pair, options.temperature)
        rows: list[WorkRow] = []
        servers = servers_of(pair, (one.mode for one in contestants))
        measured.groups.append((rows, draft, pair.translation is not None, servers))
        follow(advise(requests, domains, [Contestant(PLAIN), *contestants], seconds), say, rows, measured.failed)

    contestants, others = advised_chains(pair), list(_other_drafts(options))
    require_chains([Contestant(PLAIN), *contestants, *map(Contestant, others)])
    seconds = SECONDS * options.minutes / (1 + len(others))
    named = pair.draft.name_or_path if options.draft and pair.draft else None
    if contestants:
        measure(pair, contestants, named)
    for name in others:
        say(f"loading {name}")
        try:
            other = load(name)
            measure(other, [one for one in advised_chains(other) if one.mode == "draft_model"], name)
            other.free()
        except Exception as error:
            # However it fails, the advice is about all others.
            measured.failed.append({"title": name, "reason": str(reason_of(error))})
            say(f"✗ {name}: {reason_of(error)}")


def _other_drafts(options: argparse.Namespace) -> Iterator[str]:
    """Draft models of the catalogue that fit this target and this machine, and were downloaded."""
    from specviz.models.catalog import drafts_at_hand, needed_bytes
    from specviz.models.placement import within_reach

    for entry in drafts_at_hand(options.target or ""):
        if entry.draft not in options.draft and needed_bytes(entry) <= within_reach(options.device):
            yield entry.draft


# check


def run_check(
    pair: ModelPair,
    load: Callable[[str], ModelPair],
    minutes: float,
    full: bool,
    say: Say,
    findings: list[Finding],
) -> None:
    """Prints every finding as it comes, and adds it to `findings`.

    load: the pair once more, in the dtype of this name. say: receives a line for each check.
    """
    from specviz.bench.check import check_pair, full_checks
    from specviz.bench.equal_texts import Finding

    for one in check_pair(pair, 60 * minutes, full_checks(load) if full else ()):
        if isinstance(one, Finding):
            findings.append(one)
            print(line_of(one), flush=True)
        else:
            say(f"{one} …")


def check_report(pair: ModelPair, findings: Iterable[Finding], seconds: float, interrupted: bool) -> dict[str, Any]:
    """The values of the JSON file. interrupted: the check was ended before it was over."""
    from specviz.bench.machine import describe_machine

    def plain(finding: Finding) -> dict[str, str | None]:
        values = {name: getattr(finding, name) for name in ("state", "what", "seen", "advice")}
        return {name: value and str(value) for name, value in values.items()}

    return {
        "schema": CHECK_SCHEMA,
        "machine": describe_machine(pair),
        "pair": asdict(pair.info()),
        "seconds": round(seconds, 1),
        "interrupted": interrupted,
        "findings": [plain(one) for one in findings],
    }


def line_of(finding: Finding) -> str:
    """``✓ trees, target: read as the branches alone are``; advice on a line of its own."""
    advice = f"\n    → {finding.advice}" if finding.advice else ""
    return f"{SIGNS[finding.state]} {finding.what}: {finding.seen}{advice}"


def check_summary(findings: Iterable[Finding], seconds: float, interrupted: bool) -> str:
    """How many there are of each kind, on a line."""
    counts = {sign: sum(SIGNS[one.state] == sign for one in findings) for sign in SIGNS.values()}
    return " · ".join(f"{sign} {count}" for sign, count in counts.items()) + (
        f" · {seconds:.0f} s" + " · interrupted" * interrupted
    )
