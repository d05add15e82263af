"""What real engines make of the embedded parts: ``python -m tools.engines``."""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import torch

from specviz.bench.machine import name_of
from specviz.records.settings import PLAIN
from specviz.records.streams import carried_out
from tools.engines.measuring import LENGTH, PROMPTS, measure
from tools.engines.recording import record
from tools.engines.servers import GAMMA, write_missing
from tools.engines.table import table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.engines", description="Real engines on the embedded pair.")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write down what a server answers, for the tests")
    recording.add_argument("engine", choices=["llama.cpp", "vLLM"])
    recording.add_argument("drafter", help=f"or {PLAIN}")
    recording.add_argument("file", type=pathlib.Path)
    measuring = commands.add_parser("measure", help="which parts an engine loads, and what it makes of them")
    measuring.add_argument("file", type=pathlib.Path)
    measuring.add_argument("engines", nargs="+", help="with their versions: llama.cpp=b10434 vLLM=0.32.0")
    measuring.add_argument("--converter", default="convert_hf_to_gguf.py", help="llama.cpp's (default: %(default)s)")
    printing = commands.add_parser("table", help="a table of what was measured")
    printing.add_argument("file", type=pathlib.Path)
    files = commands.add_parser("gguf", help="write target, draft and EAGLE head as GGUF files")
    files.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args(arguments)
    if options.command == "record":
        record(options.engine, None if options.drafter == PLAIN else options.drafter, options.file)
    elif options.command == "measure":
        options.file.write_text(json.dumps(measured(options.engines, options.converter), indent=1) + "\n", "utf-8")
    elif options.command == "table":
        print(table(json.loads(options.file.read_text(encoding="utf-8"))), end="")
    else:
        options.folder.mkdir(parents=True, exist_ok=True)
        for drafter in ("draft_model", "eagle"):
            write_missing(options.folder, drafter)


def measured(engines: Sequence[str], converter: str) -> dict[str, Any]:
    """The report that `table` reads."""
    rows = []
    for named in engines:
        engine, version = named.split("=")
        for row in measure(engine, version, converter):
            print(row, file=sys.stderr)
            rows.append(row)
    done = {"date": datetime.date.today().isoformat(), "processor": name_of(torch.device("cpu"))}
    return done | {"prompts": len(PROMPTS), "length": LENGTH, "gamma": GAMMA, "rows": rows}


if __name__ == "__main__":
    sys.exit(carried_out(main))
