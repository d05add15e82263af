"""The `bench` command: its options, what they mean, and what becomes of a report.

Torch is loaded when something is measured, so that --help answers at once. What needs the page or a browser is measured
by the caller, above this folder.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from specviz.bench.contestants import PLAIN, Contestant, Say
from specviz.bench.work import WorkReport
from specviz.records.errors import SpecvizError
from specviz.records.presets import CHAT_PRESETS, PRESETS
from specviz.records.prompts import read_prompts
from specviz.records.settings import RunSettings, SamplingParams

if TYPE_CHECKING:
    from specviz.bench.report import BenchReport
    from specviz.bench.size_benchmark import SizeReport
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair

#: For the help text; `model_sizes` loads torch.
SIZE_NAMES = ("8b", "1b", "tiny")


def add_options(parser: argparse.ArgumentParser, drafters: Sequence[str]) -> None:
    """All options but those that name a pair. drafters: their names, for the help text."""
    add = parser.add_argument
    add("--json", type=pathlib.Path, metavar="FILE", help="write all rows there")
    add("--quick", action="store_true", help="one story, fewer settings: under a minute on two cores")
    add_work(parser)
    names = {"type": _names, "default": [], "metavar": "NAME[,NAME]"}
    add("--only", **names, help=f"these drafters alone, of {', '.join(drafters)}")
    add("--preset", **names, help="these prompts alone, such as story,repeats")
    add("--temperature", type=float, metavar="T", help="this temperature alone, instead of 0 and 1")
    add("--page", action="store_true", help="also: one run with and without a browser watching (needs playwright)")
    add(
        "--passes",
        choices=("auto", "plain"),
        default="auto",
        help="auto compiles them first, once a machine; plain leaves them to transformers (default: %(default)s)",
    )
    drawn = "draw the report: .html, or .png and .svg (needs playwright)"
    add("--figure", type=pathlib.Path, metavar="FILE", help=drawn)
    sizes = f"instead: random models of a real size, {', '.join(SIZE_NAMES)}, and an oracle for a drafter"
    add("--size", metavar="NAME", help=sizes)
    add("--alpha", type=float, metavar="A", help="--size: how often the oracle is right (default: 0.8)")
    add("--gamma", type=int, metavar="N", help="--size: draft tokens a round (default: 4)")


def add_work(parser: argparse.ArgumentParser) -> None:
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
    add("--max-new-tokens", type=int, default=128, metavar="N", help="of each run (default: %(default)s)")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def own_requests(options: argparse.Namespace, pair: ModelPair, temperature: float) -> tuple[list[Request], list[str]]:
    """Plain decoding of each prompt, and the domain of each; without a file, of the first preset that fits the pair.

    Raises SpecvizError, whose field is an option's, for a file that cannot be read or prompts that do not fit.
    """
    from specviz.decoding.request import prepare

    chat = pair.has_chat_template if options.chat is None else options.chat
    prompts = (
        (CHAT_PRESETS if chat else PRESETS)[:1] if options.prompts is None else read_prompts(_text_of(options.prompts))
    )
    requests = []
    for prompt in prompts:
        settings = RunSettings(
            pair.conversation(prompt.messages) if prompt.messages else prompt.prompt,
            drafter=None,
            sampling=SamplingParams(temperature),
            max_new_tokens=options.max_new_tokens,
            chat=chat and not prompt.messages,
        )
        try:
            requests.append(prepare(pair, settings))
        except SpecvizError as error:
            if options.prompts is None:
                raise
            raise SpecvizError(
                "{name} of the prompts: {reason}", "prompts", name=prompt.name, reason=error.message
            ) from error
    return requests, [prompt.domain for prompt in prompts]


def _text_of(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise SpecvizError("The file of prompts cannot be read: {reason}.", "prompts", reason=reason) from error


def measure_work(options: argparse.Namespace, pair: ModelPair, say: Say) -> WorkReport:
    """The benchmark on prompts of one's own. Raises as `own_requests` does, and for a drafter that cannot run."""
    from specviz.bench.advise_command import followed
    from specviz.bench.advising import require_chains, work_on
    from specviz.bench.benchmark import advised_chains
    from specviz.bench.machine import describe_machine

    temperature = 0.0 if options.temperature is None else options.temperature
    chains = [one for one in advised_chains(pair) if one.mode in (options.only or [one.mode])]
    contestants = [Contestant(PLAIN), *chains]
    require_chains(contestants)
    requests, domains = own_requests(options, pair, temperature)
    rows = followed(work_on(requests, domains, contestants), say)
    return WorkReport(describe_machine(pair), asdict(pair.info()), temperature, len(requests), rows)


def check(options: argparse.Namespace) -> None:
    """Raises SpecvizError for what can be seen to be wrong before a model is loaded."""
    for name in ("alpha", "gamma"):
        if getattr(options, name) is not None:
            raise SpecvizError("--{name} belongs to --size: name a size to measure.", name, name=name)
    if options.temperature is not None:
        SamplingParams(options.temperature)
    from specviz.bench.bench_plan import planned

    planned(options.quick, options.only, options.preset)


def measure(options: argparse.Namespace, pair: ModelPair, say: Say) -> BenchReport:
    """The benchmark of a pair; `say` hears lines of progress. Raises as `benchmark.measure` does."""
    from specviz.bench import benchmark

    temperatures = (0.0, 1.0) if options.temperature is None else (options.temperature,)
    return benchmark.measure(pair, options.quick, say, options.only, temperatures, options.preset)


def measure_size(options: argparse.Namespace, say: Say) -> SizeReport:
    """The benchmark of a size. Raises SpecvizError for options that it would ignore, and as `size_benchmark` does."""
    for name in ("only", "preset", "page", "target", "draft"):
        if getattr(options, name):
            raise SpecvizError("--size makes models and runs of its own: leave --{name} out.", name, name=name)
    from specviz.bench import size_benchmark

    return size_benchmark.measure(
        options.size,
        0.8 if options.alpha is None else options.alpha,
        4 if options.gamma is None else options.gamma,
        device=options.device,
        dtype=options.dtype,
        temperature=options.temperature or 0.0,
        quick=options.quick,
        say=say,
    )


def tell(report: BenchReport | SizeReport, path: pathlib.Path | None) -> None:
    """Prints a report and writes its values to a file, if one is named."""
    from specviz.bench import printed
    from specviz.bench.report import BenchReport

    print(printed.bench_text(report) if isinstance(report, BenchReport) else printed.size_text(report))
    save(report, path)


def save(report: BenchReport | SizeReport | WorkReport, path: pathlib.Path | None) -> None:
    """Writes a report's values to a file, if one is named."""
    if path:
        path.write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False), encoding="utf-8")
