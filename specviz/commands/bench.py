"""`bench`: measures plain decoding, every drafter, transformers and servers, taking turns."""

from __future__ import annotations

import argparse
import functools
import pathlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specviz.bench.contestants import PLAIN, Contestant
from specviz.bench.served import looked_at, servers_named
from specviz.bench.vary import read_vary
from specviz.commands import pairs
from specviz.commands.output import keeping, progress, with_faults, write
from specviz.commands.work import add_work_options, check_work, faults_of, follow, requests_of
from specviz.drafters import DRAFTERS
from specviz.records.errors import SpecvizError
from specviz.records.prompts import CHAT_PRESETS, PRESETS
from specviz.records.tables import aligned
from specviz.records.words import words
from specviz.servers.connection import KEY
from specviz.views.terminal import work_table

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair

ABOUT = "measure plain decoding, every drafter, transformers and servers, taking turns"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--json", type=pathlib.Path, metavar="FILE", help="write all rows there")
    add("--quick", action="store_true", help="one story, fewer settings: under a minute on two cores")
    add_work_options(parser)
    names: dict[str, Any] = {"type": _names, "default": [], "metavar": "NAME[,NAME]"}
    add("--only", **names, help=f"only these drafters, of {', '.join(DRAFTERS)}")
    about = f"these inference servers as well, with the key in {KEY} if they want one"
    add("--server", default="", metavar="URL[,URL]", help=about)
    add("--preset", **names, help="only these prompts, such as story,repeats")
    add("--temperature", type=float, metavar="T", help="only this temperature (default: 0 and 1; with --prompts: 0)")
    about = "each drafter by its defaults with these values alone, such as confidence=0,0.3; repeatable"
    add("--vary", action="append", default=[], metavar="NAME=A,B", help=about)
    add(
        "--passes",
        choices=("auto", "plain"),
        default="auto",
        help="auto: compile them first, once per machine; plain: transformers' own passes (default: %(default)s)",
    )
    pairs.add_pair_options(parser)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def main(options: argparse.Namespace) -> int:
    """Exit status 1 if a contestant failed."""
    _check(options)
    pair = pairs.load(options, options.passes)
    return (_on_prompts if options.prompts else _on_presets)(options, pair)


def _check(options: argparse.Namespace) -> None:
    """Raises SpecvizError for errors that can be found before a model is loaded."""
    check_work(options)
    for name in ("quick", "preset", "vary"):
        if options.prompts is not None and getattr(options, name):
            raise SpecvizError("--{name} cannot be combined with your own prompts: leave it out.", name, name=name)
    options.vary = read_vary("; ".join(options.vary))
    for name in ("temperature", "max_new_tokens"):
        if name in options.vary and getattr(options, name) is not None:
            raise SpecvizError(
                "--{name} is given by itself and under --vary: leave one of them out.",
                "vary",
                name=name.replace("_", "-"),
            )
    options.server = servers_named(options.server)
    from specviz.bench.benchmark import preset_named, size_of

    size_of(options.quick, options.only, ())
    for name in options.preset:
        preset_named(name, (*PRESETS, *CHAT_PRESETS))


def _on_presets(options: argparse.Namespace, pair: ModelPair) -> int:
    from specviz.bench.benchmark import Benchmark
    from specviz.bench.report import bench_text, save

    temperatures = (0.0, 1.0) if options.temperature is None else (options.temperature,)
    plan = (
        options.only,
        temperatures,
        options.preset,
        options.chat,
        options.max_new_tokens,
        options.vary,
        options.server,
        options.grammar,
    )
    bench = Benchmark.of(pair, options.quick, progress, *plan)

    def text(interrupted: bool) -> str:
        return bench_text(bench.report(interrupted)) if bench.rows else ""

    def write_rows(interrupted: bool) -> None:
        write(options, "json", functools.partial(save, bench.report(interrupted)))

    with keeping(text, write_rows):
        bench.run()
    return int(bool(bench.failures.reasons))


def _on_prompts(options: argparse.Namespace, pair: ModelPair) -> int:
    """Every drafter on the user's own prompts."""
    from specviz.bench.advising import contest_of, measure_all, require_chains
    from specviz.bench.benchmark import advised_chains
    from specviz.bench.machine import describe_machine
    from specviz.bench.report import PromptsReport, save

    temperature, machine = options.temperature or 0.0, describe_machine(pair)
    chains = advised_chains(pair, only=options.only)
    servers = [Contestant.by(looked_at(served, pair.texts.decode)) for served in options.server]
    contestants = [Contestant.of(PLAIN), *chains, *servers]
    require_chains(contestants)
    requests, domains = requests_of(options, pair, temperature)
    contest = contest_of(requests, domains, contestants)

    def text(interrupted: bool) -> str:
        rows = contest.by_domain()
        return with_faults(
            aligned(words().translated(work_table(rows))) if rows else "", faults_of(contest), interrupted
        )

    def write_rows(interrupted: bool) -> None:
        pair_info, rows = asdict(pair.info()), contest.by_domain()
        report = PromptsReport(machine, pair_info, temperature, len(requests), rows, faults_of(contest), interrupted)
        write(options, "json", functools.partial(save, report))

    with keeping(text, write_rows):
        follow(measure_all(requests, contestants), contest)
    return int(bool(contest.failed))
