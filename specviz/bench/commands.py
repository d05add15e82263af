"""The `bench` command: its options, what they mean, and what becomes of a report.

Torch is loaded when something is measured, so that --help answers at once.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from specviz.bench import work_command
from specviz.bench.contestants import Say
from specviz.bench.work import WorkReport
from specviz.records.errors import SpecvizError
from specviz.records.presets import CHAT_PRESETS, PRESETS

if TYPE_CHECKING:
    from specviz.bench.benchmark import Benchmark
    from specviz.bench.report import BenchReport
    from specviz.models.pair import ModelPair


def add_options(parser: argparse.ArgumentParser, drafters: Sequence[str]) -> None:
    """All options but those that name a pair. drafters: their names, for the help text."""
    add = parser.add_argument
    add("--json", type=pathlib.Path, metavar="FILE", help="write all rows there")
    add("--quick", action="store_true", help="one story, fewer settings: under a minute on two cores")
    work_command.add_options(parser)
    names = {"type": _names, "default": [], "metavar": "NAME[,NAME]"}
    add("--only", **names, help=f"these drafters alone, of {', '.join(drafters)}")
    add("--preset", **names, help="these prompts alone, such as story,repeats")
    add("--temperature", type=float, metavar="T", help="this temperature alone, instead of 0 and 1")
    add(
        "--passes",
        choices=("auto", "plain"),
        default="auto",
        help="auto compiles them first, once a machine; plain leaves them to transformers (default: %(default)s)",
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def check(options: argparse.Namespace) -> None:
    """Raises SpecvizError for what can be seen to be wrong before a model is loaded."""
    work_command.check(options)
    for name in ("quick", "preset"):
        if options.prompts is not None and getattr(options, name):
            raise SpecvizError("--{name} is not for prompts of one's own: leave it out.", name, name=name)
    from specviz.bench.bench_plan import planned, preset_named

    planned(options.quick, options.only, ())
    for name in options.preset:
        preset_named(name, (*PRESETS, *CHAT_PRESETS))


def ordered(options: argparse.Namespace, pair: ModelPair, say: Say) -> Benchmark:
    """The benchmark of a pair, still to be run; `say` hears lines of progress. Raises as `Benchmark.of` does."""
    from specviz.bench.benchmark import Benchmark

    temperatures = (0.0, 1.0) if options.temperature is None else (options.temperature,)
    return Benchmark.of(
        pair, options.quick, say, options.only, temperatures, options.preset, options.chat, options.max_new_tokens
    )


def save(report: BenchReport | WorkReport, path: pathlib.Path | None) -> None:
    """Writes a report's values to a file, if one is named."""
    if path:
        path.write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False), encoding="utf-8")
