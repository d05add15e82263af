"""What real engines make of the embedded parts: ``python -m tools.engines``."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence

from specviz.records.assets import EMBEDDED
from specviz.records.settings import PLAIN
from tools.engines.gguf_files import write_gguf
from tools.engines.recording import record


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.engines", description="Real engines on the embedded pair.")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write down what a server answers, for the tests")
    recording.add_argument("engine", choices=["llama.cpp", "vLLM"])
    recording.add_argument("drafter", help=f"or {PLAIN}")
    recording.add_argument("file", type=pathlib.Path)
    files = commands.add_parser("gguf", help="write target, draft and EAGLE head as GGUF files")
    files.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args(arguments)
    if options.command == "record":
        record(options.engine, None if options.drafter == PLAIN else options.drafter, options.file)
    else:
        options.folder.mkdir(parents=True, exist_ok=True)
        for name in ("target", "draft", "eagle"):
            write_gguf(EMBEDDED / name, options.folder / f"{name}.gguf", EMBEDDED / "target")


if __name__ == "__main__":
    main()
